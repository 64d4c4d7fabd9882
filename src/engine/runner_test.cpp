#include "engine/runner.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <pthread.h>
#include <string>
#include <utility>

#include "engine/testing.h"

namespace chorus {
namespace {

using namespace testing;

TEST(Runner, DerivesItsOptions) {
  const Engine plain;
  EXPECT_EQ(plain.runner->effective().max_batch_tokens, 544);
  EXPECT_EQ(plain.runner->effective().max_queued_generations, 64);
  EXPECT_EQ(plain.runner->effective().capacity.groups.at(0).blocks, 1024);
  const Engine hinted({.preferred_batch_tokens = 128});
  EXPECT_EQ(hinted.runner->effective().max_batch_tokens, 128);
  EXPECT_EQ(hinted.runner->effective().prefill_chunk, 96);
  const Engine overruled({.preferred_batch_tokens = 128}, {.prefill_chunk = 300});
  EXPECT_EQ(overruled.runner->effective().max_batch_tokens, 332);
  const SteadyClock clock;
  const auto refused = [&](const RunnerOptions& options) {
    return Runner::create(std::make_unique<ScriptedExecutor>(ScriptedExecutor::Options{}), options,
                          clock)
        .status()
        .field();
  };
  EXPECT_EQ(refused({.max_batch_tokens = 8, .prefill_chunk = 8}), "prefill_chunk");
  EXPECT_EQ(refused({.max_queued_generations = -1}), "max_queued_generations");
  EXPECT_EQ(refused({.max_unread_tokens = -1}), "max_unread_tokens");
}

TEST(Runner, FailsToStartWithTheExecutorsError) {
  const SteadyClock clock;
  const auto runner =
      Runner::create(std::make_unique<ScriptedExecutor>(ScriptedExecutor::Options{
                         .initialize_status = unavailable("device", "a scripted fault")}),
                     {}, clock);
  EXPECT_EQ(runner.status(), unavailable("device", "a scripted fault"));
}

// Stacks so large that no thread can have one.
TEST(Runner, SaysWhenThereIsNoThread) {
  pthread_attr_t before;
  pthread_attr_t huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 46), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const SteadyClock clock;
  const auto refused =
      Runner::create(std::make_unique<ScriptedExecutor>(ScriptedExecutor::Options{}), {}, clock);
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.status().field(), "threads");
}

TEST(Runner, GeneratesWhatTheModelSaysAcrossTurns) {
  for (const int32_t chunk : {1, 2, 7}) {
    for (const int32_t tokens_per_output : {1, 3}) {
      SCOPED_TRACE(std::to_string(chunk) + " " + std::to_string(tokens_per_output));
      Engine engine({.tokens_per_output = tokens_per_output}, {.prefill_chunk = chunk});
      Session session = engine.open();
      Tokens context;
      for (int turn = 0; turn < 4; ++turn) {
        const Tokens prompt = {turn, 20 + turn, 30 + turn, 4, 5};
        context = context + prompt;
        const Ended ended = generate(session, prompt, up_to(8));
        EXPECT_EQ(ended.tokens, continuation(context, 8));
        EXPECT_EQ(ended.reason, FinishReason::kLength);
        context = context + ended.tokens;
        EXPECT_EQ(session.position(), static_cast<Position>(context.size()));
      }
    }
  }
}

TEST(Runner, SeedsDecideStreams) {
  Engine engine;
  const auto run = [&](std::optional<uint64_t> seed, uint32_t choice, uint64_t* used = nullptr) {
    Session session = engine.open();
    const GenerationHandle handle = start(
        session, {1, 2},
        {.max_new_tokens = 12, .sampling = {.temperature = 1.0f, .choice = choice}, .seed = seed});
    Ended ended = read_all(handle);
    if (used != nullptr) *used = handle.metrics().seed;
    return ended.tokens;
  };
  EXPECT_EQ(run(0, 0), continuation({1, 2}, 12, {.temperature = 1.0f, .seed = 0}));
  EXPECT_EQ(run(7, 1), continuation({1, 2}, 12, {.temperature = 1.0f, .seed = 7, .choice = 1}));
  uint64_t seed_a = 0, seed_b = 0;
  const Tokens a = run({}, 0, &seed_a);
  const Tokens b = run({}, 0, &seed_b);
  EXPECT_NE(seed_a, seed_b);
  EXPECT_EQ(a, continuation({1, 2}, 12, {.temperature = 1.0f, .seed = seed_a}));
  EXPECT_EQ(b, continuation({1, 2}, 12, {.temperature = 1.0f, .seed = seed_b}));
}

