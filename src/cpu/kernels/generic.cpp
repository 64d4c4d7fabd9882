// The kernels for any processor: plain flags, GNU vectors.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/linear.h"

namespace chorus::cpu {

namespace {

#include "cpu/kernels/simd.inc"
//
#include "cpu/kernels/math.inc"
//
#include "cpu/kernels/attention.inc"
#include "cpu/kernels/embed.inc"
#include "cpu/kernels/reduce.inc"
#include "cpu/kernels/rows.inc"
//
#include "cpu/kernels/table.inc"

Kernels with_linear(const LinearKernels& linear) {
  Kernels table = kTableWithoutLinear;
  table.quantize = linear.quantize;
  table.prepare_f32 = linear.prepare_f32;
  for (int type = 0; type < kNumWeightTypes; ++type) {
    table.linear_int8[type] = linear.linear_int8[type];
    table.linear_f32[type] = linear.linear_f32[type];
  }
  return table;
}

}  // namespace

const Kernels& generic_kernels() {
  static const Kernels kTable = with_linear(generic_linear_kernels());
  return kTable;
}

}  // namespace chorus::cpu
