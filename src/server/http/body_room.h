// Room for the bodies of all requests together. Internal to the transport.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace chorus::http {

// Of each body, which is always taken: large ones do not keep ordinary requests out.
inline constexpr uint64_t kFreeBodyBytes = uint64_t{64} << 10;

// What all bodies may take, beyond kFreeBodyBytes of each.
struct BodyBudget {
  explicit BodyBudget(uint64_t most_in) : most(most_in) {}
  const uint64_t most;
  std::atomic<uint64_t> taken{0};
};

// What one body takes of it, until the request is destroyed. Thread: resize() is the I/O thread's
// alone; the end may come on any.
class BodyRoom {
 public:
  BodyRoom() = default;  // takes nothing
  explicit BodyRoom(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  BodyRoom(BodyRoom&& other) noexcept
      : budget_(std::move(other.budget_)), taken_(std::exchange(other.taken_, 0)) {}
  BodyRoom& operator=(BodyRoom&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(taken_, other.taken_);
    return *this;
  }
  ~BodyRoom() { release(); }

  // Whether there is room for a body of so many bytes in place of what it takes; then it is taken.
  // There is always for one alone.
  bool resize(uint64_t num_bytes) {
    const uint64_t wanted = num_bytes - std::min(num_bytes, kFreeBodyBytes);
    if (wanted <= taken_) return true;
    const uint64_t others = budget_->taken.load() - taken_;
    if (others > 0 && others + wanted > budget_->most) return false;
    budget_->taken.fetch_add(wanted - taken_);  // others only give back meanwhile
    taken_ = wanted;
    return true;
  }
  void release() {
    if (taken_ > 0) budget_->taken.fetch_sub(std::exchange(taken_, 0));
  }

 private:
  std::shared_ptr<BodyBudget> budget_;  // owners: the server and its requests
  uint64_t taken_ = 0;
};

}  // namespace chorus::http
