// The engine over a real executor, session table and block books.
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/module_engine_test.h"

namespace chorus {
namespace {

using testing::kMethods;
using testing::ModuleEngine;
using testing::random_tokens;
using testing::see;
using testing::Seen;
using testing::Tokens;

struct Request {
  Tokens prompt;
  Tokens second_prompt;
  GenerationOptions options;
};

std::vector<Request> random_requests(RandomStream& random, size_t count) {
  std::vector<Request> requests(count);
  for (Request& request : requests) {
    request.prompt = random_tokens(random, 60);
    request.second_prompt = random_tokens(random, 20);
    request.options.max_new_tokens = static_cast<int32_t>(random.between(1, 16));
    request.options.seed = random.next();
    request.options.sampling.temperature = random.below(2) == 0 ? 0.0f : 1.0f;
    if (random.below(2) == 0) request.options.sampling.top_k = 10;
    if (random.below(2) == 0) request.options.sampling.top_p = 0.8f;
    if (random.below(2) == 0) request.options.sampling.min_p = 0.1f;
    request.options.sampling.logprobs = true;
    request.options.stop_tokens = {static_cast<TokenId>(random.below(64))};
    if (random.below(3) == 0) request.options.score_from = 2;
  }
  return requests;
}

std::vector<Seen> run_together(ModuleEngine& engine, const std::vector<Request>& requests) {
  std::vector<Seen> seen(requests.size());
  std::vector<Session> sessions;
  for (size_t i = 0; i < requests.size(); ++i) sessions.push_back(engine.open());
  for (const bool is_second : {false, true}) {
    std::vector<GenerationHandle> handles;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Tokens& prompt = is_second ? requests[i].second_prompt : requests[i].prompt;
      auto handle = sessions[i].generate(prompt, requests[i].options);
      CHORUS_CHECK(handle.ok());
      handles.push_back(*handle);
    }
    for (size_t i = 0; i < requests.size(); ++i) see(handles[i], seen[i]);
  }
  return seen;
}

TEST(RunnerOverModule, SoloEqualsBatchedBitForBit) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    const std::vector<Request> requests = random_requests(random, 10);
    std::vector<Seen> alone;
    for (const Request& request : requests) {
      ModuleEngine engine(16, 64, 1, {});
      alone.push_back(run_together(engine, {request})[0]);
      ASSERT_EQ(engine.runner->metrics().failed, 0);
    }
    const int32_t whole = sequence_block_size(512);  // the layout kind sequence
    for (const int32_t block_size : {1, 16, 64, whole}) {
      for (const int32_t chunk : {1, 7, 64}) {
        SCOPED_TRACE("block " + std::to_string(block_size) + ", chunk " + std::to_string(chunk));
        // Some step is aborted after a part of it has run.
        const FakeFaults faults{.run = static_cast<int32_t>(random.between(1, 12))};
        const auto& methods = kMethods[random.below(kMethods.size())];
        SCOPED_TRACE(methods.back().name + " from " + std::to_string(methods.back().min_tokens));
        ModuleEngine engine(block_size, block_size == whole ? 11 : 2048 / block_size, 10,
                            {.max_decode_sequences = static_cast<int32_t>(random.between(1, 10)),
                             .prefill_chunk = chunk},
                            faults, 512, 20, methods);
        const std::vector<Seen> together = run_together(engine, requests);
        for (size_t i = 0; i < requests.size(); ++i)
          EXPECT_TRUE(together[i] == alone[i]) << "request " << i;
        EXPECT_EQ(engine.runner->metrics().aborted_steps, 1);
        engine.runner->shutdown();
        EXPECT_EQ(engine.module.fake.bad_reads(), 0);
      }
    }
  }
}

