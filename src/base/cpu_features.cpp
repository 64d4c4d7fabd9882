#include "base/cpu_features.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sched.h>
#include <set>
#include <sstream>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace chorus {

namespace {

#if defined(__x86_64__)
uint64_t extended_control_register() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool has_avx512() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  constexpr uint32_t kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
  constexpr uint32_t kNeeded = kFma | kOsxsave | kAvx | kF16c;
  if ((c & kNeeded) != kNeeded) return false;
  // The operating system saves xmm, ymm, opmask and both halves of zmm.
  constexpr uint64_t kState = 0xe6;
  if ((extended_control_register() & kState) != kState) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr uint32_t kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31,
                     kVnni = 1u << 11;
  constexpr uint32_t kAvx2 = 1u << 5;
  constexpr uint32_t kSets = kF | kDq | kBw | kVl | kAvx2;
  return (b & kSets) == kSets && (c & kVnni) != 0;
}
#else
bool has_avx512() { return false; }
#endif

#if defined(__aarch64__)
bool has_neon_dotprod() {
  // Compilers may use all that Armv8.2 has to have.
  constexpr unsigned long kNeeded = HWCAP_ASIMDDP | HWCAP_ASIMDRDM | HWCAP_ATOMICS | HWCAP_CRC32;
  return (getauxval(AT_HWCAP) & kNeeded) == kNeeded;
}
#else
bool has_neon_dotprod() { return false; }
#endif

// The cgroup v2 quota of this process in cores, or 0 when there is none.
double cgroup_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::atof(quota.c_str()) / period;
}

// The lowest-numbered SMT sibling of a logical processor, or the processor itself.
int first_sibling(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/thread_siblings_list");
  int first = cpu;
  if (file >> first) return first;
  return cpu;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      return "neon";
    case Isa::kGeneric:
      break;
  }
  return "generic";
}

bool isa_supported(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return has_avx512();
    case Isa::kNeon:
      return has_neon_dotprod();
    case Isa::kGeneric:
      break;
  }
  return true;
}

std::vector<Isa> built_isas() {
#if defined(__x86_64__)
  return {Isa::kGeneric, Isa::kAvx512};
#elif defined(__aarch64__)
  return {Isa::kGeneric, Isa::kNeon};
#else
  return {Isa::kGeneric};
#endif
}

Result<Isa> choose_isa(std::string_view forced) {
  const std::vector<Isa> built = built_isas();
  if (forced.empty()) {
    Isa best = Isa::kGeneric;
    for (const Isa isa : built) {
      if (isa_supported(isa)) best = isa;
    }
    return best;
  }
  std::string names;
  for (const Isa isa : built) {
    if (isa_name(isa) == forced) {
      if (isa_supported(isa)) return isa;
      return invalid_argument("CHORUS_FORCE_ISA",
                              "this processor does not have " + std::string(forced));
    }
    names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  return invalid_argument("CHORUS_FORCE_ISA",
                          "expected one of " + names + ", found " + std::string(forced));
}

int available_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::set<int> cores;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &mask)) cores.insert(first_sibling(cpu));
    }
  }
  int count = std::max(1, static_cast<int>(cores.size()));
  const double quota = cgroup_quota();
  if (quota > 0) count = std::min(count, std::max(1, static_cast<int>(std::ceil(quota))));
  return count;
}

}  // namespace chorus
