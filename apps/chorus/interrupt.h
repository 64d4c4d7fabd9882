// SIGINT and SIGTERM as an event: the first asks the running verb to stop (without an action to
// call it ends the process with 130), the second ends at once. While an ExitDelay lives, neither
// ends the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"

namespace chorus::cli {

// Constructed by main before any other thread starts (it blocks both signals for all of them); a
// thread of its own waits for them, so that no code runs inside a signal handler.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const { return num_signals_.load() > 0; }
  int num_signals() const { return num_signals_.load(); }

  // Calls `action` once, on the waiting thread, when the first signal arrives (at once if it has).
  // An empty function takes it back; when this returns, the old action is not running.
  void on_request(std::function<void()> action);

  // While it is set, each signal calls `handler` first, on the waiting thread; true means that the
  // signal is dealt with. An empty function takes it back, as above.
  void on_signal(std::function<bool(int signal)> handler);

 private:
  friend class ExitDelay;
  void delay_exit(int by);
  void wait_for_signals();

  std::atomic<int> num_signals_{0};
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  std::function<void()> action_ CHORUS_GUARDED_BY(mutex_);
  std::function<bool(int)> handler_ CHORUS_GUARDED_BY(mutex_);
  int num_delays_ CHORUS_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

// While it lives, signals are only counted, and its owner looks at the count often: for what must
// be undone before the process may end.
class ExitDelay {
 public:
  explicit ExitDelay(Interrupt& interrupt) : interrupt_(interrupt) { interrupt_.delay_exit(1); }
  ~ExitDelay() { interrupt_.delay_exit(-1); }
  ExitDelay(const ExitDelay&) = delete;
  ExitDelay& operator=(const ExitDelay&) = delete;

 private:
  Interrupt& interrupt_;
};

// write_file_atomically, which the next signal ends with kCancelled and without a trace.
Status write_output(const std::string& path, std::span<const std::byte> bytes,
                    Interrupt& interrupt);

}  // namespace chorus::cli
