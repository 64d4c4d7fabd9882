// The tests of chorus bench, each measured on an engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "bench_statistics.h"
#include "chorus/engine.h"
#include "interrupt.h"

namespace chorus::cli {

// What a test has shown over its repetitions.
struct Measurement {
  std::string test;
  int32_t batch = 1;
  int32_t prompt = 0;
  int32_t generate = 0;
  Spread tokens_per_s;
  Spread wall_s;              // of what tokens_per_s counts
  LatencySummary step;        // of all repetitions together
  int64_t kv_bytes = 0;       // of the blocks that the sessions held at the end
  int64_t cached_tokens = 0;  // of a repetition's prompts, not computed
  double overhead_share = 0;  // of the engine thread's time, outside of the model's operators
  double foreign_load = 0;    // negative: it was too short to say
  ModuleUsage module;         // of all repetitions together
  int64_t steps = 0;          // with what `module` counts
  int64_t busy_ns = 0;        // of the engine thread, in them
};

// Sessions of random tokens, whose generations do not end by themselves. A test is run once without
// being measured, then `reps` times. Times are those of the engine's own log, so the thread that
// waits costs the engine nothing.
// Every test: kCancelled when the user interrupts; kResourceExhausted (field --kv-memory) when
// sessions lost their KV blocks meanwhile; else the engine's error. Thread: main.
class BenchRuns {
 public:
  // Sessions that must be open at once for a decode test of `width`.
  static constexpr int32_t sessions_for(int32_t width) { return 2 * width + 1; }

  // All outlive this object; `log` is the engine's.
  BenchRuns(Engine& engine, EventLog& log, const Interrupt& interrupt, int32_t reps)
      : engine_(engine), log_(log), interrupt_(interrupt), reps_(reps) {}

  // One session consumes `prompt` tokens and gives one.
  Result<Measurement> prefill(int32_t prompt);
  // `batch` sessions with contexts of `prompt` tokens of their own generate `generate` each. Only
  // steps in which all take part are measured.
  Result<Measurement> decode(int32_t batch, int32_t prompt, int32_t generate);
  // `batch` sessions with one prompt, which is computed once, generate `generate` tokens each; all
  // of it is measured. Without a prefix cache they are forks of the first.
  Result<Measurement> shared(int32_t batch, int32_t prompt, int32_t generate);

 private:
  // What one repetition gave.
  struct Rep {
    LoggedRun log;
    std::vector<int64_t> steps_ns;
    double wall_s = 0;
    double tokens = 0;
    int64_t busy_ns = 0;  // of the engine thread
    int64_t steps = 0;
    int64_t cached_tokens = 0;
    int64_t kv_bytes = 0;
    ModuleUsage module;
  };
  template <typename Once>
  Result<Measurement> measure(Measurement measurement, const Once& once);

  Status prefill_once(int32_t prompt, Rep& rep);
  // Ok without steps where the sessions never ran all together.
  Status decode_once(int32_t prompt, int32_t generate, Rep& rep);
  Status shared_once(int32_t batch, int32_t prompt, int32_t generate, Rep& rep);
  Status fit_sessions(int32_t count, int32_t prompt);
  Status wait_for(std::vector<GenerationHandle>& handles) const;
  Status note(const RunnerMetrics& before, Rep& rep);
  std::vector<TokenId> random_tokens(int32_t count);

  Engine& engine_;
  EventLog& log_;
  const Interrupt& interrupt_;
  const int32_t reps_;
  uint64_t num_prompts_ = 0;       // each has random numbers of its own
  std::vector<Session> sessions_;  // of decode: their prompts are consumed, and rep after rep
                                   // forks of them generate
  int32_t session_tokens_ = 0;     // of each of them
};

}  // namespace chorus::cli
