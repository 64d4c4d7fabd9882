// What a server tells Prometheus.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "engine/metrics.h"
#include "server/http/server.h"

namespace chorus::metrics {

struct MetricsOptions {
  std::string model_name = {};  // the label of that name on every sample
  // Metrics that vLLM has are called as there, "vllm:...", in place of "chorus_...".
  bool vllm_names = false;
};

// An engine at some moment.
struct EngineSnapshot {
  RunnerMetrics metrics = {};
  Latencies latencies = {};
  int32_t block_size = 0;
  int64_t queued_requests = 0;        // that wait in front of the engine
  LatencyHistogram num_choices = {};  // that requests ask for, once for each prompt
};

// Counts what the transport reports, and writes everything down. Thread: any, and nothing waits.
class ServerMetrics {
 public:
  explicit ServerMetrics(MetricsOptions options) : options_(std::move(options)) {}

  // An exchange has ended.
  void count(const http::AccessRecord& record);

  // `engine` may be null: there is none yet. docs/operating.md lists the metrics.
  std::string text(const EngineSnapshot* engine, const http::ServerCounters& server) const;

 private:
  static constexpr size_t kNumStatuses = 600;

  const MetricsOptions options_;
  std::array<std::atomic<int64_t>, kNumStatuses> by_status_{};
  std::atomic<int64_t> sent_bytes_{0};
};

}  // namespace chorus::metrics
