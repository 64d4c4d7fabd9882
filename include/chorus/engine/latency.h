// Latencies and what is said about them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace chorus {

// The q-th quantile is the sample of rank ceil(q * count): the smallest one that so many samples do
// not exceed. All 0 without samples.
struct LatencySummary {
  int64_t count = 0;
  double mean_ms = 0;
  double p50_ms = 0;
  double p90_ms = 0;
  double p99_ms = 0;
  double max_ms = 0;
};

inline int64_t rank_of(double quantile, int64_t count) {
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(quantile * static_cast<double>(count))),
                             1, count);
}

// Of all samples, in nanoseconds. Reorders them.
inline LatencySummary summarize(std::vector<int64_t>& samples) {
  LatencySummary summary;
  if (samples.empty()) return summary;
  std::sort(samples.begin(), samples.end());
  summary.count = static_cast<int64_t>(samples.size());
  double sum = 0;
  for (const int64_t sample : samples) sum += static_cast<double>(sample);
  const auto at = [&](double quantile) {
    const int64_t rank = rank_of(quantile, summary.count);
    return static_cast<double>(samples[static_cast<size_t>(rank - 1)]) * 1e-6;
  };
  summary.mean_ms = sum * 1e-6 / static_cast<double>(summary.count);
  summary.p50_ms = at(0.5);
  summary.p90_ms = at(0.9);
  summary.p99_ms = at(0.99);
  summary.max_ms = static_cast<double>(samples.back()) * 1e-6;
  return summary;
}

// Counts of samples in buckets of at most 1/32 of their values, so that a server can run for ever.
// Quantiles are the upper ends of buckets, at most 1/32 above the sample of that rank; count, mean
// and maximum are exact, and so are the counts at marks. Negative samples count as 0. It serves
// numbers of tokens as well, where a nanosecond stands for a token.
class LatencyHistogram {
 public:
  LatencyHistogram() = default;  // without marks
  // Ascending, in nanoseconds: how many samples are at most so long will be known exactly.
  explicit LatencyHistogram(std::span<const int64_t> marks)
      : marks_(marks.begin(), marks.end()), mark_counts_(marks.size()) {}

  // O(log(number of marks)), without allocating.
  void add(int64_t ns) {
    const auto value = static_cast<uint64_t>(std::max<int64_t>(0, ns));
    const auto mark = std::lower_bound(marks_.begin(), marks_.end(), ns) - marks_.begin();
    if (mark < std::ssize(marks_)) ++mark_counts_[static_cast<size_t>(mark)];
    ++counts_[bucket_of(value)];
    ++count_;
    sum_ += static_cast<double>(value);
    max_ = std::max(max_, value);
  }

  int64_t count() const { return count_; }
  double sum_ns() const { return sum_; }
  std::span<const int64_t> marks() const { return marks_; }
  // For each mark the samples that are at most so long, and longer than the mark before.
  std::span<const int64_t> mark_counts() const { return mark_counts_; }

  LatencySummary summary() const {
    LatencySummary summary;
    if (count_ == 0) return summary;
    summary.count = count_;
    summary.mean_ms = sum_ * 1e-6 / static_cast<double>(count_);
    summary.p50_ms = static_cast<double>(quantile(0.5)) * 1e-6;
    summary.p90_ms = static_cast<double>(quantile(0.9)) * 1e-6;
    summary.p99_ms = static_cast<double>(quantile(0.99)) * 1e-6;
    summary.max_ms = static_cast<double>(max_) * 1e-6;
    return summary;
  }

 private:
  static constexpr int kBits = 5;  // buckets of an octave: 2^kBits
  static constexpr uint64_t kFirst = uint64_t{1} << kBits;

  // Below 2^kBits every value has its own; above, the leading bit and kBits behind it decide.
  static size_t bucket_of(uint64_t value) {
    if (value < kFirst) return static_cast<size_t>(value);
    const int shift = static_cast<int>(std::bit_width(value)) - 1 - kBits;
    return static_cast<size_t>((static_cast<uint64_t>(shift) << kBits) + (value >> shift));
  }
  static uint64_t last_of(size_t bucket) {
    if (bucket < kFirst) return bucket;
    const int shift = static_cast<int>(bucket >> kBits) - 1;
    const uint64_t lead = bucket - (static_cast<uint64_t>(shift) << kBits);
    return (lead << shift) + ((uint64_t{1} << shift) - 1);
  }

  uint64_t quantile(double q) const {
    int64_t left = rank_of(q, count_);
    size_t bucket = 0;
    while (left > counts_[bucket]) left -= counts_[bucket++];
    return std::min(last_of(bucket), max_);
  }

  static constexpr size_t kNumBuckets = (64 - kBits) << kBits;
  std::vector<int64_t> marks_;
  std::vector<int64_t> mark_counts_;
  std::vector<int64_t> counts_ = std::vector<int64_t>(kNumBuckets);
  int64_t count_ = 0;
  double sum_ = 0;
  uint64_t max_ = 0;
};

}  // namespace chorus
