// The arithmetic of a choice, exactly, and a plain implementation of it. Every Module chooses the
// same token for the same logits, on every instruction set; the plain one serves FakeModule and is
// the oracle of the others.
//
// Order: mask, bias and penalties, temperature, top_k, typical_p, top_p, min_p, draw.
// 1. The candidates are the tokens that the mask allows. Logits are those that adjusted_logit makes
//    of the model's, where the spec adjusts them: the bias is added; then repetition_penalty, where
//    the token was given or chosen; then frequency_penalty * count is taken off, and then, where it
//    was chosen, presence_penalty. Likeliest first: by logit descending, then id ascending (-0
//    equals +0). Let max be the greatest of their logits.
// 2. Where temperature is 0, or 1 / temperature or max is not finite, the first is chosen.
// 3. Weights: w = floor(exp((logit - max) * (1 / temperature)) * 2^32), each operation rounded to
//    float, with the exp of sampling_exp. The first candidate has w = 2^32 = kWholeWeight, and sums
//    are exact in 64 bits.
// 4. top_k: the first top_k candidates stay; 0: all.
// 5. typical_p: let d = floor((max - logit) * (1 / temperature) * 2^20), each operation rounded to
//    float; with T the sum of the weights that are left, M = floor(sum of w * d / T), and
//    P = floor(typical_p * 2^32). Those with weight stay whose |d - M| is at most D, the least one
//    with which the weights of those that stay add up to ceil(T * P / 2^32) or more, and to 1 at
//    least. |d - M| is the distance of -log p from the entropy, in 2^-20: both are shifted by log
//    T. Meister, Pimentel, Wiher, Cotterell 2023, "Locally Typical Sampling". 1: all stay.
// 6. top_p: with P = floor(top_p * 2^32) and T the sum of the weights that are left, the fewest
//    first candidates stay whose weights add up to ceil(T * P / 2^32) or more, and at least one.
// 7. min_p: with W the weight of the first that is left (2^32 unless typical_p took it), those with
//    w >= ceil(W * ceil(min_p * 2^32) / 2^32) stay. The first always does.
// 8. With T the sum of the weights that are left and u the 64 bits of random_bits(seed, choice,
//    position), the token is the one of lowest id at which the sum of weights in the order of ids
//    exceeds floor(u * T / 2^64).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/module.h"
#include "exec/types.h"

namespace chorus {

inline constexpr uint64_t kWholeWeight = uint64_t{1} << 32;

// The logit of step 1, each operation rounded to float. Neither is NaN.
inline float adjusted_logit(float logit, const TokenAdjustment& by, const RowSpec& spec) {
  logit = logit + by.bias;
  if (by.is_given || by.count > 0) {
    logit = logit > 0.0f ? logit / spec.repetition_penalty : logit * spec.repetition_penalty;
  }
  logit = logit - spec.frequency_penalty * static_cast<float>(by.count);
  return by.count > 0 ? logit - spec.presence_penalty : logit;
}

// P of steps 5 and 6. Requires: 0 < top_p <= 1.
uint64_t share_of_top_p(float top_p);
// The least weight that step 7 keeps where W is 2^32. Requires: 0 <= min_p <= 1.
uint64_t weight_of_min_p(float min_p);

// e^x by the polynomial of Cephes expf, in plain float operations; -ffp-contract=off is presumed.
float sampling_exp(float x);

// The choice as above, by sorting, with `bits` for u. `order` is scratch; it grows to the
// vocabulary at most. Returns -1 where the mask allows nothing. Requires: no logit is NaN; spec's
// filters are in their ranges; rounding to nearest, subnormal numbers kept.
TokenId choose_token(std::span<const float> logits, const RowSpec& spec, uint64_t bits,
                     std::vector<TokenId>& order);

// The same with the bits of the spec's key.
TokenId choose_token(std::span<const float> logits, const RowSpec& spec,
                     std::vector<TokenId>& order);

}  // namespace chorus
