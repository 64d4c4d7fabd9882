// Which of several continuations of one prompt are the best, as best_of means it: those of the
// highest log probability per token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/types.h"

namespace chorus {

// The mean logprob of a continuation's tokens; -inf without any, and where one is not known (NaN).
double mean_logprob(std::span<const TokenScore> tokens);

// The n greatest of the scores as indices, the greatest first; of equal ones the earlier first.
// Requires: no score is NaN.
std::vector<size_t> best_choices(std::span<const double> scores, int32_t n);

}  // namespace chorus
