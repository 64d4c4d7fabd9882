// The sampling policy of one generation, with what it remembers of the session's tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "exec/module.h"
#include "exec/types.h"

namespace chorus {

// What penalties and bad sequences know is a function of the tokens from first_position on, in
// order, and nothing else: a step that fails, a rewind and a recomputation tell them again or
// otherwise, and what no longer holds is forgotten. The memory is that of a token for each one
// chosen and of an entry for each id that was given, chosen or has a bias; with max_tokens it is
// taken at once. Thread: engine.
class SamplingState {
 public:
  // Requires: check_sampling(params, vocabulary).
  SamplingState(SamplingParams params, int32_t vocabulary);

  const SamplingParams& params() const { return params_; }

  // The end of the tokens that are known or need not be: the next ones told may not begin later.
  Position known_end() const {
    return params_.first_position + static_cast<Position>(chosen_.size());
  }
  // The session's tokens from `position` on are these. Nothing where the policy remembers nothing.
  // Requires: position <= known_end().
  void take(Position position, std::span<const TokenId> tokens);
  // The tokens at `length` and later are no longer the session's.
  void cut(Position length);

  // Whether anything is forbidden at `position`, the next one after the tokens known.
  bool needs_mask(Position position) const;
  // The tokens that may stand there. `mask` has mask_words(vocabulary) words, all 0. The
  // constraint's own error, or kInvalidArgument with what forbids them all as field (constraint,
  // allowed_token_ids, min_tokens or bad_words).
  Status fill_mask(Position position, std::span<uint32_t> mask) const;

  // Of the next choice; valid until anything is taken or cut.
  std::span<TokenAdjustment> adjustments() { return adjustments_; }

 private:
  void make_adjustments();
  bool has_penalties() const;
  bool has_late_tokens(Position position) const;
  bool ends_with_start_of(const std::vector<TokenId>& sequence) const;
  TokenAdjustment& adjustment(TokenId id);
  void restrict_to_allowed(std::span<uint32_t> mask) const;

  SamplingParams params_;  // allowed_tokens ascending
  int32_t vocabulary_;
  std::vector<TokenId> chosen_;               // from first_position on
  std::vector<TokenAdjustment> adjustments_;  // ids ascending
};

}  // namespace chorus
