#include "bench_statistics.h"

#include <algorithm>

#include "base/check.h"

namespace chorus::cli {

namespace {

template <typename Wanted>
std::vector<int64_t> steps_ns(const LoggedRun& run, Wanted wanted) {
  std::vector<int64_t> times;
  int64_t begin_ns = run.last_submitted_ns;
  for (const LoggedStep& step : run.steps) {
    if (wanted(step) && step.end_ns > begin_ns) times.push_back(step.end_ns - begin_ns);
    begin_ns = std::max(begin_ns, step.end_ns);
  }
  return times;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  CHORUS_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t upper = values.size() / 2;
  const size_t lower = (values.size() - 1) / 2;
  return {values.front(), (values[lower] + values[upper]) / 2, values.back()};
}

LoggedRun logged_run(std::span<const EngineEvent> events) {
  using Kind = EngineEvent::Kind;
  LoggedRun run;
  bool submitted = false;
  for (const EngineEvent& event : events) {
    if (event.kind == Kind::kSubmitted) {
      run.first_submitted_ns =
          submitted ? std::min(run.first_submitted_ns, event.time_ns) : event.time_ns;
      run.last_submitted_ns =
          submitted ? std::max(run.last_submitted_ns, event.time_ns) : event.time_ns;
      submitted = true;
    } else if (event.kind == Kind::kStep && !event.aborted) {
      run.steps.push_back({event.time_ns, event.tokens, 0});
    } else if (event.kind == Kind::kDelivered && !run.steps.empty()) {
      run.steps.back().delivered += event.tokens;
    } else if (event.kind == Kind::kEnded) {
      run.last_ended_ns = event.time_ns;
    }
  }
  return run;
}

std::vector<int64_t> decode_steps_ns(const LoggedRun& run, int32_t width) {
  return steps_ns(
      run, [&](const LoggedStep& step) { return step.tokens == width && step.delivered == width; });
}

std::vector<int64_t> all_steps_ns(const LoggedRun& run) {
  return steps_ns(run, [](const LoggedStep&) { return true; });
}

}  // namespace chorus::cli
