#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/kernels.h"

namespace chorus::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Logits with ties.
std::vector<float> random_logits(uint64_t seed, int32_t count) {
  RandomStream random(seed);
  std::vector<float> logits(static_cast<size_t>(count));
  for (float& x : logits) x = static_cast<float>(random.between(-40, 40)) * 0.25f;
  return logits;
}

std::vector<uint32_t> random_mask(uint64_t seed, int32_t count) {
  RandomStream random(seed);
  std::vector<uint32_t> mask(static_cast<size_t>((count + 31) / 32));
  for (uint32_t& word : mask) word = static_cast<uint32_t>(random.next() & random.next());
  return mask;
}

bool allowed(const LogitsArgs& args, int32_t i) {
  return args.mask == nullptr || ((args.mask[i / 32] >> (i % 32)) & 1u) != 0;
}

TEST(Reduce, AgreesWithPlainLoops) {
  const Kernels& kernels = generic_kernels();
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto count = static_cast<int32_t>(RandomStream(seed).between(1, 700));
    const auto logits = random_logits(seed, count);
    const auto mask = random_mask(seed, count);
    for (const uint32_t* m : {static_cast<const uint32_t*>(nullptr), mask.data()}) {
      const LogitsArgs args{logits.data(), count, m};
      std::vector<int32_t> order;
      for (int32_t i = 0; i < count; ++i) {
        if (allowed(args, i)) order.push_back(i);
      }
      const auto value = [&](int32_t i) { return logits[static_cast<size_t>(i)]; };
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return value(a) > value(b); });
      const LogitsMax max = kernels.logits_max(args);
      EXPECT_FALSE(max.nan);
      EXPECT_EQ(max.index, order.empty() ? -1 : order[0]);
      EXPECT_EQ(max.max, order.empty() ? -kInf : value(order[0]));
      std::vector<int32_t> top(20, -1);
      const int32_t n = kernels.top_n(args, 20, top.data());
      ASSERT_EQ(n, std::min<int32_t>(20, static_cast<int32_t>(order.size())));
      for (int32_t i = 0; i < n; ++i) {
        EXPECT_EQ(top[static_cast<size_t>(i)], order[static_cast<size_t>(i)]);
      }
      if (m != nullptr) continue;
      for (size_t rank = 0; rank < order.size(); rank += 7) {
        EXPECT_EQ(kernels.count_above(args, value(order[rank]), order[rank]),
                  static_cast<int32_t>(rank));
      }
      double sum = 0;
      for (float x : logits) sum += std::exp(static_cast<double>(x - max.max));
      EXPECT_NEAR(kernels.sum_exp(args, max.max), sum, 1e-6 * sum);
    }
  }
}

TEST(Reduce, FindsNaNWhereverItIs) {
  for (int32_t count : {1, 15, 16, 17, 100}) {
    for (int32_t at = 0; at < count; ++at) {
      auto logits = random_logits(3, count);
      std::vector<uint32_t> none(static_cast<size_t>((count + 31) / 32));
      EXPECT_FALSE(generic_kernels().logits_max({logits.data(), count, none.data()}).nan);
      logits[static_cast<size_t>(at)] = std::nanf("");
      EXPECT_TRUE(generic_kernels().logits_max({logits.data(), count, none.data()}).nan);
      logits[static_cast<size_t>(at)] = kInf;
      EXPECT_FALSE(generic_kernels().logits_max({logits.data(), count, nullptr}).nan);
    }
  }
}

// The draw is the prefix sum over weights that sum_exp's exp and a truncation give.
TEST(Reduce, DrawIsThePrefixSumInIndexOrder) {
  const Kernels& kernels = generic_kernels();
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto count = static_cast<int32_t>(RandomStream(seed).between(1, 30000));
    const auto logits = random_logits(seed, count);
    const auto mask = random_mask(seed, count);
    DrawArgs args{
        {logits.data(), count, seed % 2 == 0 ? nullptr : mask.data()}, 0.0f, 1.0f / 0.7f, 0};
    const LogitsMax max = kernels.logits_max(args.logits);
    if (max.index < 0) continue;
    args.max = max.max;
    std::vector<uint64_t> weights;
    for (int32_t i = 0; i < count; ++i) {
      const float x = (logits[static_cast<size_t>(i)] - max.max) * args.inverse_temperature;
      const LogitsArgs one{&x, 1, nullptr};
      weights.push_back(allowed(args.logits, i)
                            ? static_cast<uint64_t>(kernels.sum_exp(one, 0.0f) * 0x1.0p32f)
                            : 0);
    }
    const uint64_t total = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
    RandomStream random(seed);
    for (int i = 0; i < 30; ++i) {
      args.bits = i == 0 ? 0 : i == 1 ? ~uint64_t{0} : random.next();
      __extension__ typedef unsigned __int128 Wide;
      const auto target = static_cast<uint64_t>((Wide{args.bits} * total) >> 64);
      uint64_t sum = 0;
      int32_t want = -1;
      for (int32_t j = 0; want < 0; ++j) {
        sum += weights[static_cast<size_t>(j)];
        if (sum > target) want = j;
      }
      ASSERT_EQ(kernels.draw(args), want);
    }
  }
}

// Pearson's chi-square of 40000 draws over 8 outcomes: below 24.3 but for one seed in a thousand.
TEST(Reduce, DrawsFollowTheDistribution) {
  const std::vector<float> logits{0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -kInf, 1.5f, -0.5f, 0.25f};
  const float temperature = 1.3f;
  DrawArgs args{{logits.data(), 9, nullptr}, 2.0f, 1.0f / temperature, 0};
  std::vector<double> expected;
  for (float x : logits) expected.push_back(std::exp(static_cast<double>(x / temperature)));
  const double total = std::accumulate(expected.begin(), expected.end(), 0.0);
  std::vector<int> seen(9);
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) {
    args.bits = random_bits(42, 0, static_cast<uint64_t>(i));
    ++seen[static_cast<size_t>(generic_kernels().draw(args))];
  }
  EXPECT_EQ(seen[5], 0);
  double chi_square = 0;
  for (size_t i = 0; i < 9; ++i) {
    if (i == 5) continue;
    const double want = expected[i] / total * kDraws;
    chi_square += (seen[i] - want) * (seen[i] - want) / want;
  }
  EXPECT_LT(chi_square, 24.3);
}

}  // namespace
}  // namespace chorus::cpu
