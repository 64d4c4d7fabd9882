#include "executors/make_executor.h"

#include <utility>

#include "executors/cuda_executor.h"
#include "executors/module_executor.h"

namespace chorus {
namespace {

template <typename Executor>
Result<std::unique_ptr<SessionExecutor>> make(Module& module,
                                              const SessionExecutorOptions& options) {
  CHORUS_ASSIGN_OR_RETURN(auto executor, Executor::create(module, options));
  return std::unique_ptr<SessionExecutor>(std::move(executor));
}

}  // namespace

Result<std::unique_ptr<SessionExecutor>> make_executor(Module& module,
                                                       const SessionExecutorOptions& options) {
  const std::vector<MethodInfo>& methods = module.info().methods;
  const bool has_forward = methods.size() == 1 && methods[0].name == "forward";
  return has_forward ? make<ModuleExecutor>(module, options) : make<CudaExecutor>(module, options);
}

}  // namespace chorus
