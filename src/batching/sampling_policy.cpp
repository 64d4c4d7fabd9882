#include "batching/sampling_policy.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"

namespace chorus {

namespace {

std::string found(const std::string& expected, float value) {
  return "expected " + expected + ", found " + std::to_string(value);
}

Status check_id(TokenId id, int32_t vocabulary, const std::string& field) {
  if (id >= 0 && id < vocabulary) return {};
  return invalid_argument(field, "expected an id from 0 to " + std::to_string(vocabulary - 1) +
                                     ", found " + std::to_string(id));
}

Status check_filters(const SamplingParams& params) {
  const auto is_share = [](float share) { return share > 0.0f && share <= 1.0f; };
  if (params.top_k < 0) {
    return invalid_argument(
        "top_k", "expected a count, or 0 for all, found " + std::to_string(params.top_k));
  }
  if (!is_share(params.typical_p)) {
    return invalid_argument("typical_p", found("a number above 0 and at most 1", params.typical_p));
  }
  if (!is_share(params.top_p)) {
    return invalid_argument("top_p", found("a number above 0 and at most 1", params.top_p));
  }
  if (!(params.min_p >= 0.0f && params.min_p <= 1.0f)) {
    return invalid_argument("min_p", found("a number from 0 to 1", params.min_p));
  }
  return {};
}

Status check_penalties(const SamplingParams& params) {
  if (!(params.repetition_penalty > 0.0f) || !std::isfinite(params.repetition_penalty)) {
    return invalid_argument("repetition_penalty",
                            found("a finite number above 0", params.repetition_penalty));
  }
  for (const auto& [name, value] : {std::pair("frequency_penalty", params.frequency_penalty),
                                    std::pair("presence_penalty", params.presence_penalty)}) {
    if (!(value >= -2.0f && value <= 2.0f))
      return invalid_argument(name, found("a number from -2 to 2", value));
  }
  return {};
}

}  // namespace

Status check_sampled_ids(const SamplingParams& params, int32_t vocabulary) {
  for (const TokenBias& each : params.logit_bias) {
    const std::string field = "logit_bias[\"" + std::to_string(each.id) + "\"]";
    CHORUS_RETURN_IF_ERROR(check_id(each.id, vocabulary, field));
    if (!(std::abs(each.bias) <= kMaxBias))
      return invalid_argument(field, found("a number from -100 to 100", each.bias));
  }
  for (size_t i = 0; i < params.allowed_tokens.size(); ++i) {
    CHORUS_RETURN_IF_ERROR(check_id(params.allowed_tokens[i], vocabulary,
                                    "allowed_token_ids[" + std::to_string(i) + "]"));
  }
  for (size_t i = 0; i < params.bad_sequences.size(); ++i) {
    const std::string field = "bad_words[" + std::to_string(i) + "]";
    if (params.bad_sequences[i].empty())
      return invalid_argument(field, "expected at least one token, found none");
    for (const TokenId id : params.bad_sequences[i]) {
      CHORUS_RETURN_IF_ERROR(check_id(id, vocabulary, field));
    }
  }
  for (size_t i = 0; i < params.late_tokens.size(); ++i) {
    CHORUS_RETURN_IF_ERROR(
        check_id(params.late_tokens[i], vocabulary, "stop_token_ids[" + std::to_string(i) + "]"));
  }
  if (params.before != nullptr) {
    for (const TokenId id : *params.before) {
      CHORUS_RETURN_IF_ERROR(check_id(id, vocabulary, "before"));
    }
  }
  for (const auto& [name, value] :
       {std::pair("min_tokens", params.min_tokens), std::pair("max_tokens", params.max_tokens),
        std::pair("first_position", params.first_position)}) {
    if (value < 0)
      return invalid_argument(name, "expected 0 or more, found " + std::to_string(value));
  }
  return {};
}

Status check_sampling(const SamplingParams& params, int32_t vocabulary) {
  if (!std::isfinite(params.temperature) || params.temperature < 0.0f) {
    return invalid_argument("temperature",
                            found("a finite number of at least 0", params.temperature));
  }
  CHORUS_RETURN_IF_ERROR(check_filters(params));
  CHORUS_RETURN_IF_ERROR(check_penalties(params));
  const int32_t most = std::min(kMaxLikeliest, vocabulary);
  if (params.num_likeliest < 0 || params.num_likeliest > most) {
    return invalid_argument("num_likeliest", "expected 0 to " + std::to_string(most) + ", found " +
                                                 std::to_string(params.num_likeliest));
  }
  return check_sampled_ids(params, vocabulary);
}

RowSpec sampled_row(const SamplingParams& params, int32_t row, Position position,
                    std::span<const uint32_t> mask) {
  RowSpec spec;
  spec.row = row;
  spec.sample = true;
  spec.temperature = params.temperature;
  spec.top_k = params.top_k;
  spec.top_p = params.top_p;
  spec.min_p = params.min_p;
  spec.seed = params.seed;
  spec.choice = params.choice;
  spec.position = position;
  spec.mask = mask;
  spec.logprobs = params.logprobs;
  spec.num_likeliest = params.num_likeliest;
  spec.typical_p = params.typical_p;
  spec.repetition_penalty = params.repetition_penalty;
  spec.frequency_penalty = params.frequency_penalty;
  spec.presence_penalty = params.presence_penalty;
  return spec;
}

RowSpec scored_row(int32_t row, TokenId token, int32_t num_likeliest) {
  RowSpec spec;
  spec.row = row;
  spec.given = token;
  spec.num_likeliest = num_likeliest;
  return spec;
}

}  // namespace chorus
