// Sessions as values outside of an engine, and their file.
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <utility>

#include "base/random.h"
#include "engine/saved_session.h"
#include "engine/testing.h"

namespace chorus {
namespace {

using namespace testing;

SavedSession some_session() {
  SavedSession saved;
  saved.tokens = {5, 6, 7, 8};
  saved.sampling.temperature = 0.75f;
  saved.sampling.top_k = 40;
  saved.sampling.top_p = 0.9f;
  saved.sampling.min_p = 0.05f;
  saved.sampling.choice = 3;
  saved.sampling.seed = 0x0123456789abcdefu;
  saved.format = {{1, 2, 3}, "bf16", "int8", "generic", 4};
  saved.notes = "said before";
  saved.kv = std::vector<std::byte>(100, std::byte{9});
  return saved;
}

std::string field_of(const std::vector<std::byte>& file) {
  const auto decoded = decode_session(file);
  return decoded.ok() ? "" : decoded.status().field();
}

TEST(SessionFile, GivesBackWhatWasWritten) {
  const SavedSession saved = some_session();
  const auto file = encode_session(saved);
  const auto decoded = decode_session(file);
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded->tokens, saved.tokens);
  EXPECT_EQ(decoded->sampling.temperature, saved.sampling.temperature);
  EXPECT_EQ(decoded->sampling.top_k, saved.sampling.top_k);
  EXPECT_EQ(decoded->sampling.top_p, saved.sampling.top_p);
  EXPECT_EQ(decoded->sampling.min_p, saved.sampling.min_p);
  EXPECT_EQ(decoded->sampling.choice, saved.sampling.choice);
  EXPECT_EQ(decoded->sampling.seed, saved.sampling.seed);
  EXPECT_EQ(decoded->format, saved.format);
  EXPECT_EQ(decoded->notes, saved.notes);
  EXPECT_EQ(decoded->kv, saved.kv);
  EXPECT_EQ(encode_session(*decoded), file);
}

TEST(SessionFile, BiasPenaltiesAndListsOfIds) {
  SavedSession saved = some_session();
  const size_t plain = encode_session(saved).size();
  saved.sampling.typical_p = 0.5f;
  saved.sampling.repetition_penalty = 1.25f;
  saved.sampling.frequency_penalty = -0.5f;
  saved.sampling.presence_penalty = 2.0f;
  saved.sampling.logit_bias = {{3, 1.5f}, {1, -100.0f}};
  saved.sampling.allowed_tokens = {7, 6, 5};
  saved.sampling.bad_sequences = {{1, 2, 3}, {4}};
  const auto file = encode_session(saved);
  EXPECT_EQ(file.size(), plain + 32 + 16 + 12 + 4 * (2 + 4));
  const auto decoded = decode_session(file);
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded->sampling.typical_p, 0.5f);
  EXPECT_EQ(decoded->sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(decoded->sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(decoded->sampling.presence_penalty, 2.0f);
  EXPECT_EQ(decoded->sampling.logit_bias, saved.sampling.logit_bias);
  EXPECT_EQ(decoded->sampling.allowed_tokens, saved.sampling.allowed_tokens);
  EXPECT_EQ(decoded->sampling.bad_sequences, saved.sampling.bad_sequences);
  EXPECT_EQ(encode_session(*decoded), file);
  // What nobody could have used is not taken.
  saved.sampling.logit_bias[1].id = -1;
  EXPECT_EQ(field_of(encode_session(saved)), "sampling");
  saved.sampling.logit_bias.clear();
  saved.sampling.bad_sequences.emplace_back();
  EXPECT_EQ(field_of(encode_session(saved)), "sampling");
}

TEST(SessionFile, EveryFlippedBitAndEveryCutIsRefused) {
  const auto file = encode_session(some_session());
  for (size_t i = 0; i < file.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      auto damaged = file;
      damaged[i] ^= static_cast<std::byte>(1 << bit);
      ASSERT_NE(field_of(damaged), "") << "byte " << i;
    }
    ASSERT_NE(field_of({file.begin(), file.begin() + static_cast<int64_t>(i)}), "");
  }
  auto longer = file;
  longer.push_back(std::byte{0});
  EXPECT_EQ(field_of(longer), "file");
  EXPECT_EQ(field_of({}), "magic");
}

TEST(SessionFile, SaysWhichPartIsWrong) {
  const auto file = encode_session(some_session());
  const auto with_byte = [&](size_t place) {
    auto damaged = file;
    damaged[place] ^= std::byte{1};
    return damaged;
  };
  EXPECT_EQ(field_of(with_byte(0)), "magic");
  EXPECT_EQ(field_of(with_byte(8)), "version");
  EXPECT_EQ(field_of(with_byte(16)), "checksum");
  EXPECT_EQ(field_of(with_byte(file.size() - 1)), "kv");
  EXPECT_EQ(field_of(with_byte(file.size() - 101)), "notes");
  EXPECT_EQ(field_of(with_byte(file.size() - 112)), "sampling");
  EXPECT_EQ(field_of(with_byte(file.size() - 144)), "tokens");
  EXPECT_EQ(field_of({file.begin(), file.end() - 5}), "kv");
}

// ---- Through an engine ----

TEST(SessionSave, GoesOnInAnotherEngineAndInTheSame) {
  const Tokens context = Tokens{1, 2, 3} + continuation({1, 2, 3}, 6);
  Engine engine({.block_size = 4});
  Session session = engine.open();
  generate(session, {1, 2, 3}, up_to(6));
  const auto saved = session.save();
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  EXPECT_EQ(saved->tokens, context);
  const auto copy = decode_session(encode_session(*saved));
  ASSERT_TRUE(copy.ok());
  Engine other({.block_size = 16});
  for (Engine* target : {&engine, &other}) {
    auto loaded = target->runner->load(*copy);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    EXPECT_EQ(loaded->position(), 9);
    const GenerationHandle handle = start(*loaded, {4}, up_to(5));
    EXPECT_EQ(read_all(handle).tokens, continuation(context + Tokens{4}, 5));
    EXPECT_EQ(handle.metrics().recomputed_tokens, 0);
  }
  EXPECT_EQ(generate(session, {4}, up_to(5)).tokens, continuation(context + Tokens{4}, 5));
}

TEST(SessionSave, WithoutItsBlocksItIsItsTokens) {
  Engine engine({.block_size = 4, .num_blocks = 8});
  Session session = engine.open();
  Session other = engine.open();
  const Tokens context = Tokens(16, 1) + generate(session, Tokens(16, 1), up_to(1)).tokens;
  generate(other, Tokens(28, 2), up_to(1));
  EXPECT_EQ(engine.runner->metrics().evictions, 1);
  const auto saved = session.save();
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(saved->tokens, context);
  EXPECT_TRUE(saved->kv.empty());
  Engine elsewhere;
  auto loaded = elsewhere.runner->load(*saved);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(generate(*loaded, {4}, up_to(5)).tokens, continuation(context + Tokens{4}, 5));
}

TEST(SessionSave, AFullPoolTakesItAsTokens) {
  Engine engine({.block_size = 4});
  Session session = engine.open();
  const Tokens context = Tokens(30, 1) + generate(session, Tokens(30, 1), up_to(1)).tokens;
  const auto saved = session.save();
  ASSERT_TRUE(saved.ok());
  // Idle sessions give way; a running one does not.
  Engine tight({.block_size = 4, .num_blocks = 10}, {.max_unread_tokens = 2});
  Session idle = tight.open();
  generate(idle, Tokens(20, 2), up_to(1));
  auto first_copy = tight.runner->load(*saved);
  ASSERT_TRUE(first_copy.ok());
  tight.sync();
  EXPECT_EQ(tight.runner->metrics().evictions, 1);
  EXPECT_EQ(generate(*first_copy, {4}, up_to(2)).tokens, continuation(context + Tokens{4}, 2));
  first_copy->close();
  tight.gate.hold_at(tight.executor->num_steps() + 2);
  const GenerationHandle busy = start(idle, Tokens(1, 3), up_to(8));
  tight.executor->wait_for_steps(3);
  tight.gate.open();
  auto second_copy = tight.runner->load(*saved);
  ASSERT_TRUE(second_copy.ok());
  EXPECT_EQ(generate(*second_copy, {4}, up_to(2)).tokens, continuation(context + Tokens{4}, 2));
  EXPECT_EQ(read_all(busy).tokens.size(), 8u);
}

TEST(SessionLoad, NobodyGivesWayToWhatDoesNotFit) {
  Engine engine({.block_size = 4});
  Session session = engine.open();
  const Tokens context = Tokens(33, 1) + generate(session, Tokens(33, 1), up_to(1)).tokens;
  const auto saved = session.save();
  ASSERT_TRUE(saved.ok());
  // 10 blocks: 4 of a reader that sleeps, 2 idle ones; 9 are needed.
  Engine tight({.block_size = 4, .num_blocks = 10}, {.max_unread_tokens = 2});
  Session idle = tight.open();
  generate(idle, Tokens(7, 2), up_to(1));
  Session busy = tight.open();
  const GenerationHandle asleep = start(busy, Tokens(12, 3), up_to(8));
  tight.executor->wait_for_steps(3);
  auto loaded = tight.runner->load(*saved);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(tight.runner->metrics().evictions, 0);
  asleep.cancel();
  asleep.wait();
  EXPECT_EQ(generate(*loaded, {4}, up_to(2)).tokens, continuation(context + Tokens{4}, 2));
}

TEST(SessionLoad, IsRefusedByField) {
  Engine engine({.vocabulary = 100, .max_sessions = 2, .max_session_tokens = 40});
  Session session = engine.open();
  generate(session, {1, 2, 3}, up_to(3));
  const SavedSession saved = *session.save();
  const auto refused = [&](auto change) {
    SavedSession changed = saved;
    change(changed);
    const auto loaded = engine.runner->load(changed);
    return loaded.ok() ? std::string() : loaded.status().field();
  };
  EXPECT_EQ(refused([](SavedSession&) {}), "");
  EXPECT_EQ(refused([](SavedSession& s) { s.format.identity[7] ^= 1; }), "identity");
  EXPECT_EQ(refused([](SavedSession& s) { s.format.kv_type = "f32"; }), "kv_type");
  EXPECT_EQ(refused([](SavedSession& s) { s.format.activations = "f32"; }), "activations");
  EXPECT_EQ(refused([](SavedSession& s) { s.format.isa = "avx512"; }), "isa");
  EXPECT_EQ(refused([](SavedSession& s) { s.format.numerics_version = 9; }), "numerics_version");
  EXPECT_EQ(refused([](SavedSession& s) { s.tokens[1] = 100; }), "tokens");
  EXPECT_EQ(refused([](SavedSession& s) { s.tokens[1] = -1; }), "tokens");
  EXPECT_EQ(refused([](SavedSession& s) { s.tokens.resize(41); }), "tokens");
  EXPECT_EQ(refused([](SavedSession& s) { s.kv.pop_back(); }), "kv");
  EXPECT_EQ(refused([](SavedSession& s) { s.kv.push_back(std::byte{0}); }), "kv");
  EXPECT_EQ(refused([](SavedSession& s) { s.tokens.resize(2); }), "kv");
  // The tokens alone do.
  SavedSession foreign = saved;
  foreign.format.isa = "avx512";
  auto recomputed = engine.runner->load(foreign, /*recompute=*/true);
  ASSERT_TRUE(recomputed.ok()) << recomputed.status().to_string();
  EXPECT_EQ(generate(*recomputed, {4}, up_to(3)).tokens,
            continuation(saved.tokens + Tokens{4}, 3, {}, 100));
  EXPECT_EQ(engine.runner->load(saved).status().field(), "max_sessions");
  session.close();
  EXPECT_EQ(session.save().status().field(), "session");
  EXPECT_TRUE(engine.runner->load(saved).ok()) << "refused loads take no place";
  engine.runner->shutdown();
  EXPECT_EQ(engine.runner->load(saved).status().code(), Code::kUnavailable);
}

TEST(SessionSave, NotWhileAGenerationIsLive) {
  Engine engine({}, {.max_unread_tokens = 2});
  Session session = engine.open();
  const GenerationHandle live = start(session, {1}, up_to(50));
  EXPECT_EQ(session.save().status().field(), "session");
  live.cancel();
  live.wait();
  EXPECT_TRUE(session.save().ok());
}

}  // namespace
}  // namespace chorus
