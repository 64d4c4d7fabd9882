// The texts of a Hugging Face folder, one after the other with a zero byte between: config.json,
// the index, generation_config.json, tokenizer_config.json, special_tokens_map.json,
// chat_template.json. An empty one counts as absent. What is taken is lowered with fixed weights.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "exporter/describe_hf.h"
#include "exporter/export.h"
#include "exporter/hf_index.h"
#include "exporter/testing/tiny_hf_folder.h"
#include "program/program.h"

namespace {

using namespace chorus;

std::optional<std::string> take_text(std::string_view& input) {
  const size_t size = input.find('\0');
  std::string text(input.substr(0, size));
  input.remove_prefix(size == input.npos ? input.size() : size + 1);
  if (text.empty()) return std::nullopt;
  return text;
}

// What the index says about two files of which the first holds the tiny weights.
void check_index(std::string_view text, const SafetensorsWriter::Bytes& weights) {
  const auto index = parse_hf_index(text);
  if (!index.ok()) {
    CHORUS_CHECK(index.status().code() == Code::kDataLoss && !index.status().field().empty());
    return;
  }
  CHORUS_CHECK(!index->files.empty());
  for (const std::string& name : index->files) {
    CHORUS_CHECK(!name.empty() && name.find('/') == name.npos && name != "..");
  }
  if (index->files.size() > 16) return;
  const SafetensorsWriter::Bytes nothing = SafetensorsWriter().finish();
  std::vector<SafetensorsFile> files;
  for (size_t i = 0; i < index->files.size(); ++i) {
    files.push_back(SafetensorsFile::parse(i == 0 ? weights : nothing).value());
  }
  const Status status = check_hf_index(*index, files);
  CHORUS_CHECK(status.ok() || !status.field().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const SafetensorsWriter::Bytes weights = tiny_safetensors().finish();
  std::string_view input(reinterpret_cast<const char*>(data), size);
  HfTexts texts;
  texts.config = take_text(input).value_or("");
  if (const auto index = take_text(input)) check_index(*index, weights);
  texts.generation_config = take_text(input);
  texts.tokenizer_config = take_text(input);
  texts.special_tokens_map = take_text(input);
  texts.chat_template_json = take_text(input);
  const auto folder = HfFolder::parse(texts, weights);
  if (!folder.ok()) {
    CHORUS_CHECK(folder.status().code() == Code::kDataLoss && !folder.status().field().empty());
    return 0;
  }
  (void)describe(*folder);
  auto image = export_folder(*folder);
  if (!image.ok()) {
    CHORUS_CHECK(!image.status().field().empty());
    return 0;
  }
  const auto program = Program::from_bytes(std::move(image).value());
  CHORUS_CHECK(program.ok());
  return 0;
}
