// Faults, cancels, closes, full pools, slow readers and shutdown.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <utility>

#include "engine/testing.h"

namespace chorus {
namespace {

using namespace testing;
using Kind = ScriptedFault::Kind;

constexpr int64_t kForEver = int64_t{1} << 40;

int32_t free_blocks(const Engine& engine) {
  return engine.runner->metrics().usage.groups.at(0).blocks_free;
}

// Whoever posts faster than the engine runs waits for it; what was asked of a generation does not.
TEST(RunnerInbox, HoldsSoMuchAndNoMore) {
  Engine engine;
  engine.gate.hold_at(0);
  Session busy = engine.open();
  const GenerationHandle held = start(busy, {1}, up_to(50));
  engine.executor->wait_for_steps(0);
  Session session = engine.open();
  constexpr size_t kCalls = 3 * Inbox::kMostCommands;
  std::atomic<size_t> num_posted = 0;
  std::thread caller([&] {
    for (size_t i = 0; i < kCalls; ++i) {
      CHORUS_CHECK(session.rewind(0).ok());
      ++num_posted;
    }
  });
  size_t seen = 0;
  do {  // until it stands still
    seen = num_posted;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  } while (seen != num_posted || seen + 10 < Inbox::kMostCommands);
  EXPECT_LE(seen, 2 * Inbox::kMostCommands) << "once taken, once waiting";
  held.cancel();
  engine.gate.open();
  caller.join();
  EXPECT_EQ(num_posted, kCalls);
  held.wait();
  EXPECT_EQ(held.finish_reason(), FinishReason::kCancelled);
}

TEST(RunnerFaults, OneBadInputFailsAlone) {
  Engine engine;
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  engine.gate.hold_at(0);
  for (int i = 0; i < 8; ++i) sessions.push_back(engine.open());
  for (int i = 0; i < 8; ++i)
    handles.push_back(start(sessions[static_cast<size_t>(i)], {i, 7}, up_to(10)));
  engine.executor->add_fault(
      {.kind = Kind::kFailInput, .first_step = 5, .num_steps = 1, .session = SessionId{4}});
  engine.gate.open();
  Tokens delivered;
  for (int i = 0; i < 8; ++i) {
    const Ended ended = read_all(handles[static_cast<size_t>(i)]);
    const Tokens expected = continuation({i, 7}, 10);
    if (i != 3) {
      EXPECT_EQ(ended.tokens, expected);
      continue;
    }
    EXPECT_EQ(ended.reason, FinishReason::kError);
    EXPECT_EQ(ended.error.code(), Code::kInternal);
    ASSERT_LT(ended.tokens.size(), 10u);
    EXPECT_EQ(ended.tokens, first(expected, ended.tokens.size()));
    delivered = ended.tokens;
  }
  // The failed session goes on from what it delivered, its pending token included.
  const Tokens context = Tokens{3, 7} + delivered + Tokens{5};
  EXPECT_EQ(generate(sessions[3], {5}, up_to(4)).tokens, continuation(context, 4));
  EXPECT_EQ(engine.runner->metrics().failed, 1);
  EXPECT_EQ(engine.runner->metrics().aborted_steps, 0);
}

TEST(RunnerFaults, AnAbortedStepIsRunAgainEachAlone) {
  Engine engine({}, {.prefill_chunk = 2});
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  for (int i = 0; i < 4; ++i) sessions.push_back(engine.open());
  engine.sync();
  engine.gate.hold_at(0);
  for (int i = 0; i < 4; ++i)
    handles.push_back(start(sessions[static_cast<size_t>(i)], {i, 1, 2, 3, 4}, up_to(6)));
  engine.executor->add_fault({.kind = Kind::kFailStep, .first_step = 3});
  engine.gate.open();
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(read_all(handles[static_cast<size_t>(i)]).tokens, continuation({i, 1, 2, 3, 4}, 6));
  EXPECT_EQ(engine.runner->metrics().aborted_steps, 1);
  EXPECT_EQ(engine.runner->metrics().failed, 0);
}

TEST(RunnerFaults, OnlyWhoFailsAloneEndsWithError) {
  Engine engine({}, {.prefill_chunk = 2});
  Session good = engine.open();
  Session bad = engine.open();
  Session fine = engine.open();
  engine.executor->add_fault(
      {.kind = Kind::kFailStep, .first_step = 0, .num_steps = kForEver, .session = SessionId{2}});
  const GenerationHandle a = start(good, {1, 2, 3}, up_to(6));
  const GenerationHandle b = start(bad, {4, 5, 6, 7, 8}, up_to(6));
  const GenerationHandle c = start(fine, {9}, up_to(6));
  EXPECT_EQ(read_all(a).tokens, continuation({1, 2, 3}, 6));
  EXPECT_EQ(read_all(c).tokens, continuation({9}, 6));
  const Ended ended = read_all(b);
  EXPECT_EQ(ended.reason, FinishReason::kError);
  EXPECT_EQ(ended.error.field(), "step");
  EXPECT_EQ(bad.position(), 0);
  EXPECT_EQ(engine.executor->length(SessionId{2}).value(), 0);
}

TEST(RunnerFaults, MisreportedOutputsEndTheGenerationOnly) {
  for (const Kind kind : {Kind::kMissingToken, Kind::kUnexpectedToken, Kind::kTokenOutOfRange,
                          Kind::kBadRange, Kind::kShortOutput}) {
    for (const int64_t step : {0, 1, 2, 4}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(kind)) + " in step " + std::to_string(step));
      Engine engine({.tokens_per_output = 2}, {.max_batch_tokens = 3, .prefill_chunk = 2});
      Session session = engine.open();
      const bool whole_step = kind == Kind::kShortOutput;
      engine.executor->add_fault(
          {.kind = kind, .first_step = step, .session = SessionId{whole_step ? 0u : 1u}});
      const Tokens prompt = {1, 2, 3, 4, 5};
      const Ended ended = generate(session, prompt, up_to(8));
      // A token that is not asked for can only come in a chunk of the prompt, and so on.
      if (ended.reason == FinishReason::kLength) {
        EXPECT_EQ(ended.tokens, continuation(prompt, 8));
        continue;
      }
      EXPECT_EQ(ended.reason, FinishReason::kError);
      EXPECT_EQ(ended.error.field(), "executor");
      EXPECT_EQ(ended.tokens, first(continuation(prompt, 8), ended.tokens.size()));
      const auto position = static_cast<size_t>(session.position());
      const Tokens context = first(prompt + ended.tokens, position);
      EXPECT_TRUE(ended.tokens.empty() || position == prompt.size() + ended.tokens.size());
      EXPECT_EQ(generate(session, {8, 9}, up_to(5)).tokens,
                continuation(context + Tokens{8, 9}, 5));
    }
  }
}

