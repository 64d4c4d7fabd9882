#include "base/random.h"

#include "base/check.h"

namespace chorus {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

uint64_t random_bits(uint64_t seed, uint32_t choice, uint64_t position) {
  const auto words = philox4x32(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<uint64_t>(words[0]) << 32 | words[1];
}

uint64_t RandomStream::below(uint64_t bound) {
  CHORUS_CHECK_GT(bound, 0u);
  // Rejection keeps the result uniform: values under `2^64 mod bound` are drawn again.
  const uint64_t threshold = (0 - bound) % bound;
  uint64_t bits = next();
  while (bits < threshold) bits = next();
  return bits % bound;
}

int64_t RandomStream::between(int64_t low, int64_t high) {
  CHORUS_CHECK_LE(low, high);
  const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
  const uint64_t offset = span == 0 ? next() : below(span);
  return static_cast<int64_t>(static_cast<uint64_t>(low) + offset);
}

}  // namespace chorus
