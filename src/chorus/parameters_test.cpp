// What the parameters of a generation do, through the engine and a tiny model: alone, together, in
// forks, and with others in the batch.
#include <algorithm>
#include <gtest/gtest.h>
#include <set>

#include "base/random.h"
#include "chorus/engine.h"

namespace chorus {
namespace {

constexpr const char* kModel = CHORUS_SOURCE_DIR "/tests/golden/tiny/tied_q4_1.gguf";
constexpr int32_t kVocabulary = 293;

using Tokens = std::vector<TokenId>;

Tokens ids_of(std::span<const TokenScore> scores) {
  Tokens ids;
  for (const TokenScore& each : scores) ids.push_back(each.id);
  return ids;
}

GenerationOptions draws(int32_t count, float temperature = 1.5f) {
  GenerationOptions options;
  options.max_new_tokens = count;
  options.sampling.temperature = temperature;
  options.seed = 7;
  options.ignore_stop_tokens = true;
  return options;
}

class Parameters : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.threads = 1;
    options.context = 256;
    options.kv_blocks = 96;
    options.max_sessions = 16;
    auto engine = Engine::open(kModel, options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::move(engine).value();
  }

  Session open() { return engine_->open_session().value(); }

  Generation run(const GenerationOptions& options, std::vector<std::string> stops = {},
                 const TextOptions& text = {}) {
    Session session = open();
    auto started = engine_->generate(session, "the sea", options, std::move(stops), text);
    EXPECT_TRUE(started.ok()) << started.status().to_string();
    Generation generation = std::move(started).value();
    while (generation.read()) {
    }
    return generation;
  }
  Tokens tokens_of(const GenerationOptions& options, const TextOptions& text = {}) {
    return ids_of(run(options, {}, text).tokens());
  }

  std::unique_ptr<Engine> engine_;
};

TEST_F(Parameters, ABiasMakesOrForbidsATokenAndIsNotInTheLogprob) {
  GenerationOptions options = draws(5, 0.0f);
  options.sampling.logit_bias = {{100, 100.0f}};
  options.sampling.logprobs = true;
  const Generation biased = run(options);
  EXPECT_EQ(ids_of(biased.tokens()), Tokens(5, 100));
  EXPECT_LT(biased.tokens()[0].logprob, -0.5f);
  EXPECT_GT(biased.tokens()[0].rank, 1);
}

TEST_F(Parameters, PenaltiesOfTheTokensSoFar) {
  // The largest ones leave no token twice, as long as there are others of nearly its likelihood.
  GenerationOptions options = draws(40, 0.0f);
  Tokens plain = tokens_of(options);
  options.sampling.logit_bias = {};
  options.sampling.repetition_penalty = 1000.0f;
  Tokens once = tokens_of(options);
  EXPECT_EQ(std::set(once.begin(), once.end()).size(), 40u);
  EXPECT_LT(std::set(plain.begin(), plain.end()).size(), 40u);
  // It covers the prompt, the other two do not.
  const Tokens prompt = engine_->tokenize("the sea").value();
  for (const TokenId id : prompt) EXPECT_EQ(std::count(once.begin(), once.end(), id), 0) << id;
  options = draws(1, 0.0f);
  options.sampling.presence_penalty = 2.0f;
  options.sampling.frequency_penalty = 2.0f;
  EXPECT_EQ(tokens_of(options)[0], plain[0]);
}

// LLamaSharp#621: a bias of one branch was seen by the other.
TEST_F(Parameters, AForksBiasAndPenaltiesAreItsOwn) {
  Session trunk = open();
  Generation first = engine_->generate(trunk, "the sea", draws(10)).value();
  while (first.read()) {
  }
  const Position end = trunk.position();
  Session alone = trunk.clone(end).value();
  GenerationOptions plain = draws(12, 0.0f);
  GenerationOptions changed = plain;
  changed.sampling.logit_bias = {{100, 100.0f}};
  changed.sampling.frequency_penalty = 2.0f;
  const Tokens next{50};
  Generation reference = engine_->generate(alone, next, plain).value();
  while (reference.read()) {
  }
  std::vector<Session> forks;
  std::vector<Generation> generations;
  for (int i = 0; i < 6; ++i) {
    forks.push_back(trunk.clone(end).value());
    generations.push_back(
        engine_->generate(forks.back(), next, i % 2 == 0 ? plain : changed).value());
  }
  for (size_t i = 0; i < generations.size(); ++i) {
    while (generations[i].read()) {
    }
    const Tokens found = ids_of(generations[i].tokens());
    if (i % 2 == 0) {
      EXPECT_EQ(found, ids_of(reference.tokens())) << i;
    } else {
      EXPECT_NE(found, ids_of(reference.tokens())) << i;
      EXPECT_EQ(found, ids_of(generations[1].tokens())) << i;
    }
  }
}

TEST_F(Parameters, AloneAndTogetherTheSame) {
  std::vector<GenerationOptions> all;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    RandomStream random(seed);
    GenerationOptions options = draws(24);
    SamplingParams& sampling = options.sampling;
    options.seed = seed;
    if (random.below(2) == 0) sampling.repetition_penalty = 1.3f;
    if (random.below(2) == 0) sampling.presence_penalty = 0.7f;
    if (random.below(2) == 0) sampling.frequency_penalty = 0.4f;
    if (random.below(2) == 0) sampling.typical_p = 0.8f;
    if (random.below(2) == 0) sampling.logit_bias = {{20, 2.0f}, {5, -3.0f}};
    if (random.below(2) == 0) sampling.bad_sequences = {{30}, {20, 20}};
    if (random.below(3) == 0) {
      for (TokenId id = 10; id < 200; ++id) sampling.allowed_tokens.push_back(id);
    }
    all.push_back(options);
  }
  std::vector<Tokens> alone;
  for (const GenerationOptions& options : all) alone.push_back(tokens_of(options));
  std::vector<Session> sessions;
  std::vector<Generation> together;
  for (const GenerationOptions& options : all) {
    sessions.push_back(open());
    together.push_back(engine_->generate(sessions.back(), "the sea", options).value());
  }
  for (size_t i = 0; i < all.size(); ++i) {
    while (together[i].read()) {
    }
    EXPECT_EQ(ids_of(together[i].tokens()), alone[i]) << i;
  }
}

