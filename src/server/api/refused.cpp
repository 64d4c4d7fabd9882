#include "server/api/refused.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace chorus::api {

namespace {

// What a value has to be to ask for nothing, beside null.
enum class Neutral : uint8_t {
  kNothing,  // null alone
  kFalse,
  kTrue,
  kZero,
  kOne,
  kMinusOne,
  kEmpty,  // an array, an object or a text without anything in it
};

struct Refused {
  std::string_view name;
  Neutral neutral = Neutral::kNothing;
  std::string_view text = {};  // a text that asks for nothing, too
};

constexpr std::array kRefused = {
    // OpenAI
    Refused{"tools", Neutral::kEmpty},
    Refused{"tool_choice", Neutral::kNothing, "none"},
    Refused{"functions", Neutral::kEmpty},
    Refused{"function_call", Neutral::kNothing, "none"},
    Refused{"audio"},
    Refused{"prediction"},
    Refused{"reasoning_effort", Neutral::kNothing, "none"},
    Refused{"service_tier", Neutral::kNothing, "auto"},
    Refused{"store", Neutral::kFalse},
    Refused{"suffix", Neutral::kEmpty},
    Refused{"verbosity", Neutral::kNothing, "medium"},
    Refused{"web_search_options"},
    // vLLM
    Refused{"chat_template"},
    Refused{"documents", Neutral::kEmpty},
    Refused{"early_stopping", Neutral::kFalse},
    Refused{"guided_choice"},
    Refused{"guided_grammar"},
    Refused{"guided_json"},
    Refused{"guided_regex"},
    Refused{"kv_transfer_params"},
    Refused{"length_penalty", Neutral::kOne},
    Refused{"logits_processors", Neutral::kEmpty},
    Refused{"logit_processors", Neutral::kEmpty},
    Refused{"logprob_token_ids", Neutral::kEmpty},
    Refused{"mm_processor_kwargs", Neutral::kEmpty},
    Refused{"prompt_embeds"},
    Refused{"repetition_detection"},
    Refused{"spaces_between_special_tokens", Neutral::kTrue},
    Refused{"structured_outputs"},
    Refused{"thinking_token_budget"},
    Refused{"use_beam_search", Neutral::kFalse},
    Refused{"vllm_xargs", Neutral::kEmpty},
    // llama.cpp
    Refused{"cache_prompt", Neutral::kTrue},
    Refused{"dry_multiplier", Neutral::kZero},
    Refused{"dynatemp_range", Neutral::kZero},
    Refused{"grammar", Neutral::kEmpty},
    Refused{"id_slot", Neutral::kMinusOne},
    Refused{"input_prefix", Neutral::kEmpty},
    Refused{"input_suffix", Neutral::kEmpty},
    Refused{"json_schema"},
    Refused{"lora", Neutral::kEmpty},
    Refused{"min_keep", Neutral::kZero},
    Refused{"mirostat", Neutral::kZero},
    Refused{"n_discard", Neutral::kZero},
    Refused{"n_keep", Neutral::kZero},
    Refused{"n_predict", Neutral::kMinusOne},
    Refused{"n_probs", Neutral::kZero},
    Refused{"post_sampling_probs", Neutral::kFalse},
    Refused{"repeat_penalty", Neutral::kOne},
    Refused{"response_fields", Neutral::kEmpty},
    Refused{"return_progress", Neutral::kFalse},
    Refused{"return_tokens", Neutral::kFalse},
    Refused{"samplers"},
    Refused{"t_max_predict_ms", Neutral::kZero},
    Refused{"timings_per_token", Neutral::kFalse},
    Refused{"top_n_sigma", Neutral::kMinusOne},
    Refused{"typ_p", Neutral::kOne},
    Refused{"xtc_probability", Neutral::kZero},
    // SGLang and TensorRT-LLM
    Refused{"ebnf"},
    Refused{"lora_path"},
    Refused{"no_repeat_ngram_size", Neutral::kZero},
    Refused{"no_stop_trim", Neutral::kFalse},
    Refused{"regex"},
};

bool is_number(const json::Value& value, double number) {
  const auto found = value.to_number("");
  return found.ok() && *found == number;
}

bool asks_for_nothing(const json::Value& value, const Refused& refused) {
  if (value.is_null()) return true;
  if (!refused.text.empty() && value.is_string() && value.as_string() == refused.text) return true;
  switch (refused.neutral) {
    case Neutral::kNothing:
      return false;
    case Neutral::kFalse:
      return value.is_bool() && !value.as_bool();
    case Neutral::kTrue:
      return value.is_bool() && value.as_bool();
    case Neutral::kZero:
      return is_number(value, 0);
    case Neutral::kOne:
      return is_number(value, 1);
    case Neutral::kMinusOne:
      return is_number(value, -1);
    case Neutral::kEmpty:
      return (value.is_array() && value.as_array().empty()) ||
             (value.is_object() && value.as_object().empty()) ||
             (value.is_string() && value.as_string().empty());
  }
  return false;
}

Status check_response_format(const json::Value& request) {
  const json::Value* format = request.find("response_format");
  if (format == nullptr || format->is_null()) return {};
  const json::Value* type = format->find("type");
  if (type == nullptr || !type->is_string()) {
    return invalid_argument("response_format.type", "expected text");
  }
  if (type->as_string() == "text") return {};
  return unimplemented("response_format",
                       "expected text, which is all that is offered, found " + type->as_string());
}

Status check_modalities(const json::Value& request) {
  const json::Value* modalities = request.find("modalities");
  if (modalities == nullptr || modalities->is_null()) return {};
  if (modalities->is_array() && modalities->as_array().size() == 1) {
    const json::Value& only = modalities->as_array()[0];
    if (only.is_string() && only.as_string() == "text") return {};
  }
  return unimplemented("modalities", "expected [\"text\"], which is all that is offered");
}

}  // namespace

Status check_refused(const json::Value& request) {
  for (const auto& [name, value] : request.as_object()) {
    const auto found = std::find_if(kRefused.begin(), kRefused.end(),
                                    [&](const Refused& refused) { return refused.name == name; });
    if (found == kRefused.end() || asks_for_nothing(value, *found)) continue;
    // "default" is what is offered, by its other name.
    if (name == "service_tier" && value.is_string() && value.as_string() == "default") continue;
    return unimplemented(name, "this is not offered: leave it out");
  }
  CHORUS_RETURN_IF_ERROR(check_response_format(request));
  return check_modalities(request);
}

}  // namespace chorus::api
