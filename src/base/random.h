// Counter-based random numbers: a pure function of a key and a counter, with no state between
// calls.
//
// Sampling draws are keyed (seed, choice, position), so that a stream depends on neither the batch,
// nor rewinds, nor the order of calls. Every key is ordinary, seed 0 included.
#pragma once

#include <array>
#include <cstdint>

namespace chorus {

// Philox4x32 with 10 rounds.
// Source: Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// 64 uniform bits for one draw of one generation.
uint64_t random_bits(uint64_t seed, uint32_t choice, uint64_t position);

// A sequence of uniform 64-bit values for tests and simulations, over the same function.
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : seed_(seed) {}
  uint64_t next() { return random_bits(seed_, 0, counter_++); }
  // Uniform in [0, bound). Requires: bound > 0.
  uint64_t below(uint64_t bound);
  // Uniform in [low, high], both included. Requires: low <= high.
  int64_t between(int64_t low, int64_t high);
  // Uniform in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

}  // namespace chorus
