// What chorus bench prints: each record as JSON, and as text for people.
#pragma once

#include <optional>
#include <string>

#include "bench_runs.h"
#include "chorus/engine_options.h"
#include "json/value.h"
#include "machine_limits.h"

namespace chorus::cli {

// "conditions": what was measured with what.
json::Value conditions_json(const Program& program, const std::string& path,
                            const EngineSettings& settings);
std::string conditions_text(const Program& program, const EngineSettings& settings);

// "machine".
json::Value machine_json(const MachineLimits& limits);
std::string machine_text(const MachineLimits& limits);

// "bench": one test. Where the machine was measured, with the limit of its steps.
json::Value bench_json(const Measurement& measurement, int32_t reps, const MachineLimits* limits);
std::string bench_heading(bool has_limits);
std::string bench_text(const Measurement& measurement, const MachineLimits* limits);

// "profile": the operators of one test.
json::Value profile_json(const Measurement& measurement, const MachineLimits* limits);
std::string profile_text(const Measurement& measurement, const MachineLimits* limits);

// A share that may not be known, as null.
json::Value share_json(double share);

}  // namespace chorus::cli
