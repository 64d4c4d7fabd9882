#include "base/thread_pool.h"

#include <chrono>
#include <ctime>
#include <gtest/gtest.h>
#include <pthread.h>
#include <thread>

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
    const auto made = ThreadPool::create(num_threads).value();
    ThreadPool& pool = *made;
    std::vector<int> counts(static_cast<size_t>(num_threads));
    for (int round = 0; round < 2000; ++round) {
      pool.run([&](int index) { ++counts[static_cast<size_t>(index)]; });
    }
    for (const int count : counts) EXPECT_EQ(count, 2000);
  }
}

TEST(ThreadPool, BarrierMakesWritesVisible) {
  constexpr int kThreads = 3;
  const auto made = ThreadPool::create(kThreads).value();
  ThreadPool& pool = *made;
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
  const auto made = ThreadPool::create(2).value();
  ThreadPool& pool = *made;
  std::atomic<int> runs{0};
  for (int round = 0; round < 5; ++round) {
    // Longer than the time after which workers wait in the kernel.
    std::this_thread::sleep_for(std::chrono::milliseconds(8));
    pool.run([&](int) { ++runs; });
  }
  EXPECT_EQ(runs.load(), 10);
}

// Threads that wait at a barrier for one that is away for long give the processor back.
TEST(ThreadPool, SleepsAtABarrierThatTakesLong) {
  const auto made = ThreadPool::create(4).value();
  ThreadPool& pool = *made;
  timespec before = {};
  timespec after = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  pool.run([&](int index) {
    if (index == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    pool.barrier();
  });
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double used = static_cast<double>(after.tv_sec - before.tv_sec) +
                      1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  // Three threads times 2 ms; without the sleep, all of 400 ms on each processor.
  EXPECT_LT(used, 0.2);
}

TEST(ThreadPool, MoreThreadsThanProcessors) {
  constexpr int kThreads = 96;
  const auto made = ThreadPool::create(kThreads).value();
  ThreadPool& pool = *made;
  std::vector<int> passed(kThreads);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> arrived{0};
    pool.run([&](int index) {
      if (round % 25 == 0 && index == round % kThreads) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the others go to sleep
      }
      ++arrived;
      pool.barrier();
      if (arrived.load() == kThreads) ++passed[static_cast<size_t>(index)];
    });
  }
  for (const int count : passed) EXPECT_EQ(count, 100);
}

// Stacks so large that no thread can have one.
TEST(ThreadPool, SaysWhenThereIsNoThread) {
  pthread_attr_t before;
  pthread_attr_t huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 46), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const auto pool = ThreadPool::create(2);
  const auto alone = ThreadPool::create(1);
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  EXPECT_EQ(pool.status().code(), Code::kResourceExhausted);
  EXPECT_EQ(pool.status().field(), "threads");
  EXPECT_TRUE(alone.ok());
  EXPECT_TRUE(ThreadPool::create(2).ok());
}

}  // namespace
}  // namespace chorus
