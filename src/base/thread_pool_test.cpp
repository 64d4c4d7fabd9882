#include "base/thread_pool.h"

#include <chrono>
#include <gtest/gtest.h>

namespace chorus {
namespace {

TEST(ShareOf, CoversTheRangeOnceAndEvenly) {
  for (int64_t count : {0, 1, 2, 7, 100}) {
    for (int parts : {1, 2, 3, 8}) {
      int64_t next = 0;
      for (int index = 0; index < parts; ++index) {
        const Range range = share_of(count, parts, index);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.end - range.begin, (count + parts - 1) / parts);
        next = range.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(ThreadPool, RunsEachIndexOnce) {
  for (int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    std::vector<int> counts(static_cast<size_t>(num_threads));
    for (int round = 0; round < 2000; ++round) {
      pool.run([&](int index) { ++counts[static_cast<size_t>(index)]; });
    }
    for (const int count : counts) EXPECT_EQ(count, 2000);
  }
}

TEST(ThreadPool, BarrierMakesWritesVisible) {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  std::vector<int> values(kThreads);
  std::vector<int> sums(kThreads);
  for (int round = 0; round < 500; ++round) {
    pool.run([&](int index) {
      values[static_cast<size_t>(index)] = round + index;
      pool.barrier();
      sums[static_cast<size_t>(index)] = values[0] + values[1] + values[2];
      pool.barrier();
      values[static_cast<size_t>(index)] = -1;
    });
    for (const int sum : sums) ASSERT_EQ(sum, 3 * round + 3);
  }
}

TEST(ThreadPool, WakesWorkersThatSleep) {
  ThreadPool pool(2);
  std::atomic<int> runs{0};
  for (int round = 0; round < 5; ++round) {
    // Longer than the time after which workers wait in the kernel.
    std::this_thread::sleep_for(std::chrono::milliseconds(8));
    pool.run([&](int) { ++runs; });
  }
  EXPECT_EQ(runs.load(), 10);
}

}  // namespace
}  // namespace chorus
