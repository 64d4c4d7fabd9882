#include "machine_limits.h"

#include <gtest/gtest.h>
#include <thread>

#include "machine_load.h"

namespace chorus::cli {
namespace {

MachineRates rates(double read, double int8, double floats) {
  MachineRates rates;
  rates.read_bytes_per_s = {read / 2, read * 0.9, read};
  rates.int8_macs_per_s = {int8 / 2, int8 * 0.9, int8};
  rates.float_macs_per_s = {floats / 2, floats * 0.9, floats};
  return rates;
}

TEST(StepLimit, IsTheSlowerOfMemoryAndCompute) {
  const MachineRates machine = rates(1e9, 1e10, 1e8);
  const StepLimit memory = limit_of({2e9, 1e10, 0}, machine);
  EXPECT_DOUBLE_EQ(memory.seconds, 2);
  EXPECT_TRUE(memory.is_memory);
  // Both kinds of multiply-adds run on the same units.
  const StepLimit compute = limit_of({2e9, 2e10, 1e8}, machine);
  EXPECT_DOUBLE_EQ(compute.seconds, 3);
  EXPECT_FALSE(compute.is_memory);
  EXPECT_EQ(limit_of({}, machine).seconds, 0);
}

TEST(MachineLoad, KnowsThisProcess) {
  EXPECT_FALSE(cpu_model().empty());
  EXPECT_GT(resident_bytes(), 0);
  EXPECT_GE(peak_resident_bytes(), resident_bytes());
}

TEST(MachineLoad, SaysNothingOfAMoment) {
  EXPECT_FALSE(LoadMeter().foreign_share().has_value());
  const LoadMeter load;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto share = load.foreign_share();
  ASSERT_TRUE(share.has_value());
  EXPECT_GE(*share, 0);
  EXPECT_LE(*share, 1);
}

}  // namespace
}  // namespace chorus::cli
