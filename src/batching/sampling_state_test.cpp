#include "batching/sampling_state.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "batching/sampling_policy.h"
#include "exec/sampling.h"

namespace chorus {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int32_t kVocabulary = 40;

std::vector<TokenId> allowed_at(SamplingState& state, Position position) {
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words(kVocabulary)));
  if (state.needs_mask(position)) {
    EXPECT_TRUE(state.fill_mask(position, mask).ok());
    EXPECT_EQ(mask.back() >> (kVocabulary % 32), 0u);
  } else {
    std::fill(mask.begin(), mask.end(), ~0u);
  }
  Tokens allowed;
  for (TokenId id = 0; id < kVocabulary; ++id) {
    if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
  }
  return allowed;
}

// A policy beside all tokens of its session, from which everything is told anew.
class Model {
 public:
  Model(const SamplingParams& params, Tokens before)
      : params_(params), tokens_(std::move(before)) {}

  Tokens tokens() const { return tokens_; }
  void cut(size_t length) { tokens_.resize(std::min(length, tokens_.size())); }
  void add(TokenId token) { tokens_.push_back(token); }

  // The logit of each id, where the row has this one for it.
  float logit(float own, TokenId id) const {
    RowSpec spec;
    spec.repetition_penalty = params_.repetition_penalty;
    spec.frequency_penalty = params_.frequency_penalty;
    spec.presence_penalty = params_.presence_penalty;
    TokenAdjustment by;
    for (const TokenBias& each : params_.logit_bias) {
      if (each.id == id) by.bias = each.bias;
    }
    const auto first = tokens_.begin() + params_.first_position;
    by.is_given = std::count(tokens_.begin(), first, id) > 0;
    by.count = static_cast<int32_t>(std::count(first, tokens_.end(), id));
    return adjusted(own, by, spec);
  }

  bool allows(TokenId id) const {
    const Tokens& allowed = params_.allowed_tokens;
    if (!allowed.empty() && std::count(allowed.begin(), allowed.end(), id) == 0) return false;
    Tokens chosen(tokens_.begin() + params_.first_position, tokens_.end());
    const Tokens& late = params_.late_tokens;
    if (std::ssize(chosen) < params_.min_tokens && std::count(late.begin(), late.end(), id) > 0)
      return false;
    chosen.push_back(id);
    for (const Tokens& bad : params_.bad_sequences) {
      if (bad.size() <= chosen.size() && std::equal(bad.rbegin(), bad.rend(), chosen.rbegin()))
        return false;
    }
    return true;
  }

 private:
  // What OpenAI and vLLM say of penalties, in plain words.
  static float adjusted(float logit, const TokenAdjustment& by, const RowSpec& spec) {
    float x = logit + by.bias;
    if (by.is_given || by.count > 0) {
      if (x > 0) {
        x /= spec.repetition_penalty;
      } else {
        x *= spec.repetition_penalty;
      }
    }
    x -= spec.frequency_penalty * static_cast<float>(by.count);
    if (by.count > 0) x -= spec.presence_penalty;
    return x;
  }

  SamplingParams params_;
  Tokens tokens_;
};

SamplingParams random_params(RandomStream& random, const Tokens& before) {
  SamplingParams params;
  const auto chance = [&] { return random.below(2) == 0; };
  const auto token = [&] { return static_cast<TokenId>(random.below(8)); };
  if (chance()) params.repetition_penalty = static_cast<float>(0.5 + random.unit());
  if (chance()) params.frequency_penalty = static_cast<float>(random.unit());
  if (chance()) params.presence_penalty = static_cast<float>(random.unit());
  for (uint64_t i = random.below(4); i > 0; --i)
    params.logit_bias.push_back({token(), static_cast<float>(random.unit() * 8 - 4)});
  if (chance()) {
    for (TokenId id = 0; id < kVocabulary; ++id) {
      if (id >= 30 || chance()) params.allowed_tokens.push_back(id);
    }
    std::reverse(params.allowed_tokens.begin(), params.allowed_tokens.end());
  }
  for (uint64_t i = random.below(5); i > 0; --i) {
    Tokens& bad = params.bad_sequences.emplace_back();
    for (int64_t j = random.between(1, 3); j > 0; --j) bad.push_back(token());
  }
  params.min_tokens = static_cast<int32_t>(random.below(6));
  if (chance()) params.late_tokens = {1, 5, 33};
  params.first_position = static_cast<Position>(before.size());
  params.before = std::make_shared<const Tokens>(before);
  if (chance()) params.max_tokens = 20;
  return params;
}

