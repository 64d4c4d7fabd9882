#include "chorus/engine.h"

#include <algorithm>
#include <cstdio>
#include <gtest/gtest.h>
#include <limits>

#include "chorus/session_file.h"
#include "program/testing/tiny_program.h"

namespace chorus {
namespace {

constexpr const char* kModel = CHORUS_SOURCE_DIR "/tests/golden/tiny/tied_q4_1.gguf";

EngineOptions small_options() {
  EngineOptions options;
  options.threads = 1;
  options.context = 256;
  options.kv_blocks = 64;
  options.max_sessions = 8;
  return options;
}

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = Engine::open(kModel, small_options());
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::move(engine).value();
  }

  Session open() { return engine_->open_session().value(); }

  // The whole text of a prompt's continuation.
  std::string text_of(std::string_view prompt, const GenerationOptions& options,
                      std::vector<std::string> stops = {}) {
    Session session = open();
    Generation generation = engine_->generate(session, prompt, options, std::move(stops)).value();
    while (generation.read()) {
    }
    return generation.text();
  }

  std::unique_ptr<Engine> engine_;
};

// Random weights: a temperature makes the text vary, and special tokens are not to end it.
GenerationOptions draws(int32_t count) {
  GenerationOptions options;
  options.max_new_tokens = count;
  options.sampling.temperature = 1.5f;
  options.seed = 7;
  options.ignore_stop_tokens = true;
  return options;
}

std::vector<TokenId> ids_of(std::span<const TokenScore> tokens) {
  std::vector<TokenId> ids;
  for (const TokenScore& token : tokens) ids.push_back(token.id);
  return ids;
}

TEST_F(EngineTest, TheTextIsThatOfItsTokens) {
  Session session = open();
  auto generation = engine_->generate(session, "the sea", draws(40));
  ASSERT_TRUE(generation.ok()) << generation.status().to_string();
  std::string pieces;
  std::vector<TokenId> tokens;
  while (generation->read()) {
    pieces += generation->new_text();
    for (const TokenScore& token : generation->new_tokens()) tokens.push_back(token.id);
  }
  EXPECT_TRUE(generation->new_text().empty());
  EXPECT_EQ(generation->finish_reason(), FinishReason::kLength);
  EXPECT_EQ(tokens.size(), 40u);
  EXPECT_EQ(tokens, ids_of(generation->tokens()));
  EXPECT_EQ(pieces, generation->text());
  std::erase_if(tokens, [](TokenId id) { return id < 3; });  // special ones are not shown
  EXPECT_EQ(pieces, engine_->detokenize(tokens).value());
  EXPECT_EQ(generation->metrics().generated_tokens, 40);
}

TEST_F(EngineTest, PollingGivesTheSameAsReading) {
  Session session = open();
  Generation generation = engine_->generate(session, "the sea", draws(20)).value();
  std::string pieces;
  while (!generation.finished()) {
    generation.poll();
    pieces += generation.new_text();
  }
  EXPECT_FALSE(generation.poll());
  EXPECT_EQ(pieces, text_of("the sea", draws(20)));
}

// Wherever it lies among tokens, and whatever a character that is not complete would add behind it.
TEST_F(EngineTest, AStopTextEndsTheTextBeforeIt) {
  const std::string whole = text_of("the sea", draws(60));
  ASSERT_GT(whole.size(), 40u);
  const auto is_cut = [&](size_t at) { return at < whole.size() && (whole[at] & 0xc0) == 0x80; };
  int num_tried = 0;
  for (size_t at = 1; at < whole.size(); ++at) {
    size_t end = at + 1 + at % 5;
    if (is_cut(at) || is_cut(end) || end > whole.size()) continue;
    const std::string stop = whole.substr(at, end - at);
    EXPECT_EQ(text_of("the sea", draws(60), {"never so", stop}), whole.substr(0, whole.find(stop)));
    ++num_tried;
  }
  EXPECT_GT(num_tried, 20);
}

TEST_F(EngineTest, ATextIsAnIdListForTheSession) {
  Session by_text = open();
  Session by_ids = open();
  Generation a = engine_->generate(by_text, "the sea", draws(8)).value();
  const auto ids = engine_->tokenize("the sea", {.parse_special = true}).value();
  Generation b = engine_->generate(by_ids, ids, draws(8)).value();
  while (a.read()) {
  }
  while (b.read()) {
  }
  EXPECT_EQ(ids_of(a.tokens()), ids_of(b.tokens()));
  EXPECT_EQ(by_text.position(), static_cast<Position>(ids.size() + 8));
}

