// What the machine says of itself and of this process. Linux only; where a file is missing, less.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace chorus::cli {

// As the system calls the processor: "AMD EPYC 7B13 64-Core Processor"; "unknown" where it does
// not.
std::string cpu_model();

// Bytes of this process in memory, now and at most so far; 0 where the system does not say.
int64_t resident_bytes();
int64_t peak_resident_bytes();
// What was taken so far counts no longer, where the system allows that.
void forget_peak_resident_bytes();

// The share of all processors' time that others used since it was made, time that the host took
// (steal) included.
class LoadMeter {
 public:
  LoadMeter();
  // Within [0, 1]; none where less than 0.2 s have passed, as the system counts in ticks.
  std::optional<double> foreign_share() const;

 private:
  struct Times {
    double busy_s = 0;   // of all processors
    double total_s = 0;  // of all processors, idle time included
    double own_s = 0;    // of this process
    bool known = false;
  };
  static Times now();

  const Times start_;
};

}  // namespace chorus::cli
