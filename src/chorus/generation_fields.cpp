#include "chorus/generation_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"

namespace chorus {
namespace {

constexpr int32_t kMaxTemperature = 100;
constexpr int64_t kMaxDeadlineMs = 1'000'000'000'000;  // 31 years, which fit into nanoseconds
constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

// A member with what reading it needs.
struct Given {
  std::string name;
  const json::Value& value;
  const FieldRules& rules;
};

std::string shown(const json::Value& value) {
  constexpr size_t kLongest = 40;
  const bool is_long = value.is_string() && value.as_string().size() > kLongest;
  if (is_long || value.is_array() || value.is_object()) return std::string(value.type_name());
  return value.dump();
}

Status expected(const Given& given, const std::string& what) {
  return invalid_argument(given.name, "expected " + what + ", found " + shown(given.value));
}

// ---- Values ----

Result<int64_t> whole(const Given& given, int64_t low, int64_t high) {
  auto value = given.value.to_integer(given.name, low, high);
  if (value.ok()) return value;
  return expected(given,
                  "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
}

Status set_whole(const Given& given, int64_t low, int64_t high, int32_t& out) {
  CHORUS_ASSIGN_OR_RETURN(const int64_t value, whole(given, low, high));
  out = static_cast<int32_t>(value);
  return {};
}

Status set_whole(const Given& given, int64_t low, int64_t high, std::optional<int32_t>& out) {
  out.reset();
  return given.value.is_null() ? Status() : set_whole(given, low, high, out.emplace());
}

// A number that `is_good` takes, as a float too.
template <typename Good>
Status set_number(const Given& given, const char* what, Good is_good, float& out) {
  const auto value = given.value.to_number(given.name);
  if (!value.ok() || !is_good(*value) || !is_good(static_cast<double>(static_cast<float>(*value))))
    return expected(given, what);
  out = static_cast<float>(*value);
  return {};
}

Status set_penalty(const Given& given, float& out) {
  return set_number(
      given, "a number from -2 to 2", [](double x) { return x >= -2 && x <= 2; }, out);
}

Status set_share(const Given& given, float& out) {
  return set_number(
      given, "a number above 0 and at most 1", [](double x) { return x > 0 && x <= 1; }, out);
}

Status check_size(const std::string& name, const char* unit, size_t most, size_t found) {
  if (found <= most) return {};
  return invalid_argument(name, "expected at most " + std::to_string(most) + " " + unit +
                                    ", found " + std::to_string(found));
}

Status set_boolean(const Given& given, bool& out) {
  if (!given.value.is_bool()) return expected(given, "true or false");
  out = given.value.as_bool();
  return {};
}

Status set_salt(const Given& given, std::string& out) {
  if (!given.value.is_string()) return expected(given, "a string");
  out = given.value.as_string();
  return check_size(given.name, "bytes", kMaxSaltBytes, out.size());
}

// Calls add(element) for each element of an array.
template <typename Add>
Status for_elements(const Given& given, const char* what, Add add) {
  if (!given.value.is_array()) return expected(given, what);
  const json::Array& elements = given.value.as_array();
  for (size_t i = 0; i < elements.size(); ++i) {
    CHORUS_RETURN_IF_ERROR(
        add(Given{given.name + "[" + std::to_string(i) + "]", elements[i], given.rules}));
  }
  return {};
}

Status set_ids(const Given& given, std::vector<TokenId>& out) {
  out.clear();
  if (given.value.is_array()) {
    CHORUS_RETURN_IF_ERROR(check_size(given.name, "ids", kMaxIds, given.value.as_array().size()));
  }
  return for_elements(given, "an array of token ids", [&](const Given& element) {
    return set_whole(element, 0, kMost, out.emplace_back());
  });
}

Status add_filled_text(const Given& given, std::vector<std::string>& out) {
  if (!given.value.is_string()) return expected(given, "a string");
  out.push_back(given.value.as_string());
  return out.back().empty() ? expected(given, "a text that is not empty") : Status();
}

Status check_texts(const Given& given, const std::vector<std::string>& texts) {
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  return check_size(given.name, "bytes in all", kMaxTextBytes, bytes);
}

Status set_texts(const Given& given, std::vector<std::string>& out) {
  out.clear();
  if (given.value.is_string()) {
    CHORUS_RETURN_IF_ERROR(add_filled_text(given, out));
  } else {
    CHORUS_RETURN_IF_ERROR(
        for_elements(given, "a string, or an array of strings",
                     [&](const Given& element) { return add_filled_text(element, out); }));
  }
  return check_texts(given, out);
}

template <typename Number>
std::optional<Number> number_of(std::string_view word) {
  Number value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

// An id as a member's name, without a sign or zeros in front.
std::optional<TokenId> id_of_name(const std::string& name) {
  const auto id = number_of<TokenId>(name);
  return id && *id >= 0 && std::to_string(*id) == name ? id : std::nullopt;
}

// What is beyond kMaxBias is as good as that.
Status set_bias(const Given& given, std::vector<TokenBias>& out) {
  out.clear();
  if (!given.value.is_object())
    return expected(given, "a number for each of some token ids (in JSON an object)");
  CHORUS_RETURN_IF_ERROR(check_size(given.name, "ids", kMaxIds, given.value.as_object().size()));
  for (const auto& [name, value] : given.value.as_object()) {
    const Given member{given.name + "[\"" + name + "\"]", value, given.rules};
    const auto id = id_of_name(name);
    if (!id) return invalid_argument(member.name, "expected a token id as its name");
    const auto bias = value.to_number(member.name);
    if (!bias.ok() || !std::isfinite(*bias)) return expected(member, "a number");
    out.push_back({*id, static_cast<float>(std::clamp<double>(*bias, -kMaxBias, kMaxBias))});
  }
  return {};
}

json::Value bias_value(const std::vector<TokenBias>& biases) {
  json::Value value{json::Object()};
  for (const TokenBias& each : biases) value.set(std::to_string(each.id), each.bias);
  return value;
}

Status set_truncate(const Given& given, std::optional<int32_t>& out) {
  CHORUS_RETURN_IF_ERROR(set_whole(given, -1, kMaxTokensLimit, out));
  return out == 0 ? expected(given, "at least 1, or -1 for what there is room for") : Status();
}

Status set_top_k(const Given& given, GenerationFields& fields) {
  CHORUS_RETURN_IF_ERROR(set_whole(given, -1, kMost, fields.sampling.top_k));
  fields.sampling.top_k = std::max(fields.sampling.top_k, 0);
  return {};
}

// One that is given counts choices from 0.
Status set_seed(const Given& given, GenerationFields& fields) {
  fields.sampling.choice = 0;
  fields.seed.reset();
  if (given.value.is_null()) return {};
  const auto value = given.value.to_unsigned(given.name);
  if (value.ok()) {
    fields.seed = *value;
    return {};
  }
  const int64_t low = given.rules.has_negative_seeds ? std::numeric_limits<int64_t>::min() : 0;
  const auto other = given.value.to_integer(given.name, low, std::numeric_limits<int64_t>::max());
  if (!other.ok()) {
    return expected(given,
                    low < 0 ? "a whole number of 64 bits" : "a whole number from 0 to 2^64 - 1");
  }
  if (*other != -1) fields.seed = static_cast<uint64_t>(*other);
  return {};
}

Status set_deadline(const Given& given, GenerationFields& fields) {
  fields.deadline_ms.reset();
  if (given.value.is_null()) return {};
  CHORUS_ASSIGN_OR_RETURN(fields.deadline_ms, whole(given, 0, kMaxDeadlineMs));
  return {};
}

// true, false, or how many likeliest tokens go with each.
Status set_logprobs(const Given& given, std::optional<int32_t>& out) {
  if (!given.value.is_bool()) return set_whole(given, 0, kMaxLikeliest, out);
  out = given.value.as_bool() ? std::optional(0) : std::nullopt;
  return {};
}

Status set_top_logprobs(const Given& given, GenerationFields& fields) {
  int32_t count = 0;
  CHORUS_RETURN_IF_ERROR(set_whole(given, 0, kMaxLikeliest, count));
  if (fields.logprobs) {
    fields.logprobs = count;
  } else if (count > 0) {
    return invalid_argument(given.name, "expected logprobs to be true beside it");
  }
  return {};
}

// ---- The table ----

// How a word says it.
enum class Form : uint8_t { kNumber, kBoolean, kText, kTexts, kNumbers, kBias };

struct Parameter {
  std::string_view name;
  Form form;
  Status (*set)(const Given& given, GenerationFields& fields);
  json::Value (*get)(const GenerationFields& fields);
};

template <typename T>
json::Value optional_value(const std::optional<T>& value) {
  return value ? json::Value(*value) : json::Value();
}

template <typename T>
json::Value array_of(const std::vector<T>& elements) {
  return json::Value(json::Array(elements.begin(), elements.end()));
}

using Fields = GenerationFields;

// In the order in which members are taken, whatever theirs is.
constexpr Parameter kParameters[] = {
    {"temperature", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_number(
           given, "a number from 0 to 100", [](double x) { return x >= 0 && x <= kMaxTemperature; },
           fields.sampling.temperature);
     },
     [](const Fields& fields) { return json::Value(fields.sampling.temperature); }},
    {"top_k", Form::kNumber, set_top_k,
     [](const Fields& fields) { return json::Value(fields.sampling.top_k); }},
    {"top_p", Form::kNumber,
     [](const Given& given, Fields& fields) { return set_share(given, fields.sampling.top_p); },
     [](const Fields& fields) { return json::Value(fields.sampling.top_p); }},
    {"min_p", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_number(
           given, "a number from 0 to 1", [](double x) { return x >= 0 && x <= 1; },
           fields.sampling.min_p);
     },
     [](const Fields& fields) { return json::Value(fields.sampling.min_p); }},
    {"typical_p", Form::kNumber,
     [](const Given& given, Fields& fields) { return set_share(given, fields.sampling.typical_p); },
     [](const Fields& fields) { return json::Value(fields.sampling.typical_p); }},
    {"presence_penalty", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_penalty(given, fields.sampling.presence_penalty);
     },
     [](const Fields& fields) { return json::Value(fields.sampling.presence_penalty); }},
    {"frequency_penalty", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_penalty(given, fields.sampling.frequency_penalty);
     },
     [](const Fields& fields) { return json::Value(fields.sampling.frequency_penalty); }},
    {"repetition_penalty", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_number(
           given, "a number above 0", [](double x) { return x > 0 && std::isfinite(x); },
           fields.sampling.repetition_penalty);
     },
     [](const Fields& fields) { return json::Value(fields.sampling.repetition_penalty); }},
    {"logit_bias", Form::kBias,
     [](const Given& given, Fields& fields) { return set_bias(given, fields.sampling.logit_bias); },
     [](const Fields& fields) { return bias_value(fields.sampling.logit_bias); }},
    {"allowed_token_ids", Form::kNumbers,
     [](const Given& given, Fields& fields) {
       return set_ids(given, fields.sampling.allowed_tokens);
     },
     [](const Fields& fields) { return array_of(fields.sampling.allowed_tokens); }},
    {"bad_words", Form::kTexts,
     [](const Given& given, Fields& fields) { return set_texts(given, fields.bad_words); },
     [](const Fields& fields) { return array_of(fields.bad_words); }},
    {"max_tokens", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_whole(given, given.rules.least_max_tokens, kMaxTokensLimit, fields.max_tokens);
     },
     [](const Fields& fields) { return optional_value(fields.max_tokens); }},
    {"max_completion_tokens", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_whole(given, given.rules.least_max_tokens, kMaxTokensLimit, fields.max_tokens);
     },
     [](const Fields& fields) { return optional_value(fields.max_tokens); }},
    {"min_tokens", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_whole(given, 0, kMaxTokensLimit, fields.sampling.min_tokens);
     },
     [](const Fields& fields) { return json::Value(fields.sampling.min_tokens); }},
    {"seed", Form::kNumber, set_seed,
     [](const Fields& fields) { return optional_value(fields.seed); }},
    {"stop", Form::kTexts,
     [](const Given& given, Fields& fields) { return set_texts(given, fields.stop); },
     [](const Fields& fields) { return array_of(fields.stop); }},
    {"stop_token_ids", Form::kNumbers,
     [](const Given& given, Fields& fields) { return set_ids(given, fields.stop_token_ids); },
     [](const Fields& fields) { return array_of(fields.stop_token_ids); }},
    {"ignore_eos", Form::kBoolean,
     [](const Given& given, Fields& fields) { return set_boolean(given, fields.ignore_eos); },
     [](const Fields& fields) { return json::Value(fields.ignore_eos); }},
    {"include_stop_str_in_output", Form::kBoolean,
     [](const Given& given, Fields& fields) {
       return set_boolean(given, fields.include_stop_str_in_output);
     },
     [](const Fields& fields) { return json::Value(fields.include_stop_str_in_output); }},
    {"skip_special_tokens", Form::kBoolean,
     [](const Given& given, Fields& fields) {
       return set_boolean(given, fields.skip_special_tokens);
     },
     [](const Fields& fields) { return json::Value(fields.skip_special_tokens); }},
    {"n", Form::kNumber,
     [](const Given& given, Fields& fields) { return set_whole(given, 1, kMaxChoices, fields.n); },
     [](const Fields& fields) { return json::Value(fields.n); }},
    {"best_of", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_whole(given, 1, kMaxChoices, fields.best_of);
     },
     [](const Fields& fields) { return optional_value(fields.best_of); }},
    {"logprobs", Form::kNumber,
     [](const Given& given, Fields& fields) { return set_logprobs(given, fields.logprobs); },
     [](const Fields& fields) { return optional_value(fields.logprobs); }},
    {"top_logprobs", Form::kNumber, set_top_logprobs,
     [](const Fields& fields) { return optional_value(fields.logprobs); }},
    {"prompt_logprobs", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_whole(given, 0, kMaxLikeliest, fields.prompt_logprobs);
     },
     [](const Fields& fields) { return optional_value(fields.prompt_logprobs); }},
    {"truncate_prompt_tokens", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_truncate(given, fields.truncate_prompt_tokens);
     },
     [](const Fields& fields) { return optional_value(fields.truncate_prompt_tokens); }},
    {"priority", Form::kNumber,
     [](const Given& given, Fields& fields) {
       return set_whole(given, std::numeric_limits<int32_t>::min(), kMost, fields.priority);
     },
     [](const Fields& fields) { return json::Value(fields.priority); }},
    {"deadline_ms", Form::kNumber, set_deadline,
     [](const Fields& fields) { return optional_value(fields.deadline_ms); }},
    {"cache_salt", Form::kText,
     [](const Given& given, Fields& fields) { return set_salt(given, fields.cache_salt); },
     [](const Fields& fields) { return json::Value(fields.cache_salt); }},
};

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kParameters)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kParameters[i].name;
  return names;
}();

