// The CPU backend: a Module over a program, on the threads of its own pool.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/cpu_features.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "cpu/interpreter.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kv_memory.h"
#include "cpu/profile.h"
#include "exec/module.h"
#include "program/program.h"

namespace chorus::cpu {

enum class Activations : uint8_t {
  kInt8,  // int8 per 32 values, wherever the weights are quantised
  kF32,   // the reference mode: weights as floats, activations unrounded
};

// As the command line and session files spell them.
std::string_view name_of(Activations activations);
std::string_view name_of(KvType type);

struct CpuOptions {
  int32_t threads = 1;
  Activations activations = Activations::kInt8;
  KvType kv_type = KvType::kBf16;
  int32_t block_size = 16;
  std::vector<int32_t> num_blocks = {};  // per layer group of the program
  int32_t max_step_tokens = 512;         // most rows of a step, padded ones included
  Isa isa = Isa::kGeneric;
  bool profile = false;  // tell operators apart in usage(); costs a look at the clock for each
  bool fused = true;     // see PlanOptions; for tests
};

// Invariants:
// 1. The result of a row depends on its tokens, its sequence's cells, the instruction set and the
//    options activations and kv_type; on nothing else: neither on the other rows of the step, nor
//    on slices, threads, block size, or the contents of cells that the row does not see.
// 2. begin, run and reduce_rows allocate nothing themselves (likeliest may grow), take no lock and
//    make no system call but the pool's.
// Weights stay where the program has them. Thread: engine.
class CpuModule final : public Module {
 public:
  // Errors: kInvalidArgument with the option as field; kResourceExhausted; kUnimplemented for an
  // operator that this backend does not offer.
  static Result<std::unique_ptr<Module>> create(std::shared_ptr<const Program> program,
                                                const CpuOptions& options);

  const ModuleInfo& info() const override { return info_; }
  // Errors: kInvalidArgument when the step has more rows than max_step_tokens or its shape does not
  // fit the program.
  Status begin(const Step& step) override;
  // Errors: kInvalidArgument for a method or slice out of range.
  Status run(int32_t method, const Slice& slice, std::span<uint8_t> not_finite) override;
  // Where the mask allows nothing, token.id is -1. The lowest id is chosen where 1 / temperature or
  // the greatest allowed logit is not finite, as at temperature 0.
  // Errors: kInvalidArgument for a row that was not wanted, an id or a count out of range.
  Status reduce_rows(std::span<const RowSpec> specs, std::span<RowResult> results,
                     std::vector<TokenLogprob>& likeliest) override;
  ModuleUsage usage() const override;
  Status copy_cells(const CellCopy& copy) override { return kv_.copy_cells(copy); }
  Status read_cells(int32_t group, std::span<const CellId> cells,
                    std::span<std::byte> bytes) const override {
    return kv_.read_cells(group, cells, bytes);
  }
  Status write_cells(int32_t group, std::span<const CellId> cells,
                     std::span<const std::byte> bytes) override {
    return kv_.write_cells(group, cells, bytes);
  }

 private:
  CpuModule(std::shared_ptr<const Program> program, const CpuOptions& options, Plan plan,
            KvMemory kv, std::unique_ptr<ThreadPool> pool);

  // What the reduction of one spec leaves besides its RowResult.
  struct Likeliest {
    int32_t count = 0;
    std::array<TokenLogprob, kMaxLikeliest> tokens;
  };

  Status check_tables(const Step& step) const;
  Status check_shared(const Step& step) const;
  Status check_spec(const RowSpec& spec) const;
  void reduce(const RowSpec& spec, float* logits, int thread, RowResult& result,
              Likeliest& likeliest);
  TokenId choose(const RowSpec& spec, float* logits, int thread);
  TokenId choose_adjusted(const RowSpec& spec, const float* logits, int thread);

  const std::shared_ptr<const Program> program_;
  const CpuOptions options_;
  const Kernels& kernels_;
  ModuleInfo info_;
  KvMemory kv_;
  const std::unique_ptr<ThreadPool> pool_;
  const SteadyClock clock_;
  std::optional<Profile> profile_;
  int64_t graph_ns_ = 0;
  Interpreter interpreter_;
  const Step* step_ = nullptr;
  int32_t next_row_ = 0;  // the first row of the step that no slice has run
  int32_t num_kept_ = 0;
  std::vector<int32_t> kept_index_;  // [max_step_tokens]: of a row of the step, or -1
  std::array<Likeliest, Interpreter::kTailRows> likeliest_;
  std::vector<uint32_t> typical_;  // [threads, words of a mask]: of typical tokens
};

}  // namespace chorus::cpu