TEST(Runner, AStopTokenBeatsTheBudget) {
  const Tokens said = continuation({1, 2, 3}, 8);
  for (const int32_t tokens_per_output : {1, 2, 4, 8}) {
    for (size_t stop_index = 0; stop_index < 4; ++stop_index) {
      SCOPED_TRACE(std::to_string(tokens_per_output) + " " + std::to_string(stop_index));
      Engine engine({.tokens_per_output = tokens_per_output});
      Session session = engine.open();
      GenerationOptions options = up_to(static_cast<int32_t>(stop_index) + 1);
      options.stop_tokens = {999, said[stop_index], 0};
      const Ended ended = generate(session, {1, 2, 3}, options);
      EXPECT_EQ(ended.tokens, first(said, stop_index + 1)) << "the stop token is delivered";
      EXPECT_EQ(ended.reason, FinishReason::kStop);
      // What was sampled beyond the stop is not part of the context.
      const Tokens context = Tokens{1, 2, 3} + ended.tokens + Tokens{9, 8};
      EXPECT_EQ(generate(session, {9, 8}, up_to(3)).tokens, continuation(context, 3));
      options.ignore_stop_tokens = true;
      Session other = engine.open();
      EXPECT_EQ(generate(other, {1, 2, 3}, options).reason, FinishReason::kLength);
    }
  }
}

TEST(Runner, ACutOutputIsRewoundByTheNextInput) {
  const Tokens said = continuation({1, 2, 3}, 4);
  Engine engine({.tokens_per_output = 4});
  Session session = engine.open();
  GenerationOptions options = up_to(10);
  options.stop_tokens = {said[1]};
  EXPECT_EQ(generate(session, {1, 2, 3}, options).tokens, first(said, 2));
  EXPECT_EQ(session.position(), 5);
  EXPECT_EQ(*engine.executor->length(SessionId{1}), 6) << "three of the four were committed";
  generate(session, {9}, up_to(1));
  const auto next = engine.executor->seen().at(1);
  EXPECT_EQ(next.start, 5) << "a rewind: nothing is pending, one token is given up";
  EXPECT_EQ(next.tokens, Tokens{9});
  // The last delivered token of the budget is pending, and is put in front of the next prompt.
  Session plain = engine.open();
  const Ended ended = generate(plain, {1, 2, 3}, up_to(4));
  EXPECT_EQ(plain.position(), 7);
  generate(plain, {9}, up_to(1));
  const auto last = engine.executor->seen().back();
  EXPECT_EQ(last.start, 6);
  EXPECT_EQ(last.tokens, (Tokens{ended.tokens[3], 9}));
}

