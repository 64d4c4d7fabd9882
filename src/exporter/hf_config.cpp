#include "exporter/hf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "program/names.h"

namespace chorus {

namespace {

constexpr double kLargest = std::numeric_limits<float>::max();

constexpr std::string_view kHarmlessKeys[] = {
    // How the file was made and how Python would load it.
    "_attn_implementation_autoset", "_name_or_path", "architectures", "auto_map", "dtype",
    "is_llama_config", "model_type", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version",
    "use_cache", "use_bfloat16", "output_attentions", "output_hidden_states", "return_dict",
    // Training, and what is switched off outside it.
    "attention_dropout", "attn_pdrop", "dropout", "embd_pdrop", "hidden_dropout",
    "initializer_range", "resid_pdrop", "residual_dropout", "tf_legacy_loss",
    // How the work is divided, without a change of results.
    "chunk_size_feed_forward", "is_decoder",
    // Special tokens: read by parse_hf_settings.
    "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id", "eos_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "pad_token_id", "sep_token_id", "suppress_tokens",
    // Heads of other kinds, and texts about them.
    "finetuning_task", "id2label", "label2id", "num_labels", "problem_type", "task_specific_params",
    // Defaults of sampling, which older files keep here.
    "bad_words_ids", "do_sample", "diversity_penalty", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "length_penalty",
    "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_scores", "prefix", "remove_invalid_values",
    "repetition_penalty", "return_dict_in_generate", "temperature", "top_k", "top_p", "typical_p"};

// Members that older files write with the value that switches the feature off.
constexpr std::string_view kFalseKeys[] = {"add_cross_attention", "is_encoder_decoder",
                                           "rope_interleaved", "tie_encoder_decoder"};

bool contains(std::span<const std::string_view> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

bool is_harmless(std::string_view key, const json::Value& value) {
  if (value.is_null() || contains(kHarmlessKeys, key)) return true;
  if (key == "pruned_heads") return value.is_object() && value.as_object().empty();
  return contains(kFalseKeys, key) && value.is_bool() && !value.as_bool();
}

// What is in a config file is the file's fault, not the caller's.
Status in_file(const Status& status) { return data_loss(status.field(), status.message()); }

std::string found_text(const json::Value& value) {
  if (value.is_string()) return quoted(value.as_string());
  if (value.is_array() || value.is_object()) return std::string(value.type_name());
  return value.dump();
}

Result<bool> to_bool(const json::Value& value, std::string field) {
  if (value.is_bool()) return value.as_bool();
  return data_loss(std::move(field), "expected true or false, found " + found_text(value));
}

Status unexpected(std::string field, std::string_view neutral, const json::Value& found) {
  return unimplemented(std::move(field),
                       "expected none or " + std::string(neutral) + ", found " + found_text(found));
}

// Converts, with the code of a damaged file.
template <typename T>
Result<T> in_file(Result<T> result) {
  if (result.ok()) return result;
  return in_file(result.status());
}

}  // namespace

HfConfig::HfConfig(const json::Value& object, std::string name)
    : HfConfig(object, std::move(name), std::make_shared<Record>()) {}

HfConfig::HfConfig(const json::Value& object, std::string name, std::shared_ptr<Record> record)
    : object_(&object), name_(std::move(name)), record_(std::move(record)) {
  CHORUS_CHECK(object.is_object());
}

bool HfConfig::has(std::string_view key) const {
  const json::Value* value = object_->find(key);
  return value != nullptr && !value->is_null();
}

std::vector<std::string> HfConfig::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_->as_object()) {
    if (!value.is_null()) names.push_back(key);
  }
  return names;
}

const json::Value* HfConfig::take(std::string_view key) const {
  const json::Value* value = object_->find(key);
  if (value == nullptr || value->is_null()) return nullptr;
  record_->read.insert(value);
  return value;
}

Status HfConfig::missing(std::string_view key) const {
  return data_loss(field(key), "expected this member, found none");
}

// ---- Access ------------------------------------------------------------------------------------

Result<int64_t> HfConfig::get_int(std::string_view key, int64_t low, int64_t high) const {
  const json::Value* value = take(key);
  if (value == nullptr) return missing(key);
  return in_file(value->to_integer(field(key), low, high));
}

Result<int64_t> HfConfig::int_or(std::string_view key, int64_t otherwise, int64_t low,
                                 int64_t high) const {
  return has(key) ? get_int(key, low, high) : otherwise;
}

Result<double> HfConfig::get_float(std::string_view key) const {
  const json::Value* value = take(key);
  if (value == nullptr) return missing(key);
  CHORUS_ASSIGN_OR_RETURN(const double number, in_file(value->to_number(field(key))));
  if (std::fabs(number) <= kLargest) return number;
  return data_loss(field(key), "expected a number that a float can hold, found " + value->dump());
}

