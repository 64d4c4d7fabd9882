#include "server/metrics/prometheus_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace chorus::metrics {

namespace {

constexpr double kNsPerSecond = 1e9;

void add_escaped(std::string& text, std::string_view value) {
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') text += '\\';
    text += c;
  }
}

std::string_view type_name(MetricType type) {
  constexpr std::string_view kNames[] = {"counter", "gauge", "histogram"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

void PrometheusText::family(std::string_view name, MetricType type, std::string_view help) {
  name_ = name;
  text_.append("# HELP ").append(name).append(" ").append(help).append("\n");
  text_.append("# TYPE ").append(name).append(" ").append(type_name(type)).append("\n");
}

void PrometheusText::line(std::string_view suffix, const Labels& labels, std::string_view value) {
  text_.append(name_).append(suffix);
  char separator = '{';
  for (const Labels* part : {&common_, &labels}) {
    for (const auto& [name, content] : *part) {
      text_ += std::exchange(separator, ',');
      text_.append(name).append("=\"");
      add_escaped(text_, content);
      text_ += '"';
    }
  }
  if (separator == ',') text_ += '}';
  text_.append(" ").append(value).append("\n");
}

void PrometheusText::sample(int64_t value, const Labels& labels) {
  line("", labels, std::to_string(value));
}

void PrometheusText::sample(double value, const Labels& labels) {
  line("", labels, number_text(value));
}

void PrometheusText::histogram(const LatencyHistogram& histogram) {
  histogram_in(kNsPerSecond, histogram);
}

void PrometheusText::count_histogram(const LatencyHistogram& histogram) {
  histogram_in(1, histogram);
}

void PrometheusText::histogram_in(double unit, const LatencyHistogram& histogram) {
  int64_t so_far = 0;
  for (size_t i = 0; i < histogram.marks().size(); ++i) {
    so_far += histogram.mark_counts()[i];
    const double bound = static_cast<double>(histogram.marks()[i]) / unit;
    line("_bucket", {{"le", number_text(bound)}}, std::to_string(so_far));
  }
  line("_bucket", {{"le", "+Inf"}}, std::to_string(histogram.count()));
  line("_sum", {}, number_text(histogram.sum_ns() / unit));
  line("_count", {}, std::to_string(histogram.count()));
}

}  // namespace chorus::metrics