TEST_F(EngineTest, ModelEndTokensEndATextUnlessOthersAreNamed) {
  Session session = open();
  GenerationOptions options = draws(200);
  options.ignore_stop_tokens = false;
  options.sampling.temperature = 8;  // some draw of 293 tokens is the end token
  Generation generation = engine_->generate(session, "a", options).value();
  while (generation.read()) {
  }
  const auto ends = end_tokens(engine_->program());
  ASSERT_EQ(generation.finish_reason(), FinishReason::kStop) << "choose another seed";
  EXPECT_NE(std::find(ends.begin(), ends.end(), generation.tokens().back().id), ends.end());

  const auto first = generation.tokens().front().id;
  options.stop_tokens = {first};
  ASSERT_TRUE(session.rewind(0).ok());
  Generation other = engine_->generate(session, "a", options).value();
  while (other.read()) {
  }
  EXPECT_EQ(ids_of(other.tokens()), std::vector<TokenId>{first});
}

TEST_F(EngineTest, ZeroTokensAreAsManyAsThereIsRoomFor) {
  Session session = open();
  const std::vector<TokenId> prompt(200, 5);
  Generation generation = engine_->generate(session, prompt, draws(0)).value();
  while (generation.read()) {
  }
  EXPECT_EQ(generation.tokens().size(), 56u);
  EXPECT_EQ(session.position(), 256);
  EXPECT_EQ(engine_->generate(session, {5}, draws(0)).status().field(), "prompt");
}

TEST_F(EngineTest, ClonesRewoundAndSavedSessionsGoOnAlike) {
  Session session = open();
  Generation appended = engine_->append(session, {10, 11, 12, 13, 14}).value();
  while (appended.read()) {
  }
  EXPECT_EQ(appended.finish_reason(), FinishReason::kLength);
  EXPECT_TRUE(appended.tokens().empty());
  const auto continued = [&](Session& of) {
    Generation generation = engine_->generate(of, std::vector<TokenId>{20}, draws(6)).value();
    while (generation.read()) {
    }
    return ids_of(generation.tokens());
  };
  Session clone = session.clone(5).value();
  const std::string path = ::testing::TempDir() + "chorus_engine_test.session";
  ASSERT_TRUE(save_session(session, path).ok());
  const auto tokens = continued(session);
  EXPECT_EQ(continued(clone), tokens);
  ASSERT_TRUE(session.rewind(5).ok());
  EXPECT_EQ(continued(session), tokens);
  Session loaded = load_session(engine_->runner(), path).value();
  EXPECT_EQ(continued(loaded), tokens);
  std::remove(path.c_str());
}

TEST_F(EngineTest, WhatIsWrongIsNamed) {
  Session session = open();
  EXPECT_EQ(engine_->generate(session, "", {}).status().field(), "prompt");
  EXPECT_EQ(engine_->generate(session, "a", {}, {"x", ""}).status().field(), "stop[1]");
  EXPECT_EQ(engine_->detokenize(std::vector<TokenId>{5, 100000}).status().field(), "tokens[1]");
  EXPECT_EQ(Engine::open("/nonexistent/model").status().code(), Code::kNotFound);
  EngineOptions options = small_options();
  options.force_isa = "pdp11";
  EXPECT_EQ(Engine::open(kModel, options).status().field(), "force_isa");
  options = small_options();
  options.block_size = 5;
  EXPECT_EQ(Engine::open(kModel, options).status().field(), "block_size");
  options = small_options();
  options.context = 100000;
  EXPECT_EQ(Engine::open(kModel, options).status().field(), "context");
  options = small_options();
  options.kv_blocks = 2;
  options.context = 100;
  EXPECT_EQ(Engine::open(kModel, options).status().field(), "kv_blocks");
  options = small_options();
  options.kv_blocks = 100'000'000;
  options.block_size = 16;
  EXPECT_EQ(Engine::open(kModel, options).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(Engine::open(kModel, options).status().field(), "kv_blocks");
  options = small_options();
  options.max_sessions = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(Engine::open(kModel, options).status().field(), "max_sessions");
  options = small_options();
  options.kv_blocks = 0;
  options.kv_memory_bytes = 1;
  EXPECT_EQ(Engine::open(kModel, options).status().field(), "kv_memory_bytes");
  options = small_options();
  options.max_batch_tokens = 2;
  options.max_decode_sequences = 4;
  EXPECT_EQ(Engine::open(kModel, options).status().field(), "max_batch_tokens");
  options = small_options();
  options.priority_age_ms = -1;
  EXPECT_EQ(Engine::open(kModel, options).status().field(), "priority_age_ms");
  options = small_options();
  options.shortest_first_ms = -1;
  EXPECT_EQ(Engine::open(kModel, options).status().field(), "shortest_first_ms");
}

TEST_F(EngineTest, AnUnknownKvLayoutIsRefusedWithTheKnownOnes) {
  EngineOptions options = small_options();
  options.kv_layout = static_cast<KvLayout>(7);
  const Status status = Engine::open(kModel, options).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.field(), "kv_layout");
  EXPECT_EQ(status.message(), "expected paged or sequence, found 7");
}

