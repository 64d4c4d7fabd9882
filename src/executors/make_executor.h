// The executor that a program's methods ask for.
#pragma once

#include <memory>

#include "base/result.h"
#include "batching/session_executor.h"
#include "exec/module.h"

namespace chorus {

// ModuleExecutor where the module's only method is `forward`, else CudaExecutor. Errors as theirs.
Result<std::unique_ptr<SessionExecutor>> make_executor(Module& module,
                                                       const SessionExecutorOptions& options);

}  // namespace chorus
