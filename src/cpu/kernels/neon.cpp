// Which of the two builds fits the processor.
#include "cpu/kernels/neon.h"

#include <sys/auxv.h>

#include "cpu/kernels/kernels.h"

namespace chorus::cpu {

bool i8mm_usable() { return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }

const Kernels& neon_kernels() {
  return i8mm_usable() ? neon_i8mm_kernels() : neon_dotprod_kernels();
}

}  // namespace chorus::cpu