// A pool of about a fifth of what they need: blocks are taken from idle and running sessions, some
// of them in the middle of a scored prompt, and a step fails beside.
TEST(RunnerOverModule, SoloEqualsPreemptedBitForBit) {
  int64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    const std::vector<Request> requests = random_requests(random, 12);
    std::vector<Seen> alone;
    for (const Request& request : requests) {
      ModuleEngine engine(16, 64, 1, {});
      alone.push_back(run_together(engine, {request})[0]);
    }
    const int32_t whole = sequence_block_size(512);  // the layout kind sequence
    for (const auto& [block_size, prefix_cache] :
         {std::pair(1, true), std::pair(16, true), std::pair(16, false), std::pair(32, true),
          std::pair(whole, true)}) {
      SCOPED_TRACE("block " + std::to_string(block_size) + ", index " +
                   std::to_string(prefix_cache));
      ModuleEngine engine(block_size, block_size == whole ? 3 : 160 / block_size, 12,
                          {.max_decode_sequences = 12,
                           .prefill_chunk = static_cast<int32_t>(random.between(1, 30)),
                           .max_unread_tokens = static_cast<int32_t>(random.between(2, 20)),
                           .prefix_cache = prefix_cache},
                          {.run = static_cast<int32_t>(random.between(1, 30))}, 512, 20,
                          kMethods[random.below(kMethods.size())]);
      const std::vector<Seen> together = run_together(engine, requests);
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_TRUE(together[i] == alone[i]) << "request " << i;
      const RunnerMetrics metrics = engine.runner->metrics();
      EXPECT_GT(metrics.evictions, 0);
      EXPECT_GT(metrics.recomputed_tokens, 0);
      preemptions += metrics.preemptions;
      engine.runner->shutdown();
      EXPECT_EQ(engine.module.fake.bad_reads(), 0);
    }
  }
  EXPECT_GT(preemptions, 0);
}

// Forks of one session share its blocks and say what it would have said.
TEST(RunnerOverModule, ForksContinueWithTheBitsOfTheSource) {
  ModuleEngine engine(16, 40, 10, {});
  const Tokens prompt(70, 5);
  GenerationOptions options{.max_new_tokens = 8, .sampling = {.logprobs = true}, .seed = 1};
  Session source = engine.open();
  ASSERT_TRUE(source.append(prompt).ok());
  while (source.position() < static_cast<Position>(prompt.size())) std::this_thread::yield();
  std::vector<Session> forks;
  for (int i = 0; i < 8; ++i) {
    auto fork = source.clone(source.position());
    ASSERT_TRUE(fork.ok());
    forks.push_back(std::move(*fork));
  }
  engine.open().close();  // behind the clones
  const GroupUsage usage = engine.runner->metrics().usage.groups.at(0);
  EXPECT_EQ(usage.blocks_total - usage.blocks_free, 5) << "clones take no blocks";
  Seen expected;
  see(*source.generate({1}, options), expected);
  std::vector<GenerationHandle> handles;
  for (Session& fork : forks) handles.push_back(*fork.generate({1}, options));
  for (const GenerationHandle& handle : handles) {
    Seen seen;
    see(handle, seen);
    EXPECT_TRUE(seen == expected);
    EXPECT_EQ(handle.metrics().recomputed_tokens, 0);
  }
  // Four full blocks once, and for each of the nine a copy of the partial one; the one that all
  // hold goes only with its last owner.
  EXPECT_LE(engine.runner->metrics().usage.groups.at(0).blocks_peak, 4 + 9 + 1);
}

