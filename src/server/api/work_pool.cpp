#include "server/api/work_pool.h"

#include <utility>

namespace chorus::api {

Result<std::unique_ptr<WorkPool>> WorkPool::start(int32_t num_threads, size_t max_waiting) {
  std::unique_ptr<WorkPool> pool(new WorkPool(max_waiting));
  for (int32_t i = 0; i < num_threads; ++i) {
    CHORUS_ASSIGN_OR_RETURN(auto thread, Thread::start([raw = pool.get()] { raw->work(); }));
    pool->threads_.push_back(std::move(thread));
  }
  return pool;
}

bool WorkPool::post(Job job) {
  std::deque<Job> dropped;  // destroyed without the lock
  const MutexLock lock(mutex_);
  if (has_stopped_) return false;
  if (jobs_.size() >= max_waiting_) {
    std::deque<Job> kept;
    for (Job& waiting : jobs_) (waiting.is_void() ? dropped : kept).push_back(std::move(waiting));
    jobs_ = std::move(kept);
    if (jobs_.size() >= max_waiting_) return false;
  }
  jobs_.push_back(std::move(job));
  posted_.notify_one();
  return true;
}

void WorkPool::work() {
  for (;;) {
    Job job;
    {
      const MutexLock lock(mutex_);
      while (jobs_.empty() && !has_stopped_) posted_.wait(mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.run();
  }
}

void WorkPool::stop() {
  {
    const MutexLock lock(mutex_);
    has_stopped_ = true;
    posted_.notify_all();
  }
  threads_.clear();
}

}  // namespace chorus::api
