#include "kv/block_pool.h"

#include "base/check.h"

namespace chorus {

BlockPool::BlockPool(int32_t num_blocks) {
  CHORUS_CHECK_GE(num_blocks, 0);
  ref_counts_.assign(static_cast<size_t>(num_blocks), 0);
  free_.reserve(static_cast<size_t>(num_blocks));
  for (BlockId block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

BlockId BlockPool::peek(int32_t index) const {
  CHORUS_CHECK_LT(index, free());
  return free_[free_.size() - 1 - static_cast<size_t>(index)];
}

BlockId BlockPool::allocate() {
  CHORUS_CHECK_GT(free(), 0);
  const BlockId block = free_.back();
  free_.pop_back();
  ref_counts_[static_cast<size_t>(block)] = 1;
  return block;
}

void BlockPool::retain(BlockId block) {
  CHORUS_CHECK_GT(ref_count(block), 0);
  ++ref_counts_[static_cast<size_t>(block)];
}

void BlockPool::release(BlockId block) {
  CHORUS_CHECK_GT(ref_count(block), 0);
  if (--ref_counts_[static_cast<size_t>(block)] == 0) free_.push_back(block);
}

void BlockPool::check_invariants(std::span<const int32_t> expected) const {
  CHORUS_CHECK_EQ(expected.size(), ref_counts_.size());
  std::vector<uint8_t> listed(ref_counts_.size(), 0);
  for (const BlockId block : free_) {
    CHORUS_CHECK(block >= 0 && block < total());
    CHORUS_CHECK_EQ(listed[static_cast<size_t>(block)], 0);
    listed[static_cast<size_t>(block)] = 1;
  }
  for (size_t block = 0; block < ref_counts_.size(); ++block) {
    CHORUS_CHECK_EQ(ref_counts_[block], expected[block]);
    CHORUS_CHECK_EQ(listed[block] != 0, ref_counts_[block] == 0);
  }
}

}  // namespace chorus
