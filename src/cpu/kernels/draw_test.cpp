// The draw of every kernel set against the plain implementation of exec/sampling.h, which sorts.
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/tested_sets.h"
#include "exec/sampling.h"

namespace chorus::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// A row, its mask, and the filters of one case.
struct Case {
  std::vector<float> logits;
  std::vector<uint32_t> mask;  // empty: all
  RowSpec spec;

  std::string describe() const {
    return std::to_string(logits.size()) + " logits, temperature " +
           std::to_string(spec.temperature) + ", top_k " + std::to_string(spec.top_k) + ", top_p " +
           std::to_string(spec.top_p) + ", min_p " + std::to_string(spec.min_p) + ", typical_p " +
           std::to_string(spec.typical_p);
  }
};

// As CpuModule chooses.
int32_t choose(const Kernels& kernels, const Case& each, uint64_t bits) {
  const LogitsArgs logits{each.logits.data(), static_cast<int32_t>(each.logits.size()),
                          each.mask.empty() ? nullptr : each.mask.data()};
  const LogitsMax best = kernels.logits_max(logits);
  EXPECT_FALSE(best.nan);
  const float inverse = 1.0f / each.spec.temperature;
  if (best.index < 0 || !std::isfinite(best.max) || !std::isfinite(inverse)) return best.index;
  std::vector<uint32_t> typical(each.logits.size() / 32 + 1, 0xdeadbeef);
  return kernels.draw({logits, best.max, inverse, bits, each.spec.top_k,
                       share_of_top_p(each.spec.top_p), weight_of_min_p(each.spec.min_p),
                       share_of_top_p(each.spec.typical_p), typical.data()});
}

// The same choice for the first and the last bits, and for some between.
void expect_same_choices(const Kernels& kernels, Case& each, RandomStream& random, int draws = 6) {
  SCOPED_TRACE(each.describe());
  each.spec.mask = each.mask;
  std::vector<TokenId> order;
  for (int i = 0; i < draws; ++i) {
    const uint64_t bits = i == 0 ? 0 : i == 1 ? ~uint64_t{0} : random.next();
    ASSERT_EQ(choose(kernels, each, bits), choose_token(each.logits, each.spec, bits, order))
        << "bits " << bits;
  }
}

float random_logit(RandomStream& random, uint64_t shape) {
  const double unit = random.unit() * 2 - 1;
  switch (shape) {
    case 0:  // like a model's
      return static_cast<float>(unit * unit * unit * 20);
    case 1:  // many ties, both zeros
      return static_cast<float>(random.between(-3, 3)) * (random.below(2) == 0 ? 0.0f : -1.0f);
    case 2:  // all equal
      return -2.5f;
    case 3:  // neighbours in the last bits
      return std::bit_cast<float>(0x41200000 + static_cast<uint32_t>(random.below(40)));
    case 4:  // any finite float, and -inf
    {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
      return std::isfinite(x) ? x : -kInf;
    }
    case 5:  // tiny, subnormal
      return static_cast<float>(unit * 1e-41);
    case 6:  // mostly -inf
      return random.below(8) == 0 ? static_cast<float>(unit * 9) : -kInf;
    default:  // nearly flat
      return 7.0f + static_cast<float>(unit * 1e-3);
  }
}

Case random_case(RandomStream& random) {
  Case each;
  const auto count = random.below(4) != 0 ? random.between(1, 60) : random.between(1, 1500);
  const uint64_t shape = random.below(8);
  for (int64_t i = 0; i < count; ++i) each.logits.push_back(random_logit(random, shape));
  if (random.below(4) == 0) {  // one far above the others
    each.logits[static_cast<size_t>(random.below(each.logits.size()))] = 60.0f;
  }
  if (random.below(2) == 0) {
    each.mask.resize(each.logits.size() / 32 + 1);
    const bool sparse = random.below(2) == 0;
    for (uint32_t& word : each.mask) {
      word = static_cast<uint32_t>(random.next());
      if (sparse) word &= static_cast<uint32_t>(random.next() & random.next() & random.next());
    }
  }
  constexpr float kTemperatures[] = {1e-3f, 0.3f, 0.7f, 1.0f, 1.6f, 100.0f, 3e38f};
  each.spec.sample = true;
  each.spec.temperature = kTemperatures[random.below(7)];
  return each;
}

void set_filters(RandomStream& random, uint64_t which, Case& each) {
  constexpr float kShares[] = {1e-20f, 0.01f, 0.3f, 0.5f, 0.9f, 0.95f, 0.999f, 0.99999994f};
  constexpr float kLeast[] = {1e-20f, 1e-8f, 0.001f, 0.05f, 0.1f, 0.5f, 1.0f};
  const auto size = static_cast<int64_t>(each.logits.size());
  const int64_t most = random.below(2) == 0 ? 50 : size + 1;
  each.spec.top_k = (which & 1) != 0 ? static_cast<int32_t>(random.between(1, most)) : 0;
  each.spec.top_p = (which & 2) != 0 ? kShares[random.below(8)] : 1.0f;
  each.spec.min_p = (which & 4) != 0 ? kLeast[random.below(7)] : 0.0f;
  each.spec.typical_p = (which & 8) != 0 ? kShares[random.below(8)] : 1.0f;
}