// Blocks that several sessions share are freed by none of them alone, and still are no reason to
// refuse what fits into the pool.
TEST(RunnerOverModule, SharedBlocksAreTakenFromAllTheirOwners) {
  GenerationOptions options{.max_new_tokens = 30, .sampling = {.logprobs = true}, .seed = 1};
  const auto run = [&](int32_t num_blocks) {
    ModuleEngine engine(16, num_blocks, 10, {});
    Session source = engine.open();
    source.append(Tokens(70, 5))->wait();
    std::vector<Session> forks;
    for (int i = 0; i < 5; ++i) forks.push_back(source.clone(70).value());
    std::vector<Seen> seen(2);
    see(*engine.open().generate(Tokens(75, 6), options), seen[0]);  // idle ones hold the pool
    std::vector<GenerationHandle> handles;                          // and so do those that run
    for (Session& fork : forks) handles.push_back(*fork.generate({1}, options));
    for (const GenerationHandle& handle : handles) see(handle, seen[1]);
    return seen;
  };
  const std::vector<Seen> roomy = run(64);
  EXPECT_EQ(roomy[1].reasons, std::vector<FinishReason>(5, FinishReason::kLength));
  for (const int32_t num_blocks : {8, 9, 12}) EXPECT_TRUE(run(num_blocks) == roomy) << num_blocks;
}

// Rewinds and clones to every length, also where the window has left behind what they need: then
// the session is computed again, and says the same.
TEST(RunnerOverModule, AWindowForbidsNothing) {
  const Tokens prompt = [] {
    RandomStream random(5);
    Tokens tokens;
    for (int i = 0; i < 60; ++i) tokens.push_back(static_cast<TokenId>(random.below(64)));
    return tokens;
  }();
  const GenerationOptions options{
      .max_new_tokens = 3, .sampling = {.logprobs = true}, .seed = 1, .ignore_stop_tokens = true};
  const auto recomputed_with = [&](bool prefix_cache) {
    ModuleEngine engine(16, 40, 4, {.prefix_cache = prefix_cache});
    int64_t recomputed = 0;
    for (const Position length : {0, 1, 15, 16, 17, 30, 44, 45, 59, 60}) {
      SCOPED_TRACE(length);
      Seen expected;
      {
        Session fresh = engine.open();
        const auto cut = static_cast<size_t>(length);
        see(*fresh.generate(testing::operator+(testing::first(prompt, cut), {9}), options),
            expected);
      }
      Session session = engine.open();
      session.append(prompt)->wait();
      auto clone = session.clone(length);
      EXPECT_TRUE(clone.ok());
      EXPECT_TRUE(session.rewind(length).ok());
      for (Session* each : {&session, &*clone}) {
        Seen seen;
        const auto handle = each->generate({9}, options);
        EXPECT_TRUE(handle.ok());
        see(*handle, seen);
        EXPECT_TRUE(seen == expected);
        recomputed += handle->metrics().recomputed_tokens;
      }
    }
    engine.runner->shutdown();
    EXPECT_EQ(engine.module.fake.bad_reads(), 0);
    return recomputed;
  };
  // Twice those below 45, the first of which all keys are held: 60 - 20 + 1 = 41 lies in the block
  // that begins at 32, whose first usable length is 32 + 19.
  EXPECT_EQ(recomputed_with(false), 2 * (1 + 15 + 16 + 17 + 30 + 44 + 45));
  // The index has whole blocks of them, where generations started.
  EXPECT_LT(recomputed_with(true), 2 * (1 + 15 + 1 + 2 + 14 + 13 + 14));
}

TEST(RunnerOverModule, ASavedSessionGoesOnInAnotherEngineWithTheSameBits) {
  const GenerationOptions options{
      .max_new_tokens = 6, .sampling = {.temperature = 1, .logprobs = true}, .seed = 7};
  ModuleEngine engine(16, 40, 4, {});
  Session session = engine.open();
  Seen ignored;
  see(*session.generate(Tokens(50, 3), options), ignored);
  const auto saved = session.save();
  ASSERT_TRUE(saved.ok());
  Seen expected;
  see(*session.generate({9}, options), expected);
  for (const int32_t block_size : {1, 16, 64}) {
    ModuleEngine other(block_size, 640 / block_size, 4, {});
    auto loaded = other.runner->load(*saved);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    auto fork = loaded->clone(loaded->position());
    ASSERT_TRUE(fork.ok());
    for (Session* each : {&*loaded, &*fork}) {
      Seen seen;
      const auto handle = each->generate({9}, options);
      ASSERT_TRUE(handle.ok());
      see(*handle, seen);
      EXPECT_TRUE(seen == expected);
      EXPECT_EQ(handle->metrics().recomputed_tokens, 0);
    }
    other.runner->shutdown();
    EXPECT_EQ(other.module.fake.bad_reads(), 0);
  }
}

