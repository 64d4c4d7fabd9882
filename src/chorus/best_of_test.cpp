#include "chorus/best_of.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

namespace chorus {
namespace {

TEST(BestOf, TheMeanIsPerToken) {
  const std::vector<TokenScore> tokens{{.id = 1, .logprob = -1.0f}, {.id = 2, .logprob = -3.0f}};
  EXPECT_EQ(mean_logprob(tokens), -2.0);
  EXPECT_EQ(mean_logprob({}), -std::numeric_limits<double>::infinity());
  const std::vector<TokenScore> unknown{{.id = 1, .logprob = std::nanf("")}};
  EXPECT_EQ(mean_logprob(unknown), -std::numeric_limits<double>::infinity());
}

TEST(BestOf, TheGreatestComeFirstAndTiesInOrder) {
  using Order = std::vector<size_t>;
  const std::vector<double> scores{-2, -1, -2, -std::numeric_limits<double>::infinity(), -1};
  EXPECT_EQ(best_choices(scores, 1), Order{1});
  EXPECT_EQ(best_choices(scores, 3), (Order{1, 4, 0}));
  EXPECT_EQ(best_choices(scores, 9), (Order{1, 4, 0, 2, 3}));
  EXPECT_TRUE(best_choices({}, 2).empty());
}

}  // namespace
}  // namespace chorus
