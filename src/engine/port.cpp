#include "engine/port.h"

#include <utility>

namespace chorus {

void Event::set() {
  const MutexLock lock(mutex_);
  is_set_ = true;
  changed_.notify_all();
}

void Event::wait() {
  const MutexLock lock(mutex_);
  while (!is_set_) changed_.wait(mutex_);
}

bool Event::is_set() const {
  const MutexLock lock(mutex_);
  return is_set_;
}

void EnginePort::await(Event& event) {
  while (turn && !event.is_set()) turn();
  event.wait();
}

bool EnginePort::post(Command command) {
  while (turn && inbox.is_full()) turn();
  return inbox.post(std::move(command));
}

bool Inbox::is_full() const {
  const MutexLock lock(mutex_);
  return commands_.size() >= kMostCommands && !is_stopping_;
}

bool Inbox::post(Command command) {
  const MutexLock lock(mutex_);
  while (commands_.size() >= kMostCommands && !is_stopping_) taken_.wait(mutex_);
  if (is_stopping_) return false;
  commands_.push_back(std::move(command));
  changed_.notify_one();
  return true;
}

bool Inbox::post_at_once(Command command) {
  const MutexLock lock(mutex_);
  if (is_stopping_) return false;
  commands_.push_back(std::move(command));
  changed_.notify_one();
  return true;
}

bool Inbox::take(int64_t timeout_ns, std::vector<Command>& commands) {
  commands.clear();
  const MutexLock lock(mutex_);
  while (timeout_ns == kForever && commands_.empty() && !is_stopping_) changed_.wait(mutex_);
  if (timeout_ns > 0 && commands_.empty() && !is_stopping_)
    changed_.wait_for_ns(mutex_, timeout_ns);  // the caller looks at its clock again
  std::swap(commands, commands_);
  taken_.notify_all();
  return !is_stopping_;
}

void Inbox::stop() {
  const MutexLock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_one();
  taken_.notify_all();
}

bool Places::try_take(int32_t limit) {
  int32_t taken = taken_.load(std::memory_order_acquire);
  while (taken < limit) {
    if (taken_.compare_exchange_weak(taken, taken + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

}  // namespace chorus
