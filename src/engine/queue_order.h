// Who comes first where not all can run at once.
#pragma once

#include <cstdint>
#include <tuple>

namespace chorus {

// What decides when it is the turn of a request or generation. It does not change while that waits
// or runs, so that two never pass each other in turn.
struct Standing {
  int32_t priority = 0;    // higher first
  int64_t arrived_ns = 0;  // by one clock for all
  int64_t tokens = 0;      // that it brings, and may generate
  uint64_t number = 0;     // settles ties, the lower first; no two have the same
};

// Those of the highest priority come first, and of equals those that came first. That nobody waits
// for ever, a difference of priority counts for a time only: one of priority p stands where one of
// priority 0 would that came p * priority_age earlier. With shortest_first, each token that is to
// be computed counts as if it had come so much later.
class QueueOrder {
 public:
  QueueOrder(int32_t priority_age_ms, int32_t shortest_first_ms)
      : priority_age_ms_(priority_age_ms), shortest_first_ms_(shortest_first_ms) {}

  bool is_before(const Standing& a, const Standing& b) const { return key(a) < key(b); }
  // Whether `a`, which runs, gives its place up to `b`, which waits.
  bool gives_way(const Standing& a, const Standing& b) const {
    return a.priority < b.priority && is_before(b, a);
  }

 private:
  // In floating point, since a product of extremes has no room in 64 bits. Rounded or not, keys
  // have one order.
  std::tuple<double, uint64_t> key(const Standing& standing) const {
    constexpr double kNsPerMs = 1e6;
    const double later_ms = static_cast<double>(standing.tokens) * shortest_first_ms_ -
                            static_cast<double>(standing.priority) * priority_age_ms_;
    return {static_cast<double>(standing.arrived_ns) + later_ms * kNsPerMs, standing.number};
  }

  int32_t priority_age_ms_;
  int32_t shortest_first_ms_;
};

}  // namespace chorus
