#include "cpu/kernels/peaks.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "cpu/kernels/generic.h"
#include "cpu/kernels/neon.h"

namespace chorus::cpu {
namespace {

struct NamedPeaks {
  std::string name;
  const Peaks* peaks;
};

std::vector<NamedPeaks> all_peaks() {
  std::vector<NamedPeaks> all = {{"portable", &portable_peaks()}};
#if defined(__x86_64__)
  if (avx2_usable()) all.push_back({"avx2", &avx2_peaks()});
  if (isa_supported(Isa::kAvx512)) all.push_back({"avx512", &avx512_peaks()});
#elif defined(__aarch64__)
  if (isa_supported(Isa::kNeon)) all.push_back({"dotprod", &neon_dotprod_peaks()});
  if (isa_supported(Isa::kNeon) && i8mm_usable()) all.push_back({"i8mm", &neon_i8mm_peaks()});
#endif
  return all;
}

TEST(Peaks, CountsGrowWithRounds) {
  for (const NamedPeaks& each : all_peaks()) {
    SCOPED_TRACE(each.name);
    uint64_t result = 0;
    for (const auto loop : {each.peaks->int8_macs, each.peaks->float_macs}) {
      EXPECT_EQ(loop(0, &result), 0);
      const int64_t one = loop(1, &result);
      EXPECT_GT(one, 0);
      EXPECT_EQ(loop(1000, &result), 1000 * one);
    }
  }
}

// Every bit of the buffer reaches the result: what is read is or-ed.
TEST(Peaks, ReadsEveryByte) {
  constexpr size_t kBytes = 1024;
  for (const NamedPeaks& each : all_peaks()) {
    SCOPED_TRACE(each.name);
    for (const bool prefetch : {false, true}) {
      AlignedBuffer buffer(kBytes);
      EXPECT_EQ(each.peaks->read(buffer.bytes().data(), kBytes, prefetch), 0u);
      for (size_t at = 0; at < kBytes; ++at) {
        buffer.bytes()[at] = std::byte{1};
        EXPECT_NE(each.peaks->read(buffer.bytes().data(), kBytes, prefetch), 0u) << at;
        buffer.bytes()[at] = std::byte{0};
      }
    }
  }
}

TEST(Peaks, ChoosesWhatTheKernelsChoose) {
  for (const Isa isa : built_isas()) {
    if (!isa_supported(isa)) continue;
    const Peaks* expected = &portable_peaks();
#if defined(__x86_64__)
    if (avx2_usable()) expected = &avx2_peaks();
    if (isa == Isa::kAvx512) expected = &avx512_peaks();
#elif defined(__aarch64__)
    if (isa == Isa::kNeon) expected = i8mm_usable() ? &neon_i8mm_peaks() : &neon_dotprod_peaks();
#endif
    EXPECT_EQ(&peaks_for(isa), expected);
  }
}

}  // namespace
}  // namespace chorus::cpu