TEST(Draw, EverySetChoosesAsThePlainImplementation) {
  for (const TestedSet& set : tested_sets()) {
    const uint64_t seeds = set.name == "emulated avx512" ? 20 : 80;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      SCOPED_TRACE(set.name + " seed " + std::to_string(seed));
      RandomStream random(seed);
      Case each = random_case(random);
      for (uint64_t which = 0; which < 16; ++which) {
        set_filters(random, which, each);
        ASSERT_NO_FATAL_FAILURE(expect_same_choices(*set.kernels, each, random));
      }
    }
  }
}

// The least and the greatest counts, and shares whose boundary lies inside of ties.
TEST(Draw, BoundariesInsideOfTies) {
  for (const TestedSet& set : tested_sets()) {
    SCOPED_TRACE(set.name);
    RandomStream random(7);
    Case each;
    for (int i = 0; i < 200; ++i) each.logits.push_back(i % 5 == 0 ? 1.0f : 0.5f);
    each.spec.temperature = 1;
    for (int32_t k = 1; k <= 201; k += 4) {
      each.spec.top_k = k;
      ASSERT_NO_FATAL_FAILURE(expect_same_choices(*set.kernels, each, random));
    }
    each.spec.top_k = 0;
    for (int i = 1; i <= 200; i += 3) {
      each.spec.top_p = static_cast<float>(i) / 200;
      ASSERT_NO_FATAL_FAILURE(expect_same_choices(*set.kernels, each, random));
    }
  }
}

// Tokens of weight 1, the least there is, take part in every filter: the last bits draw the last
// of those that stay.
TEST(Draw, TheLeastWeightsCount) {
  for (const TestedSet& set : tested_sets()) {
    SCOPED_TRACE(set.name);
    Case each;
    each.logits.assign(2000, -22.1f);  // e^-22.1 * 2^32 = 1.08
    each.logits[0] = 0.0f;
    each.spec.temperature = 1;
    const auto last = [&](int32_t top_k, float top_p, float min_p) {
      each.spec.top_k = top_k;
      each.spec.top_p = top_p;
      each.spec.min_p = min_p;
      std::vector<TokenId> order;
      const int32_t id = choose(*set.kernels, each, ~uint64_t{0});
      EXPECT_EQ(id, choose_token(each.logits, each.spec, ~uint64_t{0}, order));
      return id;
    };
    EXPECT_EQ(last(0, 1.0f, 0.0f), 1999);
    EXPECT_EQ(last(10, 1.0f, 0.0f), 9);
    // 2^32 + 1999 less 256.0001 of it, which is what the greatest share below 1 leaves out.
    EXPECT_EQ(last(0, 0.99999994f, 0.0f), 1743);
    EXPECT_EQ(last(0, 1.0f, 1e-12f), 1999);
    EXPECT_EQ(last(0, 1.0f, 1e-9f), 0);
  }
}

TEST(Draw, ARowOfAWholeVocabulary) {
  RandomStream random(3);
  Case each;
  for (int i = 0; i < 151937; ++i) {
    each.logits.push_back(static_cast<float>(random.unit() + random.unit() + random.unit()) * 6);
  }
  each.spec.temperature = 0.9f;
  for (const uint64_t which : {1, 2, 7, 8, 15}) {
    set_filters(random, which, each);
    ASSERT_NO_FATAL_FAILURE(expect_same_choices(generic_kernels(), each, random, 3));
  }
}

TEST(Draw, ExpIsTheOneOfThePlainImplementation) {
  for (const TestedSet& set : tested_sets()) {
    RandomStream random(5);
    for (int i = 0; i < 20000; ++i) {
      float x = static_cast<float>(random.unit() * -110);
      if (i % 4 == 0) x = std::bit_cast<float>(static_cast<uint32_t>(random.next()) | 0x80000000u);
      if (std::isnan(x)) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(set.kernels->sum_exp({&x, 1, nullptr}, 0.0f)),
                std::bit_cast<uint32_t>(sampling_exp(x)))
          << set.name << " at " << x;
    }
  }
}

// Chi-square against the exact probabilities of what top_k 4, top_p 0.85 and min_p 0.3 leave of
// the odds 1, 8, 2, 6, 3; below 18.4 but for one seed in ten thousand.
TEST(Draw, FollowsTheFilteredDistribution) {
  const std::vector<float> logits{0.0f, std::log(8.0f), std::log(2.0f), std::log(6.0f),
                                  std::log(3.0f)};
  const double odds[] = {0, 8, 0, 6, 3};
  const Kernels& kernels = generic_kernels();
  DrawArgs args{{logits.data(), 5, nullptr}, logits[1], 1.0f};
  args.top_k = 4;
  args.top_p = share_of_top_p(0.85f);
  args.min_weight = weight_of_min_p(0.3f);
  for (const uint64_t seed : {uint64_t{0}, uint64_t{11}}) {
    constexpr int kDraws = 40000;
    int seen[5] = {};
    for (uint64_t i = 0; i < kDraws; ++i) {
      args.bits = random_bits(seed, 0, i);
      ++seen[kernels.draw(args)];
    }
    double chi_square = 0;
    for (int id = 0; id < 5; ++id) {
      const double expected = odds[id] / 17 * kDraws;
      if (expected == 0) {
        EXPECT_EQ(seen[id], 0) << "seed " << seed;
      } else {
        chi_square += (seen[id] - expected) * (seen[id] - expected) / expected;
      }
    }
    EXPECT_LT(chi_square, 18.4) << "seed " << seed;
  }
}

}  // namespace
}  // namespace chorus::cpu
