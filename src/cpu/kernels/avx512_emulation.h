// The AVX-512 intrinsics that the kernels use, for a processor with AVX2, FMA and F16C only: the
// test's stand-in for <immintrin.h>. From SIMDe, an implementation that is not ours; what its
// packaged version lacks is written out here, exactly. SIMDe's fused multiply-add is fused only
// where it maps to the 256-bit instruction, hence the flags.
#pragma once

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "build with -mavx2 -mfma -mf16c"
#endif

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <immintrin.h>
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/fmadd.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/mul.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/srl.h>
#include <simde/x86/avx512/srli.h>
#include <simde/x86/avx512/storeu.h>
#include <simde/x86/avx512/sub.h>

// Out of line: SIMDe's code for this one is long, and a tile has it 128 times.
__attribute__((noinline)) inline void chorus_emulated_dpbusd(__m512i& sum, const __m512i& a,
                                                             const __m512i& b) {
  sum = simde_mm512_dpbusd_epi32(sum, a, b);
}
inline __m512i chorus_emulated_dpbusd_epi32(__m512i sum, const __m512i& a, const __m512i& b) {
  chorus_emulated_dpbusd(sum, a, b);
  return sum;
}
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32(sum, a, b) chorus_emulated_dpbusd_epi32(sum, a, b)

inline __m512 chorus_emulated_cvtph_ps(const __m256i& halves) {
  const __m256 values[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  __m512 all;
  __builtin_memcpy(&all, values, sizeof all);
  return all;
}
inline __m512 chorus_emulated_cvtepi32_ps(const __m512i& integers) {
  __m256i parts[2];
  __builtin_memcpy(parts, &integers, sizeof parts);
  const __m256 values[2] = {_mm256_cvtepi32_ps(parts[0]), _mm256_cvtepi32_ps(parts[1])};
  __m512 all;
  __builtin_memcpy(&all, values, sizeof all);
  return all;
}
#define _mm512_cvtepi32_ps(integers) chorus_emulated_cvtepi32_ps(integers)
#define _mm512_cvtph_ps(halves) chorus_emulated_cvtph_ps(halves)
