// The part of the generic linear kernels that needs a fused multiply-add: the float chain over
// k-blocks, and the f32 mode. The same source is built twice, with the processor's fma instruction
// and without it; both give the same bits. The caller picks one at run time (generic_kernels()), so
// that the generic set runs on any processor and is not slowed down by emulation where it need not
// be.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/kernels.h"

namespace chorus::cpu {

struct FusedOps {
  // One step of the int8 chain for `tokens` tokens, from the first token of quads[0]:
  //   acc[t][r] = fma(float(sums[t][r]), scale[r] * sx[t], acc[t][r])
  // and for Q4_1 acc[t][r] = fma(min[r], m[t], acc[t][r]). Quads are quad_stride blocks apart; sums
  // and acc are [tokens][16]. Null for kWeightF32.
  void (*fold[kNumWeightTypes])(const std::byte* record, const QuadBlock* quads,
                                int64_t quad_stride, int tokens, const int32_t* sums, float* acc);
  // One record of the f32 chain: acc[t][r] = fma(w[r][k], x[t][k], acc[t][r]) for the 32 k in
  // order. x is in the quads of prepare_f32, quad_stride floats apart.
  void (*chain_f32[kNumWeightTypes])(const std::byte* record, const float* x, int64_t quad_stride,
                                     int tokens, float* acc);
  // fma(a, b, c), for tests.
  float (*fma)(float a, float b, float c);
};

extern const FusedOps kFusedPortable;
#if defined(__x86_64__)
extern const FusedOps kFusedFma3;  // needs FMA and F16C
#endif

}  // namespace chorus::cpu