void expect_same(SamplingState& state, const Model& model) {
  const auto position = static_cast<Position>(model.tokens().size());
  const SamplingParams& params = state.params();
  RowSpec spec = sampled_row(params, 0, position, {});
  std::map<TokenId, TokenAdjustment> by_id;
  TokenId previous = -1;
  for (const TokenAdjustment& each : state.adjustments()) {
    ASSERT_GT(each.id, previous);
    previous = each.id;
    by_id[each.id] = each;
  }
  for (TokenId id = 0; id < kVocabulary; ++id) {
    const float own = static_cast<float>(id) - 20.5f;
    const float found = by_id.contains(id) ? adjusted_logit(own, by_id[id], spec) : own;
    ASSERT_EQ(found, model.logit(own, id)) << "token " << id;
  }
  Tokens expected;
  for (TokenId id = 0; id < kVocabulary; ++id) {
    if (model.allows(id)) expected.push_back(id);
  }
  ASSERT_EQ(allowed_at(state, position), expected);
}

// Steps forward, steps that are told again, rewinds to anywhere behind the prompt that go on with
// other tokens, and recomputations from the beginning.
TEST(SamplingState, RemembersWhatTheTokensSay) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    const auto token = [&] { return static_cast<TokenId>(random.below(8)); };
    Tokens before;
    for (uint64_t i = random.below(10); i > 0; --i) before.push_back(token());
    const SamplingParams params = random_params(random, before);
    ASSERT_TRUE(check_sampling(params, kVocabulary).ok());
    SamplingState state(params, kVocabulary);
    Model model(params, before);
    ASSERT_NO_FATAL_FAILURE(expect_same(state, model));
    for (int step = 0; step < 40; ++step) {
      const size_t length = model.tokens().size();
      if (random.below(4) == 0) {
        const auto cut = static_cast<size_t>(
            random.between(static_cast<int64_t>(before.size()), static_cast<int64_t>(length)));
        model.cut(cut);
      }
      const size_t known = model.tokens().size();
      for (int64_t i = random.between(1, 3); i > 0; --i) model.add(token());
      // From any place up to where they are new.
      const size_t from = random.below(3) == 0 ? random.below(known + 1) : known;
      const Tokens tokens = model.tokens();
      const auto told = std::span(tokens).subspan(from);
      for (int times = random.below(5) == 0 ? 2 : 1; times > 0; --times) {
        state.take(static_cast<Position>(from), told);
        state.cut(static_cast<Position>(tokens.size()));
      }
      ASSERT_NO_FATAL_FAILURE(expect_same(state, model)) << "step " << step;
    }
  }
}

TEST(SamplingState, ATokenThatLeavesIsForgotten) {
  SamplingParams params;
  params.presence_penalty = 1.0f;
  params.first_position = 2;
  SamplingState state(params, kVocabulary);
  state.take(0, Tokens{1, 2, 3, 4});
  EXPECT_EQ(state.known_end(), 4);
  ASSERT_EQ(state.adjustments().size(), 2u);  // of 3 and 4: the prompt does not count
  state.cut(3);
  EXPECT_EQ(state.adjustments()[0].count, 1);
  EXPECT_EQ(state.adjustments()[1].count, 0);
  state.take(2, Tokens{4});
  EXPECT_EQ(state.adjustments()[0].count, 0);
  EXPECT_EQ(state.adjustments()[1].count, 1);
  EXPECT_EQ(state.known_end(), 3);
}

TEST(SamplingState, ForbidsNothingWithoutAReason) {
  SamplingParams params;
  params.min_tokens = 3;
  params.late_tokens = {7};
  params.first_position = 10;
  params.bad_sequences = {{1, 2, 3}};
  SamplingState state(params, kVocabulary);
  EXPECT_TRUE(state.needs_mask(12));
  state.take(10, Tokens{1, 1, 1});
  EXPECT_FALSE(state.needs_mask(13));
  state.take(13, Tokens{2});
  EXPECT_TRUE(state.needs_mask(14));
}

