#include "executors/module_executor.h"

#include <utility>

#include "batching/step_plan.h"

namespace chorus {

Result<std::unique_ptr<ModuleExecutor>> ModuleExecutor::create(
    Module& module, const SessionExecutorOptions& options) {
  const ModuleInfo& info = module.info();
  CHORUS_RETURN_IF_ERROR(check_step_plan(info.methods));
  if (info.methods[0].name != "forward") {
    return invalid_argument("methods", "expected forward, found " + info.methods[0].name);
  }
  CHORUS_ASSIGN_OR_RETURN(std::unique_ptr<SessionTable> sessions, make_sessions(info, options));
  return std::unique_ptr<ModuleExecutor>(new ModuleExecutor(module, std::move(sessions)));
}

ModuleExecutor::ModuleExecutor(Module& module, std::unique_ptr<SessionTable> sessions)
    : SessionExecutor(module, std::move(sessions)), methods_(module.info().methods) {}

void ModuleExecutor::plan_forwards(int32_t num_rows, std::vector<Forward>& forwards) const {
  step_plan(methods_, num_rows, forwards);
}

}  // namespace chorus
