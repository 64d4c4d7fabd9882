// What an engine has done so far.
#pragma once

#include <cstdint>

#include "chorus/engine/latency.h"
#include "chorus/exec/executor.h"

namespace chorus {

// A snapshot taken between steps, and before any reader hears of what the step delivered.
struct RunnerMetrics {
  int64_t steps = 0;          // calls of execute
  int64_t aborted_steps = 0;  // of which failed as a whole; their inputs were run again, each alone
  int64_t prompt_tokens = 0;  // given tokens that were consumed
  int64_t cached_tokens = 0;  // of which not computed, because the prefix index had them
  int64_t generated_tokens = 0;   // tokens that were delivered
  int64_t computed_tokens = 0;    // tokens that were run, whatever for
  int64_t recomputed_tokens = 0;  // tokens whose KV was computed before and had been given up
  int64_t preemptions = 0;        // running generations whose blocks were taken, to resume later
  int64_t evictions = 0;          // idle sessions whose blocks were taken
  int64_t completed = 0;          // generations that ended with stop or length
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

// The distributions behind RunnerMetrics.
struct Latencies {
  LatencyHistogram queue;
  LatencyHistogram ttft;
  LatencyHistogram itl;
  LatencyHistogram tpot;
  LatencyHistogram total;
  LatencyHistogram step;
};

}  // namespace chorus
