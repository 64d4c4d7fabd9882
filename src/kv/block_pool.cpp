#include "kv/block_pool.h"

#include "base/check.h"

namespace chorus {

BlockPool::BlockPool(int32_t num_blocks) {
  CHORUS_CHECK_GE(num_blocks, 0);
  ref_counts_.assign(static_cast<size_t>(num_blocks), 0);
  in_cache_.assign(static_cast<size_t>(num_blocks), 0);
  links_.resize(static_cast<size_t>(num_blocks) + 1);
  links_.back() = {num_blocks, num_blocks};
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
  if (in_cache(block) && ref_count(block) == 1) unlink(block);
  ++ref_counts_[static_cast<size_t>(block)];
}

void BlockPool::release(BlockId block) {
  CHORUS_CHECK_GT(ref_count(block), in_cache(block) ? 1 : 0);
  const int32_t left = --ref_counts_[static_cast<size_t>(block)];
  if (left == 0) free_.push_back(block);
  if (left == 1 && in_cache(block)) link_last(block);
}

void BlockPool::cache(BlockId block) {
  CHORUS_CHECK(!in_cache(block));
  retain(block);
  in_cache_[static_cast<size_t>(block)] = 1;
}

void BlockPool::uncache(BlockId block) {
  CHORUS_CHECK(in_cache(block));
  if (ref_count(block) == 1) unlink(block);
  in_cache_[static_cast<size_t>(block)] = 0;
  release(block);
}

void BlockPool::link_last(BlockId block) {
  const BlockId end = total();
  link(block) = {link(end).previous, end};
  link(link(end).previous).next = block;
  link(end).previous = block;
  ++num_cached_;
}

void BlockPool::unlink(BlockId block) {
  link(link(block).previous).next = link(block).next;
  link(link(block).next).previous = link(block).previous;
  link(block) = {};
  --num_cached_;
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
    const bool is_cached = in_cache_[block] != 0 && ref_counts_[block] == 1;
    CHORUS_CHECK_EQ(is_cached, links_[block].next != kNoBlock);
  }
  int32_t num_linked = 0;
  for (BlockId block = links_.back().next; block < total(); ++num_linked) {
    CHORUS_CHECK_EQ(links_[static_cast<size_t>(links_[static_cast<size_t>(block)].next)].previous,
                    block);
    block = links_[static_cast<size_t>(block)].next;
  }
  CHORUS_CHECK_EQ(num_linked, num_cached_);
}

}  // namespace chorus
