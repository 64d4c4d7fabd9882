// The generic kernels for any processor: plain flags, GNU vectors.
#include "cpu/kernels/generic.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu/kernels/kernels.h"

namespace chorus::cpu {

namespace {

#include "cpu/kernels/simd.inc"
//
#include "cpu/kernels/math.inc"
#include "cpu/kernels/records.inc"
//
#include "cpu/kernels/attention_q8.inc"
//
#include "cpu/kernels/attention.inc"
#include "cpu/kernels/draw.inc"
#include "cpu/kernels/embed.inc"
#include "cpu/kernels/fused.inc"
#include "cpu/kernels/prepare.inc"
#include "cpu/kernels/reduce.inc"
#include "cpu/kernels/rows.inc"
#include "cpu/kernels/tiles.inc"
//
#include "cpu/kernels/linear_f32.inc"
#include "cpu/kernels/linear_int8.inc"
//
#include "cpu/kernels/table.inc"

}  // namespace

const Kernels& portable_kernels() { return kTable; }

bool avx2_usable() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

const Kernels& generic_kernels() {
#if defined(__x86_64__)
  if (avx2_usable()) return avx2_kernels();
#endif
  return portable_kernels();
}

float portable_fma(float a, float b, float c) { return fused(a, b, c); }

}  // namespace chorus::cpu
