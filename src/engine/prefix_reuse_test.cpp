// Prefix reuse: what is not computed twice, and that nobody's output shows it.
#include <cstdio>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/event_log.h"
#include "engine/module_engine_test.h"

namespace chorus {
namespace {

using testing::first;
using testing::ModuleEngine;
using testing::random_tokens;
using testing::see;
using testing::Seen;
using testing::Tokens;
using testing::operator+;

Tokens text(uint64_t seed, size_t count) {
  RandomStream random(seed);
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(64));
  return tokens;
}

const GenerationOptions kOptions{.max_new_tokens = 4,
                                 .sampling = {.temperature = 1.0f, .logprobs = true},
                                 .seed = 3,
                                 .ignore_stop_tokens = true};

// Rows of prompts and histories that were run; the module's own count says the same.
int64_t computed_tokens(ModuleEngine& engine, int64_t num_appends = 0) {
  engine.runner->shutdown();
  EXPECT_EQ(engine.module.fake.bad_reads(), 0);
  const RunnerMetrics metrics = engine.runner->metrics();
  const int64_t computed =
      metrics.prompt_tokens - metrics.cached_tokens + metrics.recomputed_tokens;
  // The last token of each generation is not fed.
  if (metrics.aborted_steps == 0 && metrics.cancelled == 0) {
    EXPECT_EQ(engine.module.fake.num_rows_run(),
              computed + metrics.generated_tokens - (metrics.completed - num_appends));
  }
  return computed;
}

Seen run(ModuleEngine& engine, const Tokens& prompt, const GenerationOptions& options = kOptions) {
  Session session = engine.open();
  const auto handle = session.generate(prompt, options);
  CHORUS_CHECK(handle.ok());
  Seen seen;
  see(*handle, seen);
  return seen;
}

// What each prompt gives alone, with no index.
std::vector<Seen> run_cold(const std::vector<Tokens>& prompts) {
  ModuleEngine engine(16, 80, 1, {.max_batch_tokens = 544, .prefix_cache = false}, {}, 1100, 0);
  ModuleEngine windowed(16, 80, 1, {.max_batch_tokens = 544, .prefix_cache = false}, {}, 1100);
  std::vector<Seen> seen;
  for (const Tokens& prompt : prompts) seen.push_back(run(engine, prompt));
  EXPECT_EQ(engine.runner->metrics().cached_tokens, 0);
  EXPECT_EQ(engine.runner->metrics().usage.groups.at(0).blocks_cached, 0);
  for (const Tokens& prompt : prompts) seen.push_back(run(windowed, prompt));
  return seen;
}

TEST(PrefixReuse, RequestsThatArriveTogetherComputeOnceWhatTheyShare) {
  std::vector<Tokens> prompts;
  for (TokenId i = 0; i < 8; ++i) prompts.push_back(text(1, 1024) + Tokens{i} + text(2, 15));
  const std::vector<Seen> cold = run_cold({prompts[0], prompts[3], prompts[7]});
  struct Case {
    int32_t window, block_size, chunk;
  };
  for (const Case& each : std::vector<Case>{{0, 16, 512}, {20, 16, 100}, {20, 1, 512}}) {
    SCOPED_TRACE("window " + std::to_string(each.window) + ", block " +
                 std::to_string(each.block_size) + ", chunk " + std::to_string(each.chunk));
    ModuleEngine engine(each.block_size, 4096 / each.block_size, 8,
                        {.max_batch_tokens = 544, .prefill_chunk = each.chunk}, {}, 1100,
                        each.window);
    engine.module.gate.hold_at(0);
    std::vector<Session> sessions;
    std::vector<GenerationHandle> handles;
    for (const Tokens& prompt : prompts) {
      sessions.push_back(engine.open());
      handles.push_back(sessions.back().generate(prompt, kOptions).value());
    }
    engine.module.gate.open();
    int32_t cached = 0;
    for (size_t i = 0; i < handles.size(); ++i) {
      Seen seen;
      see(handles[i], seen);
      if (i == 0 || i == 3 || i == 7) {
        EXPECT_TRUE(seen == cold[(i + 1) / 3 + (each.window > 0 ? 3 : 0)]) << "request " << i;
      }
      cached += handles[i].metrics().cached_tokens;
      EXPECT_EQ(handles[i].metrics().recomputed_tokens, 0);
    }
    EXPECT_EQ(cached, 7 * 1024);
    EXPECT_EQ(engine.runner->metrics().cached_tokens, cached);
    const int64_t computed = computed_tokens(engine);
    EXPECT_EQ(computed, 1024 + 8 * 16);
    std::printf("8 requests of 1024 + 16 tokens together: %lld computed\n",
                static_cast<long long>(computed));
  }
}

TEST(PrefixReuse, ForksComputeOnlyWhatIsTheirOwn) {
  ModuleEngine engine(16, 256, 33, {.max_batch_tokens = 544}, {}, 1100);
  Session source = engine.open();
  source.append(text(1, 1024))->wait();
  std::vector<Session> forks;
  std::vector<GenerationHandle> handles;
  for (TokenId i = 0; i < 32; ++i) {
    forks.push_back(source.clone(1024).value());
    handles.push_back(forks.back().generate({i}, kOptions).value());
  }
  for (const GenerationHandle& handle : handles) handle.wait();
  const GroupUsage usage = engine.runner->metrics().usage.groups.at(0);
  const int32_t held = usage.blocks_total - usage.blocks_free - usage.blocks_cached;
  EXPECT_EQ(held, 64 + 32);
  const int64_t computed = computed_tokens(engine, 1);
  EXPECT_EQ(computed, 1024 + 32);
  std::printf("32 forks of 1024 tokens: %lld computed, %d blocks held\n",
              static_cast<long long>(computed), held);
}

// Twice the same: the second time one token is run, and where scores are asked for, all of them.
TEST(PrefixReuse, WarmResultsAreThoseOfAColdEngine) {
  for (const int32_t block_size : {1, 16, 32, 64}) {
    SCOPED_TRACE(block_size);
    RandomStream random(static_cast<uint64_t>(block_size));
    ModuleEngine engine(block_size, 2048 / block_size, 2, {.prefill_chunk = 30});
    for (int i = 0; i < 12; ++i) {
      const Tokens prompt = random_tokens(random, 150);
      GenerationOptions options = kOptions;
      if (i % 3 == 1) options.score_from = static_cast<Position>(random.below(prompt.size() + 2));
      ModuleEngine cold(16, 64, 1, {.prefix_cache = false});
      const Seen expected = run(cold, prompt, options);
      EXPECT_TRUE(run(engine, prompt, options) == expected) << "request " << i;
      Session session = engine.open();
      const GenerationHandle handle = session.generate(prompt, options).value();
      Seen seen;
      see(handle, seen);
      EXPECT_TRUE(seen == expected) << "request " << i << " again";
      const GenerationMetrics metrics = handle.metrics();
      EXPECT_LT(metrics.cached_tokens, metrics.prompt_tokens);
      if (!options.score_from.has_value()) {
        EXPECT_EQ(metrics.cached_tokens, prompt.size() % static_cast<size_t>(block_size) == 0
                                             ? metrics.prompt_tokens - 1
                                             : metrics.prompt_tokens / block_size * block_size);
      } else {
        EXPECT_LT(metrics.cached_tokens, std::max(1, *options.score_from));
      }
    }
    (void)computed_tokens(engine);
  }
}

TEST(PrefixReuse, ASaltKeepsSessionsApart) {
  ModuleEngine engine(16, 64, 4, {});
  const Tokens prompt = text(1, 50);
  const auto cached_with = [&](const SessionOptions& options) {
    Session session = engine.open(options);
    const GenerationHandle handle = session.generate(prompt, kOptions).value();
    handle.wait();
    return handle.metrics().cached_tokens;
  };
  EXPECT_EQ(cached_with({.salt = "a"}), 0);
  EXPECT_EQ(cached_with({.salt = "b"}), 0);
  EXPECT_EQ(cached_with({.salt = ""}), 0);
  EXPECT_EQ(cached_with({.salt = "a"}), 48);
  EXPECT_EQ(cached_with({.salt = "a", .indexed = false}), 0);
  // Nor does one wait for another.
  engine.module.gate.hold_at(engine.runner->metrics().steps);
  Session c = engine.open({.salt = "c"});
  Session d = engine.open({.salt = "d"});
  const GenerationHandle first_handle = c.generate(prompt, kOptions).value();
  const GenerationHandle second_handle = d.generate(prompt, kOptions).value();
  engine.module.gate.open();
  first_handle.wait();
  second_handle.wait();
  EXPECT_EQ(second_handle.metrics().cached_tokens, 0);
}

// Nobody else sees the KV that a file has brought, nor what was computed after it.
TEST(PrefixReuse, WhatAFileBringsIsItsOwn) {
  const Tokens prompt = text(1, 50);
  const Tokens next = text(2, 40);
  SavedSession forged;
  Seen expected;
  {
    ModuleEngine engine(16, 64, 4, {}, {}, 512, 0);
    Session session = engine.open();
    see(*session.generate(prompt, kOptions), expected);
    forged = session.save().value();
    see(*session.generate(next, kOptions), expected);
  }
  const Tokens history = forged.tokens + next;
  for (size_t i = forged.kv.size() / 2; i < forged.kv.size(); ++i) forged.kv[i] ^= std::byte{0x15};
  ModuleEngine engine(16, 64, 4, {}, {}, 512, 0);
  Session loaded = engine.runner->load(forged).value();
  Session fork = loaded.clone(loaded.position()).value();
  for (Session* session : {&loaded, &fork}) {
    Seen seen;
    see(*session->generate(next, kOptions), seen);
    EXPECT_FALSE(seen == expected) << "the forgery must be felt to be kept away";
  }
  Session honest = engine.open();
  Seen seen;
  see(*honest.generate(prompt, kOptions), seen);
  see(*honest.generate(next, kOptions), seen);
  EXPECT_TRUE(seen == expected);
  EXPECT_EQ(engine.runner->metrics().cached_tokens, 0);
  // What it computes once it has let go of the file's is as good as anybody's.
  ASSERT_TRUE(loaded.rewind(0).ok());
  see(*loaded.generate(text(3, 50), kOptions), seen);
  run(engine, text(3, 50));
  EXPECT_EQ(engine.runner->metrics().cached_tokens, 48);
}

// An idle session that lost its blocks finds those that nobody needed.
TEST(PrefixReuse, AnEvictedSessionTakesBackWhatIsLeft) {
  ModuleEngine engine(16, 8, 4, {}, {}, 512, 0);
  Session a = engine.open();
  a.append(text(1, 64))->wait();
  Session b = engine.open();
  b.append(text(2, 80))->wait();
  EXPECT_EQ(engine.runner->metrics().evictions, 1);
  b.close();
  Seen seen;
  const GenerationHandle handle = a.generate({5}, kOptions).value();
  see(handle, seen);
  EXPECT_EQ(handle.metrics().recomputed_tokens, 16) << "three of four blocks were left";
  EXPECT_EQ(handle.metrics().cached_tokens, 0) << "they are no prompt";
  ModuleEngine cold(16, 64, 1, {.prefix_cache = false}, {}, 512, 0);
  Session alone = cold.open();
  alone.append(text(1, 64))->wait();
  Seen expected;
  see(alone.generate({5}, kOptions).value(), expected);
  EXPECT_TRUE(seen == expected);
}

// A full pool of cached blocks refuses and preempts nobody.
TEST(PrefixReuse, CachedBlocksAreGivenBackFirst) {
  ModuleEngine engine(16, 8, 4, {});
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Session session = engine.open();
    const GenerationHandle handle = session.generate(text(seed, 100), kOptions).value();
    handle.wait();
    EXPECT_EQ(handle.finish_reason(), FinishReason::kLength);
  }
  // The same prompt in a pool of its size: its last block is the index's, and is written again.
  for (int i = 0; i < 2; ++i) {
    Session session = engine.open();
    const GenerationHandle handle = session.generate(text(9, 124), kOptions).value();
    handle.wait();
    EXPECT_EQ(handle.finish_reason(), FinishReason::kLength) << handle.error().to_string();
  }
  engine.open().close();  // behind the others
  const RunnerMetrics metrics = engine.runner->metrics();
  EXPECT_EQ(metrics.preemptions, 0);
  EXPECT_EQ(metrics.evictions, 0);
  EXPECT_GT(metrics.usage.groups.at(0).blocks_cached, 0);
  (void)computed_tokens(engine);
}

