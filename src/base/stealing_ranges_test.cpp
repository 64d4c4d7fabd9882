#include "base/stealing_ranges.h"

#include <gtest/gtest.h>
#include <vector>

namespace chorus {
namespace {

TEST(StealingRanges, GivesTheOwnFromTheFrontAndOthersFromTheEnd) {
  StealingRanges ranges(2);
  ranges.set(0, {0, 10});
  ranges.set(1, {10, 13});
  const auto expect = [](Range range, int64_t begin, int64_t end) {
    EXPECT_EQ(range.begin, begin);
    EXPECT_EQ(range.end, end);
  };
  expect(ranges.take(1, 2), 10, 12);
  expect(ranges.take(1, 2), 12, 13);
  expect(ranges.take(1, 2), 8, 10);
  expect(ranges.take(0, 5), 0, 5);
  expect(ranges.take(1, 100), 5, 8);
  expect(ranges.take(0, 1), 0, 0);
  expect(ranges.take(1, 1), 0, 0);
  ranges.set(0, {7, 7});
  expect(ranges.take(0, 1), 0, 0);
}

// With a pool, as the kernels use it, round after round, some threads later than others.
TEST(StealingRanges, GiveEachItemToOne) {
  for (const int threads : {1, 2, 3, 5}) {
    const auto pool = ThreadPool::create(threads).value();
    StealingRanges ranges(threads);
    constexpr int64_t kItems = 101;
    std::vector<int> taken(kItems);
    std::vector<int> stolen(static_cast<size_t>(threads));
    for (int round = 0; round < 500; ++round) {
      std::fill(taken.begin(), taken.end(), 0);
      pool->run([&](int thread) {
        const Range mine = share_of(kItems, threads, thread);
        ranges.set(thread, mine);
        pool->barrier();
        volatile int late = thread == round % threads ? 2000 : 0;
        while (late > 0) late = late - 1;
        for (;;) {
          const Range range = ranges.take(thread, 1 + round % 7);
          if (range.begin == range.end) break;
          for (int64_t i = range.begin; i < range.end; ++i) {
            ++taken[static_cast<size_t>(i)];
            if (i < mine.begin || i >= mine.end) ++stolen[static_cast<size_t>(thread)];
          }
        }
        pool->barrier();
      });
      for (const int times : taken) ASSERT_EQ(times, 1);
    }
    if (threads == 1) {
      EXPECT_EQ(stolen[0], 0);
    }
  }
}

}  // namespace
}  // namespace chorus
