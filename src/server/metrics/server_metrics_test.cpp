#include "server/metrics/server_metrics.h"

#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

#include "engine/event_log.h"
#include "engine/module_engine_test.h"
#include "json/value.h"
#include "server/metrics/prometheus_text.h"
#include "server/metrics/testing/prometheus_parser.h"

namespace chorus::metrics {
namespace {

using chorus::testing::ModuleEngine;
using chorus::testing::Tokens;
using testing::PrometheusParser;
using Kind = EngineEvent::Kind;

EngineSnapshot snapshot_of(const Runner& runner) {
  return {.metrics = runner.metrics(),
          .latencies = runner.latencies(),
          .block_size = runner.effective().executor.block_size};
}

// What the log of events says, without the engine's own counts.
struct Truth {
  struct Generation {
    int64_t submitted = 0, first_step = 0, first_token = 0, last_token = 0;
    int32_t prompt = 0, delivered = 0;
  };
  std::map<Kind, int64_t> tokens;
  std::map<FinishReason, int64_t> ends;
  int64_t preemptions = 0;
  std::map<uint64_t, Generation> generations;
  std::map<std::string, std::vector<int64_t>> samples;  // by the name of their histogram

  explicit Truth(const std::vector<EngineEvent>& events) {
    for (const EngineEvent& event : events) add(event);
  }
  void add(const EngineEvent& event) {
    tokens[event.kind] += event.tokens;
    Generation& generation = generations[event.generation];
    const int64_t since_submission = event.time_ns - generation.submitted;
    if (event.kind == Kind::kSubmitted) {
      generation.submitted = event.time_ns;
      generation.prompt = event.tokens;
    }
    if (event.kind == Kind::kPreempted) ++preemptions;
    if (event.kind == Kind::kFirstStep) {
      generation.first_step = event.time_ns;
      samples["request_queue_time_seconds"].push_back(since_submission);
    }
    if (event.kind == Kind::kDelivered) {
      if (generation.delivered == 0) {
        generation.first_token = event.time_ns;
        samples["time_to_first_token_seconds"].push_back(since_submission);
      } else {
        samples["inter_token_latency_seconds"].push_back(event.time_ns - generation.last_token);
      }
      generation.last_token = event.time_ns;
      generation.delivered += event.tokens;
    }
    if (event.kind == Kind::kEnded) {
      samples["e2e_request_latency_seconds"].push_back(since_submission);
      add_end(event, generation);
    }
  }
  void add_end(const EngineEvent& event, const Generation& generation) {
    ++ends[event.reason];
    samples["request_prompt_tokens"].push_back(generation.prompt);
    samples["request_generation_tokens"].push_back(generation.delivered);
    if (generation.delivered == 0) return;
    const int64_t decode = generation.last_token - generation.first_token;
    if (generation.delivered > 1)
      samples["request_time_per_output_token_seconds"].push_back(decode /
                                                                 (generation.delivered - 1));
    samples["request_prefill_time_seconds"].push_back(generation.first_token -
                                                      generation.first_step);
    samples["request_decode_time_seconds"].push_back(decode);
    samples["request_inference_time_seconds"].push_back(generation.last_token -
                                                        generation.first_step);
  }
};

void expect_histogram(const PrometheusParser& found, const std::string& name,
                      const std::vector<int64_t>& samples) {
  SCOPED_TRACE(name);
  const bool is_time = name.ends_with("_seconds");
  const double unit = is_time ? 1e9 : 1;
  const auto count_up_to = [&](double bound) {
    return std::count_if(samples.begin(), samples.end(),
                         [&](int64_t ns) { return static_cast<double>(ns) <= bound * unit; });
  };
  int num_buckets = 0;
  for (const auto& [key, value] : found.families().at(name).samples) {
    if (key.first != "_bucket") continue;
    ++num_buckets;
    const std::string& bound = key.second.at("le");
    EXPECT_EQ(value, count_up_to(bound == "+Inf" ? 1e300 : std::strtod(bound.c_str(), nullptr)));
  }
  if (is_time) {
    EXPECT_GE(num_buckets, 20);
  } else {
    EXPECT_EQ(num_buckets, 10) << "1, 2, 5 and so on to 500 of 512, and all";
  }
  EXPECT_EQ(found.value(name, {}, "_count"), static_cast<double>(samples.size()));
  double sum = 0;
  for (const int64_t ns : samples) sum += static_cast<double>(ns) / unit;
  EXPECT_NEAR(found.value(name, {}, "_sum"), sum, 1e-9 * sum);
}

// Random generations that share prefixes, in a pool that is too small: some are cancelled, some
// stop, and some lose their blocks.
Truth run_traffic(ModuleEngine& engine, EventLog& log, uint64_t seed) {
  RandomStream random(seed);
  const Tokens shared = chorus::testing::random_tokens(random, 40);
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  std::vector<int64_t> max_tokens;
  for (int i = 0; i < 16; ++i) {
    sessions.push_back(engine.open());
    Tokens prompt = random.below(2) == 0 ? shared : Tokens();
    const Tokens own = chorus::testing::random_tokens(random, 20);
    prompt.insert(prompt.end(), own.begin(), own.end());
    GenerationOptions options;
    options.max_new_tokens = static_cast<int32_t>(random.between(1, 30));
    max_tokens.push_back(options.max_new_tokens);
    options.stop_tokens = {1, 2, 3};
    options.priority = static_cast<int32_t>(random.below(2));
    handles.push_back(sessions.back().generate(prompt, options).value());
    if (random.below(6) == 0) handles.back().cancel();
  }
  for (const GenerationHandle& handle : handles) handle.wait();
  engine.open().close();  // behind everything
  Truth truth(log.take());
  truth.samples["request_params_max_tokens"] = std::move(max_tokens);
  truth.samples["request_params_n"] = {1, 2, 1, 128, 3};  // of requests, which engines do not know
  return truth;
}

void check_traffic(uint64_t seed, bool vllm_names, double& preemptions, double& hits) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto log = std::make_shared<EventLog>();
  ManualClock clock;  // each step takes its own time, and nothing else takes any
  ModuleEngine engine(16, 14, 32, {.event_log = log, .seed = seed}, {}, 512, 20,
                      {{"forward", 1, 32, 0}}, &clock);
  RandomStream times(seed + 1000);
  engine.module.on_begin = [&] { clock.advance_ns(times.between(1'000, 2'000'000'000)); };
  const Truth truth = run_traffic(engine, *log, seed);
  EngineSnapshot snapshot = snapshot_of(*engine.runner);
  snapshot.num_choices = LatencyHistogram(latency_marks::of_counts(512));
  for (const int64_t n : truth.samples.at("request_params_n")) snapshot.num_choices.add(n);
  const ServerMetrics metrics({.model_name = "m", .vllm_names = vllm_names});
  PrometheusParser found;
  ASSERT_TRUE(found.parse(metrics.text(&snapshot, {}))) << found.error();
  const std::string prefix = vllm_names ? "vllm:" : "chorus_";
  const auto expect = [&](const std::string& name, int64_t expected,
                          const testing::LabelMap& labels = {}) {
    EXPECT_EQ(found.value(prefix + name, labels), static_cast<double>(expected)) << name;
  };
  const auto at = [&](Kind kind) {
    const auto tokens = truth.tokens.find(kind);
    return tokens == truth.tokens.end() ? 0 : tokens->second;
  };
  const auto ends = [&](FinishReason reason) {
    const auto number = truth.ends.find(reason);
    return number == truth.ends.end() ? 0 : number->second;
  };
  expect("prompt_tokens_total", at(Kind::kConsumed));
  expect("generation_tokens_total", at(Kind::kDelivered) - at(Kind::kCut));
  expect("prefix_cache_queries_total", at(Kind::kQueried));
  expect("prefix_cache_hits_total", at(Kind::kCached));
  expect("num_preemptions_total", truth.preemptions);
  expect("request_success_total", ends(FinishReason::kStop), {{"finished_reason", "stop"}});
  expect("request_success_total", ends(FinishReason::kLength), {{"finished_reason", "length"}});
  expect("request_success_total", ends(FinishReason::kCancelled), {{"finished_reason", "abort"}});
  expect("request_success_total", ends(FinishReason::kError), {{"finished_reason", "error"}});
  EXPECT_LE(at(Kind::kCached), at(Kind::kQueried));
  for (const auto& [name, samples] : truth.samples) expect_histogram(found, prefix + name, samples);
  EXPECT_EQ(truth.samples.size(), 12u);
  preemptions += found.value(prefix + "num_preemptions_total");
  hits += found.value(prefix + "prefix_cache_hits_total");
}

TEST(ServerMetrics, AreWhatTheEventLogSays) {
  double preemptions = 0;
  double hits = 0;
  for (uint64_t seed = 1; seed <= 10 && !::testing::Test::HasFailure(); ++seed)
    check_traffic(seed, seed % 2 == 0, preemptions, hits);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(hits, 0);
}

TEST(ServerMetrics, SayHowMuchIsHeldAndWaited) {
  ModuleEngine engine(16, 14, 32, {});
  Session session = engine.open();
  GenerationOptions options;
  options.max_new_tokens = 1;
  session.generate(Tokens(39, 7), options).value().wait();
  engine.open().close();
  EngineSnapshot snapshot = snapshot_of(*engine.runner);
  snapshot.queued_requests = 3;
  const ServerMetrics metrics({.model_name = "a \"b\"\n\\"});
  PrometheusParser found;
  ASSERT_TRUE(found.parse(metrics.text(&snapshot, {}))) << found.error();
  EXPECT_EQ(found.value("chorus_num_requests_running"), 0);
  EXPECT_EQ(found.value("chorus_num_requests_waiting"), 3);
  EXPECT_EQ(found.value("chorus_sessions"), 1);
  EXPECT_EQ(found.value("chorus_kv_blocks", {{"group", "0"}, {"state", "held"}}), 3);
  EXPECT_EQ(found.value("chorus_kv_blocks", {{"group", "0"}, {"state", "free"}}), 11);
  const double share = found.value("chorus_kv_cache_usage_perc");
  EXPECT_GT(share, 0.1);
  EXPECT_LE(share, 0.25);
  EXPECT_EQ(
      found.value("chorus_cache_config_info", {{"block_size", "16"}, {"num_gpu_blocks", "28"}}), 1);
  for (const auto& [name, family] : found.families()) {
    for (const auto& [key, value] : family.samples)
      EXPECT_EQ(key.second.at("model_name"), "a \"b\"\n\\") << name;
  }
}

TEST(ServerMetrics, CountWhatTheTransportReports) {
  ServerMetrics metrics({.model_name = "m"});
  for (const int status : {200, 200, 429, 499, 200, 0, 100'000, -1})
    metrics.count({.status = status, .sent_bytes = 10});
  PrometheusParser found;
  ASSERT_TRUE(found.parse(metrics.text(nullptr, {.accepted = 7, .left = 2, .open_requests = 1})))
      << found.error();
  EXPECT_EQ(found.value("chorus_http_requests_total", {{"status", "200"}}), 3);
  EXPECT_EQ(found.value("chorus_http_requests_total", {{"status", "429"}}), 1);
  EXPECT_EQ(found.value("chorus_http_requests_total", {{"status", "499"}}), 1);
  EXPECT_EQ(found.value("chorus_http_sent_bytes_total"), 80);
  EXPECT_EQ(found.value("chorus_http_connections_total"), 7);
  EXPECT_EQ(found.value("chorus_http_clients_left_total"), 2);
  EXPECT_EQ(found.value("chorus_http_open_requests"), 1);
}

// Every metric that the dashboard shows is published.
TEST(ServerMetrics, TheDashboardShowsWhatThereIs) {
  std::ifstream file(std::string(CHORUS_SOURCE_DIR) + "/docs/grafana-dashboard.json");
  std::ostringstream text;
  text << file.rdbuf();
  const auto dashboard = json::parse(text.str(), "dashboard");
  ASSERT_TRUE(dashboard.ok()) << dashboard.status().to_string();
  ModuleEngine engine(16, 14, 32, {});
  const EngineSnapshot snapshot = snapshot_of(*engine.runner);
  ServerMetrics metrics({.model_name = "m"});
  metrics.count({.status = 200});
  PrometheusParser found;
  ASSERT_TRUE(found.parse(metrics.text(&snapshot, {}))) << found.error();
  int num_names = 0;
  for (const json::Value& panel : dashboard->find("panels")->as_array()) {
    for (const json::Value& target : panel.find("targets")->as_array()) {
      const std::string& query = target.find("expr")->as_string();
      for (size_t at = query.find("chorus_"); at != std::string::npos;
           at = query.find("chorus_", at + 1)) {
        const size_t end = query.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789", at);
        std::string name = query.substr(at, end - at);
        if (!found.families().contains(name)) {
          for (const std::string suffix : {"_bucket", "_sum", "_count"}) {
            if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
          }
        }
        EXPECT_TRUE(found.families().contains(name)) << query;
        ++num_names;
      }
    }
  }
  EXPECT_GE(num_names, 15);
}

}  // namespace
}  // namespace chorus::metrics
