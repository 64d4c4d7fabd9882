#include "cpu/kernels/tested_sets.h"

namespace chorus::cpu {

#if defined(CHORUS_TEST_EMULATED_AVX512)
const Kernels& emulated_avx512_kernels();
#endif

std::vector<TestedSet> tested_sets() {
  std::vector<TestedSet> sets;
  for (const Isa isa : built_isas()) {
    if (isa_supported(isa)) sets.push_back({std::string(isa_name(isa)), &kernels_for(isa)});
  }
#if defined(CHORUS_TEST_EMULATED_AVX512)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    sets.push_back({"emulated avx512", &emulated_avx512_kernels()});
  }
#endif
  return sets;
}

}  // namespace chorus::cpu
