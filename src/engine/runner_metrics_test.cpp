// What an engine says of itself, against what its event log says.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <thread>

#include "base/random.h"
#include "engine/event_log.h"
#include "engine/testing.h"

namespace chorus {
namespace {

using namespace testing;
using Kind = EngineEvent::Kind;

// Everything that RunnerMetrics counts and measures, from events alone.
struct Recomputed {
  struct Generation {
    int64_t submitted = 0, first_step = -1, first_token = -1, last_token = -1;
    int32_t delivered = 0;
    int32_t prompt = 0;
    std::vector<int64_t> itl;
  };
  RunnerMetrics counts;
  std::map<uint64_t, Generation> generations;
  std::vector<int64_t> queue, ttft, itl, tpot, total, step, prefill, decode, inference;
  std::vector<int64_t> prompt_tokens, generated_tokens;

  void add(const EngineEvent& event) {
    Generation& generation = generations[event.generation];
    switch (event.kind) {
      case Kind::kSubmitted:
        generation.submitted = event.time_ns;
        generation.prompt = event.tokens;
        break;
      case Kind::kStep:
        ++counts.steps;
        counts.aborted_steps += event.aborted ? 1 : 0;
        counts.execute_ns += event.ns;
        step.push_back(event.ns);
        break;
      case Kind::kFirstStep:
        generation.first_step = event.time_ns;
        queue.push_back(event.time_ns - generation.submitted);
        break;
      case Kind::kConsumed:
        counts.prompt_tokens += event.tokens;
        break;
      case Kind::kQueried:
        counts.queried_tokens += event.tokens;
        break;
      case Kind::kCached:
        counts.cached_tokens += event.tokens;
        break;
      case Kind::kRecomputed:
        counts.recomputed_tokens += event.tokens;
        break;
      case Kind::kDelivered:
        add_delivery(event, generation);
        break;
      case Kind::kCut:
        counts.generated_tokens -= event.tokens;
        generation.delivered -= event.tokens;
        break;
      case Kind::kPreempted:
        ++counts.preemptions;
        break;
      case Kind::kEvicted:
        ++counts.evictions;
        break;
      case Kind::kEnded:
        add_end(event, generation);
        break;
    }
  }