Result<double> HfConfig::float_or(std::string_view key, double otherwise) const {
  return has(key) ? get_float(key) : otherwise;
}

Result<bool> HfConfig::bool_or(std::string_view key, bool otherwise) const {
  const json::Value* value = take(key);
  return value == nullptr ? otherwise : to_bool(*value, field(key));
}

Result<std::string> HfConfig::get_string(std::string_view key) const {
  const json::Value* value = take(key);
  if (value == nullptr) return missing(key);
  return in_file(value->to_text(field(key)));
}

Result<std::string> HfConfig::string_or(std::string_view key, std::string_view otherwise) const {
  return has(key) ? get_string(key) : std::string(otherwise);
}

// `convert` makes an element, or its error, of a value and its name.
template <typename Convert>
auto HfConfig::list(std::string_view key, Convert convert) const {
  using Element =
      std::remove_cvref_t<decltype(*convert(std::declval<const json::Value&>(), std::string()))>;
  using List = std::optional<std::vector<Element>>;
  const json::Value* value = take(key);
  if (value == nullptr) return Result<List>(List());
  if (!value->is_array()) {
    return Result<List>(data_loss(field(key), "expected a list, found " + found_text(*value)));
  }
  std::vector<Element> elements;
  for (const json::Value& each : value->as_array()) {
    auto element = convert(each, field(key) + "[" + std::to_string(elements.size()) + "]");
    if (!element.ok()) return Result<List>(in_file(element.status()));
    elements.push_back(std::move(element).value());
  }
  return Result<List>(List(std::move(elements)));
}

Result<std::optional<std::vector<int64_t>>> HfConfig::find_ints(std::string_view key, int64_t low,
                                                                int64_t high) const {
  return list(key, [&](const json::Value& value, const std::string& name) {
    return value.to_integer(name, low, high);
  });
}

Result<std::optional<std::vector<double>>> HfConfig::find_floats(std::string_view key) const {
  return list(
      key, [](const json::Value& value, const std::string& name) { return value.to_number(name); });
}

Result<std::optional<std::vector<std::string>>> HfConfig::find_strings(std::string_view key) const {
  return list(
      key, [](const json::Value& value, const std::string& name) { return value.to_text(name); });
}

Result<HfConfig> HfConfig::section(std::string_view key) const {
  CHORUS_ASSIGN_OR_RETURN(auto found, find_section(key));
  if (!found) return missing(key);
  return *found;
}

Result<std::optional<HfConfig>> HfConfig::find_section(std::string_view key) const {
  const json::Value* value = object_->find(key);
  if (value == nullptr || value->is_null()) return std::optional<HfConfig>();
  if (!value->is_object()) {
    return data_loss(field(key), "expected an object, found " + found_text(*value));
  }
  record_->opened.insert(value);
  return std::optional(HfConfig(*value, field(key), record_));
}

// ---- What is expected --------------------------------------------------------------------------

Status HfConfig::expect_number(std::string_view key, double neutral) const {
  const json::Value* value = take(key);
  if (value == nullptr) return Status();
  CHORUS_ASSIGN_OR_RETURN(const double found, in_file(value->to_number(field(key))));
  if (found == neutral) return Status();
  return unexpected(field(key), json::Value(neutral).dump(), *value);
}

Status HfConfig::expect_bool(std::string_view key, bool neutral) const {
  const json::Value* value = take(key);
  if (value == nullptr) return Status();
  CHORUS_ASSIGN_OR_RETURN(const bool found, to_bool(*value, field(key)));
  if (found == neutral) return Status();
  return unexpected(field(key), neutral ? "true" : "false", *value);
}

Status HfConfig::expect_string(std::string_view key, std::string_view neutral) const {
  const json::Value* value = take(key);
  if (value == nullptr) return Status();
  CHORUS_ASSIGN_OR_RETURN(const std::string found, in_file(value->to_text(field(key))));
  if (found == neutral) return Status();
  return unexpected(field(key), quoted(neutral), *value);
}

Status HfConfig::expect_absent(std::string_view key) const {
  const json::Value* value = take(key);
  if (value == nullptr) return Status();
  return unimplemented(field(key), "expected none, found " + found_text(*value));
}

void HfConfig::skip(std::string_view key) const { (void)take(key); }

Status HfConfig::check_all_used(std::span<const std::string_view> harmless) const {
  for (const auto& [key, value] : object_->as_object()) {
    if (record_->read.count(&value) != 0) continue;
    if (record_->opened.count(&value) != 0) {
      CHORUS_RETURN_IF_ERROR(HfConfig(value, field(key), record_).check_all_used(harmless));
    } else if (!is_harmless(key, value) && !contains(harmless, key)) {
      return unimplemented(
          name_ + "." + (is_printable_utf8(key) ? key : "(unprintable)"),
          "expected a member that this lowering knows, found " + found_text(value));
    }
  }
  return Status();
}

}  // namespace chorus
