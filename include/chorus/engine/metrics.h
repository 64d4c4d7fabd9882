// What an engine has done so far.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "chorus/engine/latency.h"
#include "chorus/exec/executor.h"

namespace chorus {

// A snapshot taken between steps, and before any reader hears of what the step delivered.
struct RunnerMetrics {
  int64_t steps = 0;          // calls of execute
  int64_t aborted_steps = 0;  // of which failed as a whole; their inputs were run again, each alone
  int64_t prompt_tokens = 0;  // given tokens that were consumed
  int64_t queried_tokens = 0;     // of those of all prompts, looked for in the prefix index
  int64_t cached_tokens = 0;      // of which not computed, because the prefix index had them
  int64_t generated_tokens = 0;   // tokens that were delivered
  int64_t computed_tokens = 0;    // tokens that were run, whatever for
  int64_t recomputed_tokens = 0;  // tokens whose KV was computed before and had been given up
  int64_t preemptions = 0;        // running generations whose blocks were taken, to resume later
  int64_t evictions = 0;          // idle sessions whose blocks were taken
  int64_t completed = 0;          // generations that ended with stop or length
  int64_t stopped = 0;            // of which with stop
  int64_t failed = 0;
  int64_t cancelled = 0;
  int32_t sessions = 0;
  int32_t running = 0;  // generations admitted and not ended
  int32_t waiting = 0;  // generations queued, preempted ones included
  int64_t schedule_ns = 0;
  int64_t execute_ns = 0;
  int64_t deliver_ns = 0;
  // Of every generation since the start (a LatencyHistogram's quantiles):
  LatencySummary queue;  // from submission to the start of the first step
  LatencySummary ttft;   // from submission to the first token
  LatencySummary itl;    // between updates with tokens
  LatencySummary tpot;   // mean time of each token but the first, when it ended
  LatencySummary total;  // from submission to the end
  LatencySummary step;   // of each call of execute
  Usage usage;
};

// Marks of histograms, in nanoseconds: the bounds of vLLM's buckets, so that what is made for its
// metrics serves these.
namespace latency_marks {

template <size_t N>
constexpr std::array<int64_t, N> from_ms(const int64_t (&ms)[N]) {
  std::array<int64_t, N> ns{};
  for (size_t i = 0; i < N; ++i) ns[i] = ms[i] * 1'000'000;
  return ns;
}

inline constexpr auto kFirstToken =
    from_ms({1,    5,    10,   20,   40,    60,    80,    100,   250,    500,    750,
             1000, 2500, 5000, 7500, 10000, 20000, 40000, 80000, 160000, 640000, 2560000});
inline constexpr auto kPerToken = from_ms({10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000,
                                           2500, 5000, 7500, 10000, 20000, 40000, 80000});
inline constexpr auto kRequest =
    from_ms({300,   500,   800,   1000,  1500,   2000,   2500,   5000,   10000,   15000,  20000,
             30000, 40000, 50000, 60000, 120000, 240000, 480000, 960000, 1920000, 7680000});

// Those of counts: 1, 2 and 5 times the powers of ten, up to `most`.
inline std::vector<int64_t> of_counts(int64_t most) {
  std::vector<int64_t> marks;
  for (int64_t power = 1; power <= most; power *= 10) {
    for (const int64_t mark : {power, 2 * power, 5 * power}) {
      if (mark <= most) marks.push_back(mark);
    }
  }
  return marks;
}

}  // namespace latency_marks

// The distributions behind RunnerMetrics, and more of generations, known when they end.
struct Latencies {
  LatencyHistogram queue{latency_marks::kRequest};
  LatencyHistogram ttft{latency_marks::kFirstToken};
  LatencyHistogram itl{latency_marks::kPerToken};
  LatencyHistogram tpot{latency_marks::kPerToken};
  LatencyHistogram total{latency_marks::kRequest};
  LatencyHistogram step{latency_marks::kFirstToken};
  // Of those with a token: from the start of the first step to the first token, from there to the
  // last one, and both together. Time without blocks is in them.
  LatencyHistogram prefill{latency_marks::kRequest};
  LatencyHistogram decode{latency_marks::kRequest};
  LatencyHistogram inference{latency_marks::kRequest};
  // Tokens, not nanoseconds: given, delivered, and of those that generate max_new_tokens. Their
  // marks go as far as a session of the executor.
  LatencyHistogram prompt_tokens;
  LatencyHistogram generated_tokens;
  LatencyHistogram max_new_tokens;
};

}  // namespace chorus
