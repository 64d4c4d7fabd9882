#include "tests/simulation/engine_under_test.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "executors/make_executor.h"
#include "tests/simulation/expect.h"

namespace chorus::simulation {
namespace {

FakeModuleOptions module_options(const Scenario& scenario, const EngineScenario& engine) {
  FakeModuleOptions options;
  options.methods = engine.methods;
  for (size_t group = 0; group < scenario.model.groups.size(); ++group)
    options.groups.push_back({scenario.model.groups[group], engine.num_blocks[group]});
  options.vocabulary = scenario.model.vocabulary;
  options.context = scenario.max_session_tokens;
  options.block_size = engine.block_size;
  options.nan_kv_token = scenario.model.nan_kv_token;
  options.nan_logits_token = scenario.model.nan_logits_token;
  return options;
}

}  // namespace

EngineUnderTest::EngineUnderTest(const Scenario& scenario, size_t index, ManualClock& clock,
                                 uint64_t seed)
    : module_(module_options(scenario, scenario.engines[index]), clock, seed) {
  const EngineScenario& engine = scenario.engines[index];
  auto inner = make_executor(module_, {.max_sessions = engine.max_sessions,
                                       .max_session_tokens = scenario.max_session_tokens,
                                       .max_step_tokens = engine.runner.max_batch_tokens});
  SIM_EXPECT(inner.ok(), inner.status().to_string());
  module_.set_books(&(*inner)->sessions().books());
  auto executor = std::make_unique<FaultyExecutor>(std::move(inner).value());
  executor_ = executor.get();
  auto runner = Runner::create_without_thread(std::move(executor), engine.runner, clock);
  SIM_EXPECT(runner.ok(), runner.status().to_string());
  runner_ = std::move(runner).value();
}

bool EngineUnderTest::can_hold(int64_t num_tokens) const {
  return num_tokens <= options().executor.max_session_tokens &&
         options().capacity.can_hold(num_tokens);
}

int32_t EngineUnderTest::longest() const {
  return static_cast<int32_t>(options().capacity.longest(options().executor.max_session_tokens));
}

void EngineUnderTest::check(bool thoroughly) {
  const RunnerMetrics metrics = runner_->metrics();
  SIM_EXPECT(metrics.sessions == num_open,
             std::to_string(metrics.sessions) + " sessions of " + std::to_string(num_open));
  SIM_EXPECT(metrics.running + metrics.waiting == num_live,
             std::to_string(metrics.running) + " run and " + std::to_string(metrics.waiting) +
                 " wait of " + std::to_string(num_live));
  SIM_EXPECT(metrics.completed + metrics.failed + metrics.cancelled == num_ended,
             std::to_string(metrics.completed + metrics.failed + metrics.cancelled) +
                 " counted of " + std::to_string(num_ended) + " that ended");
  // A failed step is one whose inputs were run again, or one of a single input run again.
  const int64_t failed_steps =
      module_.num_step_faults() + executor_->num_faults(FaultyExecutor::kExecute);
  const int64_t at_fault =
      failed_steps - metrics.aborted_steps + executor_->num_faults(FaultyExecutor::kSetSampling);
  SIM_EXPECT(at_fault == num_injected, std::to_string(num_injected) + " generations ended by " +
                                           std::to_string(at_fault) + " faults");
  SIM_EXPECT(module_.bad_reads() == 0, std::to_string(module_.bad_reads()) + " bad reads");
  SIM_EXPECT(executor_->sessions().num_sessions() <= num_open - num_suspended,
             "more sessions than have a place");
  if (thoroughly) executor_->sessions().check_invariants();
}

void EngineUnderTest::check_all_given_back() {
  const RunnerMetrics metrics = runner_->metrics();
  SIM_EXPECT(metrics.sessions == 0 && metrics.running == 0 && metrics.waiting == 0,
             "something is left");
  SIM_EXPECT(metrics.generated_tokens == num_generated, std::to_string(metrics.generated_tokens) +
                                                            " tokens counted of " +
                                                            std::to_string(num_generated));
  SIM_EXPECT(executor_->sessions().num_sessions() == 0, "the executor has sessions left");
  for (const GroupUsage& group : executor_->usage().groups) {
    SIM_EXPECT(group.blocks_free + group.blocks_cached == group.blocks_total,
               std::to_string(group.blocks_total - group.blocks_free - group.blocks_cached) +
                   " blocks leaked");
  }
  executor_->sessions().check_invariants();
}

void EngineUnderTest::add_to(Tally& tally) const {
  const RunnerMetrics metrics = runner_->metrics();
  tally.add(Count::kStep, metrics.steps);
  tally.add(Count::kAbortedStep, metrics.aborted_steps);
  tally.add(Count::kToken, metrics.generated_tokens);
  tally.add(Count::kPreemption, metrics.preemptions);
  tally.add(Count::kEviction, metrics.evictions);
  tally.add(Count::kRecomputedToken, metrics.recomputed_tokens);
  tally.add(Count::kCopiedBlock, metrics.usage.copied_blocks);
}

}  // namespace chorus::simulation
