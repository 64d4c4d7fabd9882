// For tests: the AVX-512 set's source over emulated intrinsics.
#define CHORUS_EMULATED_AVX512

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/avx512_emulation.inc"
#include "cpu/kernels/kernels.h"

namespace chorus::cpu {

namespace {
#include "cpu/kernels/avx512.inc"
}  // namespace

const Kernels& emulated_avx512_kernels();
const Kernels& emulated_avx512_kernels() { return kTable; }

}  // namespace chorus::cpu
