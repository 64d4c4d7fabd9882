#include "executors/cuda_executor.h"

#include <utility>

namespace chorus {

Result<std::unique_ptr<CudaExecutor>> CudaExecutor::create(Module& module,
                                                           const SessionExecutorOptions& options) {
  const ModuleInfo& info = module.info();
  if (info.methods.size() == 1 && info.methods[0].name == "forward") {
    return invalid_argument("methods", "expected decode and prefill, found forward");
  }
  CHORUS_ASSIGN_OR_RETURN(StepPlanner planner, StepPlanner::create(info.methods));
  CHORUS_ASSIGN_OR_RETURN(std::unique_ptr<SessionTable> sessions, make_sessions(info, options));
  return std::unique_ptr<CudaExecutor>(
      new CudaExecutor(module, std::move(sessions), std::move(planner)));
}

CudaExecutor::CudaExecutor(Module& module, std::unique_ptr<SessionTable> sessions,
                           StepPlanner planner)
    : SessionExecutor(module, std::move(sessions)), planner_(std::move(planner)) {}

void CudaExecutor::plan_forwards(int32_t num_rows, std::vector<Forward>& forwards) const {
  planner_.cut(num_rows, forwards);
}

}  // namespace chorus
