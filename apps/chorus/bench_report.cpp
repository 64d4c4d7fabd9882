#include "bench_report.h"

#include <algorithm>
#include <cstdio>

#include "machine_load.h"
#include "models.h"
#include "program/program.h"
#include "version.h"

namespace chorus::cli {

namespace {

constexpr double kMiB = 1024.0 * 1024.0;

template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string percent(double share) { return share < 0 ? "-" : formatted("%.1f %%", 100 * share); }

json::Value spread_json(const Spread& spread) {
  json::Value value;
  value.set("min", spread.min);
  value.set("median", spread.median);
  value.set("max", spread.max);
  return value;
}

StepWork work_of(const OperatorUsage& usage) {
  return {static_cast<double>(usage.bytes), static_cast<double>(usage.int8_macs),
          static_cast<double>(usage.float_macs)};
}

// Of all steps of a test together.
StepWork work_of(const Measurement& measurement) {
  StepWork sum;
  for (const OperatorUsage& each : measurement.module.operators) {
    const StepWork work = work_of(each);
    sum.bytes += work.bytes;
    sum.int8_macs += work.int8_macs;
    sum.float_macs += work.float_macs;
  }
  return sum;
}

// The share of a limit that a time reaches; negative where there is no limit.
double share_reached(const StepLimit& limit, int64_t ns) {
  return limit.seconds > 0 && ns > 0 ? limit.seconds / (static_cast<double>(ns) * 1e-9) : -1;
}

json::Value limit_json(const Measurement& measurement, const MachineRates& rates) {
  const StepWork work = work_of(measurement);
  const StepLimit limit = limit_of(work, rates);
  const auto steps = static_cast<double>(std::max<int64_t>(1, measurement.steps));
  json::Value value;
  value.set("bytes_per_step", work.bytes / steps);
  value.set("int8_macs_per_step", work.int8_macs / steps);
  value.set("float_macs_per_step", work.float_macs / steps);
  value.set("bound", limit.is_memory ? "memory" : "compute");
  value.set("share", share_reached(limit, measurement.busy_ns));
  return value;
}

json::Value rates_json(const MachineRates& rates) {
  json::Value value;
  value.set("threads", rates.threads);
  value.set("read_bytes_per_s", spread_json(rates.read_bytes_per_s));
  value.set("int8_macs_per_s", spread_json(rates.int8_macs_per_s));
  value.set("float_macs_per_s", spread_json(rates.float_macs_per_s));
  return value;
}

std::string rates_text(const MachineRates& rates) {
  const auto giga = [](const Spread& spread) {
    return formatted("%8.1f (%.1f to %.1f)", spread.max * 1e-9, spread.min * 1e-9,
                     spread.max * 1e-9);
  };
  return formatted("%-7d  %-28s  %-28s  %s\n", rates.threads, giga(rates.read_bytes_per_s).c_str(),
                   giga(rates.int8_macs_per_s).c_str(), giga(rates.float_macs_per_s).c_str());
}

}  // namespace

json::Value share_json(double share) { return share < 0 ? json::Value() : json::Value(share); }

json::Value conditions_json(const Program& program, const std::string& path,
                            const EngineSettings& settings) {
  json::Value value;
  value.set("type", "conditions");
  value.set("cpu", cpu_model());
  value.set("threads", settings.threads);
  value.set("isa", isa_name(settings.isa));
  value.set("model", model_json(program, path));
  value.set("engine", engine_json(settings));
  value.set("version", version_json());
  return value;
}

std::string conditions_text(const Program& program, const EngineSettings& settings) {
  const json::Value version = version_json();
  return "cpu      " + cpu_model() + "\nthreads  " + std::to_string(settings.threads) + ", " +
         std::string(isa_name(settings.isa)) + "\nmodel    " + program.name() + ", hash " +
         model_json(program, "").find("hash")->as_string().substr(0, 16) + "\nchorus   " +
         version.find("version")->as_string() + ", commit " + version.find("commit")->as_string() +
         "\n\n";
}

json::Value machine_json(const MachineLimits& limits) {
  json::Array rates;
  rates.push_back(rates_json(limits.one));
  if (limits.all.threads != 1) rates.push_back(rates_json(limits.all));
  json::Value value;
  value.set("type", "machine");
  value.set("cpu", cpu_model());
  value.set("isa", isa_name(limits.isa));
  value.set("rates", std::move(rates));
  value.set("round_trip_ns",
            limits.round_trip_ns ? spread_json(*limits.round_trip_ns) : json::Value());
  value.set("foreign_load", share_json(limits.foreign_load));
  return value;
}

std::string machine_text(const MachineLimits& limits) {
  std::string text = "machine  " + cpu_model() + ", " + std::string(isa_name(limits.isa)) +
                     "\nthreads  reading GB/s, best (spread)   int8 GMAC/s                   "
                     "float GMAC/s\n";
  text += rates_text(limits.one);
  if (limits.all.threads != 1) text += rates_text(limits.all);
  if (limits.round_trip_ns) {
    text +=
        formatted("core to core and back: %.0f ns (%.0f to %.0f)\n", limits.round_trip_ns->median,
                  limits.round_trip_ns->min, limits.round_trip_ns->max);
  }
  return text + "others' share of the processors meanwhile: " + percent(limits.foreign_load) +
         "\n\n";
}

json::Value bench_json(const Measurement& measurement, int32_t reps, const MachineLimits* limits) {
  json::Value value;
  value.set("type", "bench");
  value.set("test", measurement.test);
  value.set("batch", measurement.batch);
  value.set("prompt", measurement.prompt);
  value.set("generate", measurement.generate);
  value.set("reps", reps);
  value.set("tokens_per_s", spread_json(measurement.tokens_per_s));
  value.set("wall_s", spread_json(measurement.wall_s));
  json::Value step;
  step.set("p50", measurement.step.p50_ms);
  step.set("p99", measurement.step.p99_ms);
  value.set("step_ms", std::move(step));
  value.set("kv_bytes", measurement.kv_bytes);
  value.set("cached_tokens", measurement.cached_tokens);
  value.set("overhead_share", measurement.overhead_share);
  value.set("foreign_load", share_json(measurement.foreign_load));
  value.set("resident_bytes", resident_bytes());
  if (limits != nullptr) value.set("limit", limit_json(measurement, limits->all));
  return value;
}

std::string bench_heading(bool has_limits) {
  return std::string(
             "test     batch  prompt  generate  tokens/s (min to max)         step ms  p99 ms  "
             "overhead  KV MiB  others") +
         (has_limits ? "  limit\n" : "\n");
}

std::string bench_text(const Measurement& measurement, const MachineLimits* limits) {
  const Spread& rate = measurement.tokens_per_s;
  std::string text = formatted(
      "%-8s %5d  %6d  %8d  %-28s %8.2f %7.2f  %6.2f %%  %6.1f  %6s", measurement.test.c_str(),
      measurement.batch, measurement.prompt, measurement.generate,
      formatted("%.1f (%.1f to %.1f)", rate.median, rate.min, rate.max).c_str(),
      measurement.step.p50_ms, measurement.step.p99_ms, 100 * measurement.overhead_share,
      static_cast<double>(measurement.kv_bytes) / kMiB, percent(measurement.foreign_load).c_str());
  if (limits != nullptr) {
    const StepLimit limit = limit_of(work_of(measurement), limits->all);
    text += "  " + percent(share_reached(limit, measurement.busy_ns)) + " of " +
            (limit.is_memory ? "memory" : "compute");
  }
  return text + "\n";
}

json::Value profile_json(const Measurement& measurement, const MachineLimits* limits) {
  json::Array operators;
  for (const OperatorUsage& each : measurement.module.operators) {
    json::Value entry;
    entry.set("name", each.name);
    entry.set("calls", each.calls);
    entry.set("ns", each.ns);
    entry.set("bytes", each.bytes);
    entry.set("int8_macs", each.int8_macs);
    entry.set("float_macs", each.float_macs);
    if (limits != nullptr) {
      const StepLimit limit = limit_of(work_of(each), limits->all);
      entry.set("limit_share", share_json(share_reached(limit, each.ns)));
    }
    operators.push_back(std::move(entry));
  }
  json::Value value;
  value.set("type", "profile");
  value.set("test", measurement.test);
  value.set("batch", measurement.batch);
  value.set("prompt", measurement.prompt);
  value.set("generate", measurement.generate);
  value.set("steps", measurement.steps);
  value.set("busy_ns", measurement.busy_ns);
  value.set("graph_ns", measurement.module.graph_ns);
  value.set("operators", std::move(operators));
  return value;
}

// Per step, so that tests of different lengths compare.
std::string profile_text(const Measurement& measurement, const MachineLimits* limits) {
  const auto steps = static_cast<double>(std::max<int64_t>(1, measurement.steps));
  const auto per_step = [&](int64_t count, double unit) {
    return static_cast<double>(count) / unit / steps;
  };
  std::string text =
      "  operator             calls  us a step   share  MB a step  int8 MMAC  float MMAC";
  text += limits != nullptr ? "  of the limit\n" : "\n";
  for (const OperatorUsage& each : measurement.module.operators) {
    text += formatted(
        "  %-17s %8.1f  %9.1f  %6s  %9.2f  %9.2f  %10.2f", each.name.c_str(),
        per_step(each.calls, 1), per_step(each.ns, 1e3),
        percent(static_cast<double>(each.ns) / static_cast<double>(measurement.busy_ns)).c_str(),
        per_step(each.bytes, 1e6), per_step(each.int8_macs, 1e6), per_step(each.float_macs, 1e6));
    if (limits != nullptr) {
      text += "  " + percent(share_reached(limit_of(work_of(each), limits->all), each.ns));
    }
    text += "\n";
  }
  return text;
}

}  // namespace chorus::cli
