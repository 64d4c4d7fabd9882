// The generic linear kernels, as the part of the kernel table that generic.cpp takes over.
#pragma once

#include "cpu/kernels/kernels.h"

namespace chorus::cpu {

struct LinearKernels {
  void (*quantize)(const PrepareArgs&);
  void (*prepare_f32)(const PrepareArgs&);
  void (*linear_int8[kNumWeightTypes])(const LinearArgs&);  // null for kWeightF32
  void (*linear_f32[kNumWeightTypes])(const LinearArgs&);
};

// With the processor's fma instruction where there is one, else with an exact emulation: the same
// bits either way.
const LinearKernels& generic_linear_kernels();

// Both variants, for tests. The one with the instruction is null on a processor without it.
const LinearKernels& linear_kernels_emulated_fma();
const LinearKernels* linear_kernels_native_fma();

}  // namespace chorus::cpu