TEST_F(Parameters, AllowedTokensAreAllThereIs) {
  GenerationOptions options = draws(60, 5.0f);
  options.sampling.allowed_tokens = {40, 7, 292};
  for (const TokenId id : tokens_of(options)) EXPECT_TRUE(id == 40 || id == 7 || id == 292) << id;
}

TEST_F(Parameters, NoStopBeforeMinTokens) {
  GenerationOptions options = draws(20, 0.0f);
  const Generation whole = run(options);
  options.ignore_stop_tokens = false;
  options.stop_tokens = {whole.tokens()[0].id};
  EXPECT_EQ(tokens_of(options).size(), 1u);
  for (const int32_t least : {1, 5, 20}) {
    options.sampling.min_tokens = least;
    const Generation late = run(options);
    EXPECT_GE(std::ssize(late.tokens()), least);
    const Tokens ids = ids_of(late.tokens());
    EXPECT_EQ(std::count(ids.begin(), ids.begin() + least, options.stop_tokens[0]), 0);
  }
  // A text that stops.
  options = draws(20, 0.0f);
  std::string text;
  size_t needed = 0;
  while (text.empty()) text += engine_->detokenize(Tokens{whole.tokens()[needed++].id}).value();
  ASSERT_TRUE(whole.text().starts_with(text));
  EXPECT_EQ(run(options, {text}).tokens().size(), needed);
  options.sampling.min_tokens = static_cast<int32_t>(needed);
  const Generation late = run(options, {text});
  EXPECT_GT(late.tokens().size(), needed);
  EXPECT_TRUE(late.text().starts_with(text));
  EXPECT_EQ(late.text().find(text, 1) == std::string::npos,
            late.finish_reason() == FinishReason::kLength || late.text() == text);
}

TEST_F(Parameters, BadWordsAreNotSaid) {
  const GenerationOptions options = draws(60);
  const Generation whole = run(options);
  // Pairs of tokens that came, as texts.
  int num_tried = 0;
  for (size_t i = 0; i + 1 < whole.tokens().size() && num_tried < 5; ++i) {
    const Tokens pair{whole.tokens()[i].id, whole.tokens()[i + 1].id};
    const std::string word = engine_->detokenize(pair).value();
    if (word.starts_with(' ') || engine_->tokenize(word, {.add_special = false}).value() != pair)
      continue;
    ++num_tried;
    const Tokens found = tokens_of(options, {.bad_words = {word}});
    EXPECT_EQ(std::search(found.begin(), found.end(), pair.begin(), pair.end()), found.end())
        << word;
    EXPECT_NE(found, ids_of(whole.tokens()));
  }
  EXPECT_GT(num_tried, 0);
}

TEST_F(Parameters, WhatEndsATextIsShownWhenAsked) {
  const GenerationOptions options = draws(40);
  const std::string whole = run(options).text();
  size_t at = whole.size() / 2;
  while ((whole[at] & 0xc0) == 0x80) ++at;
  size_t end = at + 1;
  while (end < whole.size() && (whole[end] & 0xc0) == 0x80) ++end;
  const std::string stop = whole.substr(at, end - at);
  const std::string before = whole.substr(0, whole.find(stop));
  EXPECT_EQ(run(options, {stop}).text(), before);
  EXPECT_EQ(run(options, {stop}, {.include_stop = true}).text(), before + stop);
}