 private:
  void add_delivery(const EngineEvent& event, Generation& generation) {
    counts.generated_tokens += event.tokens;
    if (generation.delivered == 0) {
      generation.first_token = event.time_ns;
      ttft.push_back(event.time_ns - generation.submitted);
    } else {
      itl.push_back(event.time_ns - generation.last_token);
      generation.itl.push_back(itl.back());
    }
    generation.last_token = event.time_ns;
    generation.delivered += event.tokens;
  }
  void add_end(const EngineEvent& event, const Generation& generation) {
    counts.completed +=
        event.reason == FinishReason::kStop || event.reason == FinishReason::kLength ? 1 : 0;
    counts.stopped += event.reason == FinishReason::kStop ? 1 : 0;
    counts.cancelled += event.reason == FinishReason::kCancelled ? 1 : 0;
    counts.failed += event.reason == FinishReason::kError ? 1 : 0;
    EXPECT_EQ(event.tokens, generation.delivered);
    total.push_back(event.time_ns - generation.submitted);
    prompt_tokens.push_back(generation.prompt);
    generated_tokens.push_back(event.tokens);
    if (generation.delivered > 0) {
      prefill.push_back(generation.first_token - generation.first_step);
      decode.push_back(generation.last_token - generation.first_token);
      inference.push_back(generation.last_token - generation.first_step);
    }
    if (generation.delivered > 1)
      tpot.push_back((generation.last_token - generation.first_token) / (generation.delivered - 1));
  }
};

void expect_same(const LatencySummary& found, std::vector<int64_t> samples) {
  const LatencySummary expected = summarize(samples);
  EXPECT_EQ(found.count, expected.count);
  EXPECT_EQ(found.max_ms, expected.max_ms);
  EXPECT_NEAR(found.mean_ms, expected.mean_ms, 1e-9 * expected.mean_ms);
  const auto check = [](double above, double sample) {
    EXPECT_GE(above, sample);
    EXPECT_LE(above, sample * (1 + 1.0 / 32));
  };
  check(found.p50_ms, expected.p50_ms);
  check(found.p90_ms, expected.p90_ms);
  check(found.p99_ms, expected.p99_ms);
}

// The counts at marks, by going through all samples.
void expect_same_marks(const LatencyHistogram& found, const std::vector<int64_t>& samples) {
  EXPECT_EQ(found.count(), static_cast<int64_t>(samples.size()));
  ASSERT_EQ(found.marks().size(), found.mark_counts().size());
  int64_t before = -1;
  for (size_t i = 0; i < found.marks().size(); ++i) {
    const int64_t mark = found.marks()[i];
    EXPECT_EQ(found.mark_counts()[i],
              std::count_if(samples.begin(), samples.end(),
                            [&](int64_t sample) { return sample > before && sample <= mark; }));
    before = mark;
  }
}

void expect_same_counts(const RunnerMetrics& found, const RunnerMetrics& expected) {
  EXPECT_EQ(found.steps, expected.steps);
  EXPECT_EQ(found.aborted_steps, expected.aborted_steps);
  EXPECT_EQ(found.prompt_tokens, expected.prompt_tokens);
  EXPECT_EQ(found.generated_tokens, expected.generated_tokens);
  EXPECT_EQ(found.queried_tokens, expected.queried_tokens);
  EXPECT_EQ(found.cached_tokens, expected.cached_tokens);
  EXPECT_EQ(found.recomputed_tokens, expected.recomputed_tokens);
  EXPECT_EQ(found.preemptions, expected.preemptions);
  EXPECT_EQ(found.evictions, expected.evictions);
  EXPECT_EQ(found.completed, expected.completed);
  EXPECT_EQ(found.stopped, expected.stopped);
  EXPECT_EQ(found.failed, expected.failed);
  EXPECT_EQ(found.cancelled, expected.cancelled);
  EXPECT_EQ(found.execute_ns, expected.execute_ns);
}

// Random traffic in a pool that is too small, on a clock that each step moves on by its own time.
void run_traffic(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomStream random(seed);
  ManualClock clock;
  const auto log = std::make_shared<EventLog>();
  Engine engine({.block_size = 4, .num_blocks = 20},
                {.max_decode_sequences = 8, .prefill_chunk = 8, .event_log = log}, &clock);
  RandomStream times(seed + 1000);
  engine.executor->set_on_step([&](int64_t, auto) {
    clock.advance_ns(static_cast<int64_t>(times.between(1'000, 50'000'000)));
  });
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  for (int i = 0; i < 12; ++i) {
    sessions.push_back(engine.open());
    GenerationOptions options = up_to(static_cast<int32_t>(random.between(1, 20)));
    options.priority = static_cast<int32_t>(random.below(2));
    if (random.below(4) == 0) options.deadline_ns = random.between(1'000'000, 200'000'000);
    if (random.below(4) == 0) {
      options.arrived_ns = clock.now_ns() - static_cast<int64_t>(random.below(50'000'000));
    }
    handles.push_back(start(sessions.back(), Tokens(random.between(1, 16), 7), options));
    if (random.below(5) == 0) handles.back().cancel();
    if (random.below(5) == 0) (void)handles.back().finish_at(3);
  }
  for (const GenerationHandle& handle : handles) handle.wait();
  engine.sync();
  Recomputed expected;
  for (const EngineEvent& event : log->take()) expected.add(event);
  const RunnerMetrics metrics = engine.runner->metrics();
  expect_same_counts(metrics, expected.counts);
  expect_same(metrics.queue, expected.queue);
  expect_same(metrics.ttft, expected.ttft);
  expect_same(metrics.itl, expected.itl);
  expect_same(metrics.tpot, expected.tpot);
  expect_same(metrics.total, expected.total);
  expect_same(metrics.step, expected.step);
  const Latencies latencies = engine.runner->latencies();
  expect_same_marks(latencies.queue, expected.queue);
  expect_same_marks(latencies.ttft, expected.ttft);
  expect_same_marks(latencies.itl, expected.itl);
  expect_same_marks(latencies.tpot, expected.tpot);
  expect_same_marks(latencies.total, expected.total);
  expect_same_marks(latencies.step, expected.step);
  expect_same_marks(latencies.prefill, expected.prefill);
  expect_same_marks(latencies.decode, expected.decode);
  expect_same_marks(latencies.inference, expected.inference);
  expect_same_marks(latencies.prompt_tokens, expected.prompt_tokens);
  expect_same_marks(latencies.generated_tokens, expected.generated_tokens);
  EXPECT_EQ(metrics.completed + metrics.cancelled, 12);
  // Each generation's own, which are exact; they are numbered in order of submission.
  ASSERT_EQ(expected.generations.size(), 13u) << "12, and 0 for steps and evictions";
  auto generation = std::next(expected.generations.begin());
  for (const GenerationHandle& handle : handles) {
    auto& itl = (generation++)->second.itl;
    const LatencySummary exact = summarize(itl);
    const LatencySummary found = handle.metrics().itl;
    EXPECT_EQ(found.count, exact.count);
    EXPECT_EQ(found.p50_ms, exact.p50_ms);
    EXPECT_EQ(found.p90_ms, exact.p90_ms);
    EXPECT_EQ(found.p99_ms, exact.p99_ms);
    EXPECT_EQ(found.max_ms, exact.max_ms);
  }
}

TEST(RunnerMetrics, AreWhatTheEventLogSays) {
  for (uint64_t seed = 1; seed <= 20 && !::testing::Test::HasFailure(); ++seed) run_traffic(seed);
}

TEST(RunnerMetrics, CountTimesAndDeadlinesFromTheArrival) {
  ManualClock clock;
  clock.advance_ns(70'000'000);
  Engine engine({}, {}, &clock);
  engine.executor->set_on_step([&](int64_t, auto) { clock.advance_ns(1'000'000); });
  Session session = engine.open();
  GenerationOptions options = up_to(3);
  options.arrived_ns = clock.now_ns() - 50'000'000;
  const auto metrics_of = [&] {
    const GenerationHandle handle = start(session, {7}, options);
    handle.wait();
    return handle.metrics();
  };
  const GenerationMetrics waited = metrics_of();
  EXPECT_GE(waited.queue_ms, 50);
  EXPECT_GE(waited.ttft_ms, 51);
  EXPECT_GE(waited.total_ms, 53);
  EXPECT_LT(waited.total_ms, 60);
  EXPECT_GE(engine.runner->metrics().ttft.p50_ms, 51);
  options.arrived_ns = clock.now_ns() + 50'000'000;  // nothing comes after it was submitted
  EXPECT_LT(metrics_of().total_ms, 10);
  EXPECT_GE(metrics_of().total_ms, 0);
  options.arrived_ns = clock.now_ns() - 50'000'000;
  options.deadline_ns = 40'000'000;
  const Ended late = generate(session, {7}, options);
  EXPECT_EQ(late.tokens.size(), 0u);
  EXPECT_EQ(late.error.code(), Code::kDeadlineExceeded);
}

TEST(RunnerMetrics, CanBeReadWhileAGenerationRuns) {
  ManualClock clock;
  Engine engine({}, {}, &clock);
  Session session = engine.open();
  engine.executor->set_on_step([&](int64_t step, auto) {
    clock.advance_ns(1'000'000);
    engine.gate.pass(step);
  });
  engine.sync();
  engine.gate.hold_at(4);
  const GenerationHandle handle = start(session, {1, 2}, up_to(10));
  engine.executor->wait_for_steps(5);
  const GenerationMetrics live = handle.metrics();
  EXPECT_EQ(live.generated_tokens, 4);
  EXPECT_EQ(live.prompt_tokens, 2);
  EXPECT_EQ(live.itl.count, 3);
  EXPECT_EQ(live.itl.p50_ms, 1);
  const RunnerMetrics metrics = engine.runner->metrics();
  EXPECT_EQ(metrics.generated_tokens, 4);
  EXPECT_EQ(metrics.itl.count, 3);
  EXPECT_EQ(metrics.ttft.count, 1);
  EXPECT_EQ(metrics.total.count, 0);
  engine.gate.open();
  EXPECT_EQ(read_all(handle).tokens.size(), 10u);
  EXPECT_EQ(handle.metrics().itl.count, 9);
}

TEST(RunnerMetrics, TellsHowLongTheEngineIsAtItsTurn) {
  ManualClock clock;
  Engine engine({}, {}, &clock);
  Session session = engine.open();
  engine.sync();
  while (engine.runner->busy_ns().has_value()) std::this_thread::yield();
  clock.advance_ns(5'000'000'000);
  EXPECT_EQ(engine.runner->busy_ns(), std::nullopt) << "it waits";
  engine.gate.hold_at(1);
  const GenerationHandle handle = start(session, {1, 2}, up_to(10));
  engine.executor->wait_for_steps(2);
  EXPECT_EQ(engine.runner->busy_ns(), 0);
  clock.advance_ns(7'000'000'000);
  EXPECT_EQ(engine.runner->busy_ns(), 7'000'000'000) << "a step that hangs";
  EXPECT_EQ(engine.runner->metrics().generated_tokens, 1) << "and is not waited for";
  engine.gate.open();
  handle.wait();
  while (engine.runner->busy_ns().has_value()) std::this_thread::yield();
}

// A long prompt beside sessions that decode, on a machine of known speed.
TEST(RunnerPacing, AStepThatDecodesLastsAboutTheTarget) {
  constexpr int64_t kMs = 1'000'000;
  ManualClock clock;
  const auto log = std::make_shared<EventLog>();
  Engine engine({.max_session_tokens = 8192, .num_blocks = 4096},
                {.prefill_chunk = 512, .target_step_ms = 50, .event_log = log}, &clock);
  engine.executor->set_on_step([&](int64_t, std::span<const BatchInput> batch) {
    int64_t tokens = 0;
    for (const BatchInput& input : batch) tokens += input.size;
    clock.advance_ns(8 * kMs + tokens * kMs / 4);
  });
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  for (int i = 0; i < 9; ++i) sessions.push_back(engine.open());
  for (size_t i = 0; i < 8; ++i) handles.push_back(start(sessions[i], {1}, up_to(200)));
  for (size_t i = 0; i < 8; ++i) {
    while (sessions[i].position() < 5) std::this_thread::yield();
  }
  handles.push_back(start(sessions[8], Tokens(4000, 7), up_to(2)));
  for (const GenerationHandle& handle : handles) handle.wait();
  int64_t longest = 0;
  int64_t prompt_steps = 0;
  for (const EngineEvent& event : log->take()) {
    if (event.kind != Kind::kStep || event.tokens < 9) continue;
    longest = std::max(longest, event.ns);
    prompt_steps += event.tokens > 9 ? 1 : 0;
  }
  EXPECT_LE(longest, 60 * kMs);
  EXPECT_LE(prompt_steps, 4000 / 120) << "and the time is used: 50 ms hold 160 of its tokens";
  EXPECT_EQ(handles[8].finish_reason(), FinishReason::kLength);
}

}  // namespace
}  // namespace chorus
