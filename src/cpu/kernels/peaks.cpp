#include "cpu/kernels/peaks.h"

#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/check.h"
#include "cpu/kernels/generic.h"
#include "cpu/kernels/neon.h"

namespace chorus::cpu {

namespace {

using Bytes = int32_t __attribute__((vector_size(16)));
using Shorts = int16_t __attribute__((vector_size(16)));
using Floats = float __attribute__((vector_size(16)));
constexpr int64_t kByteMacs = 8;
constexpr int64_t kFloatMacs = 4;
constexpr int kByteChains = 10;
constexpr int kFloatChains = 10;

inline Bytes zero_bytes() { return Bytes{}; }
inline Floats ones_floats() { return Floats{1, 1, 1, 1}; }
template <typename Vector>
inline void hide(Vector& x) {
#if defined(__x86_64__)
  __asm__ volatile("" : "+x"(x));
#elif defined(__aarch64__)
  __asm__ volatile("" : "+w"(x));
#else
  __asm__ volatile("" : "+m"(x));
#endif
}
// As in linear_int8.inc.
inline Bytes dot(Bytes sum, Bytes& a, Bytes& b) {
  hide(a);
#if defined(__SSE2__)
  return sum + reinterpret_cast<Bytes>(
                   _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#elif defined(__aarch64__)
  const auto x = reinterpret_cast<int16x8_t>(a);
  const auto y = reinterpret_cast<int16x8_t>(b);
  const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
  return sum + reinterpret_cast<Bytes>(vpaddq_s32(low, vmull_high_s16(x, y)));
#else
  const Shorts x = reinterpret_cast<Shorts>(a);
  const Shorts y = reinterpret_cast<Shorts>(b);
  for (int i = 0; i < 4; ++i) sum[i] += x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
  return sum;
#endif
}
inline Floats fuse(Floats sum, Floats& a, Floats& b) {
  hide(a);
#if defined(__aarch64__)
  return vfmaq_f32(sum, a, b);
#else
  return sum + a * b;
#endif
}
template <typename Vector>
inline uint64_t fold(Vector x) {
  uint64_t words[2];
  std::memcpy(words, &x, sizeof words);
  return words[0] + words[1];
}

#include "cpu/kernels/peaks.inc"

}  // namespace

const Peaks& portable_peaks() { return kPeaks; }

const Peaks& peaks_for(Isa isa) {
  CHORUS_CHECK(isa_supported(isa));
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512_peaks();
  if (avx2_usable()) return avx2_peaks();
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return i8mm_usable() ? neon_i8mm_peaks() : neon_dotprod_peaks();
#endif
  return portable_peaks();
}

}  // namespace chorus::cpu
