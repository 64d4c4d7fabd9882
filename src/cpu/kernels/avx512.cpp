// The kernels for AVX-512 with VNNI.
//
// Built with the flags of this set alone (CMakeLists.txt). A function with external linkage that is
// emitted here, an inline one of the standard library for instance, could be the copy that the
// linker keeps for the whole program, which would then crash on a processor without AVX-512. So all
// but the table's accessor is in an anonymous namespace, nothing of std with a body is used, and
// the test cpu_weak_symbols looks at the object file.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "cpu/kernels/kernels.h"

namespace chorus::cpu {

namespace {
#include "cpu/kernels/avx512.inc"
}  // namespace

const Kernels& avx512_kernels() { return kTable; }

}  // namespace chorus::cpu
