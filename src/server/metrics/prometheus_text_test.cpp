#include "server/metrics/prometheus_text.h"

#include <cmath>
#include <gtest/gtest.h>

#include "server/metrics/testing/prometheus_parser.h"

namespace chorus::metrics {
namespace {

using testing::PrometheusParser;

TEST(PrometheusText, IsAsTheFormatSays) {
  PrometheusText text(Labels{{"model_name", "m"}});
  text.family("a_total", MetricType::kCounter, "What a is.");
  text.sample(int64_t{3});
  text.sample(int64_t{4}, {{"kind", "x"}});
  text.family("b", MetricType::kGauge, "b.");
  text.sample(0.25);
  LatencyHistogram histogram(std::vector<int64_t>{1'000'000, 2'500'000'000});
  for (const int64_t ms : {1, 2, 3000}) histogram.add(ms * 1'000'000);
  text.family("c_seconds", MetricType::kHistogram, "c.");
  text.histogram(histogram);
  EXPECT_EQ(text.take(), R"(# HELP a_total What a is.
# TYPE a_total counter
a_total{model_name="m"} 3
a_total{model_name="m",kind="x"} 4
# HELP b b.
# TYPE b gauge
b{model_name="m"} 0.25
# HELP c_seconds c.
# TYPE c_seconds histogram
c_seconds_bucket{model_name="m",le="0.001"} 1
c_seconds_bucket{model_name="m",le="2.5"} 2
c_seconds_bucket{model_name="m",le="+Inf"} 3
c_seconds_sum{model_name="m"} 3.003
c_seconds_count{model_name="m"} 3
)");
}

TEST(PrometheusText, AnyLabelReadsBack) {
  for (const std::string label :
       {"", "plain", "a\"b", "a\\", "\\n", "a\nb", "\\\"\n\\", "\xc3\xa4 {}=,"}) {
    PrometheusText text(Labels{{"model_name", label}});
    text.family("a", MetricType::kGauge, "a.");
    text.sample(int64_t{1});
    PrometheusParser parser;
    ASSERT_TRUE(parser.parse(text.take())) << parser.error();
    const auto& [key, value] = *parser.families().at("a").samples.begin();
    EXPECT_EQ(key.second.at("model_name"), label);
    EXPECT_EQ(value, 1);
  }
}

TEST(PrometheusText, NumbersReadBackToTheSameBits) {
  for (const double value : {0.0, 0.1, 1e-9, 1.0 / 3, 1e300, 123456789.125, -2.5})
    EXPECT_EQ(std::strtod(number_text(value).c_str(), nullptr), value);
  EXPECT_EQ(number_text(INFINITY), "+Inf");
  EXPECT_EQ(number_text(-INFINITY), "-Inf");
  EXPECT_EQ(number_text(NAN), "NaN");
}

// The reader that the tests lean on refuses what is wrong.
TEST(PrometheusParser, IsStrict) {
  const std::string head = "# HELP a_total x\n# TYPE a_total counter\n";
  const auto takes = [](const std::string& text) { return PrometheusParser().parse(text); };
  EXPECT_TRUE(takes(head + "a_total 1\n"));
  EXPECT_TRUE(takes(head + "a_total{b=\"c\",d=\"\"} 1.5e3\n"));
  for (const std::string& text : {head,
                                  head + "a_total 1",
                                  head + "a_total  1\n",
                                  head + "a_total x\n",
                                  head + "a_total\n",
                                  head + "a_total 1 \n",
                                  head + "a_total -1\n",
                                  head + "a_total{b=c} 1\n",
                                  head + "a_total{b=\"c} 1\n",
                                  head + "a_total{b=\"\\t\"} 1\n",
                                  head + "a_total{1=\"c\"} 1\n",
                                  head + "a_total{b=\"c\",b=\"d\"} 1\n",
                                  head + "a_total{b=\"c\"}1\n",
                                  head + "a_total{b=\"c\",} 1\n",
                                  head + "a_total 1\na_total 2\n",
                                  head + "b_total 1\n",
                                  head + "a_total_sum 1\n",
                                  head + "a_total 1\n" + head + "a_total{x=\"y\"} 1\n",
                                  std::string("a_total 1\n"),
                                  std::string("# HELP a_total x\na_total 1\n"),
                                  std::string("# HELP a x\n# TYPE a counter\na 1\n"),
                                  std::string("# HELP a x\n# TYPE a thing\na 1\n")})
    EXPECT_FALSE(takes(text)) << text;
  const std::string histogram = "# HELP h x\n# TYPE h histogram\n";
  EXPECT_TRUE(
      takes(histogram + "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n"));
  for (const std::string lines :
       {"h_bucket{le=\"1\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n",
        "h_bucket{le=\"1\"} 1\nh_sum 3\nh_count 1\n",
        "h_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 3\n", "h_bucket{le=\"+Inf\"} 2\nh_count 2\n",
        "h_bucket{le=\"+Inf\"} 2\nh_sum 3\n", "h_bucket 2\nh_sum 3\nh_count 2\n", "h 1\n"})
    EXPECT_FALSE(takes(histogram + lines)) << lines;
}

}  // namespace
}  // namespace chorus::metrics
