// The executor contract for ModuleExecutor and CudaExecutor over the CPU backend and small random
// programs: full history, and a windowed layer group beside it. Kernels are the generic ones.
#include <memory>
#include <string>
#include <utility>

#include "cpu/module.h"
#include "executors/make_executor.h"
#include "program/testing/tiny_program.h"
#include "tests/contract/executor_contract.h"

namespace chorus::contract {
namespace {

ContractSubject subject(std::string name, int32_t window, cpu::CpuOptions options,
                        std::vector<Method> methods = forward_method(32)) {
  TinyOptions tiny;
  tiny.width = 32;
  tiny.ff_width = 32;
  tiny.num_heads = 2;
  tiny.num_kv_heads = 1;
  tiny.vocabulary = 67;
  tiny.context = 120;
  tiny.methods = std::move(methods);
  tiny.window = window;
  const auto program = std::make_shared<const Program>(tiny_program(tiny));
  ContractSubject subject;
  subject.name = std::move(name);
  subject.num_schedules = 1;
  subject.has_window = window > 0;
  subject.make_module = [program, options, window](const ContractShape& shape) {
    cpu::CpuOptions own = options;
    own.block_size = shape.block_size;
    own.num_blocks.assign(window > 0 ? 2 : 1, shape.num_blocks);
    auto module = cpu::CpuModule::create(program, own);
    CHORUS_CHECK(module.ok());
    return std::move(module).value();
  };
  subject.make_executor = make_executor;
  return subject;
}

const cpu::CpuOptions kFloats{
    .threads = 2, .activations = cpu::Activations::kF32, .kv_type = cpu::KvType::kF32};

const auto kForward =
    testing::Values(subject("Int8Bf16", 0, {.activations = cpu::Activations::kInt8}),
                    subject("Float32Windowed", 9, kFloats));
INSTANTIATE_TEST_SUITE_P(Cpu, SeamContract, kForward, [](const auto& e) { return e.param.name; });
INSTANTIATE_TEST_SUITE_P(Cpu, ExecutorContract, kForward,
                         [](const auto& e) { return e.param.name; });

const auto kDecodeAndPrefill =
    testing::Values(subject("Int8Bf16", 0, {.activations = cpu::Activations::kInt8},
                            decode_and_prefill({1, 2, 4, 8}, 5, 32)),
                    subject("Float32Windowed", 9, kFloats, decode_and_prefill({1, 8}, 29, 32)));
INSTANTIATE_TEST_SUITE_P(CpuCuda, SeamContract, kDecodeAndPrefill,
                         [](const auto& e) { return e.param.name; });
INSTANTIATE_TEST_SUITE_P(CpuCuda, ExecutorContract, kDecodeAndPrefill,
                         [](const auto& e) { return e.param.name; });

}  // namespace
}  // namespace chorus::contract