TEST(RunnerFaults, CancelEndsWithinOneStepInEveryPhase) {
  Engine engine({.block_size = 16, .num_blocks = 8}, {.max_batch_tokens = 17, .prefill_chunk = 16});
  // In flight, while the prompt is consumed: the step that runs is the last one.
  Session prefilling = engine.open();
  engine.gate.hold_at(1);
  GenerationHandle handle = start(prefilling, Tokens(64, 1), up_to(4));
  engine.executor->wait_for_steps(2);
  handle.cancel();
  handle.cancel();
  // Queued: the pool is promised to the first, so this one never ran when it is cancelled.
  Session queued = engine.open();
  const GenerationHandle waiting = start(queued, Tokens(100, 1), up_to(28));
  waiting.cancel();
  engine.gate.open();
  EXPECT_EQ(read_all(handle).reason, FinishReason::kCancelled);
  EXPECT_EQ(read_all(waiting).reason, FinishReason::kCancelled);
  EXPECT_EQ(engine.executor->num_steps(), 2);
  EXPECT_EQ(prefilling.position(), 32) << "what was consumed is kept";
  EXPECT_EQ(queued.position(), 0);
  EXPECT_EQ(free_blocks(engine), 6);
  // Decoding: the token of the step in flight is not delivered.
  engine.gate.hold_at(5);
  handle = start(prefilling, {7}, up_to(16));
  engine.executor->wait_for_steps(6);
  handle.cancel();
  engine.gate.open();
  const Ended ended = read_all(handle);
  EXPECT_EQ(engine.executor->num_steps(), 6);
  EXPECT_EQ(ended.tokens, continuation(Tokens(32, 1) + Tokens{7}, 3));
  EXPECT_EQ(prefilling.position(), 36);
  const Tokens context = Tokens(32, 1) + Tokens{7} + ended.tokens + Tokens{8};
  EXPECT_EQ(generate(prefilling, {8}, up_to(2)).tokens, continuation(context, 2));
  // Idle: nothing happens.
  const int64_t num_steps = engine.executor->num_steps();
  handle.cancel();
  engine.sync();
  EXPECT_EQ(engine.executor->num_steps(), num_steps);
  EXPECT_EQ(engine.runner->metrics().cancelled, 3);
}

