#include "exec/sampling.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "base/random.h"

namespace chorus {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

RowSpec drawn(float temperature, int32_t top_k = 0, float top_p = 1.0f, float min_p = 0.0f) {
  RowSpec spec;
  spec.sample = true;
  spec.temperature = temperature;
  spec.top_k = top_k;
  spec.top_p = top_p;
  spec.min_p = min_p;
  return spec;
}

// Logits whose probabilities at temperature 1 are in the ratio of `odds`.
std::vector<float> logits_of(const std::vector<double>& odds) {
  std::vector<float> logits;
  for (const double x : odds) logits.push_back(static_cast<float>(std::log(x)));
  return logits;
}

// The tokens that can be drawn: for bits all over their range, both ends included.
std::set<TokenId> support(const std::vector<float>& logits, const RowSpec& spec) {
  std::vector<TokenId> order;
  std::set<TokenId> found;
  constexpr uint64_t kSteps = 4096;
  for (uint64_t i = 0; i < kSteps; ++i) {
    found.insert(choose_token(logits, spec, i << 52, order));
  }
  found.insert(choose_token(logits, spec, ~uint64_t{0}, order));
  return found;
}

using Set = std::set<TokenId>;

TEST(Sampling, EachFilterKeepsWhatItsDefinitionSays) {
  // Probabilities 0.05, 0.4, 0.1, 0.3, 0.15.
  const std::vector<float> logits = logits_of({1, 8, 2, 6, 3});
  EXPECT_EQ(support(logits, drawn(1)), (Set{0, 1, 2, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 1)), (Set{1}));
  EXPECT_EQ(support(logits, drawn(1, 3)), (Set{1, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 5)), (Set{0, 1, 2, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 1000)), (Set{0, 1, 2, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 0, 1e-30f)), (Set{1}));
  EXPECT_EQ(support(logits, drawn(1, 0, 0.39f)), (Set{1}));
  EXPECT_EQ(support(logits, drawn(1, 0, 0.41f)), (Set{1, 3}));
  EXPECT_EQ(support(logits, drawn(1, 0, 0.69f)), (Set{1, 3}));
  EXPECT_EQ(support(logits, drawn(1, 0, 0.71f)), (Set{1, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 0, 0.94f)), (Set{1, 2, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 0, 0.96f)), (Set{0, 1, 2, 3, 4}));
  // Against the likeliest: 0.125, 1, 0.25, 0.75, 0.375.
  EXPECT_EQ(support(logits, drawn(1, 0, 1, 0.12f)), (Set{0, 1, 2, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 0, 1, 0.13f)), (Set{1, 2, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 0, 1, 0.38f)), (Set{1, 3}));
  EXPECT_EQ(support(logits, drawn(1, 0, 1, 1)), (Set{1}));
  // Filters come after the temperature: at 1/2 the odds are 1, 64, 4, 36, 9 of 114.
  EXPECT_EQ(support(logits, drawn(0.5f, 0, 0.86f)), (Set{1, 3}));
  EXPECT_EQ(support(logits, drawn(0.5f, 0, 1, 0.13f)), (Set{1, 3, 4}));
}

// D5 of other engines: top_p does nothing once top_k is set.
TEST(Sampling, FiltersCompose) {
  const std::vector<float> logits = logits_of({1, 8, 2, 6, 3});
  // Of the 17 that top_k 3 leaves, 8 + 6 are 0.82: top_p counts what is left, not all.
  EXPECT_EQ(support(logits, drawn(1, 3, 0.81f)), (Set{1, 3}));
  EXPECT_EQ(support(logits, drawn(1, 3, 0.83f)), (Set{1, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 0, 0.81f)), (Set{1, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 2, 0.99f)), (Set{1, 3}));
  EXPECT_EQ(support(logits, drawn(1, 4, 0.99f, 0.3f)), (Set{1, 3, 4}));
  EXPECT_EQ(support(logits, drawn(1, 4, 0.5f, 0.3f)), (Set{1, 3}));
  EXPECT_EQ(support(logits, drawn(1, 4, 0.5f, 0.8f)), (Set{1}));
}

TEST(Sampling, TiesAtTheBoundaryGoToTheLowerId) {
  const std::vector<float> logits{0, 1, 1, 0, 1, -kInf, 1};
  EXPECT_EQ(support(logits, drawn(1, 2)), (Set{1, 2}));
  EXPECT_EQ(support(logits, drawn(1, 5)), (Set{0, 1, 2, 4, 6}));
  EXPECT_EQ(support(logits, drawn(1, 0, 0.42f)), (Set{1, 2}));  // e / (4e + 2) = 0.211 each
  EXPECT_EQ(support(logits, drawn(1, 0, 0.43f)), (Set{1, 2, 4}));
  EXPECT_EQ(support(logits, drawn(1, 0, 1, 1)), (Set{1, 2, 4, 6}));
  EXPECT_EQ(support({-0.0f, 0.0f, -0.0f}, drawn(1, 2)), (Set{0, 1}));
}

TEST(Sampling, ShareOfTheWholeIsReachedExactly) {
  // Four equal weights: a share of exactly one half is two of them, a little more is three.
  const std::vector<float> logits(4, 3.5f);
  EXPECT_EQ(support(logits, drawn(1, 0, 0.5f)), (Set{0, 1}));
  EXPECT_EQ(support(logits, drawn(1, 0, std::nextafter(0.5f, 1.0f))), (Set{0, 1, 2}));
  EXPECT_EQ(support(logits, drawn(1, 0, std::nextafter(1.0f, 0.0f))), (Set{0, 1, 2, 3}));
}

TEST(Sampling, FiltersDoNotChangeAGreedyChoice) {
  const std::vector<float> logits{0, 2, 1, 2};
  for (const RowSpec& spec : {drawn(0), drawn(0, 2, 0.1f, 0.9f), drawn(1e-45f, 3, 0.5f)}) {
    EXPECT_EQ(support(logits, spec), (Set{1}));
  }
  EXPECT_EQ(support({1, kInf, kInf}, drawn(1, 2, 0.9f, 0.1f)), (Set{1}));
  EXPECT_EQ(support({-kInf, -kInf}, drawn(1, 2, 0.9f, 0.1f)), (Set{0}));
}

TEST(Sampling, TheMaskComesFirst) {
  const std::vector<float> logits = logits_of({1, 8, 2, 6, 3});
  const std::vector<uint32_t> mask{0b10101};  // odds 1, 2, 3 of 6
  RowSpec spec = drawn(1, 2);
  spec.mask = mask;
  EXPECT_EQ(support(logits, spec), (Set{2, 4}));
  spec = drawn(1, 0, 0.51f);
  spec.mask = mask;
  EXPECT_EQ(support(logits, spec), (Set{2, 4}));
  spec = drawn(1, 0, 1, 0.5f);
  spec.mask = mask;
  EXPECT_EQ(support(logits, spec), (Set{2, 4}));
  const std::vector<uint32_t> nothing{0};
  spec.mask = nothing;
  EXPECT_EQ(support(logits, spec), (Set{-1}));
}

TEST(Sampling, TypicalTokensAreThoseNearestToTheEntropy) {
  // Probabilities 0.05, 0.4, 0.1, 0.3, 0.15: the entropy is 1.39, and -log p is 3.00, 0.92, 2.30,
  // 1.20 and 1.90. By distance: 3 (0.19), 1 (0.48), 4 (0.50), 2 (0.91), 0 (1.60).
  const std::vector<float> logits = logits_of({1, 8, 2, 6, 3});
  const auto typical = [](float typical_p, int32_t top_k = 0, float top_p = 1, float min_p = 0) {
    RowSpec spec = drawn(1, top_k, top_p, min_p);
    spec.typical_p = typical_p;
    return spec;
  };
  EXPECT_EQ(support(logits, typical(1e-30f)), (Set{3}));
  EXPECT_EQ(support(logits, typical(0.29f)), (Set{3}));
  EXPECT_EQ(support(logits, typical(0.31f)), (Set{1, 3}));
  EXPECT_EQ(support(logits, typical(0.69f)), (Set{1, 3}));
  EXPECT_EQ(support(logits, typical(0.71f)), (Set{1, 3, 4}));
  EXPECT_EQ(support(logits, typical(0.86f)), (Set{1, 2, 3, 4}));
  EXPECT_EQ(support(logits, typical(0.96f)), (Set{0, 1, 2, 3, 4}));
  EXPECT_EQ(support(logits, typical(1)), (Set{0, 1, 2, 3, 4}));
  // Of what top_k leaves: 8 and 6 of 14 have -log p 0.56 and 0.85, and the entropy 0.68.
  EXPECT_EQ(support(logits, typical(0.5f, 2)), (Set{1}));
  // top_p counts what is left of it: of 8, 6 and 3, 14 are 0.82.
  EXPECT_EQ(support(logits, typical(0.71f, 0, 0.81f)), (Set{1, 3}));
  EXPECT_EQ(support(logits, typical(0.71f, 0, 0.83f)), (Set{1, 3, 4}));
}

TEST(Sampling, MinPIsRelativeToTheLikeliestThatIsLeft) {
  // One token has half of it, the others a sixteenth each: from the entropy of 1.74 the one is 1.04
  // away, the others 1.03.
  std::vector<double> odds(9, 1.0);
  odds[4] = 7.9;
  RowSpec spec = drawn(1, 0, 1, 0.9f);
  spec.typical_p = 0.4f;
  EXPECT_EQ(support(logits_of(odds), spec), (Set{0, 1, 2, 3, 5, 6, 7, 8}));
  spec.typical_p = 0.9f;
  EXPECT_EQ(support(logits_of(odds), spec), (Set{4}));
}

// Against the definition in the reals, where no boundary is near.
TEST(Sampling, TypicalTokensAreThoseOfTheDefinition) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    std::vector<float> logits;
    for (int64_t i = random.between(2, 40); i > 0; --i)
      logits.push_back(static_cast<float>(random.unit() * 8 - 4));
    RowSpec spec = drawn(static_cast<float>(0.3 + random.unit()));
    spec.typical_p = static_cast<float>(0.05 + 0.9 * random.unit());
    std::vector<double> p;
    double sum = 0;
    for (const float x : logits)
      sum +=
          p.emplace_back(std::exp(static_cast<double>(x) / static_cast<double>(spec.temperature)));
    double entropy = 0;
    for (double& each : p) {
      each /= sum;
      entropy -= each * std::log(each);
    }
    std::vector<TokenId> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    const auto distance = [&](TokenId id) {
      return std::abs(-std::log(p[static_cast<size_t>(id)]) - entropy);
    };
    std::sort(order.begin(), order.end(),
              [&](TokenId a, TokenId b) { return distance(a) < distance(b); });
    Set expected;
    double reached = 0;
    for (size_t i = 0; i < order.size() && reached < static_cast<double>(spec.typical_p); ++i) {
      reached += p[static_cast<size_t>(order[i])];
      expected.insert(order[i]);
    }
    const Set found = support(logits, spec);
    // Those that are too unlikely for the bits that were tried are not seen.
    for (const TokenId id : found) EXPECT_TRUE(expected.contains(id)) << id;
    for (const TokenId id : expected) {
      EXPECT_TRUE(found.contains(id) || p[static_cast<size_t>(id)] < 1e-3) << id;
    }
  }
}

