// The Executor for programs with the methods `decode` and `prefill`.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "batching/session_executor.h"
#include "batching/step_plan.h"
#include "exec/module.h"

namespace chorus {

// Runs any program with `decode`, of fixed widths that a device can capture, and `prefill`, on any
// backend: a step is cut by step_plan, and each slice goes to the method that takes its rows. What
// belongs to a device, graphs and streams say, is its module's. Thread: engine.
// Source: ExecuTorch backends/cuda/batching, cuda_executor and step_plan, for the methods' bounds.
class CudaExecutor final : public SessionExecutor {
 public:
  // `module` outlives the executor, and nobody else runs steps on it. It takes steps of
  // most_padded_rows() rows more than their batches have tokens. kInvalidArgument or kUnimplemented
  // name the option, or the field of ModuleInfo, that is not acceptable.
  static Result<std::unique_ptr<CudaExecutor>> create(Module& module,
                                                      const SessionExecutorOptions& options);

 private:
  CudaExecutor(Module& module, std::unique_ptr<SessionTable> sessions, StepPlanner planner);
  void plan_forwards(int32_t num_rows, std::vector<Forward>& forwards) const override;

  StepPlanner planner_;
};

}  // namespace chorus
