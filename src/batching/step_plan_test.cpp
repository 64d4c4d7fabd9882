#include "batching/step_plan.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"

namespace chorus {
namespace {

using Widths = std::vector<int32_t>;

std::vector<MethodInfo> decode_and_prefill(const Widths& widths, int32_t min_prefill,
                                           int32_t max_prefill) {
  return {{"decode", widths.empty() ? 0 : widths.front(), widths.empty() ? 0 : widths.back(), 0,
           widths},
          {"prefill", min_prefill, max_prefill, 0}};
}

StepPlanner planner_of(const std::vector<MethodInfo>& methods) {
  auto planner = StepPlanner::create(methods);
  CHORUS_CHECK(planner.ok());
  return std::move(planner).value();
}

std::string refused_field(const std::vector<MethodInfo>& methods) {
  const auto planner = StepPlanner::create(methods);
  return planner.ok() ? "ok" : planner.status().field();
}

TEST(StepPlan, MethodsThatItCannotServeAreNamed) {
  const MethodInfo forward{"forward", 1, 8, 0};
  EXPECT_EQ(refused_field({forward}), "ok");
  EXPECT_EQ(refused_field({}), "methods");
  EXPECT_EQ(refused_field({forward, forward}), "methods");
  EXPECT_EQ(refused_field({{"forward", 2, 8, 0}}), "methods.forward.min_tokens");
  EXPECT_EQ(refused_field({{"forward", 1, 0, 0}}), "methods.forward.max_tokens");
  EXPECT_EQ(refused_field({{"forward", 1, 8, 2}}), "methods.forward.min_wanted");
  EXPECT_EQ(refused_field({{"forward", 1, 8, -1}}), "methods.forward.min_wanted");
  EXPECT_EQ(refused_field({{"forward", 1, 8, 0, {1, 8}}}), "methods.forward.widths");
}

TEST(StepPlan, DecodeAndPrefillMustServeEveryStep) {
  const auto check = [](const Widths& widths, int32_t min_prefill, int32_t max_prefill) {
    return refused_field(decode_and_prefill(widths, min_prefill, max_prefill));
  };
  EXPECT_EQ(check({1, 2, 4, 8}, 5, 512), "ok");
  EXPECT_EQ(check({3, 8}, 1, 8), "ok");
  EXPECT_EQ(check({}, 1, 8), "methods.decode.max_tokens");
  EXPECT_EQ(check({1, 2, 2}, 1, 8), "methods.decode.widths");
  EXPECT_EQ(check({2, 1}, 1, 8), "methods.decode.min_tokens");
  EXPECT_EQ(check({1, 9}, 1, 8), "methods.decode.widths");
  EXPECT_EQ(check({2, 4}, 2, 8), "methods.decode.widths");
  EXPECT_EQ(check({0, 4}, 2, 8), "methods.decode.min_tokens");
  EXPECT_EQ(check({1}, 9, 8), "methods.prefill.min_tokens");
  EXPECT_EQ(check({1}, 0, 8), "methods.prefill.min_tokens");
  auto methods = decode_and_prefill({1, 2}, 5, 8);
  std::swap(methods[0], methods[1]);
  EXPECT_EQ(refused_field(methods), "methods");
  methods = decode_and_prefill({1, 2}, 5, 8);
  methods[1].widths = {5, 8};
  EXPECT_EQ(refused_field(methods), "methods.prefill.widths");
  methods = decode_and_prefill({1, 2}, 5, 8);
  methods[0].max_tokens = 4;
  EXPECT_EQ(refused_field(methods), "methods.decode.widths");
  methods = decode_and_prefill({1, 2}, 5, 8);
  methods[0].min_wanted = 2;
  EXPECT_EQ(refused_field(methods), "methods.decode.min_wanted");
}

struct Cost {
  int32_t forwards = 0;
  int32_t padded = 0;
  friend bool operator==(const Cost&, const Cost&) = default;
  friend auto operator<=>(const Cost&, const Cost&) = default;
};
void PrintTo(const Cost& cost, std::ostream* stream) {
  *stream << cost.forwards << " forwards, " << cost.padded << " padded";
}

// The best cost for each number of rows up to `most`, by dynamic programming over the first
// forward.
std::vector<Cost> best_costs(const std::vector<MethodInfo>& methods, int32_t most) {
  std::vector<Cost> best(static_cast<size_t>(most) + 1);
  for (int32_t total = 1; total <= most; ++total) {
    Cost& cost = best[static_cast<size_t>(total)];
    cost = {std::numeric_limits<int32_t>::max(), 0};
    for (const MethodInfo& method : methods) {
      for (int32_t rows = 1; rows <= method.max_tokens; ++rows) {
        if (!method.takes(rows)) continue;
        const Cost rest = rows < total ? best[static_cast<size_t>(total - rows)] : Cost{};
        cost = std::min(cost, {rest.forwards + 1, rest.padded + std::max(0, rows - total)});
      }
    }
  }
  return best;
}

// The cost of the plan, which must be one: every row once, in order, by a method that takes so
// many.
Cost cost_of_plan(const std::vector<MethodInfo>& methods, const StepPlanner& planner,
                  int32_t num_rows, std::vector<Forward>& forwards) {
  planner.cut(num_rows, forwards);
  int32_t next = 0;
  for (const Forward& forward : forwards) {
    EXPECT_EQ(forward.row_begin, next);
    EXPECT_LT(forward.row_begin, num_rows) << "a forward of padding alone";
    EXPECT_TRUE(methods[static_cast<size_t>(forward.method)].takes(forward.row_count))
        << forward.row_count;
    next += forward.row_count;
  }
  EXPECT_GE(next, num_rows);
  return {static_cast<int32_t>(forwards.size()), next - num_rows};
}

void expect_best(const std::vector<MethodInfo>& methods, int32_t most) {
  const StepPlanner planner = planner_of(methods);
  const std::vector<Cost> best = best_costs(methods, most);
  std::vector<Forward> forwards;
  int32_t most_padded = 0;
  for (int32_t total = 0; total <= most; ++total) {
    const Cost cost = cost_of_plan(methods, planner, total, forwards);
    ASSERT_EQ(cost, best[static_cast<size_t>(total)])
        << total << " rows, decode " << testing::PrintToString(methods[0].widths) << ", prefill "
        << methods.back().min_tokens << " to " << methods.back().max_tokens;
    most_padded = std::max(most_padded, cost.padded);
  }
  ASSERT_LE(most_padded, planner.most_padded_rows());
}

TEST(StepPlan, ForwardTakesEveryStepInTheFewest) {
  for (int32_t most = 1; most <= 9; ++most) {
    expect_best({{"forward", 1, most, 0}}, 40);
    EXPECT_EQ(planner_of({{"forward", 1, most, 0}}).most_padded_rows(), 0);
  }
}

// Every set of widths and every pair of bounds up to 9, every total up to 40.
TEST(StepPlan, HasTheFewestForwardsThenTheFewestPaddedRows) {
  int num_programs = 0;
  for (int32_t max_prefill = 1; max_prefill <= 9; ++max_prefill) {
    for (int32_t min_prefill = 1; min_prefill <= max_prefill; ++min_prefill) {
      for (uint32_t set = 1; set < 1u << max_prefill; ++set) {
        if (min_prefill > 1 && (set & 1) == 0) continue;
        Widths widths;
        for (int32_t width = 1; width <= max_prefill; ++width) {
          if ((set >> (width - 1) & 1) != 0) widths.push_back(width);
        }
        expect_best(decode_and_prefill(widths, min_prefill, max_prefill), 40);
        if (HasFatalFailure()) return;
        ++num_programs;
      }
    }
  }
  EXPECT_GT(num_programs, 4000);
}

TEST(StepPlan, AlsoOfLargerMethodsAtRandom) {
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    const auto max_prefill = static_cast<int32_t>(random.between(1, 48));
    const auto min_prefill = static_cast<int32_t>(random.between(1, max_prefill));
    Widths widths{1};
    for (int32_t width = 2; width <= max_prefill; ++width) {
      if (random.below(8) == 0) widths.push_back(width);
    }
    expect_best(decode_and_prefill(widths, min_prefill, max_prefill), 160);
    if (HasFatalFailure()) return;
  }
}

// Upstream's cases and those that it did badly: (total, most, least) with single decodes.
TEST(StepPlan, KnownCases) {
  const auto sizes = [](int32_t total, const Widths& widths, int32_t least, int32_t most) {
    std::vector<Forward> forwards;
    planner_of(decode_and_prefill(widths, least, most)).cut(total, forwards);
    std::string text;
    for (const Forward& each : forwards) {
      text += (text.empty() ? "" : " ") + std::string(each.method == 0 ? "D" : "P") +
              std::to_string(each.row_count);
    }
    return text;
  };
  EXPECT_EQ(sizes(0, {1}, 5, 8), "");
  EXPECT_EQ(sizes(9, {1}, 2, 8), "D1 P8");
  EXPECT_EQ(sizes(11, {1}, 5, 8), "P5 P6");
  EXPECT_EQ(sizes(4, {1}, 5, 8), "P5");
  EXPECT_EQ(sizes(4, {1, 2, 4, 8}, 5, 512), "D4");
  EXPECT_EQ(sizes(4, {1, 2, 4, 8}, 2, 512), "D4");
  EXPECT_EQ(sizes(3, {1, 2, 4, 8}, 5, 512), "D4");
  EXPECT_EQ(sizes(5, {1, 2, 4, 8}, 2, 512), "P5");
  EXPECT_EQ(sizes(9, {1, 2, 4, 8}, 5, 512), "P9");
  EXPECT_EQ(sizes(520, {1, 2, 4, 8}, 5, 512), "D8 P512");
  EXPECT_EQ(sizes(515, {1, 2, 4, 8}, 5, 512), "P5 P510");
  EXPECT_EQ(sizes(12, {1, 5}, 7, 7), "D5 P7");
  EXPECT_EQ(sizes(9, {1, 4, 5}, 7, 7), "D4 D5");
}

TEST(StepPlan, PlansAsLargeAsTheyGetAreQuick) {
  const StepPlanner planner = planner_of(decode_and_prefill({1, 3, 500}, 1000, 1 << 20));
  std::vector<Forward> forwards;
  planner.cut((1 << 30) + 7, forwards);
  EXPECT_EQ(forwards.size(), size_t{1025});
  EXPECT_EQ(planner.most_padded_rows(), 499);
}

}  // namespace
}  // namespace chorus
