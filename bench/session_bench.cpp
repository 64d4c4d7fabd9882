// What sessions cost beside the model: forks, and the engine's own work in a step.
//
//   session_bench [--tiny]
//
// The model is a module that computes nothing, with the layers of a 135M llama: what is timed is
// scheduling, planning, packing, committing and delivering. Times are medians.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "batching/decode_first_scheduler.h"
#include "bench/no_model.h"
#include "engine/runner.h"
#include "executors/module_executor.h"

namespace chorus {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of the layers of a 135M llama.
NoModel make_model(int32_t block_size, int32_t num_blocks) {
  ModuleInfo info;
  info.vocabulary = 49152;
  info.context = 8192;
  info.block_size = block_size;
  info.methods = {{"forward", 1, 4096, 0}};
  LayerGroupInfo group;
  for (int32_t layer = 0; layer < 30; ++layer) group.layers.push_back(layer);
  group.bytes_per_cell = int64_t{30} * 2 * 3 * 64 * 2;
  group.num_blocks = num_blocks;
  info.groups = {group};
  return NoModel(std::move(info));
}

std::unique_ptr<ModuleExecutor> make_executor(NoModel& module, int32_t max_sessions) {
  SessionExecutorOptions options;
  options.max_sessions = max_sessions;
  options.max_session_tokens = 8192;
  return std::move(ModuleExecutor::create(module, options)).value();
}

struct Shape {
  int32_t prompt = 4096;
  int32_t num_forks = 2000;
  int32_t num_sessions = 64;
  int32_t generated = 1000;
};

// At the executor, and through the engine: a fork that its owner closes again waits for the engine.
void bench_forks(const Shape& shape) {
  for (const int32_t block_size : {1, 16, 64}) {
    NoModel module = make_model(block_size, 2 * shape.prompt / block_size + 64);
    auto executor = make_executor(module, 64);
    CHORUS_CHECK(executor->initialize().ok());
    const SessionId source = *executor->open({});
    BatchInput input;
    input.session = source;
    input.tokens = std::make_shared<std::vector<TokenId>>(static_cast<size_t>(shape.prompt), 7);
    input.size = shape.prompt;
    BatchOutput output;
    CHORUS_CHECK(executor->execute(std::span(&input, 1), output).ok());
    std::vector<double> times;
    for (int32_t i = 0; i < shape.num_forks; ++i) {
      const double begin = seconds_now();
      const SessionId fork = *executor->clone(source, shape.prompt - i % 16);
      times.push_back(seconds_now() - begin);
      executor->close(fork);
    }
    std::printf("fork of %d tokens, blocks of %d: %.2f us\n", shape.prompt, block_size,
                median(times) * 1e6);
  }
}

void bench_forks_through_engine(const Shape& shape) {
  NoModel module = make_model(16, 2 * shape.prompt / 16 + 64);
  const SteadyClock clock;
  auto runner = std::move(Runner::create(make_executor(module, 64), {}, clock)).value();
  Session source = std::move(runner->open()).value();
  std::move(source.append(std::vector<TokenId>(static_cast<size_t>(shape.prompt), 7)))
      .value()
      .wait();
  std::vector<double> times;
  for (int32_t i = 0; i < shape.num_forks; ++i) {
    const double begin = seconds_now();
    Session fork = std::move(source.clone(shape.prompt)).value();
    fork.close();
    times.push_back(seconds_now() - begin);
  }
  std::printf("fork and close through the engine: %.2f us\n", median(times) * 1e6);
}

// All sessions decode in every step.
void bench_steps(const Shape& shape) {
  NoModel module = make_model(16, shape.num_sessions * (shape.generated / 16 + 4));
  const SteadyClock clock;
  RunnerOptions options;
  options.max_decode_sequences = shape.num_sessions;
  auto runner =
      std::move(Runner::create(make_executor(module, shape.num_sessions), options, clock)).value();
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  for (int32_t i = 0; i < shape.num_sessions; ++i) {
    sessions.push_back(std::move(runner->open()).value());
    GenerationOptions generation;
    generation.max_new_tokens = shape.generated;
    handles.push_back(std::move(sessions.back().generate({1, 2, 3}, generation)).value());
  }
  for (const GenerationHandle& handle : handles) handle.wait();
  const RunnerMetrics metrics = runner->metrics();
  const auto per_step = [&](int64_t ns) {
    return static_cast<double>(ns) * 1e-3 / static_cast<double>(metrics.steps);
  };
  std::printf(
      "a step of %d sessions: %.1f us (p50 of plan, pack and commit %.1f us; schedule %.1f us, "
      "deliver %.1f us)\n",
      shape.num_sessions, per_step(metrics.schedule_ns + metrics.execute_ns + metrics.deliver_ns),
      metrics.step.p50_ms * 1e3, per_step(metrics.schedule_ns), per_step(metrics.deliver_ns));
}

// Requests that arrive together, each with the same 1024 tokens and 16 of its own.
void bench_shared_prompts() {
  for (const int32_t num_requests : {8, 32}) {
    NoModel module = make_model(16, 8192);
    const SteadyClock clock;
    auto runner = std::move(Runner::create(make_executor(module, 64), {}, clock)).value();
    std::vector<Session> sessions;
    std::vector<GenerationHandle> handles;
    for (int32_t i = 0; i < num_requests; ++i)
      sessions.push_back(std::move(runner->open()).value());
    for (int32_t i = 0; i < num_requests; ++i) {
      std::vector<TokenId> prompt(1024, 7);
      prompt.resize(1040, 100 + i);
      GenerationOptions generation;
      generation.max_new_tokens = 1;
      handles.push_back(
          std::move(sessions[static_cast<size_t>(i)].generate(prompt, generation)).value());
    }
    int64_t computed = 0;
    for (const GenerationHandle& handle : handles) {
      handle.wait();
      computed += handle.metrics().prompt_tokens - handle.metrics().cached_tokens;
    }
    const GroupUsage usage = runner->metrics().usage.groups.at(0);
    std::printf("%d requests of 1024 + 16 tokens: %lld tokens computed, %d blocks of 16 held\n",
                num_requests, static_cast<long long>(computed),
                usage.blocks_total - usage.blocks_free - usage.blocks_cached);
  }
}

// A step's batch out of queues of many sessions: half of them decode, half wait with a prompt. What
// was handed out is queued again, so that the queue keeps its length.
void bench_queues(const Shape& shape) {
  for (const int32_t length : {64, 1024, 16384}) {
    auto scheduler = std::move(DecodeFirstScheduler::create({})).value();
    const auto tokens = std::make_shared<std::vector<TokenId>>(4096, 7);
    std::vector<Task> tasks;
    for (int32_t i = 0; i < length; ++i) {
      Task task;
      task.id = static_cast<TaskId>(i);
      task.is_decode = i % 2 == 0;
      task.input.session = static_cast<SessionId>(i);
      task.input.tokens = tokens;
      task.input.size = task.is_decode ? 1 : 512;
      tasks.push_back(std::move(task));
    }
    CHORUS_CHECK(scheduler->submit(tasks));
    std::vector<Task> batch;
    std::vector<double> times;
    for (int32_t i = 0; i < shape.generated; ++i) {
      const double begin = seconds_now();
      scheduler->get_work(scheduler->full_budget(), batch);
      times.push_back(seconds_now() - begin);
      CHORUS_CHECK_EQ(batch.size(), static_cast<size_t>(33));
      CHORUS_CHECK(scheduler->submit(batch));
    }
    std::printf("a batch of 32 decodes and a chunk out of %d tasks: %.2f us\n", length,
                median(times) * 1e6);
  }
}

}  // namespace
}  // namespace chorus

int main(int argc, char** argv) {
  chorus::Shape shape;
  if (argc == 2 && std::strcmp(argv[1], "--tiny") == 0) {
    shape = {256, 20, 4, 20};
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: session_bench [--tiny]\n");
    return 2;
  }
  chorus::bench_forks(shape);
  chorus::bench_forks_through_engine(shape);
  chorus::bench_steps(shape);
  chorus::bench_shared_prompts();
  chorus::bench_queues(shape);
  return 0;
}
