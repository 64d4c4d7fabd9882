#include <arm_neon.h>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels/peaks.h"

namespace chorus::cpu {

namespace {
#include "cpu/kernels/peaks_neon.inc"
}  // namespace

const Peaks& neon_i8mm_peaks() { return kPeaks; }

}  // namespace chorus::cpu