// The leader has begun when its follower arrives, and ends before it has got to where they part.
TEST(PrefixReuse, AFollowerGoesOnWhenItsLeaderIsGone) {
  const Tokens common = text(1, 200);
  const std::vector<Tokens> prompts{common + Tokens{1}, common + Tokens{2}, common + Tokens{3}};
  ModuleEngine cold(16, 64, 1, {.prefix_cache = false});
  std::vector<Seen> expected;
  for (const Tokens& prompt : prompts) expected.push_back(run(cold, prompt));
  for (const bool closes : {false, true}) {
    ModuleEngine engine(16, 64, 4, {.max_batch_tokens = 48, .prefill_chunk = 16});
    engine.module.gate.hold_at(2);
    std::vector<Session> sessions;
    std::vector<GenerationHandle> handles;
    for (const Tokens& prompt : prompts) {
      sessions.push_back(engine.open());
      handles.push_back(sessions.back().generate(prompt, kOptions).value());
      while (handles.size() == 1 && sessions[0].position() < 16) std::this_thread::yield();
    }
    if (closes) {
      // Closing waits for the engine, which is held.
      std::thread closing([&] { sessions[0].close(); });
      engine.module.gate.open();
      closing.join();
    } else {
      handles[0].cancel();
      engine.module.gate.open();
    }
    for (size_t i = 1; i < 3; ++i) {
      Seen seen;
      see(handles[i], seen);
      EXPECT_TRUE(seen == expected[i]) << i;
      EXPECT_GE(handles[i].metrics().cached_tokens, 16);
    }
    handles[0].wait();
    // The second computed what the first had not, the third nothing of it.
    EXPECT_EQ(handles[2].metrics().cached_tokens, 192);
    (void)computed_tokens(engine);
  }
}