TEST(Runner, AppendsAndScoresWhateverTheChunks) {
  const Tokens prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const int32_t chunk : {1, 2, 4, 100}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    Engine engine({}, {.prefill_chunk = chunk});
    Session session = engine.open();
    const auto appended = session.append(
        prompt, {.sampling = {.num_likeliest = 2}, .stop_tokens = {5}, .score_from = 3});
    ASSERT_TRUE(appended.ok());
    const Ended ended = read_all(*appended);
    EXPECT_EQ(ended.reason, FinishReason::kLength);
    EXPECT_TRUE(ended.tokens.empty());
    EXPECT_EQ(session.position(), 9);
    PromptScores scores = appended->take_prompt_scores();
    ASSERT_EQ(scores.tokens.size(), 6u);
    EXPECT_EQ(scores.first, 3);
    for (size_t i = 0; i < scores.tokens.size(); ++i) {
      EXPECT_EQ(scores.tokens[i].id, prompt[3 + i]);
      EXPECT_EQ(scores.tokens[i].logprob, scripted_logprob(first(prompt, 3 + i), prompt[3 + i]));
      ASSERT_EQ(scores.tokens[i].likeliest_count, 2);
      const auto begin = static_cast<size_t>(scores.tokens[i].likeliest_begin);
      EXPECT_EQ(scores.likeliest.at(begin).id, prompt[3 + i]);
      EXPECT_EQ(scores.likeliest.at(begin + 1).id, prompt[3 + i] + 1);
    }
    const Ended answer = generate(session, {10}, up_to(3));
    EXPECT_EQ(answer.tokens, continuation(prompt + Tokens{10}, 3));
    // The pending token's row scores the first token given.
    const auto scored = session.append({11, 12}, {.score_from = 0});
    ASSERT_TRUE(scored.ok());
    scored->wait();
    scores = scored->take_prompt_scores();
    EXPECT_EQ(scores.first, 13);
    ASSERT_EQ(scores.tokens.size(), 2u);
    const Tokens context = prompt + Tokens{10} + answer.tokens;
    EXPECT_EQ(scores.tokens[0].logprob, scripted_logprob(context, 11));
  }
}

TEST(Runner, DeliversScoresWithTheirLikeliestTokens) {
  Engine engine({.tokens_per_output = 2});
  Session session = engine.open();
  const GenerationHandle handle =
      start(session, {1}, {.max_new_tokens = 5, .sampling = {.num_likeliest = 3}});
  handle.wait();
  Update update;
  ASSERT_TRUE(handle.try_read(update));
  ASSERT_EQ(update.tokens.size(), 5u);
  EXPECT_EQ(update.finish, FinishReason::kLength) << "tokens and reason come together";
  ASSERT_EQ(update.likeliest.size(), 15u);
  Tokens context = {1};
  for (const TokenScore& token : update.tokens) {
    EXPECT_EQ(token.logprob, scripted_logprob(context, token.id));
    EXPECT_EQ(update.likeliest.at(static_cast<size_t>(token.likeliest_begin)).id, token.id);
    context.push_back(token.id);
  }
  EXPECT_FALSE(handle.try_read(update));
  EXPECT_FALSE(handle.read(update)) << "the end was read";
  EXPECT_TRUE(handle.done());
}

TEST(Runner, RefusesAtOnceAndChangesNothing) {
  Engine engine({.vocabulary = 50, .max_session_tokens = 40, .block_size = 16, .num_blocks = 2});
  Session session = engine.open();
  const auto field = [&](Tokens prompt, const GenerationOptions& options) {
    const auto refused = session.generate(std::move(prompt), options);
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    return refused.status().field();
  };
  EXPECT_EQ(field({}, {}), "prompt");
  EXPECT_EQ(field({1, 50}, up_to(1)), "prompt");
  EXPECT_EQ(field({-1}, up_to(1)), "prompt");
  EXPECT_EQ(field({1}, up_to(0)), "max_tokens");
  EXPECT_EQ(field({1}, {.max_new_tokens = 1, .score_from = -1}), "score_from");
  EXPECT_EQ(field(Tokens(40, 1), up_to(1)), "prompt");
  EXPECT_EQ(field(Tokens(39, 1), up_to(2)), "max_tokens") << "longer than a session";
  EXPECT_EQ(field(Tokens(31, 1), up_to(2)), "max_tokens") << "larger than the pool";
  EXPECT_EQ(field(Tokens(32, 1), up_to(1)), "prompt");
  EXPECT_NE(session.generate(Tokens(31, 1), up_to(2)).status().message().find("33"),
            std::string::npos);
  EXPECT_EQ(session.append(Tokens(33, 1)).status().field(), "prompt");
  EXPECT_EQ(session.position(), 0);
  EXPECT_EQ(engine.executor->num_steps(), 0);
  EXPECT_EQ(generate(session, Tokens(31, 1), up_to(1)).reason, FinishReason::kLength);
  EXPECT_EQ(field({1}, up_to(1)), "prompt") << "the session is full";
  session.close();
  session.close();
  EXPECT_EQ(field({1}, up_to(1)), "session");
}

