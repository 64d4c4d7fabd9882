#include "cpu/kernels/tested_sets.h"

#include "cpu/kernels/generic.h"
#include "cpu/kernels/neon.h"

namespace chorus::cpu {

#if defined(CHORUS_TEST_EMULATED_AVX512)
const Kernels& emulated_avx512_kernels();
#endif

std::vector<TestedSet> tested_sets() {
  std::vector<TestedSet> sets = {{"portable", &portable_kernels()}};
  for (const Isa isa : built_isas()) {
    if (isa_supported(isa)) sets.push_back({std::string(isa_name(isa)), &kernels_for(isa)});
  }
#if defined(__aarch64__)
  if (isa_supported(Isa::kNeon) && i8mm_usable()) {  // then the other build was picked
    sets.push_back({"neon without i8mm", &neon_dotprod_kernels()});
  }
#endif
#if defined(CHORUS_TEST_EMULATED_AVX512)
  if (avx2_usable()) {
    sets.push_back({"emulated avx512", &emulated_avx512_kernels()});
  }
#endif
  return sets;
}

}  // namespace chorus::cpu
