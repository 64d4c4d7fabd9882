// Loops that do nothing but what bounds the kernels: reading memory, and multiplying and adding in
// registers. One set per instruction set, built with the flags of its kernels; each file but the
// portable one keeps to the rule of avx512.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_features.h"

namespace chorus::cpu {

// The results depend on every operation, so that none is left out. Thread: any.
struct Peaks {
  // Multiply-adds of unsigned with signed bytes, as linear layers do them with 4-bit weights:
  //   AVX-512: vpdpbusd; AVX2: eight vpmaddubsw, summed in 16 bits, to one vpmaddwd; Arm: smmla or
  //   sdot; else pairs of 16-bit products. Returns how many `rounds` rounds of the loop make.
  int64_t (*int8_macs)(int64_t rounds, uint64_t* result);
  // Fused multiply-adds of floats; where there are none, a multiplication and an addition.
  int64_t (*float_macs)(int64_t rounds, uint64_t* result);
  // Reads `bytes` (a multiple of 256) from a 64-byte aligned place, once and in order; `prefetch`:
  // asking for what lies 4 KiB ahead.
  uint64_t (*read)(const std::byte* from, int64_t bytes, bool prefetch);
};

const Peaks& portable_peaks();
#if defined(__x86_64__)
const Peaks& avx2_peaks();    // only where avx2_usable()
const Peaks& avx512_peaks();  // only where isa_supported(Isa::kAvx512)
#elif defined(__aarch64__)
const Peaks& neon_dotprod_peaks();  // only where isa_supported(Isa::kNeon)
const Peaks& neon_i8mm_peaks();     // only where i8mm_usable(), too
#endif

// Those of the build that kernels_for(isa) chooses. Requires: isa_supported(isa).
const Peaks& peaks_for(Isa isa);

}  // namespace chorus::cpu