TEST(RunnerFaults, CloseCancelsAndGivesBlocksBackWithinOneStep) {
  Engine engine({.num_blocks = 8});
  Session dropped = engine.open();
  Session replaced = engine.open();
  engine.gate.hold_at(2);
  const GenerationHandle a = start(dropped, Tokens(40, 1), up_to(20));
  const GenerationHandle b = start(replaced, Tokens(10, 1), up_to(20));
  engine.executor->wait_for_steps(3);
  {
    const Session gone = std::move(dropped);
  }
  replaced = Session();
  engine.gate.open();
  EXPECT_EQ(read_all(a).reason, FinishReason::kCancelled);
  EXPECT_EQ(read_all(b).reason, FinishReason::kCancelled);
  EXPECT_EQ(engine.executor->num_steps(), 3);
  EXPECT_EQ(free_blocks(engine), 8);
  EXPECT_EQ(engine.executor->num_sessions(), 0);
  Session closed = engine.open();
  const GenerationHandle c = start(closed, Tokens(40, 1), up_to(20));
  closed.close();
  EXPECT_TRUE(c.done());
  EXPECT_EQ(free_blocks(engine), 8);
  EXPECT_EQ(engine.runner->metrics().sessions, 0);
}

TEST(RunnerFaults, ASlowReaderPausesOnlyItsOwnGeneration) {
  Engine engine({}, {.max_unread_tokens = 4});
  Session slow = engine.open();
  Session fast = engine.open();
  const GenerationHandle unread = start(slow, {1}, up_to(20));
  EXPECT_EQ(generate(fast, {2}, up_to(100)).tokens, continuation({2}, 100));
  EXPECT_FALSE(unread.done());
  EXPECT_EQ(slow.position(), 5) << "one given, four wait to be read";
  EXPECT_EQ(engine.runner->metrics().running, 1);
  EXPECT_EQ(read_all(unread).tokens, continuation({1}, 20));
  // Who waits for the end does not read: the limit is lifted.
  const GenerationHandle waited = start(slow, {3}, up_to(20));
  waited.wait();
  EXPECT_EQ(read_all(waited).tokens.size(), 20u);
  // A paused generation can be cancelled and closed.
  const GenerationHandle paused = start(slow, {3}, up_to(20));
  generate(fast, {2}, up_to(10));
  paused.cancel();
  paused.wait();
  EXPECT_EQ(paused.finish_reason(), FinishReason::kCancelled);
}

