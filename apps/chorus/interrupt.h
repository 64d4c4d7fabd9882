// SIGINT and SIGTERM as an event: the first asks the running verb to stop (without an action to
// call it ends the process with 130), the second ends at once.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace chorus::cli {

// Constructed by main before any other thread starts (it blocks both signals for all of them); a
// thread of its own waits for them, so that no code runs inside a signal handler.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const { return requested_.load(); }

  // Calls `action` once, on the waiting thread, when the first signal arrives (at once if it has).
  // An empty function takes it back; when this returns, the old action is not running.
  void on_request(std::function<void()> action);

 private:
  void wait_for_signals();

  std::atomic<bool> requested_{false};
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  std::function<void()> action_ CHORUS_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace chorus::cli