TEST(SamplingState, WhatForbidsEverythingIsNamed) {
  const auto field = [](const SamplingParams& params) {
    SamplingState state(params, kVocabulary);
    std::vector<uint32_t> mask(static_cast<size_t>(mask_words(kVocabulary)));
    return state.fill_mask(0, mask).field();
  };
  SamplingParams params;
  params.allowed_tokens = {3, 4};
  params.late_tokens = {3};
  params.min_tokens = 1;
  EXPECT_EQ(field(params), "");
  params.late_tokens = {4, 3};
  EXPECT_EQ(field(params), "min_tokens");
  params.min_tokens = 0;
  params.bad_sequences = {{3}, {4}};
  EXPECT_EQ(field(params), "bad_words");
}

class Only final : public TokenConstraint {
 public:
  explicit Only(TokenId id) : id_(id) {}
  Status fill_mask(std::span<uint32_t> mask) override {
    if (id_ >= 0) mask[static_cast<size_t>(id_) / 32] |= 1u << (id_ % 32);
    return {};
  }
  Status accept(TokenId) override { return {}; }

 private:
  const TokenId id_;
};

TEST(SamplingState, AConstraintAndTheListMeet) {
  SamplingParams params;
  params.constraint = std::make_shared<Only>(35);
  params.allowed_tokens = {35, 2};
  SamplingState both(params, kVocabulary);
  EXPECT_EQ(allowed_at(both, 0), Tokens{35});
  std::vector<uint32_t> mask(2);
  params.allowed_tokens = {2};
  EXPECT_EQ(SamplingState(params, kVocabulary).fill_mask(0, mask).field(), "allowed_token_ids");
  params.constraint = std::make_shared<Only>(-1);
  mask = {0, 0};
  EXPECT_EQ(SamplingState(params, kVocabulary).fill_mask(0, mask).field(), "constraint");
}

TEST(SamplingPolicy, WhatCannotBeHonouredIsNamed) {
  const auto field = [](auto change) {
    SamplingParams params;
    change(params);
    const Status status = check_sampling(params, kVocabulary);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.field();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {0.0f, -1.0f, 1.01f, nan}) {
    EXPECT_EQ(field([&](auto& p) { p.typical_p = bad; }), "typical_p");
  }
  for (const float bad : {0.0f, -1.0f, nan, inf}) {
    EXPECT_EQ(field([&](auto& p) { p.repetition_penalty = bad; }), "repetition_penalty");
  }
  for (const float bad : {-2.1f, 2.1f, nan}) {
    EXPECT_EQ(field([&](auto& p) { p.frequency_penalty = bad; }), "frequency_penalty");
    EXPECT_EQ(field([&](auto& p) { p.presence_penalty = bad; }), "presence_penalty");
  }
  for (const TokenId bad : {-1, kVocabulary, 99999999}) {
    const std::string id = std::to_string(bad);
    EXPECT_EQ(field([&](auto& p) { p.logit_bias = {{3, 1.0f}, {bad, 1.0f}}; }),
              "logit_bias[\"" + id + "\"]");
    EXPECT_EQ(field([&](auto& p) { p.allowed_tokens = {0, bad}; }), "allowed_token_ids[1]");
    EXPECT_EQ(field([&](auto& p) { p.bad_sequences = {{1}, {1, bad}}; }), "bad_words[1]");
    EXPECT_EQ(field([&](auto& p) { p.late_tokens = {bad}; }), "stop_token_ids[0]");
  }
  for (const float bad : {101.0f, -101.0f, nan, inf}) {
    EXPECT_EQ(field([&](auto& p) { p.logit_bias = {{3, bad}}; }), "logit_bias[\"3\"]");
  }
  EXPECT_EQ(field([&](auto& p) { p.bad_sequences = {{}}; }), "bad_words[0]");
  EXPECT_EQ(field([&](auto& p) { p.min_tokens = -1; }), "min_tokens");
  EXPECT_EQ(field([&](auto& p) { p.max_tokens = -1; }), "max_tokens");
  EXPECT_EQ(field([&](auto& p) { p.first_position = -1; }), "first_position");
  EXPECT_EQ(field([&](auto& p) { p.before = std::make_shared<const Tokens>(1, kVocabulary); }),
            "before");
}

}  // namespace
}  // namespace chorus
