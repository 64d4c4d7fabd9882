#include "kv/block_pool.h"

#include <gtest/gtest.h>
#include <vector>

#include "base/random.h"

namespace chorus {
namespace {

TEST(BlockPool, PeekForetellsAllocate) {
  BlockPool pool(5);
  RandomStream random(1);
  std::vector<BlockId> held;
  for (int event = 0; event < 200; ++event) {
    const auto wanted = static_cast<int32_t>(random.below(static_cast<uint64_t>(pool.free()) + 1));
    std::vector<BlockId> foretold;
    for (int32_t i = 0; i < wanted; ++i) foretold.push_back(pool.peek(i));
    for (const BlockId block : foretold) {
      ASSERT_EQ(pool.allocate(), block);
      ASSERT_EQ(pool.ref_count(block), 1);
      held.push_back(block);
    }
    while (!held.empty() && random.below(3) != 0) {
      pool.release(held.back());
      held.pop_back();
    }
    ASSERT_EQ(pool.used(), static_cast<int32_t>(held.size()));
  }
}

TEST(BlockPool, AtTheLastOwnerABlockIsFree) {
  BlockPool pool(1);
  const BlockId block = pool.allocate();
  pool.retain(block);
  pool.release(block);
  EXPECT_EQ(pool.free(), 0);
  pool.release(block);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.ref_count(block), 0);
}

TEST(BlockPool, CachedBlocksComeInTheOrderInWhichTheirOwnersLeft) {
  BlockPool pool(4);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate());
  for (const BlockId block : blocks) pool.cache(block);
  EXPECT_EQ(pool.cached(), 0);
  for (const int i : {2, 0, 3}) pool.release(blocks[static_cast<size_t>(i)]);
  EXPECT_EQ(pool.cached(), 3);
  EXPECT_EQ(pool.available(), 3);
  EXPECT_EQ(pool.free(), 0);
  EXPECT_EQ(pool.oldest_cached(), blocks[2]);
  pool.retain(blocks[2]);  // in use again, and released as the last
  EXPECT_EQ(pool.oldest_cached(), blocks[0]);
  pool.release(blocks[2]);
  pool.uncache(blocks[0]);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.oldest_cached(), blocks[3]);
  pool.uncache(blocks[1]);  // somebody else owns it
  EXPECT_EQ(pool.free(), 1);
  pool.uncache(blocks[3]);
  EXPECT_EQ(pool.oldest_cached(), blocks[2]);
  pool.check_invariants(std::vector<int32_t>{pool.ref_count(0), pool.ref_count(1),
                                             pool.ref_count(2), pool.ref_count(3)});
}

TEST(BlockPoolDeathTest, MisuseIsCaught) {
  BlockPool pool(1);
  EXPECT_DEATH(pool.release(0), "ref_count");
  EXPECT_DEATH(pool.retain(0), "ref_count");
  pool.allocate();
  EXPECT_DEATH(pool.allocate(), "free");
  EXPECT_DEATH(pool.peek(0), "free");
  EXPECT_DEATH(pool.check_invariants(std::vector<int32_t>{2}), "expected");
}

}  // namespace
}  // namespace chorus