const Parameter& parameter(std::string_view name) {
  const auto* found = std::find_if(std::begin(kParameters), std::end(kParameters),
                                   [&](const Parameter& each) { return each.name == name; });
  CHORUS_CHECK(found != std::end(kParameters));
  return *found;
}

Status set(const Parameter& parameter, const json::Value& value, const FieldRules& rules,
           GenerationFields& fields) {
  for (const RefusedField& refused : rules.refused) {
    if (refused.name == parameter.name)
      return invalid_argument(std::string(refused.name),
                              "expected none: " + std::string(refused.why));
  }
  return parameter.set({std::string(parameter.name), value, rules}, fields);
}

// As a number, or as what it is, to be refused.
json::Value number_value(std::string_view word) {
  if (const auto whole = number_of<int64_t>(word)) return json::Value(*whole);
  if (const auto whole = number_of<uint64_t>(word)) return json::Value(*whole);
  const auto number = number_of<double>(word);
  return number && std::isfinite(*number) ? json::Value(*number) : json::Value(word);
}

// The parts between spaces.
std::vector<std::string_view> parts_of(std::string_view word) {
  std::vector<std::string_view> parts;
  while (true) {
    word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
    if (word.empty()) return parts;
    parts.push_back(word.substr(0, word.find(' ')));
    word.remove_prefix(parts.back().size());
  }
}

