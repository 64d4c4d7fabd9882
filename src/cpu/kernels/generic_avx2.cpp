// The generic kernels for processors with AVX2, FMA and F16C; built with the flags of these alone.
// Everything but the table's accessor is in an anonymous namespace, for the reason given in
// avx512.cpp.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "cpu/kernels/generic.h"
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
#include "cpu/kernels/linear_avx2.inc"
#include "cpu/kernels/linear_f32.inc"
//
#include "cpu/kernels/table.inc"

}  // namespace

const Kernels& avx2_kernels() { return kTable; }

}  // namespace chorus::cpu