TEST_F(Parameters, AStopTokenIsShownWhenAsked) {
  GenerationOptions options = draws(40);
  const Generation whole = run(options);
  Tokens before;
  TokenId last = -1;
  for (const TokenScore& each : whole.tokens()) {
    const bool is_new = std::find(before.begin(), before.end(), each.id) == before.end();
    const std::string piece = engine_->detokenize(Tokens{each.id}).value();
    if (before.size() >= 2 && is_new && each.id >= 3 && piece.find("\xef\xbf\xbd") == piece.npos) {
      last = each.id;
      break;
    }
    before.push_back(each.id);
  }
  ASSERT_GE(last, 0);
  options.ignore_stop_tokens = false;
  options.stop_tokens = {last};
  const Generation ended = run(options);
  EXPECT_EQ(ended.tokens().back().id, last);
  EXPECT_EQ(ended.finish_reason(), FinishReason::kStop);
  const std::string shown = run(options, {}, {.include_stop = true}).text();
  EXPECT_TRUE(shown.starts_with(ended.text()));
  EXPECT_EQ(shown.substr(ended.text().size()), engine_->detokenize(Tokens{last}).value());
}

// Clients name them as stop texts; a token that has no text is found by its id.
TEST_F(Parameters, ASpecialTokenIsAStopTextByItsName) {
  const TokenId special = engine_->tokenize("<|im_start|>", {.parse_special = true}).value().at(0);
  for (const bool ends_with_model : {false, true}) {
    GenerationOptions options = draws(20);
    options.ignore_stop_tokens = !ends_with_model;
    options.sampling.min_tokens = 3;
    options.sampling.logit_bias = {{special, 100.0f}};
    const Generation ended = run(options, {"never so", "<|im_start|>"});
    EXPECT_EQ(ended.finish_reason(), FinishReason::kStop);
    EXPECT_EQ(ended.stop_index(), 1u);
    ASSERT_EQ(ended.tokens().size(), 4u);
    EXPECT_EQ(ended.tokens()[3].id, special);
    for (const bool show_special : {false, true}) {
      const TextOptions shown{.include_stop = true, .show_special = show_special};
      EXPECT_EQ(run(options, {"<|im_start|>"}, shown).text(), ended.text() + "<|im_start|>");
    }
    options.max_new_tokens = 3;
    EXPECT_EQ(run(options, {"<|im_start|>"}).text(), ended.text()) << "all of it, and no more";
  }
}

TEST_F(Parameters, SpecialTokensAreShownWhenAsked) {
  GenerationOptions options = draws(2, 0.0f);
  options.sampling.allowed_tokens = end_tokens(engine_->program());
  ASSERT_FALSE(options.sampling.allowed_tokens.empty());
  EXPECT_EQ(run(options).text(), "");
  EXPECT_NE(run(options, {}, {.show_special = true}).text(), "");
}

// vllm#5822 and others: unknown ids have ended engines. Here nothing is admitted.
TEST_F(Parameters, UnknownIdsAreRefusedAtOnce) {
  Session session = open();
  const auto field = [&](auto change, const TextOptions& text = {}) {
    GenerationOptions options = draws(4);
    change(options);
    const auto refused = engine_->generate(session, "a", options, {}, text);
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    return refused.status().field();
  };
  EXPECT_EQ(field([](auto& o) { o.sampling.logit_bias = {{99999999, 1.0f}}; }),
            "logit_bias[\"99999999\"]");
  EXPECT_EQ(field([](auto& o) { o.sampling.allowed_tokens = {1, kVocabulary}; }),
            "allowed_token_ids[1]");
  EXPECT_EQ(field([](auto& o) { o.stop_tokens = {1, 2, -1}; }), "stop_token_ids[2]");
  EXPECT_EQ(field([](auto& o) { o.sampling.bad_sequences = {{kVocabulary}}; }), "bad_words[0]");
  EXPECT_EQ(field([](auto& o) { o.sampling.min_tokens = 5; }), "min_tokens");
  EXPECT_EQ(field([](auto& o) { o.sampling.min_tokens = -1; }), "min_tokens");
  EXPECT_EQ(field([](auto&) {}, {.bad_words = {"x", ""}}), "bad_words[1]");
  EXPECT_EQ(engine_->metrics().failed, 0);
  EXPECT_TRUE(engine_->generate(session, "a", draws(4)).ok());
}

}  // namespace
}  // namespace chorus
