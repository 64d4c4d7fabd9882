#include "server/metrics/server_metrics.h"

#include "server/metrics/prometheus_text.h"

namespace chorus::metrics {

namespace {

// Writes one family after the other, under the names that were asked for.
class Writer {
 public:
  explicit Writer(const MetricsOptions& options)
      : vllm_prefix_(options.vllm_names ? "vllm:" : "chorus_"),
        text_({{"model_name", options.model_name}}) {}

  // A metric that vLLM has, by its name without prefix.
  void shared(const char* name, MetricType type, const char* help) {
    text_.family(vllm_prefix_ + name, type, help);
  }
  void ours(const char* name, MetricType type, const char* help) {
    text_.family(std::string("chorus_") + name, type, help);
  }
  PrometheusText& text() { return text_; }

 private:
  const std::string vllm_prefix_;
  PrometheusText text_;
};

using enum MetricType;

// The share of KV memory that sessions hold; what only the prefix index holds is free.
double kv_share(const Usage& usage) {
  double total = 0;
  double held = 0;
  for (const GroupUsage& group : usage.groups) {
    const auto bytes = static_cast<double>(group.bytes_per_block);
    total += bytes * group.blocks_total;
    held += bytes * (group.blocks_total - group.blocks_free - group.blocks_cached);
  }
  return total > 0 ? held / total : 0;
}

void write_load(const EngineSnapshot& engine, Writer& writer) {
  const RunnerMetrics& metrics = engine.metrics;
  writer.shared("num_requests_running", kGauge, "Generations that hold KV blocks.");
  writer.text().sample(int64_t{metrics.running});
  writer.shared("num_requests_waiting", kGauge,
                "Generations that wait for KV blocks, and requests that wait for a session.");
  writer.text().sample(metrics.waiting + engine.queued_requests);
  writer.shared("kv_cache_usage_perc", kGauge,
                "Share of the KV memory that sessions hold, from 0 to 1.");
  writer.text().sample(kv_share(metrics.usage));
  writer.shared("cache_config_info", kGauge, "The KV cache: always 1.");
  int64_t num_blocks = 0;
  for (const GroupUsage& group : metrics.usage.groups) num_blocks += group.blocks_total;
  writer.text().sample(int64_t{1}, {{"block_size", std::to_string(engine.block_size)},
                                    {"num_gpu_blocks", std::to_string(num_blocks)}});
  writer.ours("sessions", kGauge, "Sessions of the engine.");
  writer.text().sample(int64_t{metrics.sessions});
  writer.ours("kv_blocks", kGauge, "KV blocks of each layer group, by who has them.");
  for (size_t i = 0; i < metrics.usage.groups.size(); ++i) {
    const GroupUsage& group = metrics.usage.groups[i];
    const std::string name = std::to_string(i);
    const int32_t held = group.blocks_total - group.blocks_free - group.blocks_cached;
    writer.text().sample(int64_t{held}, {{"group", name}, {"state", "held"}});
    writer.text().sample(int64_t{group.blocks_cached}, {{"group", name}, {"state", "cached"}});
    writer.text().sample(int64_t{group.blocks_free}, {{"group", name}, {"state", "free"}});
  }
}

void write_counters(const RunnerMetrics& metrics, Writer& writer) {
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    writer.shared(name, kCounter, help);
    writer.text().sample(value);
  };
  counter("prompt_tokens_total", "Tokens of prompts.", metrics.prompt_tokens);
  counter("generation_tokens_total", "Tokens that were generated.", metrics.generated_tokens);
  counter("prefix_cache_queries_total", "Tokens of prompts looked for in the prefix cache.",
          metrics.queried_tokens);
  counter("prefix_cache_hits_total", "Tokens of prompts that the prefix cache had.",
          metrics.cached_tokens);
  counter("num_preemptions_total", "Generations that lost their KV blocks, and resumed later.",
          metrics.preemptions);
  writer.shared("request_success_total", kCounter, "Generations that ended, by why.");
  writer.text().sample(metrics.stopped, {{"finished_reason", "stop"}});
  writer.text().sample(metrics.completed - metrics.stopped, {{"finished_reason", "length"}});
  writer.text().sample(metrics.cancelled, {{"finished_reason", "abort"}});
  writer.text().sample(metrics.failed, {{"finished_reason", "error"}});
  const auto own_counter = [&](const char* name, const char* help, int64_t value) {
    writer.ours(name, kCounter, help);
    writer.text().sample(value);
  };
  own_counter("steps_total", "Steps of the engine.", metrics.steps);
  own_counter("aborted_steps_total",
              "Steps that failed as a whole, and whose inputs ran again alone.",
              metrics.aborted_steps);
  own_counter("computed_tokens_total", "Tokens that were run, whatever for.",
              metrics.computed_tokens);
  own_counter("recomputed_tokens_total",
              "Tokens that were run again because their KV was given up.",
              metrics.recomputed_tokens);
  own_counter("evictions_total", "Idle sessions whose KV blocks were taken.", metrics.evictions);
}

void write_latencies(const Latencies& latencies, Writer& writer) {
  const auto histogram = [&](const char* name, const char* help, const LatencyHistogram& values) {
    writer.shared(name, kHistogram, help);
    writer.text().histogram(values);
  };
  histogram("time_to_first_token_seconds", "From submission to the first token.", latencies.ttft);
  histogram("inter_token_latency_seconds", "Between deliveries of tokens.", latencies.itl);
  histogram("request_time_per_output_token_seconds",
            "Mean time of each token but the first, once for each generation.", latencies.tpot);
  histogram("e2e_request_latency_seconds", "From submission to the end.", latencies.total);
  histogram("request_queue_time_seconds", "From submission to the first step.", latencies.queue);
  histogram("request_prefill_time_seconds", "From the first step to the first token.",
            latencies.prefill);
  histogram("request_decode_time_seconds", "From the first token to the last.", latencies.decode);
  histogram("request_inference_time_seconds", "From the first step to the last token.",
            latencies.inference);
  writer.ours("step_seconds", kHistogram, "Duration of each step of the engine.");
  writer.text().histogram(latencies.step);
}

void write_sizes(const EngineSnapshot& engine, Writer& writer) {
  const Latencies& sizes = engine.latencies;
  const auto histogram = [&](const char* name, const char* help, const LatencyHistogram& counts) {
    writer.shared(name, kHistogram, help);
    writer.text().count_histogram(counts);
  };
  histogram("request_prompt_tokens", "Tokens of the prompt, once for each generation.",
            sizes.prompt_tokens);
  histogram("request_generation_tokens", "Tokens generated, once for each generation.",
            sizes.generated_tokens);
  histogram("request_params_max_tokens", "Tokens that a generation may have at most.",
            sizes.max_new_tokens);
  histogram("request_params_n", "Choices asked for, once for each prompt.", engine.num_choices);
}

}  // namespace