// Random arrivals that share prefixes in a pool that is too small: with priorities, cancellations,
// deadlines, several turns and a failing step. Whoever ends by itself says what it says alone.
struct Arrival {
  Tokens prompt;
  Tokens second;
  GenerationOptions options;
  bool cancelled = false;
};

std::vector<Arrival> random_arrivals(RandomStream& random) {
  std::vector<Tokens> stems;
  for (uint64_t i = 0; i < 3; ++i) stems.push_back(text(random.next(), 90));
  std::vector<Arrival> arrivals(14);
  for (Arrival& arrival : arrivals) {
    const Tokens& stem = stems[random.below(stems.size())];
    arrival.prompt = first(stem, random.below(stem.size() + 1)) + random_tokens(random, 12);
    arrival.second = random_tokens(random, 20);
    arrival.options = kOptions;
    arrival.options.max_new_tokens = static_cast<int32_t>(random.between(1, 12));
    arrival.options.priority = static_cast<int32_t>(random.below(3));
    if (random.below(4) == 0)
      arrival.options.score_from = static_cast<Position>(random.below(arrival.prompt.size()));
    arrival.cancelled = random.below(5) == 0;
  }
  return arrivals;
}

Seen run_turns(ModuleEngine& engine, const Arrival& arrival) {
  Session session = engine.open();
  Seen seen;
  see(session.generate(arrival.prompt, arrival.options).value(), seen);
  see(session.generate(arrival.second, arrival.options).value(), seen);
  return seen;
}

