#include "latencies.h"

namespace chorus::cli {

json::Value latency_json(const LatencySummary& latency) {
  json::Value value;
  value.set("count", latency.count);
  value.set("mean", latency.mean_ms);
  value.set("p50", latency.p50_ms);
  value.set("p90", latency.p90_ms);
  value.set("p99", latency.p99_ms);
  value.set("max", latency.max_ms);
  return value;
}

json::Value latencies_json(const RunnerMetrics& metrics) {
  json::Value value;
  value.set("queue", latency_json(metrics.queue));
  value.set("ttft", latency_json(metrics.ttft));
  value.set("itl", latency_json(metrics.itl));
  value.set("tpot", latency_json(metrics.tpot));
  value.set("total", latency_json(metrics.total));
  value.set("step", latency_json(metrics.step));
  return value;
}

}  // namespace chorus::cli
