// How an engine is set up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/base/cpu_features.h"
#include "chorus/kv/types.h"

namespace chorus {

class EventLog;

// How linear layers take their input, and how K and V are stored: what decides the bits of results.
enum class Activations : uint8_t {
  kInt8,  // int8 per 32 values, wherever the weights are quantised
  kF32,   // exact, and slow
};
// kQ8: 8-bit integers with a scale for each 32 of a head; 9/16 of the bytes of bf16.
enum class KvType : uint8_t { kBf16, kF32, kQ8 };

// "int8", "bf16" and so on, as the command line and session files spell them.
std::string_view name_of(Activations activations);
std::string_view name_of(KvType type);

// As the command line spells it.
std::string_view name_of(KvLayout layout);

// What may be chosen. Zero and empty mean: not given, derived (see EngineSettings).
struct EngineOptions {
  int32_t threads = 0;    // default: physical cores available to the process
  std::string force_isa;  // default: the best this processor has
  Activations activations = Activations::kInt8;
  KvType kv_type = KvType::kBf16;
  KvLayout kv_layout = KvLayout::kPaged;
  int32_t block_size = 0;  // default: 16; of kPaged only
  int32_t context = 0;     // default: the program's, as far as the KV pool goes
  int64_t kv_memory_bytes =
      0;                     // default: what free memory allows, at most what all sessions can use
  int32_t kv_blocks = 0;     // per layer group, instead of kv_memory_bytes
  int32_t max_sessions = 0;  // default: 256
  int32_t max_batch_tokens = 0;      // default: a prefill chunk beside the decodes
  int32_t prefill_chunk = 0;         // default: 512
  int32_t max_decode_sequences = 0;  // default: 32
  int32_t target_step_ms = 0;        // default: 100
  int32_t priority_age_ms = 0;       // as in RunnerOptions; default: 30000
  int32_t shortest_first_ms = 0;     // as in RunnerOptions; default: off
  bool prefix_cache = true;          // equal prefixes of prompts share their KV
  // Told of everything that happens (chorus/engine/event_log.h). Owners: the caller and the engine.
  std::shared_ptr<EventLog> event_log = nullptr;
  bool profile = false;  // tell operators apart in RunnerMetrics::usage
};

// What the options came to: every value an engine runs with.
struct EngineSettings {
  int32_t threads = 0;
  Isa isa = Isa::kGeneric;
  Activations activations = Activations::kInt8;
  KvType kv_type = KvType::kBf16;
  KvLayout kv_layout = KvLayout::kPaged;
  int32_t block_size = 0;
  int32_t context = 0;
  std::vector<int32_t> kv_blocks;  // per layer group
  int64_t kv_bytes = 0;            // of all blocks of all groups
  int32_t max_sessions = 0;
  int32_t max_batch_tokens = 0;
  int32_t prefill_chunk = 0;
  int32_t max_decode_sequences = 0;
  int32_t target_step_ms = 0;
  int32_t priority_age_ms = 0;
  int32_t shortest_first_ms = 0;  // 0: off
  bool prefix_cache = false;
};

}  // namespace chorus
