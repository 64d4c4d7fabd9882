// How many KV blocks each layer group of an engine gets out of the memory there is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/types.h"

namespace chorus {

// K and V of one token in all layers of a group.
struct KvGroupSize {
  WindowPolicy policy;
  int64_t bytes_per_token = 0;
};

struct KvPoolWish {
  KvLayout layout = KvLayout::kPaged;
  int32_t block_size = 0;         // of kPaged
  int32_t max_sessions = 0;       // resident at once
  int32_t max_step_tokens = 0;    // of one session
  int32_t model_context = 0;      // the longest session there can be
  int32_t context = 0;            // the longest session there must be room for; 0: as memory allows
  int32_t blocks = 0;             // of each full group; 0: as memory allows
  int64_t memory_bytes = 0;       // for all groups together
  bool memory_was_given = false;  // by the caller, whom errors are to tell
};

struct KvPoolSize {
  int32_t block_size = 0;
  int32_t context = 0;
  std::vector<int32_t> blocks;  // of each group
  int64_t bytes = 0;            // of all of them
};

// A group with full history gets as many blocks as there is memory for, and at most what all
// sessions can fill. A windowed group gets as many, since sessions may be short, but at most what
// the windows of all sessions need: with long sessions, it costs a constant. In the layout
// kSequence all groups are alike. Errors: kInvalidArgument with the field context, kv_blocks or
// kv_memory_bytes.
Result<KvPoolSize> size_kv_pool(std::span<const KvGroupSize> groups, const KvPoolWish& wish);

}  // namespace chorus
