// A range of items for each thread of a pool, from whose front the thread takes pieces, and from
// whose end the others do when theirs is empty.
//
// Each thread reads one stream from memory as long as nobody is late, and one that was held up by
// other processes does not hold up all. Source: Blumofe and Leiserson: Scheduling Multithreaded
// Computations by Work Stealing (Journal of the ACM 46(5), 1999), with ranges in place of queues.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/check.h"
#include "base/thread_pool.h"

namespace chorus {

// Thread: a thread calls set for itself; between that and what others take lies a barrier, as
// between what anybody takes and the next set. No call allocates or waits.
class StealingRanges {
 public:
  explicit StealingRanges(int num_threads)
      : num_threads_(num_threads), slots_(new Slot[static_cast<size_t>(num_threads)]) {}

  // Requires: 0 <= begin <= end < 2^32.
  void set(int thread, Range range) {
    slots_[thread].range.store(pack(range), std::memory_order_relaxed);
  }

  // Up to `piece` items (at least 1) that nobody else gets; empty when all are taken.
  Range take(int thread, int64_t piece) {
    CHORUS_CHECK_GE(piece, 1);
    Range taken = take_of(slots_[thread], piece, true);
    for (int i = 1; i < num_threads_ && taken.begin == taken.end; ++i) {
      taken = take_of(slots_[(thread + i) % num_threads_], piece, false);
    }
    return taken;
  }

 private:
  struct alignas(64) Slot {
    std::atomic<uint64_t> range{0};  // begin, then end in the upper half
  };

  static uint64_t pack(Range range) {
    return static_cast<uint64_t>(range.begin) | static_cast<uint64_t>(range.end) << 32;
  }
  static Range unpack(uint64_t bits) {
    return {static_cast<int64_t>(bits & 0xffffffffu), static_cast<int64_t>(bits >> 32)};
  }

  static Range take_of(Slot& slot, int64_t piece, bool front) {
    uint64_t bits = slot.range.load(std::memory_order_relaxed);
    for (;;) {
      const Range left = unpack(bits);
      if (left.begin == left.end) return {};
      const int64_t count = left.end - left.begin < piece ? left.end - left.begin : piece;
      const Range taken =
          front ? Range{left.begin, left.begin + count} : Range{left.end - count, left.end};
      const Range rest = front ? Range{taken.end, left.end} : Range{left.begin, taken.begin};
      if (slot.range.compare_exchange_weak(bits, pack(rest), std::memory_order_relaxed)) {
        return taken;
      }
    }
  }

  int num_threads_;
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace chorus
