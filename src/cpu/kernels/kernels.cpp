#include "cpu/kernels/kernels.h"

#include "base/check.h"
#include "program/graph.h"

namespace chorus::cpu {

static_assert(static_cast<int>(WeightType::kF32) == kWeightF32);
static_assert(static_cast<int>(WeightType::kQ4_0) == kWeightQ4_0);
static_assert(static_cast<int>(WeightType::kQ4_1) == kWeightQ4_1);
static_assert(static_cast<int>(WeightType::kQ8_0) == kWeightQ8_0);
static_assert(static_cast<int>(WeightType::kQ5_0) == kWeightQ5_0);
static_assert(static_cast<int>(WeightType::kQ5_1) == kWeightQ5_1);
static_assert(static_cast<int>(WeightType::kQ4_K) == kWeightQ4_K);
static_assert(static_cast<int>(WeightType::kQ5_K) == kWeightQ5_K);
static_assert(static_cast<int>(WeightType::kQ6_K) == kWeightQ6_K);
static_assert(static_cast<int>(WeightType::kBF16) == kWeightBF16);
static_assert(static_cast<int>(WeightType::kF16) == kWeightF16);
static_assert(kNumWeightTypes == kNumWeights && kNumRecordLayouts == kNumWeights);

const Kernels& kernels_for(Isa isa) {
  CHORUS_CHECK(isa_supported(isa));
#if defined(__x86_64__) && __has_include("cpu/kernels/avx512.cpp")
  if (isa == Isa::kAvx512) return avx512_kernels();
#endif
#if defined(__aarch64__)
  if (isa == Isa::kNeon) return neon_kernels();
#endif
  return generic_kernels();
}

}  // namespace chorus::cpu
