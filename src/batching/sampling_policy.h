// How the policy of a generation turns into what a Module is asked to do with a row.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "exec/module.h"
#include "exec/types.h"

namespace chorus {

// Ok when every parameter can be honoured; else kInvalidArgument with the parameter as field.
Status check_sampling(const SamplingParams& params, int32_t vocabulary);

// Chooses the token at `position` from `row`, the row of position - 1. The draw is keyed (seed,
// choice, position), so it depends on neither the batch, nor rewinds, nor what was drawn before.
// `mask` is empty or one of fill_allowed, and must live until the row was reduced.
RowSpec sampled_row(const SamplingParams& params, int32_t row, Position position,
                    std::span<const uint32_t> mask);

// Scores `token` by `row`; so many likeliest tokens beside it.
RowSpec scored_row(int32_t row, TokenId token, int32_t num_likeliest);

// Words of a mask over the vocabulary.
constexpr int32_t mask_words(int32_t vocabulary) {
  return vocabulary / 32 + (vocabulary % 32 != 0);
}

// Asks the constraint for the tokens allowed next. `mask` has mask_words(vocabulary) words, all 0.
// The constraint's own error, or kInvalidArgument (field constraint) when it allows no token.
Status fill_allowed(TokenConstraint& constraint, int32_t vocabulary, std::span<uint32_t> mask);

}  // namespace chorus