void run_random(uint64_t seed, int64_t& preemptions, int64_t& cached) {
  RandomStream random(seed);
  const std::vector<Arrival> arrivals = random_arrivals(random);
  std::vector<Seen> expected;
  for (const Arrival& arrival : arrivals) {
    ModuleEngine alone(16, 64, 1, {.prefix_cache = false});
    expected.push_back(run_turns(alone, arrival));
  }
  for (const bool prefix_cache : {true, false}) {
    const int32_t block_size = std::vector<int32_t>{1, 16, 32}[random.below(3)];
    const auto log = std::make_shared<EventLog>();
    SCOPED_TRACE("seed " + std::to_string(seed) + ", block " + std::to_string(block_size) +
                 ", index " + std::to_string(prefix_cache));
    ModuleEngine engine(block_size, 224 / block_size, 16,
                        {.max_decode_sequences = 8,
                         .prefill_chunk = static_cast<int32_t>(random.between(1, 40)),
                         .max_unread_tokens = static_cast<int32_t>(random.between(2, 20)),
                         .event_log = log,
                         .prefix_cache = prefix_cache},
                        {.run = static_cast<int32_t>(random.between(1, 30))});
    std::vector<Session> sessions;
    std::vector<GenerationHandle> handles;
    for (const Arrival& arrival : arrivals) {
      sessions.push_back(engine.open());
      handles.push_back(sessions.back().generate(arrival.prompt, arrival.options).value());
    }
    std::vector<Seen> seen(arrivals.size());
    for (size_t i = 0; i < arrivals.size(); ++i) {
      if (arrivals[i].cancelled) handles[i].cancel();
    }
    for (size_t i = 0; i < arrivals.size(); ++i) see(handles[i], seen[i]);
    for (size_t i = 0; i < arrivals.size(); ++i) {
      if (!arrivals[i].cancelled)
        handles[i] = sessions[i].generate(arrivals[i].second, arrivals[i].options).value();
    }
    for (size_t i = 0; i < arrivals.size(); ++i) {
      if (arrivals[i].cancelled) continue;
      see(handles[i], seen[i]);
      EXPECT_TRUE(seen[i] == expected[i]) << "arrival " << i;
    }
    preemptions += engine.runner->metrics().preemptions;
    cached += engine.runner->metrics().cached_tokens;
    EXPECT_EQ(engine.runner->metrics().cached_tokens > 0, prefix_cache);
    sessions.clear();
    engine.open().close();  // behind everything
    const RunnerMetrics metrics = engine.runner->metrics();
    EXPECT_EQ(metrics.running + metrics.waiting + metrics.sessions, 0);
    EXPECT_EQ(metrics.failed, 0);
    int64_t logged = 0;
    for (const EngineEvent& event : log->take())
      logged += event.kind == EngineEvent::Kind::kCached ? event.tokens : 0;
    EXPECT_EQ(logged, metrics.cached_tokens);
    for (const GroupUsage& group : metrics.usage.groups)
      EXPECT_EQ(group.blocks_free + group.blocks_cached, group.blocks_total);
    (void)computed_tokens(engine);
  }
}

TEST(PrefixReuse, RandomArrivalsSayWhatTheySayAlone) {
  int64_t preemptions = 0;
  int64_t cached = 0;
  for (uint64_t seed = 1; seed <= 8 && !::testing::Test::HasFailure(); ++seed)
    run_random(seed, preemptions, cached);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(cached, 1000);
}

}  // namespace
}  // namespace chorus
