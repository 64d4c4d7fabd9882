#include "interrupt.h"

#include <csignal>
#include <unistd.h>
#include <utility>

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
  if (requested_.load() && action_) action_();
}

void Interrupt::wait_for_signals() {
  const sigset_t set = watched_signals();
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0 || stop_.load()) return;
    if (requested_.exchange(true)) _exit(130);
    MutexLock lock(mutex_);
    if (!action_) _exit(130);  // nothing is running that could end with its results
    action_();
  }
}

}  // namespace chorus::cli
