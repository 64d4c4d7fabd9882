// fused.h for processors with FMA and F16C; built with -mfma -mf16c. Everything but the table is in
// an anonymous namespace, for the reason given in avx512.cpp.
#include <immintrin.h>

#include "cpu/kernels/fused.h"

namespace chorus::cpu {
namespace {
#include "cpu/kernels/fused.inc"
}  // namespace
const FusedOps kFusedFma3 = kOps;
}  // namespace chorus::cpu
