// How the policy of a generation turns into what a Module is asked to do with a row.
// What of it depends on the tokens so far: sampling_state.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "exec/module.h"
#include "exec/types.h"

namespace chorus {

// Ok when every parameter can be honoured; else kInvalidArgument with the parameter as field, by
// its name over HTTP ("top_p", "logit_bias["7"]", "bad_words[2]").
Status check_sampling(const SamplingParams& params, int32_t vocabulary);

// Of that the ids, and what goes with each.
Status check_sampled_ids(const SamplingParams& params, int32_t vocabulary);

// Chooses the token at `position` from `row`, the row of position - 1. The draw is keyed (seed,
// choice, position), so it depends on neither the batch, nor rewinds, nor what was drawn before.
// `mask` is empty or one of SamplingState::fill_mask, and must live until the row was reduced.
RowSpec sampled_row(const SamplingParams& params, int32_t row, Position position,
                    std::span<const uint32_t> mask);

// Scores `token` by `row`; so many likeliest tokens beside it.
RowSpec scored_row(int32_t row, TokenId token, int32_t num_likeliest);

// Words of a mask over the vocabulary.
constexpr int32_t mask_words(int32_t vocabulary) {
  return vocabulary / 32 + (vocabulary % 32 != 0);
}

}  // namespace chorus
