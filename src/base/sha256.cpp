#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace chorus {

namespace {

constexpr size_t kBlockBytes = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t read_big_endian(const std::byte* at) {
  uint32_t word;
  std::memcpy(&word, at, sizeof word);
  if constexpr (std::endian::native == std::endian::little) word = __builtin_bswap32(word);
  return word;
}

void compress_portable(uint32_t* state, const std::byte* blocks, size_t num_blocks) {
  for (size_t block = 0; block < num_blocks; ++block, blocks += kBlockBytes) {
    uint32_t w[64];
    for (size_t t = 0; t < 16; ++t) w[t] = read_big_endian(blocks + 4 * t);
    for (size_t t = 16; t < 64; ++t) {
      const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
      const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    uint32_t v[8];
    std::copy_n(state, 8, v);
    for (size_t t = 0; t < 64; ++t) {
      const uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
      const uint32_t choose = (v[4] & v[5]) ^ (~v[4] & v[6]);
      const uint32_t t1 = v[7] + s1 + choose + kRoundConstants[t] + w[t];
      const uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
      const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
      std::copy_backward(v, v + 7, v + 8);
      v[4] += t1;
      v[0] = t1 + s0 + majority;
    }
    for (size_t i = 0; i < 8; ++i) state[i] += v[i];
  }
}

#if defined(__x86_64__)

bool has_sha_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (b & (1u << 29)) != 0;
}

// The instructions keep the state as (a, b, e, f) and (c, d, g, h) and do two rounds each.
// Source: Gulley et al., Intel SHA Extensions (2013).
__attribute__((target("sha,sse4.1"))) void compress_sha(uint32_t* state, const std::byte* blocks,
                                                        size_t num_blocks) {
  const __m128i byte_order = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  auto* words = reinterpret_cast<__m128i*>(state);
  __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);
  __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
  __m128i abef = _mm_alignr_epi8(abcd, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);
  for (size_t block = 0; block < num_blocks; ++block, blocks += kBlockBytes) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks) + i),
                              byte_order);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i >= 4) {
        const __m128i partial = _mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]),
                                              _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
        w[i & 3] = _mm_sha256msg2_epu32(partial, w[(i + 3) & 3]);
      }
      const auto* constants = reinterpret_cast<const __m128i*>(kRoundConstants) + i;
      const __m128i input = _mm_add_epi32(w[i & 3], _mm_load_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, input);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(input, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}

#endif

}  // namespace

Sha256::Sha256(Rounds rounds)
    : compress_(compress_portable),
      state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
      partial_{} {
#if defined(__x86_64__)
  static const bool supported = has_sha_instructions();  // cpuid is slow in a virtual machine
  if (rounds == Rounds::kBest && supported) compress_ = compress_sha;
#else
  (void)rounds;
#endif
}

void Sha256::update(std::span<const std::byte> bytes) {
  total_bytes_ += bytes.size();
  if (partial_bytes_ > 0) {
    const size_t taken = std::min(bytes.size(), kBlockBytes - partial_bytes_);
    std::copy_n(bytes.begin(), taken, partial_.begin() + static_cast<ptrdiff_t>(partial_bytes_));
    partial_bytes_ += taken;
    bytes = bytes.subspan(taken);
    if (partial_bytes_ < kBlockBytes) return;
    compress_(state_.data(), partial_.data(), 1);
    partial_bytes_ = 0;
  }
  const size_t num_blocks = bytes.size() / kBlockBytes;
  if (num_blocks > 0) compress_(state_.data(), bytes.data(), num_blocks);
  bytes = bytes.subspan(num_blocks * kBlockBytes);
  std::copy(bytes.begin(), bytes.end(), partial_.begin());
  partial_bytes_ = bytes.size();
}

Digest Sha256::finish() {
  // 0x80, zeros up to 8 bytes before the end of a block, the length in bits.
  const uint64_t total_bits = total_bytes_ * 8;
  std::array<std::byte, 2 * kBlockBytes> tail{};
  std::copy_n(partial_.begin(), partial_bytes_, tail.begin());
  tail[partial_bytes_] = std::byte{0x80};
  const size_t num_blocks = partial_bytes_ + 9 <= kBlockBytes ? 1 : 2;
  for (size_t i = 0; i < 8; ++i) {
    tail[num_blocks * kBlockBytes - 1 - i] = static_cast<std::byte>(total_bits >> (8 * i));
  }
  compress_(state_.data(), tail.data(), num_blocks);
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

std::string to_hex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace chorus