TEST(Sampling, BiasAndPenaltiesChangeTheLogitsInThisOrder) {
  RowSpec spec;
  spec.repetition_penalty = 2.0f;
  spec.frequency_penalty = 0.5f;
  spec.presence_penalty = 0.25f;
  EXPECT_EQ(adjusted_logit(3.0f, {.id = 0, .bias = 1.0f}, spec), 4.0f);
  EXPECT_EQ(adjusted_logit(3.0f, {.id = 0, .bias = 1.0f, .is_given = true}, spec), 2.0f);
  EXPECT_EQ(adjusted_logit(3.0f, {.id = 0, .bias = -4.0f, .is_given = true}, spec), -2.0f);
  EXPECT_EQ(adjusted_logit(3.0f, {.id = 0, .count = 1}, spec), 0.75f);
  EXPECT_EQ(adjusted_logit(3.0f, {.id = 0, .count = 4, .is_given = true}, spec), -0.75f);
  EXPECT_EQ(adjusted_logit(-3.0f, {.id = 0, .bias = 1.0f, .count = 2}, spec), -5.25f);
  EXPECT_EQ(adjusted_logit(-kInf, {.id = 0, .bias = 9.0f, .count = 2}, spec), -kInf);
}

TEST(Sampling, AChoiceIsOfTheAdjustedLogits) {
  const std::vector<float> logits{0, 2, 1, 2};
  std::vector<TokenAdjustment> list{{.id = 1, .bias = -1.5f}, {.id = 3, .count = 1}};
  RowSpec spec = drawn(0);
  spec.adjustments = list;
  EXPECT_EQ(support(logits, spec), (Set{3}));
  spec.presence_penalty = 1.5f;
  EXPECT_EQ(support(logits, spec), (Set{2}));
  // The greatest, which weights are relative to, is that of the adjusted ones.
  spec = drawn(1, 2);
  spec.adjustments = list;
  spec.frequency_penalty = 1.5f;
  EXPECT_EQ(support(logits, spec), (Set{1, 2}));
  const std::vector<uint32_t> mask{0b1011};
  spec.mask = mask;
  EXPECT_EQ(support(logits, spec), (Set{1, 3}));
}