TEST(Runner, OneLiveGenerationPerSession) {
  Engine engine;
  Session session = engine.open();
  engine.gate.hold_at(0);
  const GenerationHandle live = start(session, {1}, up_to(2));
  EXPECT_EQ(session.generate({2}, up_to(1)).status().field(), "session");
  engine.gate.open();
  live.wait();
  EXPECT_EQ(generate(session, {2}, up_to(1)).reason, FinishReason::kLength);
}

TEST(Runner, WhatTheExecutorRefusesEndsTheGenerationAlone) {
  Engine engine;
  Session session = engine.open();
  Ended ended =
      generate(session, {1, 2}, {.max_new_tokens = 3, .sampling = {.temperature = -1.0f}});
  EXPECT_EQ(ended.reason, FinishReason::kError);
  EXPECT_EQ(ended.error.field(), "temperature");
  EXPECT_EQ(session.position(), 0);
  EXPECT_EQ(generate(session, {1, 2}, up_to(3)).tokens, continuation({1, 2}, 3));
  SessionOptions refused;
  refused.adapter = 3;
  auto unopened = engine.runner->open(refused);
  ASSERT_TRUE(unopened.ok());
  ended = generate(*unopened, {1}, up_to(1));
  EXPECT_EQ(ended.reason, FinishReason::kError);
  EXPECT_EQ(ended.error.field(), "adapter");
  unopened->close();
  EXPECT_EQ(engine.runner->metrics().failed, 2);
  EXPECT_EQ(engine.runner->metrics().sessions, 1);
}

TEST(Runner, SessionPlacesAreBoundedAndGivenBack) {
  Engine engine({.max_sessions = 2});
  Session a = engine.open();
  Session b = engine.open();
  EXPECT_EQ(engine.runner->open().status().field(), "max_sessions");
  b = Session();
  Session c = engine.open();
  EXPECT_EQ(generate(c, {1}, up_to(2)).tokens, continuation({1}, 2));
  a = std::move(c);
  EXPECT_FALSE(c.valid());  // NOLINT: a moved-from session is empty
  EXPECT_EQ(a.position(), 3);
  engine.sync();
  EXPECT_EQ(engine.executor->num_sessions(), 1);
}

TEST(Runner, DecodesOfManySessionsShareSteps) {
  constexpr int kSessions = 8;
  Engine engine;
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  engine.gate.hold_at(0);
  for (int i = 0; i < kSessions; ++i) sessions.push_back(engine.open());
  for (int i = 0; i < kSessions; ++i)
    handles.push_back(start(sessions[static_cast<size_t>(i)], {i, 1}, up_to(20)));
  engine.gate.open();
  for (int i = 0; i < kSessions; ++i)
    EXPECT_EQ(read_all(handles[static_cast<size_t>(i)]).tokens, continuation({i, 1}, 20));
  const RunnerMetrics metrics = engine.runner->metrics();
  // The first session may have been alone in the held step.
  EXPECT_LE(metrics.steps, 22);
  EXPECT_EQ(metrics.steps, engine.executor->num_steps());
  EXPECT_EQ(metrics.usage.methods.at(0).forwards, metrics.steps);
  EXPECT_EQ(metrics.generated_tokens, 20 * kSessions);
  EXPECT_EQ(metrics.prompt_tokens, 2 * kSessions);
  EXPECT_EQ(metrics.completed, kSessions);
  EXPECT_EQ(metrics.running, 0);
  EXPECT_EQ(metrics.waiting, 0);
}

