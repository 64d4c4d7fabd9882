// The KV blocks of one layer group and who holds them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/types.h"

namespace chorus {

// Reference counts over a fixed number of blocks. Integers only; the bytes belong to the backend.
//
// One of a block's owners may be a cache (the prefix index). A block that it owns alone is
// *cached*: used, but to be had. The pool keeps those in the order in which their last other owner
// left.
//
// Invariants: (1) free + used == total. (2) ref_count(b) == 0 exactly when b is free. (3) b is in
// the list of cached blocks exactly when the cache owns it and ref_count(b) == 1. Thread: engine.
// Every call is O(1) unless it says otherwise, and none allocates memory. Source: vLLM's block
// pool, for the semantics.
class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t total() const { return static_cast<int32_t>(ref_counts_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t used() const { return total() - free(); }
  int32_t ref_count(BlockId block) const { return ref_counts_[static_cast<size_t>(block)]; }
  int32_t cached() const { return num_cached_; }
  int32_t available() const { return free() + cached(); }

  // The block that the (index + 1)-th allocate() from now returns when nothing is released between.
  // Requires: index < free().
  BlockId peek(int32_t index) const;
  // A block with ref_count 1. Requires: free() > 0.
  BlockId allocate();
  // One more owner. Requires: ref_count(block) > 0.
  void retain(BlockId block);
  // One owner less; at zero the block is free. Requires: ref_count(block) > 0.
  void release(BlockId block);

  // Makes the cache one more owner. Requires: ref_count(block) > 0, and it is none yet.
  void cache(BlockId block);
  // Ends that. Requires: in_cache(block).
  void uncache(BlockId block);
  bool in_cache(BlockId block) const { return in_cache_[static_cast<size_t>(block)] != 0; }
  // Of the blocks that the cache owns alone, the one that has been so for longest. Requires:
  // cached() > 0.
  BlockId oldest_cached() const { return links_.back().next; }

  // In no particular order; until the next change.
  std::span<const BlockId> free_blocks() const { return free_; }

  // O(total). `expected` holds the number of owners of each block.
  void check_invariants(std::span<const int32_t> expected) const;

 private:
  struct Link {
    BlockId previous = kNoBlock;
    BlockId next = kNoBlock;
  };
  Link& link(BlockId block) { return links_[static_cast<size_t>(block)]; }
  void link_last(BlockId block);
  void unlink(BlockId block);

  std::vector<int32_t> ref_counts_;
  std::vector<uint8_t> in_cache_;
  // The list of cached blocks, from the oldest on; a ring through one more link behind the blocks'.
  std::vector<Link> links_;
  int32_t num_cached_ = 0;
  std::vector<BlockId> free_;  // a stack: what was released last is taken first
};

}  // namespace chorus
