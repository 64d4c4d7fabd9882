// Random scripts against a list of tokens, and random arrivals against runs alone.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "base/random.h"
#include "engine/testing.h"

namespace chorus {
namespace {

using namespace testing;

constexpr int32_t kVocabulary = 12;  // so small that stop tokens come up

Tokens random_tokens(RandomStream& random, int64_t most) {
  Tokens tokens;
  for (int64_t n = random.between(1, most); n > 0; --n)
    tokens.push_back(static_cast<TokenId>(random.below(kVocabulary)));
  return tokens;
}

// Applies what the executor was given to a list: a rewind, then the tokens.
void replay(const ScriptedExecutor& executor, SessionId id, const Tokens& context) {
  size_t length = 0;
  int64_t last_step = -1;
  for (const auto& input : executor.seen()) {
    if (input.session != id) continue;
    ASSERT_GE(input.step, last_step);
    last_step = input.step;
    const auto begin = static_cast<size_t>(input.start);
    length = begin + input.tokens.size();
  }
  // The last input ends in the context, or in a part of it that was cut or not delivered.
  const auto committed = executor.tokens_of(id);
  ASSERT_TRUE(committed.has_value());
  ASSERT_GE(committed->size(), length);
  const size_t common = std::min(committed->size(), context.size());
  ASSERT_EQ(first(*committed, common), first(context, common));
  ASSERT_LE(context.size(), committed->size() + 1) << "more than one token is pending";
}

// One session, many turns: random prompts, stops, budgets, cancels, cuts and appends.
void run_context_script(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomStream random(seed);
  Engine engine(
      {.vocabulary = kVocabulary, .tokens_per_output = static_cast<int32_t>(random.between(1, 4))},
      {.prefill_chunk = static_cast<int32_t>(random.between(1, 6))});
  Session session = engine.open();
  Tokens context;
  for (int turn = 0; turn < 12; ++turn) {
    SCOPED_TRACE("turn " + std::to_string(turn));
    const Tokens prompt = random_tokens(random, 12);
    GenerationOptions options;
    options.max_new_tokens = static_cast<int32_t>(random.between(1, 12));
    options.seed = random.next();
    options.sampling.temperature = random.below(2) == 0 ? 0.0f : 1.0f;
    if (random.below(2) == 0) options.stop_tokens = random_tokens(random, 2);
    options.ignore_stop_tokens = random.below(4) == 0;
    SamplingParams sampling = options.sampling;
    sampling.seed = *options.seed;
    const uint64_t kind = random.below(5);
    if (kind == 0) {
      const auto appended = session.append(prompt, options);
      ASSERT_TRUE(appended.ok());
      appended->wait();
      context = context + prompt;
    } else {
      const GenerationHandle handle = start(session, prompt, options);
      if (kind == 1) {
        Update update;
        if (random.below(2) == 0) handle.read(update);
        handle.cancel();
        Tokens tokens;
        for (const TokenScore& token : update.tokens) tokens.push_back(token.id);
        const Ended ended = read_all(handle);
        tokens = tokens + ended.tokens;
        const auto position = static_cast<size_t>(session.position());
        const Tokens before = context;
        ASSERT_GE(position, before.size());
        if (!tokens.empty()) {
          ASSERT_EQ(tokens, continuation(before + prompt, static_cast<int>(tokens.size()), sampling,
                                         kVocabulary));
          ASSERT_EQ(position, before.size() + prompt.size() + tokens.size());
        }
        context = first(before + prompt + tokens, position);
      } else {
        const Ended ended = read_all(handle);
        const Tokens said =
            continuation(context + prompt, options.max_new_tokens, sampling, kVocabulary);
        size_t expected = said.size();
        FinishReason reason = FinishReason::kLength;
        for (size_t i = 0; i < said.size() && !options.ignore_stop_tokens; ++i) {
          if (std::count(options.stop_tokens.begin(), options.stop_tokens.end(), said[i]) == 0)
            continue;
          expected = i + 1;
          reason = FinishReason::kStop;
          break;
        }
        ASSERT_EQ(ended.tokens, first(said, expected));
        ASSERT_EQ(ended.reason, reason);
        ASSERT_EQ(handle.metrics().generated_tokens, static_cast<int32_t>(expected));
        if (kind == 2) {
          const auto n = static_cast<size_t>(random.between(1, 12));
          ASSERT_TRUE(handle.finish_at(static_cast<int32_t>(n)).ok());
          engine.sync();
          expected = std::min(expected, n);
        }
        context = context + prompt + first(said, expected);
      }
    }
    ASSERT_EQ(session.position(), static_cast<Position>(context.size()));
    replay(*engine.executor, SessionId{1}, context);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(RunnerRandom, TheContextIsWhatWasGivenAndDelivered) {
  for (uint64_t seed = 1; seed <= 60 && !::testing::Test::HasFailure(); ++seed)
    run_context_script(seed);
}

struct Request {
  Tokens prompt;
  GenerationOptions options;
  Ended alone;
};

// Every output equals the same request run alone, whatever arrives with it and whatever fails.
void run_arrivals(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomStream random(seed);
  std::vector<Request> requests(24);
  for (Request& request : requests) {
    request.prompt = random_tokens(random, 40);
    request.options.max_new_tokens = static_cast<int32_t>(random.between(1, 20));
    request.options.seed = random.next();
    request.options.sampling.temperature = random.below(2) == 0 ? 0.0f : 0.7f;
    if (random.below(3) == 0) request.options.stop_tokens = random_tokens(random, 1);
    Engine alone({.vocabulary = kVocabulary});
    Session session = alone.open();
    request.alone = generate(session, request.prompt, request.options);
  }
  Engine engine({.vocabulary = kVocabulary,
                 .block_size = 4,
                 .num_blocks = static_cast<int32_t>(random.between(16, 64)),
                 .tokens_per_output = static_cast<int32_t>(random.between(1, 2))},
                {.max_decode_sequences = static_cast<int32_t>(random.between(1, 6)),
                 .prefill_chunk = static_cast<int32_t>(random.between(1, 9)),
                 .max_unread_tokens = static_cast<int32_t>(random.between(1, 30))});
  for (int i = 0; i < 4; ++i)
    engine.executor->add_fault(
        {.kind = ScriptedFault::Kind::kFailStep, .first_step = random.between(0, 60)});
  // Three callers, each with a third of the requests.
  std::vector<Ended> together(requests.size());
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&, caller] {
      for (size_t i = caller; i < requests.size(); i += 3) {
        Session session = engine.open();
        together[i] = generate(session, requests[i].prompt, requests[i].options);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    // A fault may hit the run of one input alone, too: then that one ends with error.
    if (together[i].reason == FinishReason::kError) {
      EXPECT_EQ(together[i].error.field(), "step");
      continue;
    }
    EXPECT_EQ(together[i].tokens, requests[i].alone.tokens);
    EXPECT_EQ(together[i].reason, requests[i].alone.reason);
  }
  engine.sync();
  const RunnerMetrics metrics = engine.runner->metrics();
  EXPECT_EQ(metrics.completed + metrics.failed, static_cast<int64_t>(requests.size()));
  EXPECT_EQ(metrics.usage.groups.at(0).blocks_free, metrics.usage.groups.at(0).blocks_total);
  int64_t num_tokens = 0;
  for (const Ended& ended : together) num_tokens += static_cast<int64_t>(ended.tokens.size());
  EXPECT_EQ(metrics.generated_tokens, num_tokens);
}

TEST(RunnerRandom, EveryOutputEqualsItsRunAlone) {
  for (uint64_t seed = 1; seed <= 12 && !::testing::Test::HasFailure(); ++seed) run_arrivals(seed);
}

// Opens, generates, cancels, reads, cuts and closes at random; nothing is left behind.
void run_soak(uint64_t seed, int num_events) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomStream random(seed);
  Engine engine({.vocabulary = kVocabulary, .max_sessions = 12, .block_size = 4, .num_blocks = 40},
                {.prefill_chunk = 8, .max_unread_tokens = 3});
  struct Held {
    Session session;
    GenerationHandle handle;
  };
  std::vector<Held> held;
  Update update;
  for (int event = 0; event < num_events; ++event) {
    const uint64_t kind = random.below(8);
    if (held.empty() || kind == 0) {
      auto session = engine.runner->open();
      if (session.ok()) {
        held.push_back({std::move(*session), GenerationHandle()});
      } else {
        ASSERT_EQ(session.status().field(), "max_sessions");
        ASSERT_EQ(held.size(), 12u);
      }
      continue;
    }
    Held& one = held[random.below(held.size())];
    if (kind <= 3) {
      auto handle = one.session.generate(
          random_tokens(random, 30),
          {.max_new_tokens = static_cast<int32_t>(random.between(1, 30)), .seed = 1});
      if (handle.ok()) one.handle = *handle;
    } else if (kind == 4 && one.handle.valid()) {
      one.handle.cancel();
    } else if (kind == 5 && one.handle.valid()) {
      one.handle.try_read(update);
    } else if (kind == 6 && one.handle.valid()) {
      ASSERT_TRUE(one.handle.finish_at(static_cast<int32_t>(random.between(1, 6))).ok());
    } else if (kind == 7) {
      if (random.below(2) == 0) one.session.close();
      std::swap(one, held.back());
      held.pop_back();
    }
  }
  held.clear();
  engine.sync();
  EXPECT_EQ(engine.executor->num_sessions(), 0);
  const RunnerMetrics metrics = engine.runner->metrics();
  EXPECT_EQ(metrics.sessions, 0);
  EXPECT_EQ(metrics.running, 0);
  EXPECT_EQ(metrics.waiting, 0);
  EXPECT_EQ(metrics.usage.groups.at(0).blocks_free, 40);
}

TEST(RunnerRandom, NothingIsLeftAfterAThousandRandomCalls) {
  for (uint64_t seed = 1; seed <= 4; ++seed) run_soak(seed, 1000);
}

}  // namespace
}  // namespace chorus
