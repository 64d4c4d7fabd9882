#include "engine/latency.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace chorus {
namespace {

// By counting, not by sorting.
int64_t naive_quantile(const std::vector<int64_t>& samples, double quantile) {
  int64_t best = -1;
  for (const int64_t sample : samples) {
    int64_t at_most = 0;
    for (const int64_t other : samples) at_most += other <= sample ? 1 : 0;
    const bool enough =
        static_cast<double>(at_most) >= quantile * static_cast<double>(samples.size());
    if (enough && (best < 0 || sample < best)) best = sample;
  }
  return best;
}

std::vector<int64_t> draw(uint64_t seed, size_t count) {
  RandomStream random(seed);
  std::vector<int64_t> samples;
  for (size_t i = 0; i < count; ++i)
    samples.push_back(static_cast<int64_t>(random.next() >> random.between(2, 63)));
  return samples;
}

TEST(Latency, SummariesAreExact) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<int64_t> samples = draw(seed, seed);
    const std::vector<int64_t> unsorted = samples;
    const LatencySummary summary = summarize(samples);
    EXPECT_EQ(summary.count, static_cast<int64_t>(seed));
    EXPECT_EQ(summary.p50_ms, static_cast<double>(naive_quantile(unsorted, 0.5)) * 1e-6);
    EXPECT_EQ(summary.p90_ms, static_cast<double>(naive_quantile(unsorted, 0.9)) * 1e-6);
    EXPECT_EQ(summary.p99_ms, static_cast<double>(naive_quantile(unsorted, 0.99)) * 1e-6);
    EXPECT_EQ(summary.max_ms, static_cast<double>(naive_quantile(unsorted, 1)) * 1e-6);
  }
  std::vector<int64_t> none;
  EXPECT_EQ(summarize(none).count, 0);
  EXPECT_EQ(LatencyHistogram().summary().max_ms, 0);
}

TEST(Latency, QuantilesOfAHistogramAreAtMostAThirtySecondAbove) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<int64_t> samples = draw(seed, 10 * seed);
    LatencyHistogram histogram;
    for (const int64_t sample : samples) histogram.add(sample);
    const LatencySummary found = histogram.summary();
    const LatencySummary exact = summarize(samples);
    EXPECT_EQ(found.count, exact.count);
    EXPECT_EQ(found.max_ms, exact.max_ms);
    EXPECT_NEAR(found.mean_ms, exact.mean_ms, exact.mean_ms * 1e-12);
    const auto check = [](double above, double sample) {
      EXPECT_GE(above, sample);
      EXPECT_LE(above, sample * (1 + 1.0 / 32));
    };
    check(found.p50_ms, exact.p50_ms);
    check(found.p90_ms, exact.p90_ms);
    check(found.p99_ms, exact.p99_ms);
  }
}

TEST(Latency, CountsAtMarksAreExact) {
  const std::vector<int64_t> marks = {0, 10, 20, 1000};
  LatencyHistogram histogram(marks);
  for (const int64_t sample : {-3, 0, 1, 9, 10, 11, 20, 21, 999, 1000, 1001, 1 << 30})
    histogram.add(sample);
  EXPECT_EQ(histogram.count(), 12);
  const auto counts = histogram.mark_counts();
  EXPECT_EQ(std::vector<int64_t>(counts.begin(), counts.end()), (std::vector<int64_t>{2, 3, 2, 3}));
  EXPECT_EQ(histogram.sum_ns(), 0 + 1 + 9 + 10 + 11 + 20 + 21 + 999 + 1000 + 1001 + (1 << 30));
}

TEST(Latency, SmallAndExtremeSamplesHaveTheirPlaces) {
  for (int64_t value = 0; value < 64; ++value) {
    LatencyHistogram histogram;
    histogram.add(value);
    histogram.add(1000);
    EXPECT_EQ(histogram.summary().p50_ms, static_cast<double>(value) * 1e-6);
  }
  LatencyHistogram histogram;
  histogram.add(-5);
  EXPECT_EQ(histogram.summary().p99_ms, 0);
  histogram.add(std::numeric_limits<int64_t>::max());
  EXPECT_GT(histogram.summary().p99_ms, 9e12);
}

}  // namespace
}  // namespace chorus
