// Latencies as JSON.
#pragma once

#include "chorus/engine/metrics.h"
#include "json/value.h"

namespace chorus::cli {

// {count, mean, p50, p90, p99, max}, in milliseconds.
json::Value latency_json(const LatencySummary& latency);

// Those that an engine keeps, by name.
json::Value latencies_json(const RunnerMetrics& metrics);

}  // namespace chorus::cli
