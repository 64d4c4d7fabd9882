#include "exporter/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "exporter/hf_index.h"
#include "program/names.h"

namespace chorus {

namespace {

namespace fs = std::filesystem;

constexpr char kWeightFile[] = "model.safetensors";
constexpr size_t kMaxTextBytes = size_t{64} << 20;

std::string in_folder(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

// Also for a link whose target is missing, so that such a one is refused and not passed over.
bool exists(const std::string& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

// A file of the folder; its errors name it as the folder does. nullopt when there is none.
Result<std::optional<MemoryMap>> map_file(const std::string& folder, const std::string& name) {
  const std::string path = in_folder(folder, name);
  if (!exists(path)) return std::optional<MemoryMap>();
  auto map = MemoryMap::open(path);
  if (!map.ok()) return data_loss(name, map.status().message());
  return std::optional(std::move(map).value());
}

Result<std::optional<std::string>> read_text(const std::string& folder, const std::string& name) {
  CHORUS_ASSIGN_OR_RETURN(const auto map, map_file(folder, name));
  if (!map) return std::optional<std::string>();
  const auto bytes = map->bytes();
  if (bytes.size() > kMaxTextBytes) {
    return data_loss(name, "expected at most " + std::to_string(kMaxTextBytes) + " bytes, found " +
                               std::to_string(bytes.size()));
  }
  return std::optional(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

Status missing_file(const std::string& name, const std::string& why) {
  return data_loss(name, "expected this file in the folder, found none" + why);
}

// A weight file of PyTorch's own formats, or an empty text.
std::string find_pytorch_file(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!is_printable_utf8(name)) continue;
    for (const char* ending : {".bin", ".pt", ".pth"}) {
      if (name.ends_with(ending)) found.push_back(name);
    }
  }
  return found.empty() ? std::string() : *std::min_element(found.begin(), found.end());
}

Status no_weights(const std::string& folder) {
  const std::string pytorch = find_pytorch_file(folder);
  if (!pytorch.empty()) {
    return unimplemented(pytorch,
                         "expected weights as safetensors, found PyTorch's own format, which may "
                         "hold code; save the model as safetensors");
  }
  return missing_file(kWeightFile, std::string(", nor ") + kHfIndexFile);
}

Result<HfTexts> read_texts(const std::string& folder) {
  HfTexts texts;
  CHORUS_ASSIGN_OR_RETURN(auto config, read_text(folder, "config.json"));
  if (!config) return missing_file("config.json", "");
  texts.config = std::move(*config);
  const std::pair<const char*, std::optional<std::string>*> others[] = {
      {"generation_config.json", &texts.generation_config},
      {"tokenizer_config.json", &texts.tokenizer_config},
      {"special_tokens_map.json", &texts.special_tokens_map},
      {"chat_template.jinja", &texts.chat_template_jinja},
      {"chat_template.json", &texts.chat_template_json}};
  for (const auto& [name, text] : others) {
    CHORUS_ASSIGN_OR_RETURN(*text, read_text(folder, name));
  }
  return texts;
}

}  // namespace

Result<HfFolder> HfFolder::open(const std::string& path) {
  std::error_code error;
  const fs::file_status found = fs::status(path, error);
  if (!fs::exists(found)) return not_found(path, "expected a model folder, found nothing");
  if (!fs::is_directory(found)) return invalid_argument(path, "expected a folder");
  HfFolder folder;
  CHORUS_ASSIGN_OR_RETURN(const HfTexts texts, read_texts(path));
  CHORUS_ASSIGN_OR_RETURN(folder.settings_, parse_hf_settings(texts));
  CHORUS_ASSIGN_OR_RETURN(auto tokenizer, map_file(path, "tokenizer.json"));
  if (tokenizer && tokenizer->bytes().empty()) {
    return data_loss("tokenizer.json", "expected an object, found an empty file");
  }
  if (tokenizer) folder.tokenizer_map_ = std::move(*tokenizer);
  folder.tokenizer_json_ = folder.tokenizer_map_.bytes();
  CHORUS_RETURN_IF_ERROR(folder.open_weights(path));
  folder.list_tensors();
  return folder;
}

Result<HfFolder> HfFolder::parse(const HfTexts& texts, std::span<const std::byte> weights,
                                 std::span<const std::byte> tokenizer_json) {
  HfFolder folder;
  CHORUS_ASSIGN_OR_RETURN(folder.settings_, parse_hf_settings(texts));
  folder.tokenizer_json_ = tokenizer_json;
  folder.file_names_ = {kWeightFile};
  CHORUS_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::parse(weights));
  folder.files_.push_back(std::move(file));
  folder.list_tensors();
  return folder;
}

Status HfFolder::open_weights(const std::string& path) {
  // Where both are there, transformers reads the one file, too.
  if (exists(in_folder(path, kWeightFile))) {
    file_names_ = {kWeightFile};
    return open_files(path);
  }
  CHORUS_ASSIGN_OR_RETURN(const auto text, read_text(path, kHfIndexFile));
  if (!text) return no_weights(path);
  CHORUS_ASSIGN_OR_RETURN(const HfIndex index, parse_hf_index(*text));
  file_names_ = index.files;
  CHORUS_RETURN_IF_ERROR(open_files(path));
  return check_hf_index(index, files_);
}

Status HfFolder::open_files(const std::string& path) {
  for (const std::string& name : file_names_) {
    if (!exists(in_folder(path, name))) {
      return missing_file(name, ", though " + std::string(kHfIndexFile) + " names it");
    }
    auto file = SafetensorsFile::open(in_folder(path, name));
    if (!file.ok()) {
      const Status& status = file.status();
      // Of the file as such; a tensor's name says enough by itself.
      const bool whole = status.field() == in_folder(path, name);
      if (whole) return data_loss(name, status.message());
      if (status.field().starts_with("header")) return status.within(name);
      return Status(status.code(), status.field(), status.message() + ", in " + name);
    }
    files_.push_back(std::move(file).value());
  }
  return Status();
}

void HfFolder::list_tensors() {
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsTensor& tensor : file.tensors()) {
      tensors_.push_back(&tensor);
      index_.emplace(tensor.name, &tensor);
    }
  }
}

const SafetensorsTensor* HfFolder::find_tensor(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : found->second;
}

}  // namespace chorus
