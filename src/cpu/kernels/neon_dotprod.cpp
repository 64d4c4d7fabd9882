// The kernels for Arm processors with dot products of bytes; built with the flags of these alone.
// Everything but the table's accessor is in an anonymous namespace, for the reason given in
// avx512.cpp.
#include <arm_neon.h>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/neon.h"

namespace chorus::cpu {

namespace {
#include "cpu/kernels/neon.inc"
}  // namespace

const Kernels& neon_dotprod_kernels() { return kTable; }

}  // namespace chorus::cpu
