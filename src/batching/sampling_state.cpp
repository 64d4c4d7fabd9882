#include "batching/sampling_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "batching/sampling_policy.h"

namespace chorus {
namespace {

void forbid(TokenId id, std::span<uint32_t> mask) {
  mask[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
}

// Bits past the vocabulary name no token.
void clear_end(int32_t vocabulary, std::span<uint32_t> mask) {
  if (vocabulary % 32 != 0) mask.back() &= (1u << (vocabulary % 32)) - 1;
}

}  // namespace

SamplingState::SamplingState(SamplingParams params, int32_t vocabulary)
    : params_(std::move(params)), vocabulary_(vocabulary) {
  std::sort(params_.allowed_tokens.begin(), params_.allowed_tokens.end());
  make_adjustments();
  params_.before = nullptr;
  if (!params_.remembers()) return;
  const auto max_tokens = static_cast<size_t>(params_.max_tokens);
  chosen_.reserve(max_tokens);
  if (has_penalties()) {
    adjustments_.reserve(
        std::min(adjustments_.size() + max_tokens, static_cast<size_t>(vocabulary)));
  }
}

// Of the ids that have a bias, or were given and count.
void SamplingState::make_adjustments() {
  const bool has_given = params_.repetition_penalty != 1.0f && params_.before != nullptr;
  if (params_.logit_bias.empty() && !has_given) return;
  std::vector<bool> is_given(static_cast<size_t>(vocabulary_));
  std::vector<bool> has_entry(static_cast<size_t>(vocabulary_));
  if (has_given) {
    for (const TokenId id : *params_.before) is_given[static_cast<size_t>(id)] = true;
    has_entry = is_given;
  }
  for (const TokenBias& each : params_.logit_bias) has_entry[static_cast<size_t>(each.id)] = true;
  for (size_t id = 0; id < has_entry.size(); ++id) {
    if (!has_entry[id]) continue;
    TokenAdjustment& made = adjustments_.emplace_back();
    made.id = static_cast<TokenId>(id);
    made.is_given = is_given[id];
  }
  for (const TokenBias& each : params_.logit_bias) adjustment(each.id).bias = each.bias;
}

bool SamplingState::has_penalties() const {
  return params_.repetition_penalty != 1.0f || params_.frequency_penalty != 0.0f ||
         params_.presence_penalty != 0.0f;
}

// The entry of an id, made where there is none.
TokenAdjustment& SamplingState::adjustment(TokenId id) {
  const auto at =
      std::lower_bound(adjustments_.begin(), adjustments_.end(), id,
                       [](const TokenAdjustment& each, TokenId other) { return each.id < other; });
  if (at != adjustments_.end() && at->id == id) return *at;
  TokenAdjustment made;
  made.id = id;
  return *adjustments_.insert(at, made);
}

void SamplingState::take(Position position, std::span<const TokenId> tokens) {
  if (!params_.remembers()) return;
  CHORUS_CHECK_LE(position, known_end());
  const Position skipped = std::max(0, params_.first_position - position);
  for (size_t i = static_cast<size_t>(skipped); i < tokens.size(); ++i) {
    const Position at = position + static_cast<Position>(i);
    if (at < known_end()) {
      if (chosen_[static_cast<size_t>(at - params_.first_position)] == tokens[i]) continue;
      cut(at);
    }
    chosen_.push_back(tokens[i]);
    if (has_penalties()) ++adjustment(tokens[i]).count;
  }
}

void SamplingState::cut(Position length) {
  while (!chosen_.empty() && known_end() > length) {
    if (has_penalties()) --adjustment(chosen_.back()).count;
    chosen_.pop_back();
  }
}

bool SamplingState::has_late_tokens(Position position) const {
  return !params_.late_tokens.empty() && position - params_.first_position < params_.min_tokens;
}

// Whether all but its last token were chosen last.
bool SamplingState::ends_with_start_of(const std::vector<TokenId>& sequence) const {
  return sequence.size() - 1 <= chosen_.size() &&
         std::equal(sequence.begin(), sequence.end() - 1,
                    chosen_.end() - static_cast<std::ptrdiff_t>(sequence.size() - 1));
}

bool SamplingState::needs_mask(Position position) const {
  const auto& bad = params_.bad_sequences;
  return params_.constraint != nullptr || !params_.allowed_tokens.empty() ||
         has_late_tokens(position) || std::any_of(bad.begin(), bad.end(), [&](const auto& each) {
           return ends_with_start_of(each);
         });
}

// Clears the bits of what is not allowed, word by word.
void SamplingState::restrict_to_allowed(std::span<uint32_t> mask) const {
  auto next = params_.allowed_tokens.begin();
  for (size_t word = 0; word < mask.size(); ++word) {
    uint32_t allowed = 0;
    for (; next != params_.allowed_tokens.end() && static_cast<size_t>(*next) / 32 == word; ++next)
      allowed |= 1u << (*next % 32);
    mask[word] &= allowed;
  }
}

Status SamplingState::fill_mask(Position position, std::span<uint32_t> mask) const {
  CHORUS_CHECK_EQ(static_cast<int32_t>(mask.size()), mask_words(vocabulary_));
  const auto check = [&](const char* field) -> Status {
    const bool is_empty =
        std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; });
    if (!is_empty) return {};
    return invalid_argument(field, "expected at least one allowed token, found none");
  };
  if (params_.constraint != nullptr) {
    CHORUS_RETURN_IF_ERROR(params_.constraint->fill_mask(mask));
  } else {
    std::fill(mask.begin(), mask.end(), ~0u);
  }
  clear_end(vocabulary_, mask);
  CHORUS_RETURN_IF_ERROR(check("constraint"));
  if (!params_.allowed_tokens.empty()) {
    restrict_to_allowed(mask);
    CHORUS_RETURN_IF_ERROR(check("allowed_token_ids"));
  }
  if (has_late_tokens(position)) {
    for (const TokenId id : params_.late_tokens) forbid(id, mask);
    CHORUS_RETURN_IF_ERROR(check("min_tokens"));
  }
  for (const std::vector<TokenId>& sequence : params_.bad_sequences) {
    if (ends_with_start_of(sequence)) forbid(sequence.back(), mask);
  }
  return check("bad_words");
}

}  // namespace chorus
