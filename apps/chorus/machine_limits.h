// What this machine can do, measured.
#pragma once

#include <optional>

#include "base/cpu_features.h"
#include "base/result.h"
#include "bench_statistics.h"
#include "interrupt.h"

namespace chorus::cli {

// Spreads over several samples; the best of them, the maximum, is the limit.
struct MachineRates {
  int threads = 1;
  Spread read_bytes_per_s;  // of memory beyond every cache, in order, each thread its own part
  Spread int8_macs_per_s;   // cpu::Peaks says of what
  Spread float_macs_per_s;
};

struct MachineLimits {
  Isa isa = Isa::kGeneric;
  MachineRates one;
  MachineRates all;                     // of `threads` threads
  std::optional<Spread> round_trip_ns;  // a cache line to another core and back; none with one core
  double foreign_load = -1;             // while it was measured; negative: unknown
};

// Takes about three seconds. kResourceExhausted where memory or threads are short, kCancelled when
// the user interrupts. Requires: isa_supported(isa). Thread: main.
Result<MachineLimits> measure_machine(Isa isa, int threads, const Interrupt& interrupt);

// What a step costs, and what the machine would need for it at least: its bytes at the reading
// rate, or its multiply-adds at their peaks, whichever takes longer.
struct StepWork {
  double bytes = 0;
  double int8_macs = 0;
  double float_macs = 0;
};
struct StepLimit {
  double seconds = 0;
  bool is_memory = false;  // what it is bound by
};
StepLimit limit_of(const StepWork& work, const MachineRates& rates);

}  // namespace chorus::cli