TEST(RunnerFaults, FinishAtCutsTheContext) {
  const Tokens said = continuation({1, 2}, 40);
  for (const int32_t n : {1, 3, 8}) {
    SCOPED_TRACE("n " + std::to_string(n));
    Engine engine({}, {.max_unread_tokens = 8});
    const auto goes_on = [&](Session& session) {
      const Tokens context = Tokens{1, 2} + first(said, static_cast<size_t>(n)) + Tokens{9};
      EXPECT_EQ(generate(session, {9}, up_to(3)).tokens, continuation(context, 3));
    };
    // Ahead of the tokens.
    Session ahead = engine.open();
    engine.gate.hold_at(0);
    GenerationHandle handle = start(ahead, {1, 2}, up_to(40));
    ASSERT_TRUE(handle.finish_at(n).ok());
    engine.gate.open();
    Ended ended = read_all(handle);
    EXPECT_EQ(ended.reason, FinishReason::kStop);
    EXPECT_EQ(ended.tokens, first(said, static_cast<size_t>(n)));
    EXPECT_EQ(ahead.position(), 2 + n);
    goes_on(ahead);
    // Behind them, in mid-generation: it has paused with eight delivered.
    Session behind = engine.open();
    handle = start(behind, {1, 2}, up_to(40));
    while (behind.position() < 10) std::this_thread::yield();
    ASSERT_TRUE(handle.finish_at(n).ok());
    handle.wait();
    EXPECT_EQ(handle.finish_reason(), FinishReason::kStop);
    EXPECT_EQ(handle.metrics().generated_tokens, n);
    EXPECT_EQ(behind.position(), 2 + n);
    goes_on(behind);
    // After the end.
    Session after = engine.open();
    handle = start(after, {1, 2}, up_to(8));
    EXPECT_EQ(read_all(handle).reason, FinishReason::kLength);
    ASSERT_TRUE(handle.finish_at(n).ok());
    EXPECT_EQ(handle.finish_reason(), n < 8 ? FinishReason::kStop : FinishReason::kLength);
    engine.sync();
    EXPECT_EQ(after.position(), 2 + n);
    goes_on(after);
    // Once the session was used again, its context stands.
    ASSERT_TRUE(handle.finish_at(1).ok());
    engine.sync();
    EXPECT_EQ(after.position(), 2 + n + 1 + 3);
    EXPECT_EQ(handle.finish_at(0).field(), "n");
    // Also while its next generation is live.
    const GenerationHandle old = start(after, {5}, up_to(4));
    old.wait();
    const int64_t next_step = engine.executor->num_steps();
    const int64_t num_generated = engine.runner->metrics().generated_tokens;
    engine.gate.hold_at(next_step);
    const GenerationHandle live = start(after, {6}, up_to(4));
    engine.executor->wait_for_steps(next_step + 1);
    ASSERT_TRUE(old.finish_at(1).ok());
    engine.gate.open();
    EXPECT_EQ(read_all(live).tokens.size(), 4u);
    EXPECT_EQ(engine.runner->metrics().generated_tokens, num_generated + 4);
    EXPECT_EQ(after.position(), 2 + n + 1 + 3 + 2 * (1 + 4));
  }
}

TEST(RunnerFaults, TheQueueIsBounded) {
  Engine engine({.block_size = 16, .num_blocks = 1}, {.max_queued_generations = 2});
  std::vector<Session> sessions;
  for (int i = 0; i < 5; ++i) sessions.push_back(engine.open());
  engine.gate.hold_at(0);
  std::vector<GenerationHandle> handles = {start(sessions[0], {1}, up_to(10))};
  engine.executor->wait_for_steps(1);
  handles.push_back(start(sessions[1], {1}, up_to(10)));
  handles.push_back(start(sessions[2], {1}, up_to(10)));
  const auto refused = sessions[3].generate({1}, up_to(10));
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.status().field(), "queue");
  handles[1].cancel();
  engine.gate.open();
  handles[1].wait();
  EXPECT_EQ(read_all(handles[2]).tokens, continuation({1}, 10));
  EXPECT_EQ(generate(sessions[3], {1}, up_to(10)).tokens, continuation({1}, 10));
}

