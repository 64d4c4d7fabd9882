// What a single thread can bring about turn by turn: commands that arrive together, and blocks that
// are taken at a certain step.
#include <gtest/gtest.h>
#include <utility>

#include "engine/saved_session.h"
#include "engine/testing.h"

namespace chorus {
namespace {

using namespace testing;

// An engine that moves when it is told to.
struct SteppedEngine {
  explicit SteppedEngine(const ScriptedExecutor::Options& executor_options = {},
                         const RunnerOptions& options = {}) {
    auto created = Runner::create_without_thread(
        std::make_unique<ScriptedExecutor>(executor_options), options, clock);
    CHORUS_CHECK(created.ok());
    runner = std::move(created).value();
  }
  Session open() {
    auto session = runner->open();
    CHORUS_CHECK(session.ok());
    return std::move(session).value();
  }
  void turns(int count) {
    for (int i = 0; i < count; ++i) runner->turn();
  }

  ManualClock clock;
  std::unique_ptr<Runner> runner;
};

// As where sessions have one block each. Those that run need none besides for what they generate.
TEST(RunnerStepped, AsManyRunAsThePoolHasBlocksFor) {
  constexpr int kBlocks = 8;
  SteppedEngine engine({.max_session_tokens = 32, .block_size = 32, .num_blocks = kBlocks});
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  for (int i = 0; i < kBlocks; ++i) {
    sessions.push_back(engine.open());
    if (i == 0) {
      generate(sessions[0], {1, 2}, up_to(20));  // is idle, and keeps its block
    } else {
      handles.push_back(start(sessions.back(), {1, 2}, up_to(20)));
      engine.turns(1);
    }
    EXPECT_EQ(engine.runner->metrics().usage.groups[0].blocks_free, kBlocks - 1 - i);
  }
  EXPECT_EQ(engine.runner->metrics().running, kBlocks - 1);
  EXPECT_EQ(engine.runner->metrics().evictions, 0);
  EXPECT_EQ(engine.runner->metrics().preemptions, 0);
}

TEST(RunnerStepped, ACutIsSeenAlsoOfAGenerationThatEndsInTheSameTurn) {
  SteppedEngine engine;
  Session session = engine.open();
  const GenerationHandle handle = start(session, {1, 2}, up_to(9));
  engine.turns(4);
  EXPECT_EQ(session.position(), 6);
  handle.cancel();
  ASSERT_TRUE(handle.finish_at(1).ok());
  engine.turns(1);
  EXPECT_EQ(session.position(), 3);
  EXPECT_EQ(handle.finish_reason(), FinishReason::kStop);
  EXPECT_EQ(handle.metrics().generated_tokens, 1);
  EXPECT_EQ(engine.runner->metrics().generated_tokens, 1);
}

// Before the engine has heard of the cut, the session says what it will have left.
TEST(RunnerStepped, ACutAfterTheEndIsSeenAtOnce) {
  SteppedEngine engine({.max_session_tokens = 12});
  Session session = engine.open();
  const GenerationHandle handle = start(session, {1, 2}, up_to(9));
  handle.wait();
  EXPECT_EQ(session.position(), 11);
  ASSERT_TRUE(handle.finish_at(3).ok());
  EXPECT_EQ(session.position(), 5);
  EXPECT_EQ(session.clone(6).status().field(), "upto");
  auto clone = session.clone(5);
  ASSERT_TRUE(clone.ok());
  const Tokens context = Tokens{1, 2} + continuation({1, 2}, 3) + Tokens{7};
  const GenerationHandle next = start(session, {7}, up_to(6));
  EXPECT_EQ(session.position(), 5);
  EXPECT_EQ(generate(*clone, {7}, up_to(6)).tokens, continuation(context, 6));
  EXPECT_EQ(read_all(next).tokens, continuation(context, 6));
  // From the next use on the session is as it is.
  ASSERT_TRUE(handle.finish_at(1).ok());
  EXPECT_EQ(session.position(), 12);
  EXPECT_EQ(handle.metrics().generated_tokens, 1);
  EXPECT_TRUE(session.rewind(11).ok());
  ASSERT_TRUE(next.finish_at(1).ok());
  EXPECT_EQ(session.position(), 11);
  engine.turns(1);
  EXPECT_EQ(session.position(), 11);
}

TEST(RunnerStepped, ACutOfALiveGenerationIsSeenAtOnce) {
  SteppedEngine engine;
  Session session = engine.open();
  const GenerationHandle handle = start(session, {1, 2}, up_to(9));
  engine.turns(4);
  EXPECT_EQ(session.position(), 6);
  ASSERT_TRUE(handle.finish_at(2).ok());
  EXPECT_EQ(session.position(), 4);
  EXPECT_EQ(session.clone(5).status().field(), "upto");
  auto clone = session.clone(4);
  ASSERT_TRUE(clone.ok());
  EXPECT_EQ(generate(*clone, {7}, up_to(3)).tokens,
            continuation(Tokens{1, 2} + continuation({1, 2}, 2) + Tokens{7}, 3));
  EXPECT_EQ(handle.finish_reason(), FinishReason::kStop);
  EXPECT_EQ(session.position(), 4);
}

TEST(RunnerStepped, ACutBeforeTheDeadlineIsTheEnd) {
  SteppedEngine engine;
  Session session = engine.open();
  GenerationOptions options = up_to(9);
  options.deadline_ns = 5'000'000;
  const GenerationHandle handle = start(session, {1, 2}, options);
  engine.turns(4);
  engine.clock.advance_ns(5'000'000);
  engine.turns(1);
  EXPECT_EQ(handle.finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(handle.error().field(), "deadline_ms");
  ASSERT_TRUE(handle.finish_at(4).ok()) << "it has delivered no more";
  EXPECT_EQ(handle.finish_reason(), FinishReason::kCancelled);
  ASSERT_TRUE(handle.finish_at(2).ok());
  const Ended ended = read_all(handle);
  EXPECT_EQ(ended.reason, FinishReason::kStop);
  EXPECT_TRUE(ended.error.ok()) << ended.error.to_string();
  EXPECT_EQ(session.position(), 4);
}

TEST(RunnerStepped, ACutDoesNotMakeAnErrorGood) {
  auto owned = std::make_unique<ScriptedExecutor>(ScriptedExecutor::Options{});
  owned->add_fault({.kind = ScriptedFault::Kind::kFailInput,
                    .first_step = 4,
                    .num_steps = 1,
                    .session = SessionId{1}});
  const ManualClock clock;
  const auto runner = Runner::create_without_thread(std::move(owned), {}, clock).value();
  Session session = runner->open().value();
  const GenerationHandle handle = start(session, {1, 2}, up_to(9));
  handle.wait();
  EXPECT_EQ(handle.finish_reason(), FinishReason::kError);
  ASSERT_GT(handle.metrics().generated_tokens, 1);
  ASSERT_TRUE(handle.finish_at(1).ok());
  EXPECT_EQ(handle.finish_reason(), FinishReason::kError);
  EXPECT_EQ(handle.error().code(), Code::kInternal);
  EXPECT_EQ(handle.metrics().generated_tokens, 1);
  EXPECT_EQ(session.position(), 3);
}

// Also one that is made while the source goes on.
TEST(RunnerStepped, AForkKeepsTheSamplingOfItsSource) {
  SteppedEngine engine;
  Session session = engine.open();
  GenerationOptions options = up_to(5);
  options.sampling.temperature = 0.5f;
  options.sampling.choice = 9;
  options.seed = 42;
  const GenerationHandle handle = start(session, {1}, options);
  engine.turns(3);
  auto early = session.clone(2);
  ASSERT_TRUE(early.ok());
  handle.wait();
  auto late = session.clone(3);
  ASSERT_TRUE(late.ok());
  auto loaded = engine.runner->load(session.save().value());
  ASSERT_TRUE(loaded.ok());
  auto of_loaded = loaded->clone(1);
  ASSERT_TRUE(of_loaded.ok());
  for (const Session* fork : {&*early, &*late, &*of_loaded}) {
    const auto saved = fork->save();
    ASSERT_TRUE(saved.ok());
    EXPECT_EQ(saved->sampling.temperature, 0.5f);
    EXPECT_EQ(saved->sampling.choice, 9u);
    EXPECT_EQ(saved->sampling.seed, 42u);
  }
}

TEST(RunnerStepped, AFullInboxMakesTurns) {
  SteppedEngine engine;
  Session session = engine.open();
  for (size_t i = 0; i < 3 * Inbox::kMostCommands; ++i) ASSERT_TRUE(session.rewind(0).ok());
  EXPECT_EQ(generate(session, {1}, up_to(2)).tokens, continuation({1}, 2));
}

TEST(RunnerStepped, ARefusedPolicyIsNotPartOfASavedSession) {
  SteppedEngine engine;
  Session session = engine.open();
  GenerationOptions options = up_to(2);
  options.sampling.temperature = 0.5f;
  EXPECT_EQ(generate(session, {1}, options).reason, FinishReason::kLength);
  options.sampling.temperature = -1.0f;
  EXPECT_EQ(generate(session, {1}, options).error.field(), "temperature");
  const auto saved = session.save();
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(saved->sampling.temperature, 0.5f);
  EXPECT_TRUE(decode_session(encode_session(*saved)).ok());
}

// Its first piece ends where the prompt begins, so that it has scored the first token and consumed
// none when its blocks are taken.
TEST(RunnerStepped, AScoreIsNotRepeatedAfterAPreemption) {
  SteppedEngine engine({.block_size = 4, .num_blocks = 8},
                       {.max_batch_tokens = 13, .max_decode_sequences = 1, .prefill_chunk = 12});
  Session session = engine.open();
  Session other = engine.open();
  session.append(Tokens(12, 1))->wait();
  other.append(Tokens(28, 2))->wait();
  EXPECT_EQ(engine.runner->metrics().evictions, 1);
  GenerationOptions options = up_to(2);
  options.score_from = 12;
  const GenerationHandle scored = start(session, Tokens(9, 3), options);
  engine.turns(1);
  GenerationOptions urgent = up_to(1);
  urgent.priority = 1;
  const GenerationHandle preempting = start(other, Tokens(1, 4), urgent);
  preempting.wait();
  EXPECT_EQ(read_all(scored).tokens.size(), 2u);
  EXPECT_EQ(scored.metrics().preemptions, 1);
  const PromptScores scores = scored.take_prompt_scores();
  EXPECT_EQ(scores.first, 12);
  EXPECT_EQ(scores.tokens.size(), 9u);
}

// The pool has room for one at a time. Urgent ones come without end, the next before the last one
// has ended.
TEST(RunnerStepped, AFlowOfHighPrioritiesKeepsNobodyWaitingForEver) {
  constexpr int64_t kSecond = 1'000'000'000;
  for (const int32_t age_ms : {10'000, 1'000'000}) {
    SCOPED_TRACE(age_ms);
    SteppedEngine engine({.max_sessions = 40, .block_size = 4, .num_blocks = 8},
                         {.priority_age_ms = age_ms});
    GenerationOptions urgent = up_to(4);
    urgent.priority = 2;
    std::vector<Session> sessions;
    std::vector<GenerationHandle> flow;
    const auto add_urgent = [&] {
      sessions.push_back(engine.open());
      flow.push_back(start(sessions.back(), Tokens(20, 2), urgent));
    };
    add_urgent();
    Session low = engine.open();
    const GenerationHandle patient = start(low, Tokens(20, 1), up_to(4));
    int64_t seconds = 0;
    for (; seconds < 36 && !patient.finish_reason(); ++seconds) {
      engine.clock.advance_ns(kSecond);
      add_urgent();
      flow[flow.size() - 2].wait();
    }
    if (age_ms == 10'000) {
      EXPECT_GE(seconds, 20);
      EXPECT_LE(seconds, 23) << "a difference of two is worth 20 seconds";
      EXPECT_EQ(read_all(patient).tokens, continuation(Tokens(20, 1), 4));
    } else {
      EXPECT_EQ(patient.finish_reason(), std::nullopt);
    }
  }
}

TEST(RunnerStepped, ShortOnesGoFirstWhereThatIsAsked) {
  constexpr int64_t kSecond = 1'000'000'000;
  for (const int32_t per_token : {0, 100}) {
    SCOPED_TRACE(per_token);
    SteppedEngine engine({.block_size = 4, .num_blocks = 8}, {.shortest_first_ms = per_token});
    Session sessions[] = {engine.open(), engine.open(), engine.open()};
    const GenerationHandle running = start(sessions[0], Tokens(20, 1), up_to(6));
    engine.turns(1);
    const GenerationHandle longer = start(sessions[1], Tokens(22, 2), up_to(8));
    engine.clock.advance_ns(kSecond);
    const GenerationHandle shorter = start(sessions[2], Tokens(17, 3), up_to(2));
    running.wait();
    EXPECT_EQ(running.metrics().preemptions, 0);
    while (!longer.finish_reason() && !shorter.finish_reason()) engine.turns(1);
    EXPECT_EQ(shorter.finish_reason().has_value(), per_token > 0);
    EXPECT_EQ(longer.finish_reason().has_value(), per_token == 0);
    EXPECT_EQ(read_all(longer).tokens, continuation(Tokens(22, 2), 8));
    EXPECT_EQ(read_all(shorter).tokens, continuation(Tokens(17, 3), 2));
  }
}

// None of the two would free a block by itself, and nobody reads.
TEST(RunnerStepped, AReaderThatSleepsGivesUpBlocksThatItShares) {
  SteppedEngine engine({.block_size = 4, .num_blocks = 8}, {.max_unread_tokens = 2});
  Session sleepy = engine.open();
  Session other = engine.open();
  const GenerationHandle unread = start(sleepy, Tokens(16, 1), up_to(10));
  while (engine.runner->turn()) {
  }
  EXPECT_EQ(sleepy.position(), 18);
  auto fork = sleepy.clone(18);
  ASSERT_TRUE(fork.ok());
  auto second_fork = sleepy.clone(18);
  ASSERT_TRUE(second_fork.ok());
  const GenerationHandle also_unread = start(*fork, {5}, up_to(10));
  while (engine.runner->turn()) {
  }
  EXPECT_EQ(fork->position(), 21);
  auto third_fork = fork->clone(21);
  ASSERT_TRUE(third_fork.ok());
  EXPECT_EQ(generate(other, Tokens(24, 2), up_to(3)).tokens, continuation(Tokens(24, 2), 3));
  EXPECT_EQ(read_all(unread).tokens, continuation(Tokens(16, 1), 10));
}

// It needs the whole pool, and holds part of a block of it.
TEST(RunnerStepped, AReaderThatSleepsGivesUpTheLastBlock) {
  SteppedEngine engine({.block_size = 4, .num_blocks = 6}, {.max_unread_tokens = 2});
  Session sleepy = engine.open();
  Session other = engine.open();
  other.append(Tokens(2, 3))->wait();
  const GenerationHandle unread = start(sleepy, Tokens(4, 1), up_to(10));
  while (engine.runner->turn()) {
  }
  EXPECT_EQ(sleepy.position(), 6);
  EXPECT_EQ(generate(other, Tokens(21, 2), up_to(1)).tokens,
            continuation(Tokens(2, 3) + Tokens(21, 2), 1));
  EXPECT_EQ(read_all(unread).tokens, continuation(Tokens(4, 1), 10));
}

}  // namespace
}  // namespace chorus
