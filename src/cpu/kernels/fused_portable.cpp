// fused.h for any processor; uses the fma instruction only where the build's own flags have it.
#include "cpu/kernels/fused.h"

namespace chorus::cpu {
namespace {
#include "cpu/kernels/fused.inc"
}  // namespace
const FusedOps kFusedPortable = kOps;
}  // namespace chorus::cpu