TEST(RunnerFaults, InputsThatTheExecutorCannotAdmitComeAgain) {
  Engine engine;
  Session a = engine.open();
  Session b = engine.open();
  Session c = engine.open();
  engine.sync();
  engine.gate.hold_at(0);
  const GenerationHandle x = start(a, {1}, up_to(6));
  engine.executor->wait_for_steps(1);
  const GenerationHandle y = start(b, {2}, up_to(6));
  const GenerationHandle z = start(c, {3}, up_to(6));
  engine.executor->refuse_admission(2);  // three inputs are refused twice: one is preempted
  engine.gate.open();
  EXPECT_EQ(read_all(x).tokens, continuation({1}, 6));
  EXPECT_EQ(read_all(y).tokens, continuation({2}, 6));
  EXPECT_EQ(read_all(z).tokens, continuation({3}, 6));
  b.close();
  c.close();
  engine.executor->refuse_admission(2);  // and nobody is left to take blocks from
  const Ended alone = generate(a, {1}, up_to(6));
  EXPECT_EQ(alone.reason, FinishReason::kError);
  EXPECT_EQ(alone.error.field(), "kv_blocks");
}

TEST(RunnerFaults, ARewindThatFindsNoFreshBlocksIsMadeBeforeTheStep) {
  Engine engine({.block_size = 16, .num_blocks = 2, .tokens_per_output = 4});
  Session session = engine.open();
  const Tokens said = continuation(Tokens(17, 1), 2);
  GenerationOptions options = up_to(4);
  options.stop_tokens = {said[0]};
  generate(session, Tokens(17, 1), options);
  EXPECT_EQ(*engine.executor->length(SessionId{1}), 20);
  EXPECT_EQ(free_blocks(engine), 0) << "no fresh block for the rewound one";
  const Tokens context = Tokens(17, 1) + first(said, 1) + Tokens{5, 6};
  EXPECT_EQ(generate(session, {5, 6}, up_to(4)).tokens, continuation(context, 4));
}

TEST(RunnerFaults, ShutdownFromManyThreadsEndsEverything) {
  // Both pause long before their end: nobody reads.
  Engine engine({.block_size = 16, .num_blocks = 64}, {.max_unread_tokens = 100});
  Session running = engine.open();
  Session queued = engine.open();
  Session idle = engine.open();
  engine.gate.hold_at(1);
  const GenerationHandle a = start(running, Tokens(10, 1), up_to(1000));
  const GenerationHandle b = start(queued, Tokens(10, 1), up_to(1000));
  engine.executor->wait_for_steps(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { engine.runner->shutdown(); });
  threads.emplace_back([&] {
    while (!b.done()) std::this_thread::yield();
    EXPECT_EQ(read_all(b).reason, FinishReason::kCancelled);
  });
  threads.emplace_back([&] { idle.close(); });
  engine.gate.open();
  for (std::thread& thread : threads) thread.join();
  engine.runner->shutdown();
  EXPECT_EQ(read_all(a).reason, FinishReason::kCancelled);
  EXPECT_EQ(engine.executor->num_sessions(), 0);
  EXPECT_EQ(engine.runner->metrics().sessions, 0);
  EXPECT_EQ(engine.runner->metrics().cancelled, 2);
  EXPECT_EQ(engine.runner->open().status().code(), Code::kUnavailable);
  EXPECT_EQ(running.generate({1}, up_to(1)).status().code(), Code::kUnavailable);
  running.close();
}

TEST(RunnerFaults, HandlesAndSessionsOutliveTheRunner) {
  GenerationHandle handle;
  Session session;
  SteadyClock clock;
  {
    Engine engine({}, {}, &clock);
    session = engine.open();
    handle = start(session, {1}, up_to(1000));
    Update update;
    ASSERT_TRUE(handle.read(update));
  }
  handle.wait();
  EXPECT_TRUE(handle.done());
  EXPECT_TRUE(handle.finish_at(1).ok());
  handle.cancel();
  const GenerationHandle copy = handle;
  handle = GenerationHandle();
  EXPECT_EQ(copy.finish_reason().has_value(), true);
  EXPECT_EQ(session.append({1}).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace chorus
