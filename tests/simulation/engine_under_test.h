// A real engine, without a thread, over a module without a model; and what must be true of it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "engine/runner.h"
#include "tests/simulation/faulty_executor.h"
#include "tests/simulation/faulty_module.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/tally.h"

namespace chorus::simulation {

class EngineUnderTest {
 public:
  EngineUnderTest(const Scenario& scenario, size_t index, ManualClock& clock, uint64_t seed);

  Runner& runner() { return *runner_; }
  FaultyExecutor& executor() { return *executor_; }
  FaultyModule& module() { return module_; }
  const EffectiveOptions& options() const { return runner_->effective(); }
  // Whether a session of so many tokens can ever be run.
  bool can_hold(int64_t num_tokens) const;
  bool is_full() const { return num_open - num_suspended == options().executor.max_sessions; }
  // The longest one.
  int32_t longest() const;

  // Kept by the caller.
  int32_t num_open = 0;       // sessions that their owners have
  int32_t num_suspended = 0;  // of them, without a place
  int64_t num_ended = 0;      // generations
  int64_t num_injected = 0;   // of which ended by a fault of the simulation
  int64_t num_generated = 0;  // tokens that were delivered and not cut
  int64_t num_live = 0;       // generations

  // Between turns, when every command was handled: counters agree, and every structure is sound.
  void check(bool thoroughly);
  // Requires: no session is open. Every block, place and session is given back.
  void check_all_given_back();
  void add_to(Tally& tally) const;

 private:
  FaultyModule module_;
  FaultyExecutor* executor_ = nullptr;  // the runner's
  std::unique_ptr<Runner> runner_;
};

}  // namespace chorus::simulation
