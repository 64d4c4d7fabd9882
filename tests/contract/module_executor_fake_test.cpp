// The executor contract for ModuleExecutor over FakeModule: full history, and a window beside it.
#include <algorithm>
#include <memory>

#include "exec/fake_module.h"
#include "executors/module_executor.h"
#include "tests/contract/executor_contract.h"

namespace chorus::contract {
namespace {

ContractSubject subject(std::string name, std::vector<int32_t> windows) {
  ContractSubject subject;
  subject.name = std::move(name);
  subject.has_window = std::any_of(windows.begin(), windows.end(), [](int32_t w) { return w > 0; });
  subject.num_schedules = 6;
  subject.make_module = [windows](const ContractShape& shape) {
    FakeModuleOptions options;
    for (const int32_t window : windows) options.groups.push_back({{window}, shape.num_blocks});
    options.block_size = shape.block_size;
    options.context = shape.max_session_tokens;
    return std::make_unique<FakeModule>(options);
  };
  subject.make_executor =
      [](Module& module,
         const SessionExecutorOptions& options) -> Result<std::unique_ptr<SessionExecutor>> {
    auto executor = ModuleExecutor::create(module, options);
    if (!executor.ok()) return executor.status();
    return std::unique_ptr<SessionExecutor>(std::move(executor).value());
  };
  return subject;
}

INSTANTIATE_TEST_SUITE_P(Fake, ExecutorContract,
                         testing::Values(subject("OneGroup", {0}), subject("TwoGroups", {0, 5}),
                                         subject("ThreeGroups", {21, 0, 3})),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace chorus::contract