TEST(Runner, OneThreadWaitsForManyGenerations) {
  Engine engine;
  auto signal = std::make_shared<UpdateSignal>();
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  for (int i = 0; i < 6; ++i) {
    sessions.push_back(engine.open());
    handles.push_back(start(sessions.back(), {i}, {.max_new_tokens = 5 + i, .signal = signal}));
  }
  std::vector<Tokens> tokens(6);
  Update update;
  uint64_t seen = 0;
  for (size_t num_ended = 0; num_ended < 6;) {
    for (size_t i = 0; i < 6; ++i) {
      if (!handles[i].try_read(update)) continue;
      for (const TokenScore& token : update.tokens) tokens[i].push_back(token.id);
      num_ended += update.finish.has_value() ? 1 : 0;
    }
    if (num_ended < 6) seen = signal->wait(seen);
  }
  for (int i = 0; i < 6; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], continuation({i}, 5 + i));
}

TEST(Runner, MetricsFollowTheClock) {
  ManualClock clock;
  Engine engine({}, {.prefill_chunk = 2}, &clock);
  engine.executor->set_on_step(
      [&](int64_t step, auto) { clock.advance_ns(step == 0 ? 5'000'000 : 2'000'000); });
  Session session = engine.open();
  const GenerationHandle handle = start(session, {1, 2, 3, 4, 5, 6}, up_to(4));
  handle.wait();
  // Whatever order the chunks ran in, the first step takes 5 ms and every other one 2 ms.
  const GenerationMetrics metrics = handle.metrics();
  const auto steps = static_cast<double>(engine.executor->num_steps());
  EXPECT_DOUBLE_EQ(metrics.queue_ms, 0.0);
  EXPECT_DOUBLE_EQ(metrics.total_ms, 5.0 + (steps - 1) * 2.0);
  EXPECT_DOUBLE_EQ(metrics.ttft_ms, metrics.total_ms - 3 * 2.0);
  EXPECT_DOUBLE_EQ(metrics.tpot_ms, 2.0);
  EXPECT_EQ(metrics.prompt_tokens, 6);
  EXPECT_EQ(metrics.generated_tokens, 4);
  EXPECT_EQ(engine.runner->metrics().execute_ns, clock.now_ns());
}

// ---- Without a thread ----

TEST(RunnerWithoutThread, RunsInTurnAndInCallsThatWait) {
  auto executor = std::make_unique<ScriptedExecutor>(ScriptedExecutor::Options{});
  ScriptedExecutor* const scripted = executor.get();
  const ManualClock clock;
  auto created = Runner::create_without_thread(std::move(executor), {.seed = 7}, clock);
  ASSERT_TRUE(created.ok());
  Runner& runner = **created;
  auto session = runner.open();
  ASSERT_TRUE(session.ok());
  const GenerationHandle handle = start(*session, {1, 2}, up_to(3));
  EXPECT_EQ(scripted->num_sessions(), 0) << "nothing happens by itself";
  int turns = 0;
  while (runner.turn()) ++turns;
  EXPECT_EQ(turns, 3) << "a step each";
  Update update;
  ASSERT_TRUE(handle.try_read(update));
  EXPECT_EQ(update.tokens.size(), 3u);
  EXPECT_EQ(update.finish, FinishReason::kLength);
  // Calls that wait.
  EXPECT_EQ(generate(*session, {4}, up_to(2)).tokens.size(), 2u);
  const auto appended = session->append({5});
  ASSERT_TRUE(appended.ok());
  appended->wait();
  EXPECT_EQ(appended->finish_reason(), FinishReason::kLength);
  const auto saved = session->save();
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(saved->tokens.size(), 9u);
  auto loaded = runner.load(*saved);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(scripted->num_sessions(), 2);
  loaded->close();
  EXPECT_EQ(scripted->num_sessions(), 1);
  // The end.
  const GenerationHandle live = start(*session, {6}, up_to(5));
  runner.shutdown();
  runner.shutdown();
  EXPECT_EQ(live.finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(scripted->num_sessions(), 0);
  EXPECT_EQ(session->rewind(0).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace chorus
