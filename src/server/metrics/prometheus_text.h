// The text format of Prometheus, version 0.0.4.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/latency.h"

namespace chorus::metrics {

inline constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

using Label = std::pair<std::string, std::string>;  // a name of letters, and any text
using Labels = std::vector<Label>;

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

// Writes families one after the other: family(), then its samples. Names are ours, and not checked.
// Thread: one.
class PrometheusText {
 public:
  // `common` labels are on every sample.
  explicit PrometheusText(Labels common) : common_(std::move(common)) {}

  // `help` is one line.
  void family(std::string_view name, MetricType type, std::string_view help);
  // Of the family last begun.
  void sample(int64_t value, const Labels& labels = {});
  void sample(double value, const Labels& labels = {});
  // All samples of a histogram in seconds, with a bucket for each of its marks.
  void histogram(const LatencyHistogram& histogram);
  // The same of one whose samples are counts.
  void count_histogram(const LatencyHistogram& histogram);

  std::string take() { return std::move(text_); }

 private:
  void histogram_in(double unit, const LatencyHistogram& histogram);
  void line(std::string_view suffix, const Labels& labels, std::string_view value);

  const Labels common_;
  std::string name_;
  std::string text_;
};

// The shortest text that reads back to the same number; +Inf, -Inf and NaN as Prometheus has them.
std::string number_text(double value);

}  // namespace chorus::metrics
