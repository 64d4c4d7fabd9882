#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "cpu/kernels/fused.h"
#include "cpu/kernels/linear.h"

namespace chorus::cpu {

namespace {

#include "cpu/kernels/prepare.inc"
#include "cpu/kernels/tiles.inc"
//
#include "cpu/kernels/linear.inc"

template <const FusedOps& kFused>
constexpr LinearKernels kTable = {
    quantize,
    prepare_f32,
    {nullptr, linear_int8<kWeightQ4_0, kFused>, linear_int8<kWeightQ4_1, kFused>,
     linear_int8<kWeightQ8_0, kFused>},
    {linear_f32<kWeightF32, kFused>, linear_f32<kWeightQ4_0, kFused>,
     linear_f32<kWeightQ4_1, kFused>, linear_f32<kWeightQ8_0, kFused>}};

}  // namespace

const LinearKernels& linear_kernels_emulated_fma() { return kTable<kFusedPortable>; }

const LinearKernels* linear_kernels_native_fma() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return &kTable<kFusedFma3>;
#endif
  return nullptr;
}

const LinearKernels& generic_linear_kernels() {
  const LinearKernels* native = linear_kernels_native_fma();
  return native != nullptr ? *native : linear_kernels_emulated_fma();
}

}  // namespace chorus::cpu
