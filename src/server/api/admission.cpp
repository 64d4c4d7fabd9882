#include "server/api/admission.h"

#include <chrono>

namespace chorus::api {

void Ticket::begin() {
  const MutexLock lock(admission_.mutex_);
  if (state_ != State::kQueued) return;
  state_ = State::kRunning;
  --admission_.counts_.queued;
  ++admission_.counts_.running;
}

void Ticket::give_back() {
  const MutexLock lock(admission_.mutex_);
  if (state_ == State::kGone) return;
  --(state_ == State::kQueued ? admission_.counts_.queued : admission_.counts_.running);
  state_ = State::kGone;
  const auto found = admission_.per_key_.find(key_);
  if (--found->second == 0) admission_.per_key_.erase(found);
  if (admission_.per_key_.empty()) admission_.emptied_.notify_all();
}

Result<std::shared_ptr<Ticket>> Admission::admit(const std::string& key) {
  const MutexLock lock(mutex_);
  const auto found = per_key_.find(key);
  const int32_t of_key = found == per_key_.end() ? 0 : found->second;
  if (max_per_key_ > 0 && of_key >= max_per_key_) {
    ++counts_.refused;
    return resource_exhausted("api_key", "expected fewer than " + std::to_string(max_per_key_) +
                                             " requests of this key at once");
  }
  if (counts_.queued + counts_.running >= max_requests_) {
    ++counts_.refused;
    return resource_exhausted(
        "queue", "expected fewer than " + std::to_string(max_requests_) + " requests at once");
  }
  ++counts_.queued;
  ++per_key_[key];
  return std::make_shared<Ticket>(*this, key);
}

Admission::Counts Admission::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

bool Admission::wait_empty(int64_t timeout_ns) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
  const MutexLock lock(mutex_);
  while (!per_key_.empty()) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left.count() <= 0) return false;
    emptied_.wait_for_ns(mutex_, std::chrono::nanoseconds(left).count());
  }
  return true;
}

}  // namespace chorus::api
