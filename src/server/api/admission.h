// How many requests may be under way, in all and for each key.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/result.h"

namespace chorus::api {

class Admission;

// The place of one request. Given back when it is destroyed, or before. Thread: any.
class Ticket {
 public:
  Ticket(Admission& admission, std::string key) : admission_(admission), key_(std::move(key)) {}
  ~Ticket() { give_back(); }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  const std::string& key() const { return key_; }
  // The request holds sessions from here on.
  void begin();
  // Nobody waits for it any more.
  void give_back();

 private:
  friend class Admission;
  enum class State : uint8_t { kQueued, kRunning, kGone };

  Admission& admission_;
  const std::string key_;
  State state_ = State::kQueued;  // under the admission's mutex
};

// Thread: any. It outlives its tickets.
class Admission {
 public:
  // max_per_key 0: no limit of its own.
  Admission(int32_t max_requests, int32_t max_per_key)
      : max_requests_(max_requests), max_per_key_(max_per_key) {}

  // kResourceExhausted (field queue, or api_key) where there is no place.
  Result<std::shared_ptr<Ticket>> admit(const std::string& key);

  struct Counts {
    int64_t queued = 0;
    int64_t running = 0;
    int64_t refused = 0;  // since the start
  };
  Counts counts() const;
  // Waits until nobody has a place, at most `timeout_ns`.
  bool wait_empty(int64_t timeout_ns) const;

 private:
  friend class Ticket;

  const int32_t max_requests_;
  const int32_t max_per_key_;
  mutable Mutex mutex_;
  mutable CondVar emptied_;
  Counts counts_ CHORUS_GUARDED_BY(mutex_);
  std::map<std::string, int32_t> per_key_ CHORUS_GUARDED_BY(mutex_);
};

}  // namespace chorus::api
