#include "exporter/hf_index.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "json/value.h"
#include "program/names.h"

namespace chorus {

namespace {

constexpr size_t kMaxFileNameBytes = 255;

std::string index_field(std::string_view member) {
  return std::string(kHfIndexFile) + "." + std::string(member);
}

// A file directly in the folder: nothing that leads out of it.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxFileNameBytes && name != "." && name != ".." &&
         name.find_first_of("/\\") == name.npos && is_printable_utf8(name);
}

Status read_total_size(const json::Value& root, HfIndex& index) {
  const json::Value* metadata = root.find("metadata");
  if (metadata == nullptr || metadata->is_null()) return Status();
  if (!metadata->is_object()) {
    return data_loss(index_field("metadata"),
                     "expected an object, found " + std::string(metadata->type_name()));
  }
  const json::Value* size = metadata->find("total_size");
  if (size == nullptr || size->is_null()) return Status();
  // Some writers have it as 1.5e9.
  const auto number = size->to_integer("", 0, INT64_MAX);
  if (!number.ok()) {
    return data_loss(index_field("metadata.total_size"), number.status().message());
  }
  index.total_size = static_cast<uint64_t>(*number);
  return Status();
}

Status read_weight_map(const json::Value& root, HfIndex& index) {
  const json::Value* map = root.find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return data_loss(index_field("weight_map"), "expected an object of tensors and their files");
  }
  std::vector<std::string>& files = index.files;
  for (const auto& [tensor, file] : map->as_object()) {
    if (!is_printable_utf8(tensor)) {
      return data_loss(index_field("weight_map"), "expected names without control characters");
    }
    if (!file.is_string() || !is_plain_file_name(file.as_string())) {
      return data_loss(
          index_field("weight_map." + tensor),
          "expected the plain name of a file in the folder, found " +
              (file.is_string() ? quoted(file.as_string()) : std::string(file.type_name())));
    }
    files.push_back(file.as_string());
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  for (const auto& [tensor, file] : map->as_object()) {
    const auto at = std::lower_bound(files.begin(), files.end(), file.as_string());
    index.tensors.emplace_back(tensor, static_cast<size_t>(at - files.begin()));
  }
  if (files.empty()) {
    return data_loss(index_field("weight_map"), "expected at least one tensor, found none");
  }
  return Status();
}

}  // namespace

Result<HfIndex> parse_hf_index(std::string_view text) {
  const auto root = json::parse(text, kHfIndexFile);
  if (!root.ok()) return data_loss(kHfIndexFile, root.status().message());
  if (!root->is_object()) {
    return data_loss(kHfIndexFile, "expected an object, found " + std::string(root->type_name()));
  }
  HfIndex index;
  CHORUS_RETURN_IF_ERROR(read_total_size(*root, index));
  CHORUS_RETURN_IF_ERROR(read_weight_map(*root, index));
  return index;
}

Status check_hf_index(const HfIndex& index, std::span<const SafetensorsFile> files) {
  CHORUS_CHECK_EQ(files.size(), index.files.size());
  std::unordered_map<std::string_view, size_t> file_of;
  for (const auto& [name, file] : index.tensors) file_of.emplace(name, file);
  uint64_t num_found = 0;
  uint64_t num_bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const SafetensorsTensor& tensor : files[i].tensors()) {
      const auto claimed = file_of.find(tensor.name);
      if (claimed == file_of.end()) {
        return data_loss(tensor.name, "expected a tensor that " + std::string(kHfIndexFile) +
                                          " names, found another in " + index.files[i]);
      }
      if (claimed->second != i) {
        return data_loss(tensor.name, "expected it in " + index.files[claimed->second] +
                                          " alone, as the index says, found it in " +
                                          index.files[i]);
      }
      num_found += 1;
      num_bytes += tensor.data.size();
    }
  }
  if (num_found != index.tensors.size()) {
    for (const auto& [name, file] : index.tensors) {
      if (files[file].find_tensor(name) == nullptr) {
        return data_loss(name,
                         "expected it in " + index.files[file] + ", as the index says, found none");
      }
    }
  }
  if (index.total_size && *index.total_size != num_bytes) {
    return data_loss(index_field("metadata.total_size"), "expected " + std::to_string(num_bytes) +
                                                             ", the bytes of all tensors, found " +
                                                             std::to_string(*index.total_size));
  }
  return Status();
}

}  // namespace chorus
