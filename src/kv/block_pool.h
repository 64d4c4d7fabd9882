// The KV blocks of one layer group and who holds them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/types.h"

namespace chorus {

// Reference counts over a fixed number of blocks. Integers only; the bytes belong to the backend.
//
// Invariants: (1) free + used == total. (2) ref_count(b) == 0 exactly when b is free.
// Thread: engine. Every call is O(1) unless it says otherwise, and none allocates memory.
// Source: vLLM's block pool, for the semantics.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t total() const { return static_cast<int32_t>(ref_counts_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t used() const { return total() - free(); }
  int32_t ref_count(BlockId block) const { return ref_counts_[static_cast<size_t>(block)]; }

  // The block that the (index + 1)-th allocate() from now returns when nothing is released between.
  // Requires: index < free().
  BlockId peek(int32_t index) const;
  // A block with ref_count 1. Requires: free() > 0.
  BlockId allocate();
  // One more owner. Requires: ref_count(block) > 0.
  void retain(BlockId block);
  // One owner less; at zero the block is free. Requires: ref_count(block) > 0.
  void release(BlockId block);

  // In no particular order; until the next change.
  std::span<const BlockId> free_blocks() const { return free_; }

  // O(total). `expected` holds the number of owners of each block.
  void check_invariants(std::span<const int32_t> expected) const;

 private:
  std::vector<int32_t> ref_counts_;
  std::vector<BlockId> free_;  // a stack: what was released last is taken first
};

}  // namespace chorus
