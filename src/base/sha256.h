// SHA-256, for the hashes of programs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace chorus {

using Digest = std::array<uint8_t, 32>;

// The hash of bytes handed over piece by piece. Source: FIPS 180-4, section 6.2.
// Thread: one at a time.
class Sha256 {
 public:
  // Which code runs the rounds; the result is the same. kBest uses the processor's SHA instructions
  // where it has them.
  enum class Rounds : uint8_t { kBest, kPortable };

  explicit Sha256(Rounds rounds = Rounds::kBest);

  void update(std::span<const std::byte> bytes);
  // The hash of everything so far. Requires: no further call.
  Digest finish();

 private:
  using Compress = void (*)(uint32_t* state, const std::byte* blocks, size_t num_blocks);

  Compress compress_;
  std::array<uint32_t, 8> state_;
  std::array<std::byte, 64> partial_;
  size_t partial_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

Digest sha256(std::span<const std::byte> bytes);

// 64 lower-case hexadecimal digits.
std::string to_hex(const Digest& digest);

}  // namespace chorus