void ServerMetrics::count(const http::AccessRecord& record) {
  const auto status = static_cast<size_t>(record.status);
  if (status < kNumStatuses) by_status_[status].fetch_add(1, std::memory_order_relaxed);
  sent_bytes_.fetch_add(static_cast<int64_t>(record.sent_bytes), std::memory_order_relaxed);
}

std::string ServerMetrics::text(const EngineSnapshot* engine,
                                const http::ServerCounters& server) const {
  Writer writer(options_);
  if (engine != nullptr) {
    write_load(*engine, writer);
    write_counters(engine->metrics, writer);
    write_latencies(engine->latencies, writer);
    write_sizes(*engine, writer);
  }
  writer.ours("http_requests_total", kCounter,
              "HTTP requests that have ended, by status; 499: the client left first.");
  for (size_t status = 0; status < kNumStatuses; ++status) {
    const int64_t count = by_status_[status].load(std::memory_order_relaxed);
    if (count > 0 || status == 200)
      writer.text().sample(count, {{"status", std::to_string(status)}});
  }
  writer.ours("http_sent_bytes_total", kCounter, "Bytes of HTTP answers.");
  writer.text().sample(sent_bytes_.load(std::memory_order_relaxed));
  writer.ours("http_clients_left_total", kCounter, "Requests whose client left before their end.");
  writer.text().sample(static_cast<int64_t>(server.left));
  writer.ours("http_connections_total", kCounter, "Connections that were accepted.");
  writer.text().sample(static_cast<int64_t>(server.accepted));
  writer.ours("http_connections_refused_total", kCounter, "Connections there was no place for.");
  writer.text().sample(static_cast<int64_t>(server.refused));
  writer.ours("http_open_connections", kGauge, "Connections.");
  writer.text().sample(int64_t{server.open_connections});
  writer.ours("http_open_requests", kGauge, "HTTP requests that are being answered.");
  writer.text().sample(int64_t{server.open_requests});
  return writer.text().take();
}

}  // namespace chorus::metrics
