// The executor contract over FakeModule, for ModuleExecutor and for CudaExecutor with methods of
// several kinds: full history, and windows beside it. And for the scripted executor.
#include <algorithm>
#include <memory>

#include "exec/fake_module.h"
#include "exec/scripted_executor.h"
#include "executors/make_executor.h"
#include "tests/contract/executor_contract.h"

namespace chorus::contract {
namespace {

ContractSubject subject(std::string name, std::vector<int32_t> windows,
                        std::vector<MethodInfo> methods = {{"forward", 1, 32, 0}}) {
  ContractSubject subject;
  subject.name = std::move(name);
  subject.has_window = std::any_of(windows.begin(), windows.end(), [](int32_t w) { return w > 0; });
  subject.num_schedules = 6;
  subject.make_module = [windows, methods](const ContractShape& shape) {
    FakeModuleOptions options;
    options.methods = methods;
    for (const int32_t window : windows) options.groups.push_back({{window}, shape.num_blocks});
    options.block_size = shape.block_size;
    options.context = shape.max_session_tokens;
    return std::make_unique<FakeModule>(options);
  };
  subject.make_executor = make_executor;
  return subject;
}

const auto kForward = testing::Values(subject("OneGroup", {0}), subject("TwoGroups", {0, 5}),
                                      subject("ThreeGroups", {21, 0, 3}));
INSTANTIATE_TEST_SUITE_P(Fake, SeamContract, kForward, [](const auto& e) { return e.param.name; });
INSTANTIATE_TEST_SUITE_P(Fake, ExecutorContract, kForward,
                         [](const auto& e) { return e.param.name; });

const auto kDecodeAndPrefill = testing::Values(
    subject("Widths", {0, 5}, {{"decode", 1, 8, 0, {1, 2, 4, 8}}, {"prefill", 5, 32, 0}}),
    subject("Singles", {0}, {{"decode", 1, 1, 0, {1}}, {"prefill", 2, 9, 2}}),
    // Hardly a step without padding, and rows that nobody wants are kept.
    subject("Padded", {21, 0, 3}, {{"decode", 1, 8, 1, {1, 8}}, {"prefill", 29, 32, 11}}));
INSTANTIATE_TEST_SUITE_P(FakeCuda, SeamContract, kDecodeAndPrefill,
                         [](const auto& e) { return e.param.name; });
INSTANTIATE_TEST_SUITE_P(FakeCuda, ExecutorContract, kDecodeAndPrefill,
                         [](const auto& e) { return e.param.name; });

ContractSubject scripted() {
  ContractSubject subject;
  subject.name = "Scripted";
  subject.make_without_module = [](const ContractShape& shape) -> std::unique_ptr<Executor> {
    ScriptedExecutor::Options options;
    options.vocabulary = 64;
    options.max_sessions = shape.max_sessions;
    options.max_session_tokens = shape.max_session_tokens;
    options.block_size = shape.block_size;
    options.num_blocks = shape.num_blocks;
    return std::make_unique<ScriptedExecutor>(options);
  };
  return subject;
}

INSTANTIATE_TEST_SUITE_P(Scripted, SeamContract, testing::Values(scripted()),
                         [](const auto& e) { return e.param.name; });

}  // namespace
}  // namespace chorus::contract
