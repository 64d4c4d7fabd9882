// What chorus bench makes of an engine's event log.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "chorus/engine/event_log.h"

namespace chorus::cli {

struct Spread {
  double min = 0;
  double median = 0;  // of an even number: the mean of the two in the middle
  double max = 0;
};

// Requires: not empty.
Spread spread_of(std::vector<double> values);

// One step of the engine, in the order of the log.
struct LoggedStep {
  int64_t end_ns = 0;
  int32_t tokens = 0;     // that it ran
  int32_t delivered = 0;  // that it gave to generations
};

struct LoggedRun {
  std::vector<LoggedStep> steps;
  int64_t first_submitted_ns = 0;
  int64_t last_submitted_ns = 0;
  int64_t last_ended_ns = 0;  // of a generation
};

// Aborted steps are part of the next one's time.
LoggedRun logged_run(std::span<const EngineEvent> events);

// How long each step took in which `width` generations got a token each and nothing else ran. A
// step lasts from the end of the one before, or from the last submission if that was later, to its
// own end: scheduling and delivery are in it.
std::vector<int64_t> decode_steps_ns(const LoggedRun& run, int32_t width);

// The same for every step.
std::vector<int64_t> all_steps_ns(const LoggedRun& run);

}  // namespace chorus::cli
