#include "base/clock.h"

#include <gtest/gtest.h>

namespace chorus {
namespace {

TEST(Clock, SteadyClockNeverGoesBack) {
  const SteadyClock clock;
  int64_t last = clock.now_ns();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = clock.now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Clock, ManualClockMovesOnlyWhenTold) {
  ManualClock clock;
  EXPECT_EQ(clock.now_ns(), 0);
  clock.advance_ns(1500);
  EXPECT_EQ(clock.now_ns(), 1500);
}

}  // namespace
}  // namespace chorus
