#include <arm_neon.h>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels/peaks.h"

namespace chorus::cpu {

namespace {
#include "cpu/kernels/peaks_neon.inc"
}  // namespace

const Peaks& neon_dotprod_peaks() { return kPeaks; }

}  // namespace chorus::cpu
