// A mutex and a condition variable whose use clang checks (-Wthread-safety).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define CHORUS_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define CHORUS_THREAD_ANNOTATION(x)
#endif

#define CHORUS_GUARDED_BY(mutex) CHORUS_THREAD_ANNOTATION(guarded_by(mutex))
#define CHORUS_REQUIRES(...) CHORUS_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define CHORUS_EXCLUDES(...) CHORUS_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

namespace chorus {

class CHORUS_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() CHORUS_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() CHORUS_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex for a scope.
class CHORUS_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CHORUS_THREAD_ANNOTATION(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() CHORUS_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits with a Mutex held; as std::condition_variable, spurious wake-ups included: wait in a loop.
class CondVar {
 public:
  void wait(Mutex& mutex) CHORUS_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False when `timeout_ns` passed without a notification.
  bool wait_for_ns(Mutex& mutex, int64_t timeout_ns) CHORUS_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const auto status = condition_.wait_for(lock, std::chrono::nanoseconds(timeout_ns));
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace chorus
