// Clones, rewinds, and pools that are too small: nobody's output changes.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <utility>

#include "base/random.h"
#include "engine/testing.h"

namespace chorus {
namespace {

using namespace testing;

constexpr int32_t kVocabulary = 1000;

Tokens numbered(size_t count, TokenId first_token) {
  Tokens tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>((static_cast<size_t>(first_token) + i) % kVocabulary));
  return tokens;
}

int32_t blocks_free(const Engine& engine) {
  return engine.runner->metrics().usage.groups.at(0).blocks_free;
}

// ---- Clone ----

TEST(SessionClone, AtEveryPositionBothGoOnAlone) {
  Engine engine({.block_size = 4});
  Session source = engine.open();
  const Tokens said = generate(source, {1, 2, 3}, up_to(5)).tokens;
  Tokens context = Tokens{1, 2, 3} + said;
  for (Position upto = 0; upto <= 8; ++upto) {
    SCOPED_TRACE(upto);
    auto clone = source.clone(upto);
    ASSERT_TRUE(clone.ok());
    EXPECT_EQ(clone->position(), upto);
    const Tokens prefix = first(context, static_cast<size_t>(upto));
    EXPECT_EQ(generate(*clone, {7}, up_to(4)).tokens, continuation(prefix + Tokens{7}, 4));
    EXPECT_EQ(source.position(), 8);
  }
  EXPECT_EQ(generate(source, {9}, up_to(4)).tokens, continuation(context + Tokens{9}, 4));
}

TEST(SessionClone, OfALiveSessionAndOfOneThatIsClosedLater) {
  Engine engine({}, {.max_unread_tokens = 4});
  Session source = engine.open();
  const GenerationHandle live = start(source, {1, 2}, up_to(50));
  while (source.position() < 6) std::this_thread::yield();
  auto clone = source.clone(5);
  ASSERT_TRUE(clone.ok());
  source.close();
  const Tokens context = Tokens{1, 2} + first(continuation({1, 2}, 50), 3);
  EXPECT_EQ(generate(*clone, {7}, up_to(4)).tokens, continuation(context + Tokens{7}, 4));
  EXPECT_EQ(live.finish_reason(), FinishReason::kCancelled);
}

TEST(SessionClone, IsRefusedByField) {
  Engine engine({.max_sessions = 2});
  Session source = engine.open();
  generate(source, {1}, up_to(2));
  EXPECT_EQ(source.clone(-1).status().field(), "upto");
  EXPECT_EQ(source.clone(4).status().field(), "upto");
  Session other = engine.open();
  EXPECT_EQ(source.clone(1).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(source.clone(1).status().field(), "max_sessions");
  other.close();
  EXPECT_TRUE(source.clone(1).ok()) << "refused clones take no place";
  engine.runner->shutdown();
  EXPECT_EQ(source.clone(1).status().code(), Code::kUnavailable);
}

// ---- Rewind ----

TEST(SessionRewind, ToEveryPosition) {
  const Tokens context = Tokens{1, 2, 3} + continuation({1, 2, 3}, 5);
  for (Position length = 0; length <= 8; ++length) {
    SCOPED_TRACE(length);
    Engine engine({.block_size = 4});
    Session session = engine.open();
    generate(session, {1, 2, 3}, up_to(5));
    ASSERT_TRUE(session.rewind(length).ok());
    EXPECT_EQ(session.position(), length);
    engine.sync();
    EXPECT_EQ(engine.executor->length(SessionId{1}).value(), std::min(length, 7));
    const Tokens prefix = first(context, static_cast<size_t>(length));
    EXPECT_EQ(generate(session, {7}, up_to(4)).tokens, continuation(prefix + Tokens{7}, 4));
  }
}

TEST(SessionRewind, IsRefusedByField) {
  Engine engine({}, {.max_unread_tokens = 2});
  Session session = engine.open();
  generate(session, {1, 2}, up_to(2));
  EXPECT_EQ(session.rewind(-1).field(), "length");
  EXPECT_EQ(session.rewind(5).field(), "length");
  const GenerationHandle live = start(session, {1}, up_to(50));
  EXPECT_EQ(session.rewind(0).field(), "session");
  live.cancel();
  live.wait();
  EXPECT_TRUE(session.rewind(0).ok());
  // A cut of a generation before the rewind comes too late.
  const auto appended = session.append({5, 6, 7});
  ASSERT_TRUE(appended.ok());
  appended->wait();
  ASSERT_TRUE(live.finish_at(1).ok());
  engine.sync();
  EXPECT_EQ(session.position(), 3);
}

// ---- Pools that are too small ----

// Requests that need several times the pool, all at once.
void run_pressed(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomStream random(seed);
  const auto num_blocks = static_cast<int32_t>(random.between(12, 30));
  Engine engine({.block_size = 4,
                 .num_blocks = num_blocks,
                 .tokens_per_output = static_cast<int32_t>(random.between(1, 3))},
                {.max_decode_sequences = 16,
                 .prefill_chunk = static_cast<int32_t>(random.between(1, 16)),
                 .max_unread_tokens = static_cast<int32_t>(random.between(2, 40))});
  struct Request {
    Session session;
    Tokens context;
    SamplingParams sampling;
    int count = 0;
    GenerationHandle handle;
  };
  std::vector<Request> requests(20);
  for (Request& request : requests) {
    request.session = engine.open();
    request.context = numbered(static_cast<size_t>(random.between(1, 20)),
                               static_cast<TokenId>(random.below(kVocabulary)));
    request.count = static_cast<int>(random.between(1, 25));
    GenerationOptions options = up_to(request.count);
    options.seed = random.next();
    options.priority = static_cast<int32_t>(random.below(3));
    options.sampling.temperature = random.below(2) == 0 ? 0.0f : 1.0f;
    request.sampling = options.sampling;
    request.sampling.seed = *options.seed;
    request.handle = start(request.session, request.context, options);
  }
  for (Request& request : requests) {
    const Ended ended = read_all(request.handle);
    EXPECT_EQ(ended.reason, FinishReason::kLength) << ended.error.to_string();
    EXPECT_EQ(ended.tokens, continuation(request.context, request.count, request.sampling));
  }
  const RunnerMetrics metrics = engine.runner->metrics();
  EXPECT_GT(metrics.preemptions + metrics.evictions, 0);
  // Every session goes on from its whole context, whatever became of its blocks.
  for (Request& request : requests) {
    const Tokens context =
        request.context + continuation(request.context, request.count, request.sampling);
    EXPECT_EQ(generate(request.session, {3}, up_to(3)).tokens,
              continuation(context + Tokens{3}, 3));
  }
  for (Request& request : requests) request.session.close();
  engine.sync();
  EXPECT_EQ(blocks_free(engine), num_blocks);
  EXPECT_EQ(engine.runner->metrics().failed, 0);
}

TEST(RunnerPressure, EveryOutputIsAsWithoutIt) {
  for (uint64_t seed = 1; seed <= 30 && !::testing::Test::HasFailure(); ++seed) run_pressed(seed);
}

TEST(RunnerPressure, TheNewestOfTheLowestPriorityGivesWay) {
  // Three of 8 blocks at their end in a pool of 20, held so that all are admitted before any grows.
  Engine engine({.block_size = 4, .num_blocks = 20});
  std::vector<Session> sessions;
  for (int i = 0; i < 3; ++i) sessions.push_back(engine.open());
  engine.sync();
  engine.gate.hold_at(0);
  GenerationOptions options = up_to(28);
  options.priority = 1;
  const GenerationHandle oldest = start(sessions[0], numbered(4, 1), options);
  options.priority = 0;
  const GenerationHandle low = start(sessions[1], numbered(4, 2), options);
  options.priority = 1;
  const GenerationHandle newest = start(sessions[2], numbered(4, 3), options);
  engine.gate.open();
  EXPECT_EQ(read_all(oldest).tokens, continuation(numbered(4, 1), 28));
  EXPECT_EQ(read_all(low).tokens, continuation(numbered(4, 2), 28));
  EXPECT_EQ(read_all(newest).tokens, continuation(numbered(4, 3), 28));
  EXPECT_EQ(oldest.metrics().preemptions, 0);
  EXPECT_EQ(newest.metrics().preemptions, 0);
  EXPECT_GT(low.metrics().preemptions, 0);
  EXPECT_GT(low.metrics().recomputed_tokens, 0);
  const RunnerMetrics metrics = engine.runner->metrics();
  EXPECT_EQ(metrics.preemptions, low.metrics().preemptions);
  EXPECT_EQ(metrics.recomputed_tokens, low.metrics().recomputed_tokens);
}

TEST(RunnerPressure, RecomputedTokensAreThoseComputedTwice) {
  Engine engine({.block_size = 4, .num_blocks = 8});
  Session a = engine.open();
  Session b = engine.open();
  generate(a, numbered(16, 1), up_to(1));
  EXPECT_EQ(generate(b, numbered(20, 2), up_to(1)).tokens, continuation(numbered(20, 2), 1));
  EXPECT_EQ(engine.runner->metrics().evictions, 1) << "the idle one gave way";
  EXPECT_EQ(engine.executor->length(SessionId{1}).value(), 0);
  EXPECT_EQ(a.position(), 17);
  // 16 were computed before; the delivered token and the new one were not.
  const GenerationHandle again = start(a, {5}, up_to(2));
  EXPECT_EQ(read_all(again).tokens,
            continuation(numbered(16, 1) + continuation(numbered(16, 1), 1) + Tokens{5}, 2));
  EXPECT_EQ(again.metrics().recomputed_tokens, 16);
  EXPECT_EQ(again.metrics().prompt_tokens, 1);
  EXPECT_EQ(engine.runner->metrics().recomputed_tokens, 16);
}

TEST(RunnerPressure, AHigherPriorityTakesTheBlocksOfARunningOne) {
  Engine engine({.block_size = 4, .num_blocks = 8});
  Session low = engine.open();
  Session high = engine.open();
  engine.sync();
  engine.gate.hold_at(3);
  const GenerationHandle slow = start(low, numbered(16, 1), up_to(12));
  engine.executor->wait_for_steps(4);
  GenerationOptions urgent = up_to(4);
  urgent.priority = 5;
  const GenerationHandle quick = start(high, numbered(20, 2), urgent);
  engine.gate.open();
  EXPECT_EQ(read_all(quick).tokens, continuation(numbered(20, 2), 4));
  EXPECT_EQ(read_all(slow).tokens, continuation(numbered(16, 1), 12));
  EXPECT_EQ(slow.metrics().preemptions, 1);
}

TEST(RunnerPressure, NobodyIsPreemptedForOneThatWouldNotFitAllTheSame) {
  // Of 16 blocks two take 11 and 4 in the end, the second one ending long before; the third needs
  // 12, and the first does not give way to it.
  Engine engine({.block_size = 4, .num_blocks = 16});
  std::vector<Session> sessions;
  for (int i = 0; i < 3; ++i) sessions.push_back(engine.open());
  engine.sync();
  engine.gate.hold_at(3);
  GenerationOptions urgent = up_to(20);
  urgent.priority = 5;
  const GenerationHandle high = start(sessions[0], numbered(24, 1), urgent);
  const GenerationHandle low = start(sessions[1], numbered(8, 2), up_to(8));
  engine.executor->wait_for_steps(4);
  urgent.max_new_tokens = 2;
  const GenerationHandle large = start(sessions[2], numbered(45, 3), urgent);
  engine.gate.open();
  EXPECT_EQ(read_all(high).tokens, continuation(numbered(24, 1), 20));
  EXPECT_EQ(read_all(large).tokens, continuation(numbered(45, 3), 2));
  EXPECT_EQ(read_all(low).tokens, continuation(numbered(8, 2), 8));
  EXPECT_EQ(low.metrics().preemptions, 0);
}

TEST(RunnerPressure, SmallOnesOvertakeALargeOneWithinABound) {
  Engine engine({.max_sessions = 40, .block_size = 4, .num_blocks = 16});
  Session running = engine.open();
  engine.sync();
  engine.gate.hold_at(1);
  const GenerationHandle first_in = start(running, numbered(16, 1), up_to(8));
  engine.executor->wait_for_steps(2);
  std::vector<Session> sessions;
  for (int i = 0; i < 31; ++i) sessions.push_back(engine.open());
  const GenerationHandle large = start(sessions[0], numbered(60, 2), up_to(2));
  std::vector<GenerationHandle> small;
  for (size_t i = 1; i < sessions.size(); ++i)
    small.push_back(start(sessions[i], {static_cast<TokenId>(i)}, up_to(2)));
  engine.gate.open();
  read_all(large);
  int done_before = 0;
  for (const auto& seen : engine.executor->seen()) {
    if (seen.session == SessionId{3}) break;  // the large one: opened behind sync's
    done_before += seen.session > SessionId{3} && seen.start == 0 ? 1 : 0;
  }
  EXPECT_GT(done_before, 0);
  EXPECT_LE(done_before, 16);
  for (const GenerationHandle& handle : small) EXPECT_EQ(read_all(handle).tokens.size(), 2u);
  EXPECT_EQ(read_all(first_in).tokens.size(), 8u);
}

TEST(RunnerPressure, AReaderThatSleepsDoesNotKeepItsBlocksFromOthers) {
  Engine engine({.block_size = 4, .num_blocks = 8}, {.max_unread_tokens = 2});
  Session sleepy = engine.open();
  Session other = engine.open();
  const GenerationHandle unread = start(sleepy, numbered(16, 1), up_to(10));
  while (sleepy.position() < 18) std::this_thread::yield();
  EXPECT_EQ(generate(other, numbered(24, 2), up_to(3)).tokens, continuation(numbered(24, 2), 3));
  EXPECT_EQ(read_all(unread).tokens, continuation(numbered(16, 1), 10));
  EXPECT_EQ(unread.metrics().preemptions, 1);
}

TEST(RunnerPressure, ScoresAreNeitherLostNorRepeated) {
  const auto scores_of = [](Engine& engine, bool pressed) {
    Session session = engine.open();
    Session other = engine.open();
    generate(session, numbered(10, 1), up_to(2));
    if (pressed) generate(other, numbered(28, 7), up_to(1));
    GenerationOptions options = up_to(2);
    options.score_from = 12;
    options.sampling.logprobs = true;
    const GenerationHandle handle = start(session, numbered(9, 4), options);
    read_all(handle);
    return handle.take_prompt_scores();
  };
  Engine roomy({.block_size = 4});
  Engine tight({.block_size = 4, .num_blocks = 8});
  PromptScores expected = scores_of(roomy, false);
  PromptScores found = scores_of(tight, true);
  EXPECT_GT(tight.runner->metrics().evictions, 0);
  EXPECT_EQ(expected.first, 12);
  EXPECT_EQ(found.first, 12);
  ASSERT_EQ(expected.tokens.size(), 9u);
  ASSERT_EQ(found.tokens.size(), 9u);
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(found.tokens[i].id, expected.tokens[i].id);
    EXPECT_EQ(found.tokens[i].logprob, expected.tokens[i].logprob);
  }
}

// ---- Places that are given to others ----

TEST(RunnerSuspend, GivesThePlaceToOthersAndGoesOnTheSame) {
  Engine engine({.max_sessions = 1, .block_size = 4, .num_blocks = 8});
  Session low = engine.open();
  engine.gate.hold_at(3);
  GenerationOptions options = up_to(20);
  options.seed = 7;
  options.sampling.temperature = 1.0f;
  const GenerationHandle slow = start(low, numbered(6, 1), options);
  engine.executor->wait_for_steps(4);
  EXPECT_EQ(engine.runner->open().status().field(), "max_sessions");
  ASSERT_TRUE(low.suspend().ok());
  ASSERT_TRUE(low.suspend().ok()) << "twice is once";
  Session high = engine.open();
  engine.gate.open();
  EXPECT_EQ(generate(high, numbered(8, 2), up_to(20)).tokens, continuation(numbered(8, 2), 20));
  EXPECT_FALSE(slow.done());
  EXPECT_EQ(low.resume().field(), "max_sessions");
  high.close();
  ASSERT_TRUE(low.resume().ok());
  SamplingParams sampling = options.sampling;
  sampling.seed = 7;
  EXPECT_EQ(read_all(slow).tokens, continuation(numbered(6, 1), 20, sampling));
  EXPECT_EQ(slow.metrics().preemptions, 1);
  EXPECT_GT(slow.metrics().recomputed_tokens, 0);
  EXPECT_EQ(engine.runner->metrics().preemptions, 1);
  low.close();
  engine.sync();
  EXPECT_EQ(blocks_free(engine), 8);
}

TEST(RunnerSuspend, OneThatWaitsForBlocksIsNotPreempted) {
  Engine engine({.block_size = 4, .num_blocks = 8});
  Session running = engine.open();
  Session waiting = engine.open();
  engine.sync();
  engine.gate.hold_at(1);
  const GenerationHandle first_in = start(running, numbered(20, 1), up_to(8));
  engine.executor->wait_for_steps(2);
  const GenerationHandle queued = start(waiting, numbered(20, 2), up_to(2));
  ASSERT_TRUE(waiting.suspend().ok());
  engine.gate.open();
  EXPECT_EQ(read_all(first_in).tokens.size(), 8u);
  EXPECT_EQ(queued.metrics().preemptions, 0);
  ASSERT_TRUE(waiting.resume().ok());
  EXPECT_EQ(read_all(queued).tokens, continuation(numbered(20, 2), 2));
  EXPECT_EQ(queued.metrics().preemptions, 0);
}

TEST(RunnerSuspend, EndsReachIt) {
  Engine engine({.max_sessions = 3, .block_size = 4}, {.max_unread_tokens = 4});
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(engine.open());
    handles.push_back(start(sessions.back(), {i}, up_to(20)));
    while (sessions.back().position() < 4) std::this_thread::yield();
    ASSERT_TRUE(sessions.back().suspend().ok());
    EXPECT_EQ(sessions.back().clone(1).status().field(), "session");
  }
  handles[0].cancel();
  handles[0].wait();
  ASSERT_TRUE(handles[1].finish_at(2).ok());
  handles[1].wait();
  sessions[2].close();
  EXPECT_EQ(handles[0].finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(handles[1].finish_reason(), FinishReason::kStop);
  EXPECT_EQ(handles[2].finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(sessions[1].generate({7}, up_to(1)).status().field(), "session");
  EXPECT_EQ(sessions[1].save().status().field(), "session");
  ASSERT_TRUE(sessions[1].resume().ok());
  EXPECT_EQ(generate(sessions[1], {7}, up_to(4)).tokens,
            continuation(Tokens{1} + continuation({1}, 2) + Tokens{7}, 4));
  sessions.clear();
  std::vector<Session> places;
  for (int i = 0; i < 3; ++i) places.push_back(engine.open());
  EXPECT_FALSE(engine.runner->open().ok()) << "a suspended one gives no place back when it closes";
}

// Twelve generations in the places of four, which go from one to the other at random moments.
void run_with_few_places(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomStream random(seed);
  Engine engine({.max_sessions = 4, .block_size = 4, .num_blocks = 24},
                {.max_queued_generations = 64,
                 .max_unread_tokens = static_cast<int32_t>(random.between(2, 40))});
  constexpr size_t kRequests = 12;
  std::vector<Session> sessions(kRequests);
  std::vector<Tokens> prompts(kRequests);
  std::vector<GenerationHandle> handles(kRequests);
  const auto count = [&](size_t i) { return static_cast<int>(5 + i); };
  for (size_t i = 0; i < kRequests; ++i) {
    sessions[i] = engine.open();
    prompts[i] = numbered(3 + i, static_cast<TokenId>(100 * (i % 3)));
    handles[i] = start(sessions[i], prompts[i], up_to(count(i)));
    ASSERT_TRUE(sessions[i].suspend().ok());
  }
  std::vector<Tokens> told(kRequests);
  std::vector<size_t> inside;
  for (size_t ended = 0; ended < kRequests;) {
    const auto who = static_cast<size_t>(random.below(kRequests));
    const bool is_inside = std::find(inside.begin(), inside.end(), who) != inside.end();
    if (!is_inside && handles[who].valid()) {
      if (inside.size() == 4) {
        ASSERT_TRUE(sessions[inside[0]].suspend().ok());
        inside.erase(inside.begin());
      }
      ASSERT_TRUE(sessions[who].resume().ok());
      inside.push_back(who);
    }
    Update update;
    if (!handles[who].valid() || !handles[who].read(update)) continue;
    for (const TokenScore& token : update.tokens) told[who].push_back(token.id);
    if (!update.finish.has_value()) continue;
    EXPECT_EQ(update.finish, FinishReason::kLength) << update.error.to_string();
    EXPECT_EQ(told[who], continuation(prompts[who], count(who)));
    handles[who] = {};
    std::erase(inside, who);
    sessions[who].close();
    ++ended;
  }
  engine.sync();
  EXPECT_EQ(blocks_free(engine), 24);
}

TEST(RunnerSuspend, PlacesThatChangeHandsChangeNoOutput) {
  for (uint64_t seed = 1; seed <= 20 && !::testing::Test::HasFailure(); ++seed)
    run_with_few_places(seed);
}

// ---- Deadlines ----

TEST(RunnerDeadline, EndsWithTheTokensSoFarInEveryPhase) {
  ManualClock clock;
  Engine engine({.block_size = 4, .num_blocks = 8},
                {.max_batch_tokens = 64, .max_decode_sequences = 4, .prefill_chunk = 4}, &clock);
  GenerationOptions options = up_to(20);
  options.deadline_ns = 1000;
  const auto overdue = [&](const Ended& ended) {
    EXPECT_EQ(ended.reason, FinishReason::kCancelled);
    EXPECT_EQ(ended.error.code(), Code::kDeadlineExceeded);
    EXPECT_EQ(ended.error.field(), "deadline_ms");
  };
  // In mid-generation.
  Session a = engine.open();
  engine.sync();
  engine.gate.hold_at(3);
  const GenerationHandle decoding = start(a, {1}, options);
  engine.executor->wait_for_steps(4);
  // In the queue: there are not enough blocks beside the first and for its rank.
  Session b = engine.open();
  Session c = engine.open();
  GenerationOptions forever = up_to(1);
  const GenerationHandle queued = start(b, numbered(11, 1), options);
  clock.advance_ns(1000);
  const GenerationHandle unhurried = start(c, {4}, forever);
  engine.gate.open();
  const Ended first_ended = read_all(decoding);
  overdue(first_ended);
  EXPECT_EQ(first_ended.tokens, first(continuation({1}, 20), first_ended.tokens.size()));
  EXPECT_EQ(first_ended.tokens.size(), 4u);
  EXPECT_EQ(a.position(), 5);
  const Ended second_ended = read_all(queued);
  overdue(second_ended);
  EXPECT_TRUE(second_ended.tokens.empty());
  EXPECT_EQ(read_all(unhurried).reason, FinishReason::kLength);
  // The session goes on from there.
  EXPECT_EQ(generate(a, {2}, up_to(2)).tokens,
            continuation(Tokens{1} + first_ended.tokens + Tokens{2}, 2));
  EXPECT_EQ(a.generate({1}, {.deadline_ns = -1}).status().field(), "deadline_ms");
}

// While nothing else wakes the engine.
TEST(RunnerDeadline, EndsAGenerationThatWaitsForItsReader) {
  Engine engine({}, {.max_unread_tokens = 2});
  Session session = engine.open();
  GenerationOptions options = up_to(20);
  options.deadline_ns = 20'000'000;
  const GenerationHandle handle = start(session, {1}, options);
  while (!handle.done()) std::this_thread::yield();
  EXPECT_EQ(handle.error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(handle.finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(read_all(handle).tokens, continuation({1}, 2));
}

}  // namespace
}  // namespace chorus
