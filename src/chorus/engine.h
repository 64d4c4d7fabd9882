// The engine as an application sees it: a program on a backend, ready for sessions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/cpu_features.h"
#include "base/result.h"
#include "cpu/module.h"
#include "engine/runner.h"
#include "exec/module.h"
#include "program/program.h"

namespace chorus {

using cpu::Activations;
using cpu::KvType;
using cpu::name_of;

// What may be chosen. Zero and empty mean: not given, derived (see EngineSettings).
struct EngineOptions {
  int32_t threads = 0;    // default: physical cores available to the process
  std::string force_isa;  // default: the best this processor has
  Activations activations = Activations::kInt8;
  KvType kv_type = KvType::kBf16;
  int32_t block_size = 16;
  int32_t context = 0;  // default: the program's, as far as the KV pool goes
  int64_t kv_memory_bytes =
      0;                     // default: what free memory allows, at most what all sessions can use
  int32_t kv_blocks = 0;     // per layer group, instead of kv_memory_bytes
  int32_t max_sessions = 0;  // default: 256
  int32_t max_batch_tokens = 0;      // default: a prefill chunk beside the decodes
  int32_t prefill_chunk = 0;         // default: 512
  int32_t max_decode_sequences = 0;  // default: 32
  int32_t target_step_ms = 0;        // default: 100
  bool prefix_cache = true;          // equal prefixes of prompts share their KV
};

// What the options came to: every value an engine runs with.
struct EngineSettings {
  int32_t threads = 0;
  Isa isa = Isa::kGeneric;
  Activations activations = Activations::kInt8;
  KvType kv_type = KvType::kBf16;
  int32_t block_size = 0;
  int32_t context = 0;
  std::vector<int32_t> kv_blocks;  // per layer group
  int64_t kv_bytes = 0;            // of all blocks of all groups
  int32_t max_sessions = 0;
  int32_t max_batch_tokens = 0;
  int32_t prefill_chunk = 0;
  int32_t max_decode_sequences = 0;
  int32_t target_step_ms = 0;
  bool prefix_cache = false;
};

// Owns the whole chain: Runner, ModuleExecutor, CPU module. Thread: any (the Runner's contract).
class Engine {
 public:
  // Errors: kInvalidArgument names the flag that sets the option (--kv-blocks, --context,
  // CHORUS_FORCE_ISA, ...); kResourceExhausted when memory is short; kUnimplemented for a program
  // that this backend cannot run. `clock` outlives the engine.
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const Program> program,
                                                const EngineOptions& options, const Clock& clock);

  Runner& runner() { return *runner_; }
  const Program& program() const { return *program_; }
  const EngineSettings& settings() const { return settings_; }

 private:
  Engine() = default;

  std::shared_ptr<const Program> program_;  // owners: this engine, its module, and the caller
  EngineSettings settings_;
  std::unique_ptr<Module> module_;
  std::unique_ptr<Runner> runner_;  // last: its thread uses all of the above
};

}  // namespace chorus
