#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "cpu/kernels/peaks.h"

namespace chorus::cpu {

namespace {

using Bytes = __m256i;
using Floats = __m256;
constexpr int64_t kByteMacs = 8 * 32;
constexpr int64_t kFloatMacs = 8;
constexpr int kByteChains = 4;
constexpr int kFloatChains = 12;

inline Bytes zero_bytes() { return _mm256_setzero_si256(); }
inline Floats ones_floats() { return _mm256_set1_ps(1.0f); }
template <typename Vector>
inline void hide(Vector& x) {
  __asm__ volatile("" : "+x"(x));
}
inline Bytes dot(Bytes sum, Bytes& a, Bytes& b) {
  __m256i products = _mm256_setzero_si256();
  _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) {
    hide(a);
    products = _mm256_add_epi16(products, _mm256_maddubs_epi16(a, b));
  }
  return _mm256_add_epi32(sum, _mm256_madd_epi16(products, b));
}
inline Floats fuse(Floats sum, Floats& a, Floats& b) { return _mm256_fmadd_ps(a, b, sum); }
inline uint64_t fold(Bytes x) {
  return static_cast<uint64_t>(_mm256_extract_epi64(x, 0)) +
         static_cast<uint64_t>(_mm256_extract_epi64(x, 1)) +
         static_cast<uint64_t>(_mm256_extract_epi64(x, 2)) +
         static_cast<uint64_t>(_mm256_extract_epi64(x, 3));
}
inline uint64_t fold(Floats x) { return fold(_mm256_castps_si256(x)); }

#include "cpu/kernels/peaks.inc"

}  // namespace

const Peaks& avx2_peaks() { return kPeaks; }

}  // namespace chorus::cpu
