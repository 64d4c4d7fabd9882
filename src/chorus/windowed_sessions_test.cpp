// Sessions of a model with sliding windows, on the real backend: whatever is rewound, cloned, saved
// or computed in chunks, what follows has the bits of the same tokens in a session of their own.
//
// CHORUS_WINDOWED_MODEL names a real one (window 512) to use instead of the tiny checkpoint.
#include <bit>
#include <cstdlib>
#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "chorus/engine.h"

namespace chorus {
namespace {

using Tokens = std::vector<TokenId>;

struct Subject {
  std::string model;
  uint64_t vocabulary;
  int64_t window;
  int64_t longest;  // tokens of a session
  uint64_t seeds;
  int turns;
  int threads;
};

// Window 24 in six of seven layers.
Subject tiny_model() {
  return {
      std::string(CHORUS_SOURCE_DIR) + "/tests/golden/folders/gemma3_text", 140, 24, 200, 6, 8, 1};
}

Subject subject() {
  const char* model = std::getenv("CHORUS_WINDOWED_MODEL");
  return model == nullptr ? tiny_model() : Subject{model, 262144, 512, 1400, 2, 6, 2};
}

Tokens random_tokens(RandomStream& random, const Subject& subject, int64_t count) {
  Tokens tokens;
  for (; count > 0; --count) {
    tokens.push_back(static_cast<TokenId>(random.below(subject.vocabulary)));
  }
  return tokens;
}

// The tokens said behind `prompt`, each with the bits of its logprob.
std::vector<std::pair<TokenId, uint32_t>> say(Engine& engine, Session& session, Tokens prompt,
                                              int32_t count) {
  GenerationOptions options;
  options.max_new_tokens = count;
  options.ignore_stop_tokens = true;
  options.sampling.logprobs = true;
  auto generation = engine.generate(session, std::move(prompt), options);
  EXPECT_TRUE(generation.ok()) << generation.status().to_string();
  std::vector<std::pair<TokenId, uint32_t>> said;
  if (!generation.ok()) return said;
  while (generation->read()) {
  }
  EXPECT_TRUE(generation->error().ok()) << generation->error().to_string();
  for (const TokenScore& token : generation->tokens()) {
    said.emplace_back(token.id, std::bit_cast<uint32_t>(token.logprob));
  }
  return said;
}

EngineOptions options_of(RandomStream& random, const Subject& subject) {
  EngineOptions options;
  options.threads = subject.threads;
  options.max_sessions = 4;
  options.block_size = std::vector<int32_t>{1, 16, 32}[random.below(3)];
  options.prefill_chunk = static_cast<int32_t>(random.between(1, subject.window * 5 / 2));
  options.max_decode_sequences = 4;
  options.max_batch_tokens = options.prefill_chunk + 4;
  // Idle sessions lose theirs.
  options.kv_blocks = static_cast<int32_t>(subject.longest * 6 / 5) / options.block_size + 6;
  options.prefix_cache = random.below(2) == 0;
  return options;
}

struct Held {
  Session session;
  Tokens context;
};

// One random change of `held`; what a clone leaves behind is closed with it.
void change(Engine& engine, RandomStream& random, Held& held) {
  const auto position = static_cast<Position>(held.context.size());
  const auto upto = static_cast<Position>(random.between(0, position));
  switch (random.below(4)) {
    case 0:
      ASSERT_TRUE(held.session.rewind(upto).ok());
      break;
    case 1: {
      auto clone = held.session.clone(upto);
      ASSERT_TRUE(clone.ok()) << clone.status().to_string();
      held.session = std::move(*clone);
      break;
    }
    case 2: {
      const auto saved = held.session.save();
      ASSERT_TRUE(saved.ok());
      auto loaded = engine.runner().load(*saved);
      ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
      held.session = std::move(*loaded);
      return;
    }
    default:
      return;
  }
  held.context.resize(static_cast<size_t>(upto));
}

TEST(WindowedSessions, AreTheirTokensWhateverBecameOfThem) {
  const SteadyClock clock;
  const Subject subject = chorus::subject();
  auto program = load_program(subject.model, {});
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  EngineOptions plain;
  plain.threads = subject.threads;
  plain.max_sessions = 2;
  plain.prefix_cache = false;
  auto alone = Engine::create(*program, plain, clock);
  ASSERT_TRUE(alone.ok()) << alone.status().to_string();
  for (uint64_t seed = 0; seed < subject.seeds; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    auto engine = Engine::create(*program, options_of(random, subject), clock);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    Held held{std::move((*engine)->open_session()).value(), {}};
    for (int turn = 0; turn < subject.turns; ++turn) {
      SCOPED_TRACE(turn);
      change(**engine, random, held);
      if (::testing::Test::HasFatalFailure()) return;
      const auto room = subject.longest - static_cast<int64_t>(held.context.size());
      if (room < 10) continue;
      const Tokens given = random_tokens(random, subject, random.between(1, room - 6));
      held.context.insert(held.context.end(), given.begin(), given.end());
      const auto said = say(**engine, held.session, given, 5);
      Session fresh = std::move((*alone)->open_session()).value();
      ASSERT_EQ(said, say(**alone, fresh, held.context, 5));
      for (const auto& [token, bits] : said) held.context.push_back(token);
      ASSERT_EQ(held.session.position(), static_cast<Position>(held.context.size()));
    }
  }
}

}  // namespace
}  // namespace chorus
