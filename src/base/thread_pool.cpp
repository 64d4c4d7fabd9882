#include "base/thread_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <string>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <utility>

#include "base/check.h"

namespace chorus {

namespace {

constexpr int64_t kSpinNs = 20'000;
constexpr int64_t kYieldNs = 2'000'000;

int64_t now_ns() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);  // answered by the vDSO, without a system call
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr,
          nullptr, 0);
}

// Processors in this process's affinity mask, SMT siblings included.
int num_processors() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), spin_ns_(num_threads > num_processors() ? 0 : kSpinNs) {
  CHORUS_CHECK_GE(num_threads, 1);
}

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(int num_threads) {
  std::unique_ptr<ThreadPool> pool(new ThreadPool(num_threads));
  pool->workers_.reserve(static_cast<size_t>(num_threads - 1));
  for (int index = 1; index < num_threads; ++index) {
    auto worker = Thread::start([each = pool.get(), index] { each->worker_loop(index); });
    if (!worker.ok()) {
      return resource_exhausted("threads", "expected " + std::to_string(num_threads) + ", found " +
                                               std::to_string(index) + " (" +
                                               worker.status().message() + ")");
    }
    pool->workers_.push_back(std::move(worker).value());
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  futex_wake_all(epoch_);
  workers_.clear();
}

void ThreadPool::wait_while_equal(std::atomic<uint32_t>& word, uint32_t old_value) {
  int64_t start = 0;
  for (int round = 0; word.load(std::memory_order_acquire) == old_value; ++round) {
    pause_processor();
    if (round % 64 != 63) continue;
    if (start == 0) start = now_ns();
    const int64_t waited = now_ns() - start;
    if (waited > kYieldNs) {
      // Counted before the last look at the word, and read after the word is raised (all
      // sequentially consistent): either this thread sees the new value or the raiser sees it.
      num_sleeping_.fetch_add(1);
      if (word.load() == old_value) futex_wait(word, old_value);
      num_sleeping_.fetch_sub(1);
    } else if (waited >= spin_ns_) {
      sched_yield();
    }
  }
}

void ThreadPool::wake_sleepers(std::atomic<uint32_t>& word) {
  if (num_sleeping_.load() != 0) futex_wake_all(word);
}

void ThreadPool::run_job(Job job, void* context) {
  if (num_threads_ == 1) {
    job(context, 0);
    return;
  }
  job_ = job;
  context_ = context;
  epoch_.fetch_add(1);
  wake_sleepers(epoch_);
  job(context, 0);
  barrier();
}

void ThreadPool::barrier() {
  if (num_threads_ == 1) return;
  const uint32_t epoch = barrier_epoch_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(num_threads_)) {
    arrived_.store(0, std::memory_order_relaxed);
    barrier_epoch_.store(epoch + 1);
    wake_sleepers(barrier_epoch_);
    return;
  }
  wait_while_equal(barrier_epoch_, epoch);
}

void ThreadPool::worker_loop(int index) {
  uint32_t seen = 0;
  for (;;) {
    wait_while_equal(epoch_, seen);
    ++seen;
    if (stop_.load()) return;
    job_(context_, index);
    barrier();
  }
}

}  // namespace chorus