// Chi-square of 40000 draws against the exact probabilities: with 2 degrees of freedom it is above
// 18.4 for one seed in ten thousand. Seed 0 is a seed like others (D3).
TEST(Sampling, DrawsFollowTheFilteredDistribution) {
  const std::vector<float> logits = logits_of({1, 8, 2, 6, 3});
  const std::map<TokenId, double> expected{{1, 8.0 / 17}, {3, 6.0 / 17}, {4, 3.0 / 17}};
  std::vector<TokenId> order;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    RowSpec spec = drawn(1, 4, 0.85f, 0.3f);
    spec.seed = seed;
    std::map<TokenId, int> seen;
    constexpr int kDraws = 40000;
    for (spec.position = 0; spec.position < kDraws; ++spec.position) {
      ++seen[choose_token(logits, spec, order)];
    }
    double chi_square = 0;
    for (const auto& [id, share] : expected) {
      const double error = seen[id] - share * kDraws;
      chi_square += error * error / (share * kDraws);
    }
    EXPECT_EQ(seen.size(), expected.size()) << "seed " << seed;
    EXPECT_LT(chi_square, 18.4) << "seed " << seed;
  }
}

TEST(Sampling, ExpIsThatOfTheLibraryWithinTwoUlp) {
  EXPECT_EQ(sampling_exp(0.0f), 1.0f);
  EXPECT_EQ(sampling_exp(-kInf), 0.0f);
  for (float x = 0; x > -80; x -= 0.0137f) {
    const double exact = std::exp(static_cast<double>(x));
    EXPECT_NEAR(sampling_exp(x), exact, exact * 0x1p-22) << x;
    EXPECT_LE(sampling_exp(x), 1.0f);
  }
}

TEST(Sampling, FixedPointFormsOfTheFilters) {
  EXPECT_EQ(share_of_top_p(1.0f), kWholeWeight);
  EXPECT_EQ(share_of_top_p(0.5f), kWholeWeight / 2);
  EXPECT_EQ(share_of_top_p(1e-30f), 0u);
  EXPECT_LT(share_of_top_p(std::nextafter(1.0f, 0.0f)), kWholeWeight);
  EXPECT_EQ(weight_of_min_p(1.0f), kWholeWeight);
  EXPECT_EQ(weight_of_min_p(0.25f), kWholeWeight / 4);
  EXPECT_EQ(weight_of_min_p(1e-30f), 1u);
  EXPECT_EQ(weight_of_min_p(0.0f), 0u);
}

}  // namespace
}  // namespace chorus
