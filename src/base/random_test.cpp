#include "base/random.h"

#include <gtest/gtest.h>
#include <set>
#include <vector>

namespace chorus {
namespace {

// Known answers of the Random123 distribution for philox4x32-10.
TEST(Random, PhiloxKnownAnswers) {
  const std::array<uint32_t, 4> zeros = philox4x32({0, 0, 0, 0}, {0, 0});
  EXPECT_EQ(zeros, (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::array<uint32_t, 4> ones =
      philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff});
  EXPECT_EQ(ones, (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  const std::array<uint32_t, 4> pi =
      philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  EXPECT_EQ(pi, (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, EveryPartOfTheKeyMatters) {
  std::set<uint64_t> seen;
  for (uint64_t seed : {0, 1, 2}) {
    for (uint32_t choice : {0, 1}) {
      for (uint64_t position : {0, 1, 2}) seen.insert(random_bits(seed, choice, position));
    }
  }
  EXPECT_EQ(seen.size(), 18u);
  EXPECT_EQ(random_bits(0, 0, 7), random_bits(0, 0, 7));
}

TEST(Random, BelowIsUniform) {
  RandomStream stream(1);
  std::vector<int> counts(7);
  constexpr int kDraws = 70000;
  for (int i = 0; i < kDraws; ++i) ++counts[stream.below(7)];
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - 10000.0) * (count - 10000.0) / 10000.0;
  EXPECT_LT(chi_square, 22.5);  // 6 degrees of freedom, p = 0.001
}

TEST(Random, BetweenStaysInside) {
  RandomStream stream(2);
  bool low = false, high = false;
  for (int i = 0; i < 1000; ++i) {
    const int64_t value = stream.between(-2, 2);
    ASSERT_GE(value, -2);
    ASSERT_LE(value, 2);
    low |= value == -2;
    high |= value == 2;
  }
  EXPECT_TRUE(low && high);
  EXPECT_EQ(stream.between(5, 5), 5);
}

}  // namespace
}  // namespace chorus
