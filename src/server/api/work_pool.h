// A few threads for work that takes too long for the thread that reads requests.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/thread.h"

namespace chorus::api {

// Runs jobs in the order in which they came. Thread: any.
class WorkPool {
 public:
  // kResourceExhausted (field threads).
  static Result<std::unique_ptr<WorkPool>> start(int32_t num_threads, size_t max_waiting);
  ~WorkPool() { stop(); }
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  struct Job {
    std::function<void()> run;
    std::function<bool()> is_void;  // nobody waits for it any more
  };
  // False: too many wait already, or it has stopped. Jobs that are void make place for others.
  bool post(Job job);

  // Takes no more jobs, and returns when those that wait are done. Idempotent; called by the owner.
  void stop();

 private:
  explicit WorkPool(size_t max_waiting) : max_waiting_(max_waiting) {}
  void work();

  const size_t max_waiting_;
  Mutex mutex_;
  CondVar posted_;
  std::deque<Job> jobs_ CHORUS_GUARDED_BY(mutex_);
  bool has_stopped_ CHORUS_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace chorus::api
