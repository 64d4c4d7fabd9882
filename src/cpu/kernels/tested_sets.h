// For tests: the kernel sets that can run here.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels/kernels.h"

namespace chorus::cpu {

struct TestedSet {
  std::string name;
  const Kernels* kernels;
};

// The generic set for any processor, first; every instruction set that this processor supports (of
// which the generic one may be its build for AVX2); the other build of the Arm set, where the
// processor has i8mm; and the source of the AVX-512 set over emulated intrinsics
// (avx512_emulation.inc), where SIMDe was found and the processor has AVX2.
std::vector<TestedSet> tested_sets();

}  // namespace chorus::cpu
