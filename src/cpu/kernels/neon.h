// The two builds of the kernels for Arm, which give the same bits. neon_kernels() picks one when it
// is called.
#pragma once

#include "cpu/kernels/kernels.h"

namespace chorus::cpu {

#if defined(__aarch64__)
// Requires: isa_supported(Isa::kNeon).
const Kernels& neon_dotprod_kernels();

// Requires: isa_supported(Isa::kNeon) and i8mm_usable().
const Kernels& neon_i8mm_kernels();

// Whether this processor has matrix products of bytes (FEAT_I8MM).
bool i8mm_usable();
#endif

}  // namespace chorus::cpu
