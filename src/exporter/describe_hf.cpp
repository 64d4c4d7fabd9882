#include "exporter/describe_hf.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "program/names.h"

namespace chorus {

namespace {

std::string shown(std::string_view text) {
  return is_printable_utf8(text) ? std::string(text) : std::string();
}

std::string shown_member(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  return value != nullptr && value->is_string() ? shown(value->as_string()) : std::string();
}

HfSpecialToken shown_token(HfSpecialToken token) {
  token.text = shown(token.text);
  return token;
}

// A size of the text model: at the top, else in text_config.
int64_t size_member(const json::Value& config, std::string_view key) {
  const json::Value* value = config.find(key);
  if (value == nullptr || value->is_null()) {
    const json::Value* text = config.find("text_config");
    value = text == nullptr ? nullptr : text->find(key);
  }
  if (value == nullptr) return -1;
  const auto size = value->to_integer("", 0, INT64_MAX);
  return size.ok() ? *size : -1;
}

void describe_config(const json::Value& config, HfDescription& d) {
  d.model_type = shown_member(config, "model_type");
  d.transformers_version = shown_member(config, "transformers_version");
  d.num_layers = size_member(config, "num_hidden_layers");
  d.width = size_member(config, "hidden_size");
  d.vocabulary = size_member(config, "vocab_size");
  d.context = size_member(config, "max_position_embeddings");
  if (const json::Value* list = config.find("architectures"); list != nullptr && list->is_array()) {
    for (const json::Value& each : list->as_array()) {
      if (each.is_string()) d.architectures.push_back(shown(each.as_string()));
    }
  }
  for (const auto& [key, value] : config.as_object()) {
    const bool model = value.is_object() && key.ends_with("_config") && key != "text_config" &&
                       key != "quantization_config";
    if (model && is_printable_utf8(key)) d.other_models.push_back(key);
  }
}

using TotalOfType = std::unordered_map<std::string_view, HfTypeTotal>;

void add_tensor(const SafetensorsTensor& tensor, TotalOfType& totals, HfDescription& d) {
  HfTypeTotal& total = totals[tensor.type_name];
  total.num_tensors += 1;
  // In unsigned arithmetic: tensors of unknown types claim any size.
  const auto elements = static_cast<uint64_t>(tensor.num_elements());
  total.num_parameters =
      static_cast<int64_t>(static_cast<uint64_t>(total.num_parameters) + elements);
  d.num_parameters = static_cast<int64_t>(static_cast<uint64_t>(d.num_parameters) + elements);
  total.bytes += tensor.data.size();
  HfFileDescription& file = d.files.back();
  file.num_tensors += 1;
  file.bytes += tensor.data.size();
  d.tensors.push_back({tensor.name, tensor.type_name, tensor.shape, tensor.data.size(), file.name});
}

}  // namespace

HfDescription describe(const HfFolder& folder) {
  HfDescription d;
  describe_config(folder.config(), d);
  TotalOfType totals;
  for (size_t i = 0; i < folder.files().size(); ++i) {
    d.files.push_back({folder.file_names()[i], 0, 0});
    for (const SafetensorsTensor& tensor : folder.files()[i].tensors()) {
      add_tensor(tensor, totals, d);
    }
  }
  for (auto& [type, total] : totals) {
    total.type = type;
    d.tensors_by_type.push_back(std::move(total));
  }
  std::sort(d.tensors_by_type.begin(), d.tensors_by_type.end(),
            [](const HfTypeTotal& a, const HfTypeTotal& b) {
              return a.bytes != b.bytes ? a.bytes > b.bytes : a.type < b.type;
            });
  const HfSettings& settings = folder.settings();
  d.tokenizer_bytes = folder.tokenizer_json().size();
  d.tokenizer_class = shown_member(settings.tokenizer_config, "tokenizer_class");
  d.bos = shown_token(settings.bos);
  d.eos = shown_token(settings.eos);
  d.pad = shown_token(settings.pad);
  d.eos_ids = settings.eos_ids;
  for (const HfChatTemplate& each : settings.chat_templates) {
    d.chat_templates.push_back(shown(each.name));
  }
  return d;
}

}  // namespace chorus
