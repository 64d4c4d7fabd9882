// The Executor for programs with one method, `forward`.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "batching/session_executor.h"
#include "batching/step_plan.h"
#include "exec/module.h"

namespace chorus {

// Runs any program whose one method is `forward`, on any backend: a step is cut into slices of at
// most the method's rows. Thread: engine.
class ModuleExecutor final : public SessionExecutor {
 public:
  // `module` outlives the executor, and nobody else runs steps on it. kInvalidArgument or
  // kUnimplemented name the option, or the field of ModuleInfo, that is not acceptable.
  static Result<std::unique_ptr<ModuleExecutor>> create(Module& module,
                                                        const SessionExecutorOptions& options);

 private:
  ModuleExecutor(Module& module, std::unique_ptr<SessionTable> sessions, StepPlanner planner);
  void plan_forwards(int32_t num_rows, std::vector<Forward>& forwards) const override;

  StepPlanner planner_;
};

}  // namespace chorus