json::Value bias_of_word(std::string_view word) {
  json::Value value{json::Object()};
  for (const std::string_view part : parts_of(word)) {
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) return json::Value(word);
    value.set(std::string(part.substr(0, equals)), number_value(part.substr(equals + 1)));
  }
  return value;
}

}  // namespace

Result<GenerationFields> read_generation_fields(const json::Value& object, GenerationFields fields,
                                                const FieldRules& rules) {
  for (const Parameter& each : kParameters) {
    const json::Value* value = object.find(each.name);
    if (value == nullptr || value->is_null()) continue;
    CHORUS_RETURN_IF_ERROR(set(each, *value, rules, fields));
  }
  if (fields.best_of && *fields.best_of < fields.n) {
    return invalid_argument("best_of", "expected at least n, " + std::to_string(fields.n) +
                                           ", found " + std::to_string(*fields.best_of));
  }
  return fields;
}

std::span<const std::string_view> generation_field_names() { return kNames; }

bool is_generation_field(std::string_view name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Status set_generation_field(std::string_view name, const json::Value& value,
                            GenerationFields& fields, const FieldRules& rules) {
  GenerationFields changed = fields;
  CHORUS_RETURN_IF_ERROR(set(parameter(name), value, rules, changed));
  fields = std::move(changed);
  return {};
}

json::Value generation_field(std::string_view name, const GenerationFields& fields) {
  return parameter(name).get(fields);
}

json::Value generation_field_of_word(std::string_view name, std::string_view word) {
  const Parameter& found = parameter(name);
  switch (found.form) {
    case Form::kNumber:
      return number_value(word);
    case Form::kBoolean:
      return word == "true" || word == "false" ? json::Value(word == "true") : json::Value(word);
    case Form::kText:
      break;
    case Form::kTexts:
      return json::Value(json::Array{json::Value(word)});
    case Form::kNumbers: {
      json::Array numbers;
      for (const std::string_view part : parts_of(word)) numbers.push_back(number_value(part));
      return json::Value(std::move(numbers));
    }
    case Form::kBias:
      return bias_of_word(word);
  }
  return json::Value(word);
}

GenerationOptions generation_options(const GenerationFields& fields,
                                     std::span<const TokenId> end_tokens) {
  GenerationOptions options;
  options.max_new_tokens = fields.max_tokens.value_or(options.max_new_tokens);
  options.sampling = fields.sampling;
  options.sampling.logprobs = fields.logprobs.has_value();
  options.sampling.num_likeliest =
      std::max(fields.logprobs.value_or(0), fields.prompt_logprobs.value_or(0));
  options.seed = fields.seed;
  options.stop_tokens = fields.stop_token_ids;
  if (!fields.ignore_eos)
    options.stop_tokens.insert(options.stop_tokens.end(), end_tokens.begin(), end_tokens.end());
  options.ignore_stop_tokens = options.stop_tokens.empty();
  options.priority = fields.priority;
  return options;
}

TextOptions text_options(const GenerationFields& fields) {
  return {.include_stop = fields.include_stop_str_in_output,
          .show_special = !fields.skip_special_tokens,
          .bad_words = fields.bad_words};
}

int32_t truncate_prompt(const GenerationFields& fields, int64_t room,
                        std::vector<TokenId>& prompt) {
  if (!fields.truncate_prompt_tokens) return 0;
  const int64_t wanted = *fields.truncate_prompt_tokens < 0 ? room : *fields.truncate_prompt_tokens;
  const int64_t surplus = std::ssize(prompt) - std::max<int64_t>(wanted, 1);
  if (surplus <= 0) return 0;
  prompt.erase(prompt.begin(), prompt.begin() + surplus);
  return static_cast<int32_t>(surplus);
}

}  // namespace chorus
