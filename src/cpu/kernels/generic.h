// The two builds of the generic kernels, which give the same bits. generic_kernels() picks one when
// it is first called, so that the set runs on any processor and is not slowed down where it need
// not be.
#pragma once

#include "cpu/kernels/kernels.h"

namespace chorus::cpu {

// For any processor: plain flags, an emulated fma.
const Kernels& portable_kernels();

#if defined(__x86_64__)
// Requires: avx2_usable().
const Kernels& avx2_kernels();
#endif

// Whether this processor has AVX2, FMA and F16C.
bool avx2_usable();

// fma(a, b, c) as portable_kernels() computes it, for tests.
float portable_fma(float a, float b, float c);

}  // namespace chorus::cpu
