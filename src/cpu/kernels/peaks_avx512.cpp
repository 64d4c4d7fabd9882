#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "cpu/kernels/peaks.h"

namespace chorus::cpu {

namespace {

using Bytes = __m512i;
using Floats = __m512;
constexpr int64_t kByteMacs = 64;
constexpr int64_t kFloatMacs = 16;
constexpr int kByteChains = 12;
constexpr int kFloatChains = 12;

inline Bytes zero_bytes() { return _mm512_setzero_si512(); }
inline Floats ones_floats() { return _mm512_set1_ps(1.0f); }
template <typename Vector>
inline void hide(Vector& x) {
  __asm__ volatile("" : "+v"(x));
}
inline Bytes dot(Bytes sum, Bytes& a, Bytes& b) { return _mm512_dpbusd_epi32(sum, a, b); }
inline Floats fuse(Floats sum, Floats& a, Floats& b) { return _mm512_fmadd_ps(a, b, sum); }
template <typename Vector>
inline uint64_t fold(Vector x) {
  uint64_t words[8];
  __builtin_memcpy(words, &x, sizeof words);
  uint64_t sum = 0;
  for (const uint64_t word : words) sum += word;
  return sum;
}

#include "cpu/kernels/peaks.inc"

}  // namespace

const Peaks& avx512_peaks() { return kPeaks; }

}  // namespace chorus::cpu
