#include "interrupt.h"

#include <csignal>
#include <unistd.h>
#include <utility>

#include "base/memory_map.h"

namespace chorus::cli {

namespace {

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t set = watched_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { wait_for_signals(); });
}

Interrupt::~Interrupt() {
  stop_.store(true);
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void Interrupt::on_request(std::function<void()> action) {
  MutexLock lock(mutex_);
  action_ = std::move(action);
  if (requested() && action_) action_();
}

void Interrupt::on_signal(std::function<bool(int signal)> handler) {
  MutexLock lock(mutex_);
  handler_ = std::move(handler);
}

void Interrupt::delay_exit(int by) {
  MutexLock lock(mutex_);
  num_delays_ += by;
}

void Interrupt::wait_for_signals() {
  const sigset_t set = watched_signals();
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0 || stop_.load()) return;
    // The process ends under the lock, so that no delay can begin meanwhile.
    MutexLock lock(mutex_);
    if (handler_ && handler_(signal)) continue;
    const bool is_first = num_signals_.fetch_add(1) == 0;
    if (num_delays_ > 0) continue;
    // Without an action nothing is running that could end with its results.
    if (!is_first || !action_) _exit(130);
    action_();
  }
}

Status write_output(const std::string& path, std::span<const std::byte> bytes,
                    Interrupt& interrupt) {
  const ExitDelay delay(interrupt);
  const int seen = interrupt.num_signals();
  return write_file_atomically(path, {&bytes, 1}, [&] { return interrupt.num_signals() > seen; });
}

}  // namespace chorus::cli
