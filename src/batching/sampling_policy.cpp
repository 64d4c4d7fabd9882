#include "batching/sampling_policy.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"

namespace chorus {

Status check_sampling(const SamplingParams& params, int32_t vocabulary) {
  if (!std::isfinite(params.temperature) || params.temperature < 0.0f) {
    return invalid_argument("temperature", "expected a finite number of at least 0, found " +
                                               std::to_string(params.temperature));
  }
  if (params.top_k < 0) {
    return invalid_argument(
        "top_k", "expected a count, or 0 for all, found " + std::to_string(params.top_k));
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return invalid_argument(
        "top_p", "expected a number above 0 and at most 1, found " + std::to_string(params.top_p));
  }
  if (!(params.min_p >= 0.0f && params.min_p <= 1.0f)) {
    return invalid_argument("min_p",
                            "expected a number from 0 to 1, found " + std::to_string(params.min_p));
  }
  const int32_t most = std::min(kMaxLikeliest, vocabulary);
  if (params.num_likeliest < 0 || params.num_likeliest > most) {
    return invalid_argument("num_likeliest", "expected 0 to " + std::to_string(most) + ", found " +
                                                 std::to_string(params.num_likeliest));
  }
  return {};
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
  return spec;
}

RowSpec scored_row(int32_t row, TokenId token, int32_t num_likeliest) {
  RowSpec spec;
  spec.row = row;
  spec.given = token;
  spec.num_likeliest = num_likeliest;
  return spec;
}

Status fill_allowed(TokenConstraint& constraint, int32_t vocabulary, std::span<uint32_t> mask) {
  CHORUS_CHECK_EQ(static_cast<int32_t>(mask.size()), mask_words(vocabulary));
  CHORUS_RETURN_IF_ERROR(constraint.fill_mask(mask));
  // Bits past the vocabulary name no token.
  if (vocabulary % 32 != 0) mask.back() &= (1u << (vocabulary % 32)) - 1;
  if (std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; })) {
    return invalid_argument("constraint", "expected at least one allowed token, found none");
  }
  return {};
}

}  // namespace chorus
