#include "executors/module_executor.h"

#include <utility>

namespace chorus {

Result<std::unique_ptr<ModuleExecutor>> ModuleExecutor::create(
    Module& module, const SessionExecutorOptions& options) {
  const ModuleInfo& info = module.info();
  if (info.methods.size() != 1) {
    return unimplemented("methods",
                         "expected 1 method, found " + std::to_string(info.methods.size()));
  }
  if (info.methods[0].name != "forward") {
    return invalid_argument("methods", "expected forward, found " + info.methods[0].name);
  }
  CHORUS_ASSIGN_OR_RETURN(StepPlanner planner, StepPlanner::create(info.methods));
  CHORUS_ASSIGN_OR_RETURN(std::unique_ptr<SessionTable> sessions, make_sessions(info, options));
  return std::unique_ptr<ModuleExecutor>(
      new ModuleExecutor(module, std::move(sessions), std::move(planner)));
}

ModuleExecutor::ModuleExecutor(Module& module, std::unique_ptr<SessionTable> sessions,
                               StepPlanner planner)
    : SessionExecutor(module, std::move(sessions)), planner_(std::move(planner)) {}

void ModuleExecutor::plan_forwards(int32_t num_rows, std::vector<Forward>& forwards) const {
  planner_.cut(num_rows, forwards);
}

}  // namespace chorus