TEST_F(EngineTest, SessionsAndGenerationsOutliveTheEngine) {
  // On a busy machine a generation may end before its engine: once more, then.
  for (int tries = 50; tries > 0; --tries) {
    Session session = open();
    Generation generation = engine_->generate(session, "the sea", draws(200)).value();
    ASSERT_TRUE(generation.read());
    engine_.reset();
    while (generation.read()) {
    }
    EXPECT_FALSE(generation.text().empty());
    EXPECT_EQ(session.generate({5}, {.max_new_tokens = 1}).status().code(), Code::kUnavailable);
    if (generation.finish_reason() == FinishReason::kCancelled) return;
    SetUp();
  }
  FAIL() << "every generation ended before its engine";
}

TEST_F(EngineTest, AChatIsRendered) {
  const text::ChatMessage message{"user", "hello"};
  EXPECT_EQ(engine_->render_chat(std::span(&message, 1)).value(),
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
}

TEST(EngineWithoutText, TakesTokensOnly) {
  const SteadyClock clock;
  auto program = std::make_shared<const Program>(tiny_program());
  auto engine = Engine::create(program, small_options(), clock).value();
  Session session = engine->open_session().value();
  EXPECT_EQ(engine->generate(session, "a").status().field(), "tokenizer");
  EXPECT_EQ(engine->tokenize("a").status().code(), Code::kUnimplemented);
  EXPECT_EQ(engine->generate(session, {5}, {}, {"stop"}).status().field(), "tokenizer");
  Generation generation = engine->generate(session, {5}, {.max_new_tokens = 3}).value();
  while (generation.read()) {
  }
  EXPECT_EQ(generation.tokens().size(), 3u);
  EXPECT_TRUE(generation.text().empty());
}

// The tokens and logprobs of 7 prompts in one batch.
std::vector<std::pair<TokenId, float>> outputs(const TinyOptions& tiny,
                                               const EngineOptions& options) {
  const SteadyClock clock;
  auto program = std::make_shared<const Program>(tiny_program(tiny));
  auto engine = Engine::create(program, options, clock).value();
  std::vector<Session> sessions;
  std::vector<Generation> generations;
  for (TokenId i = 1; i <= 7; ++i) {
    sessions.push_back(engine->open_session().value());
    GenerationOptions wanted = draws(9);
    wanted.sampling.logprobs = true;
    const std::vector<TokenId> prompt(static_cast<size_t>(6 * i), i);
    generations.push_back(engine->generate(sessions.back(), prompt, wanted).value());
  }
  std::vector<std::pair<TokenId, float>> all;
  for (Generation& generation : generations) {
    while (generation.read()) {
    }
    for (const TokenScore& token : generation.tokens()) all.push_back({token.id, token.logprob});
  }
  EXPECT_EQ(all.size(), 63u);
  return all;
}

// Also in steps of so few tokens that padding makes them longer.
TEST(EngineMethods, MakeNoDifference) {
  TinyOptions tiny;
  tiny.window = 20;
  const auto expected = outputs(tiny, small_options());
  for (const std::vector<Method>& methods :
       {decode_and_prefill({1, 2, 4, 8}, 5, 32), decode_and_prefill({1}, 2, 7),
        decode_and_prefill({1, 16}, 30, 32)}) {
    for (const int32_t max_batch_tokens : {0, 2, 9}) {
      tiny.methods = methods;
      EngineOptions options = small_options();
      options.max_batch_tokens = max_batch_tokens;
      EXPECT_EQ(outputs(tiny, options), expected) << max_batch_tokens;
    }
  }
}

}  // namespace
}  // namespace chorus
