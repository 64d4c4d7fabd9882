// The threads that run a step's kernels.
//
// A step is a few hundred short parallel regions; waking a sleeping thread costs as much as a whole
// small matrix product. So a thread that waits, for work or at a barrier, spins about 20 us, then
// yields the processor, and waits in the kernel (futex) only after about 2 ms. A pool with more
// threads than the process has processors yields at once: what it waits for cannot run meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/thread.h"

namespace chorus {

// Half-open range of item indices.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

// The contiguous share of [0, count) that falls to `index` of `parts`; shares differ by at most
// one.
inline Range share_of(int64_t count, int parts, int index) {
  const int64_t each = count / parts;
  const int64_t extra = count % parts;
  const int64_t begin = each * index + (index < extra ? index : extra);
  return {begin, begin + each + (index < extra ? 1 : 0)};
}

// `num_threads` threads in all, the caller of run() included. Thread: run() and barrier() belong to
// one owner; the pool is neither copied nor moved. run() does not allocate, lock or make a system
// call but sched_yield and futex.
class ThreadPool {
 public:
  // Requires: num_threads >= 1. kResourceExhausted (field threads) when the system gives fewer.
  static Result<std::unique_ptr<ThreadPool>> create(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(thread_index) once on each thread, index 0 on the caller, and returns when all are
  // done. `body` is a callable taking int; it lives on the caller's stack. Not reentrant.
  template <typename Body>
  void run(Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_job([](void* context, int index) { (*static_cast<Plain*>(context))(index); },
            const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Inside run(): waits until every thread of the pool has reached its barrier() call. All threads
  // make the same number of calls.
  void barrier();

 private:
  explicit ThreadPool(int num_threads);

  using Job = void (*)(void* context, int index);

  void run_job(Job job, void* context);
  void worker_loop(int index);
  // Waits until `word` differs from `old_value`; whoever changes it calls wake_sleepers(word) next.
  void wait_while_equal(std::atomic<uint32_t>& word, uint32_t old_value);
  void wake_sleepers(std::atomic<uint32_t>& word);

  const int num_threads_;
  const int64_t spin_ns_;  // before a waiting thread yields
  Job job_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // raised to start a job
  alignas(64) std::atomic<uint32_t> num_sleeping_{0};
  alignas(64) std::atomic<uint32_t> arrived_{0};  // threads at the current barrier
  alignas(64) std::atomic<uint32_t> barrier_epoch_{0};
  std::vector<std::unique_ptr<Thread>> workers_;
};

}  // namespace chorus
