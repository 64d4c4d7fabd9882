// Time as a dependency: whoever needs it is handed a Clock.
#pragma once

#include <atomic>
#include <cstdint>

namespace chorus {

// Monotonic time in nanoseconds from an arbitrary origin. Thread: any.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() const = 0;
};

// The machine's steady clock.
class SteadyClock final : public Clock {
 public:
  int64_t now_ns() const override;
};

// A clock that stands still until it is told to advance, for tests and simulations.
class ManualClock final : public Clock {
 public:
  int64_t now_ns() const override { return now_ns_.load(std::memory_order_relaxed); }
  void advance_ns(int64_t by) { now_ns_.fetch_add(by, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_ns_{0};
};

}  // namespace chorus