TEST(RunnerOverModule, ABatchTakesOneForwardPerStep) {
  ModuleEngine engine(16, 64, 8, {});
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  engine.module.gate.hold_at(0);
  for (TokenId i = 0; i < 8; ++i) {
    sessions.push_back(engine.open());
    auto handle = sessions.back().generate({i}, {.max_new_tokens = 30});
    ASSERT_TRUE(handle.ok());
    handles.push_back(*handle);
  }
  engine.module.gate.open();
  for (const GenerationHandle& handle : handles) handle.wait();
  const RunnerMetrics metrics = engine.runner->metrics();
  EXPECT_EQ(metrics.generated_tokens, 8 * 30);
  // Those that missed the held step follow one step behind.
  EXPECT_LE(metrics.steps, 31);
  EXPECT_EQ(metrics.usage.methods.at(0).forwards, metrics.steps);
}

// Random calls over a pool that is too small for all.
TEST(RunnerOverModule, NothingIsLeftAfterAThousandRandomCalls) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    const int32_t block_size = seed % 2 == 0 ? sequence_block_size(512) : 16;
    ModuleEngine engine(block_size, 12, 12, {.prefill_chunk = 8, .max_unread_tokens = 3}, {}, 512,
                        20, kMethods[(seed - 1) % kMethods.size()]);
    std::vector<std::pair<Session, GenerationHandle>> held;
    Update update;
    for (int event = 0; event < 1000; ++event) {
      const uint64_t kind = random.below(10);
      if (held.empty() || (kind == 0 && held.size() < 12)) {
        held.push_back({engine.open(), GenerationHandle()});
        continue;
      }
      auto& [session, handle] = held[random.below(held.size())];
      if (kind <= 3) {
        auto started = session.generate(
            random_tokens(random, 30),
            {.max_new_tokens = static_cast<int32_t>(random.between(1, 30)), .seed = 1});
        if (started.ok()) handle = *started;
      } else if (kind == 8 && held.size() < 12) {
        auto clone = session.clone(
            static_cast<Position>(random.below(static_cast<uint64_t>(session.position()) + 1)));
        ASSERT_TRUE(clone.ok() || clone.status().field() == "max_sessions");
        if (clone.ok()) held.push_back({std::move(*clone), GenerationHandle()});
      } else if (kind == 9) {
        const Status status = session.rewind(
            static_cast<Position>(random.below(static_cast<uint64_t>(session.position()) + 1)));
        ASSERT_TRUE(status.ok() || status.field() == "session");
      } else if (kind == 7) {
        if (random.below(2) == 0) session.close();
        std::swap(session, held.back().first);
        std::swap(handle, held.back().second);
        held.pop_back();
      } else if (handle.valid()) {
        if (kind == 4) handle.cancel();
        if (kind == 5) handle.try_read(update);
        if (kind == 6) {
          EXPECT_EQ(handle.finish_at(3), Status());
        }
      }
    }
    held.clear();
    engine.open().close();  // behind everything posted before
    const RunnerMetrics metrics = engine.runner->metrics();
    EXPECT_GT(metrics.completed, 0);
    EXPECT_EQ(metrics.sessions, 0);
    EXPECT_EQ(metrics.running, 0);
    EXPECT_EQ(metrics.waiting, 0);
    const GroupUsage& usage = metrics.usage.groups.at(0);
    EXPECT_EQ(usage.blocks_free + usage.blocks_cached, 12);
    engine.runner->shutdown();
    EXPECT_EQ(engine.module.fake.bad_reads(), 0);
  }
}

}  // namespace
}  // namespace chorus
