#include "engine/queue_order.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "base/random.h"

namespace chorus {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(QueueOrder, HigherPrioritiesComeFirstAndEqualsInOrderOfArrival) {
  const QueueOrder order(30'000, 0);
  const Standing early{.priority = 0, .arrived_ns = 5 * kSecond, .number = 2};
  const Standing late{.priority = 0, .arrived_ns = 6 * kSecond, .number = 1};
  const Standing twin{.priority = 0, .arrived_ns = 6 * kSecond, .number = 3};
  const Standing high{.priority = 1, .arrived_ns = 7 * kSecond, .number = 4};
  const std::vector<Standing> expected = {high, early, late, twin};
  for (size_t i = 0; i < expected.size(); ++i) {
    for (size_t j = 0; j < expected.size(); ++j) {
      EXPECT_EQ(order.is_before(expected[i], expected[j]), i < j) << i << ' ' << j;
    }
  }
  EXPECT_TRUE(order.gives_way(early, high));
  EXPECT_FALSE(order.gives_way(late, early)) << "they are equals";
  EXPECT_FALSE(order.gives_way(high, early));
}

TEST(QueueOrder, ADifferenceOfPriorityLastsForItsTime) {
  const QueueOrder order(30'000, 0);
  const Standing low{.priority = 1, .arrived_ns = 100 * kSecond, .number = 1};
  const Standing soon{.priority = 3, .arrived_ns = 159 * kSecond, .number = 2};
  const Standing later{.priority = 3, .arrived_ns = 161 * kSecond, .number = 3};
  EXPECT_TRUE(order.is_before(soon, low));
  EXPECT_TRUE(order.gives_way(low, soon));
  EXPECT_TRUE(order.is_before(low, later));
  EXPECT_FALSE(order.gives_way(low, later));
  EXPECT_FALSE(order.gives_way(later, low)) << "one of a higher priority goes on";
}

TEST(QueueOrder, ShortOnesComeFirstWhereThatIsAsked) {
  const QueueOrder order(30'000, 20);
  const Standing chat{.arrived_ns = 19 * kSecond, .tokens = 50, .number = 9};
  const Standing book{.arrived_ns = 0, .tokens = 1050, .number = 1};
  const Standing late_chat{.arrived_ns = 21 * kSecond, .tokens = 50, .number = 10};
  EXPECT_TRUE(order.is_before(chat, book));
  EXPECT_TRUE(order.is_before(book, late_chat)) << "1000 tokens more are worth 20 seconds";
  EXPECT_FALSE(order.gives_way(book, chat)) << "what runs goes on";
}

TEST(QueueOrder, ExtremesAreInOneOrderToo) {
  RandomStream random(7);
  const auto any = [&](int64_t least, int64_t most) {
    switch (random.below(3)) {
      case 0:
        return least;
      case 1:
        return most;
      default:
        return random.between(-9, 9);
    }
  };
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const auto& [age, per_token] : {std::pair(kMost, kMost), {1, 0}, {30'000, 3}}) {
    const QueueOrder order(age, per_token);
    std::vector<Standing> all;
    for (uint64_t number = 0; number < 60; ++number) {
      all.push_back({.priority = static_cast<int32_t>(any(-kMost - 1, kMost)),
                     .arrived_ns = any(0, std::numeric_limits<int64_t>::max()),
                     .tokens = any(0, int64_t{1} << 50),
                     .number = number});
    }
    std::sort(all.begin(), all.end(),
              [&](const Standing& a, const Standing& b) { return order.is_before(a, b); });
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t j = 0; j < all.size(); ++j) {
        EXPECT_EQ(order.is_before(all[i], all[j]), i < j);
        EXPECT_TRUE(i > j || !order.gives_way(all[i], all[j]));
      }
    }
  }
}

}  // namespace
}  // namespace chorus
