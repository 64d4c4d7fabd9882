#include "exporter/describe_gguf.h"

#include <algorithm>

#include "program/names.h"

namespace chorus {

namespace {

std::string shown_text(const GgufFile& file, std::string_view key) {
  const auto text = file.find_string(key);
  if (!text.ok() || !text->has_value() || !is_printable_utf8(**text)) return {};
  return std::string(**text);
}

}  // namespace

GgufDescription describe(const GgufFile& file) {
  GgufDescription description;
  description.version = file.version();
  description.architecture = shown_text(file, "general.architecture");
  description.name = shown_text(file, "general.name");
  description.num_values = std::ssize(file.values());
  description.num_parts = file.num_parts();
  description.tokenizer_model = shown_text(file, "tokenizer.ggml.model");
  description.tokenizer_pre = shown_text(file, "tokenizer.ggml.pre");
  description.has_chat_template = file.find("tokenizer.chat_template") != nullptr;
  auto& totals = description.tensors_by_type;
  for (const GgufTensor& tensor : file.tensors()) {
    const std::string type = ggml_type_name(tensor.type);
    auto total = std::find_if(totals.begin(), totals.end(),
                              [&](const GgufTypeTotal& each) { return each.type == type; });
    if (total == totals.end()) total = totals.insert(totals.end(), {type, 0, 0, 0});
    total->num_tensors += 1;
    // In unsigned arithmetic: tensors of unknown types claim any size.
    const auto elements = static_cast<uint64_t>(tensor.num_elements());
    total->num_parameters =
        static_cast<int64_t>(static_cast<uint64_t>(total->num_parameters) + elements);
    description.num_parameters =
        static_cast<int64_t>(static_cast<uint64_t>(description.num_parameters) + elements);
    total->bytes += tensor.data.size();
    description.tensors.push_back(
        {std::string(tensor.name), type, tensor.dims, tensor.data.size()});
  }
  std::sort(totals.begin(), totals.end(), [](const GgufTypeTotal& a, const GgufTypeTotal& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.type < b.type;
  });
  return description;
}

}  // namespace chorus
