// Instruction sets: which kernels this processor can run, and which were asked for.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "chorus/base/result.h"

namespace chorus {

// The sets for which kernels exist. kAvx512 means AVX-512 F, BW, VL and DQ with VNNI; kNeon means
// Armv8.2 with the dot products of bytes (FEAT_DotProd).
enum class Isa : uint8_t { kGeneric, kAvx512, kNeon };

std::string_view isa_name(Isa isa);

// Whether this processor and operating system can run `isa`.
bool isa_supported(Isa isa);

// Every set that was built in, weakest first.
std::vector<Isa> built_isas();

// The set to use: the best supported one, or `forced` when it is not empty (the value of
// CHORUS_FORCE_ISA). Errors: kInvalidArgument for an unknown name or a set this processor lacks;
// the field is CHORUS_FORCE_ISA.
Result<Isa> choose_isa(std::string_view forced);

// Physical cores this process may use: its affinity mask without SMT siblings, at most its cgroup
// CPU quota rounded up; at least 1.
int available_cores();

}  // namespace chorus
