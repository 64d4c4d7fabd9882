// chorus bench: how fast a model runs on this machine, through the same engine as every other verb.
#include <algorithm>
#include <cstdio>

#include "arguments.h"
#include "bench_runs.h"
#include "machine_load.h"
#include "models.h"
#include "program/program.h"
#include "verbs.h"
#include "version.h"

namespace chorus::cli {

namespace {

constexpr int32_t kMostSessions = 1024;  // of one test
constexpr double kMiB = 1024.0 * 1024.0;

enum class Test : uint8_t { kPrefill, kDecode, kShared };
const std::vector<std::string> kTestNames = {"prefill", "decode", "shared"};

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

json::Value spread_json(const Spread& spread) {
  json::Value value;
  value.set("min", spread.min);
  value.set("median", spread.median);
  value.set("max", spread.max);
  return value;
}

json::Value share_json(double share) { return share < 0 ? json::Value() : json::Value(share); }

class BenchVerb final : public Verb {
 public:
  BenchVerb() : Verb("bench", "how fast a model runs on this machine") {}
  void declare(CommandLine& line) override;
  Status parse() override;
  int run(Console& console, Interrupt& interrupt) override;

 private:
  Status parse_batches();
  Status parse_tests();
  bool tests(Test test) const {
    return std::find(tests_.begin(), tests_.end(), test) != tests_.end();
  }
  int32_t widest() const { return *std::max_element(batches_.begin(), batches_.end()); }
  int32_t longest() const;
  Status choose_engine_options(const Program& program);
  Status check_pool() const;
  void print_conditions(Console& console) const;
  int run_tests(Console& console, Interrupt& interrupt);
  void print(const Measurement& measurement, Console& console) const;
  void print_profile(const Measurement& measurement, Console& console) const;
  void print_total(Console& console) const;

  std::string model_, prompt_text_, generate_text_, batch_text_, shared_text_, reps_text_,
      tests_text_;
  bool profile_ = false;
  EngineFlags engine_flags_;

  const SteadyClock clock_;
  EngineOptions engine_options_;
  int32_t prompt_ = 512;
  int32_t generate_ = 128;
  int32_t shared_prefix_ = 0;  // 0: none
  int32_t reps_ = 3;
  std::vector<int32_t> batches_ = {1, 2, 4, 8, 16, 32};
  std::vector<Test> tests_;
  std::unique_ptr<Engine> engine_;
  std::optional<LoadMeter> load_;
  int64_t started_ns_ = 0;
};

void BenchVerb::declare(CommandLine& line) {
  line.argument("MODEL", model_, kModelKinds);
  line.group("Measurement");
  line.flag("--prompt", prompt_text_, "N",
            "tokens of a prompt: prefill consumes them, decode has them as context (default: 512)");
  line.flag("--generate", generate_text_, "N", "tokens that each session generates (default: 128)");
  line.flag("--batch", batch_text_, "LIST",
            "sessions that generate at once, a test each (default: 1,2,4,8,16,32)");
  line.flag("--shared-prefix", shared_text_, "N",
            "also the wall time of each number of sessions on one common prompt of N tokens");
  line.flag("--tests", tests_text_, "LIST",
            "some of prefill, decode, shared (default: prefill,decode, and shared with "
            "--shared-prefix)");
  line.flag("--reps", reps_text_, "N",
            "measured repetitions of each test, behind one that is not (default: 3)");
  line.flag("--profile", profile_, "also time, bytes and MACs of each kind of operator");
  engine_flags_.declare(line);
}

Status BenchVerb::parse_batches() {
  if (batch_text_.empty()) return {};
  batches_.clear();
  for (const std::string& part : split_list(batch_text_)) {
    const auto count = parse_count("--batch", part, 1, kMostSessions);
    if (!count.ok()) {
      return invalid_argument("--batch", "expected numbers from 1 to " +
                                             std::to_string(kMostSessions) +
                                             " with commas between, found \"" + batch_text_ + "\"");
    }
    const auto width = static_cast<int32_t>(*count);
    if (std::find(batches_.begin(), batches_.end(), width) != batches_.end()) {
      return invalid_argument("--batch", "expected each number once, found " + part + " again");
    }
    batches_.push_back(width);
  }
  return {};
}

Status BenchVerb::parse_tests() {
  if (tests_text_.empty()) {
    tests_ = {Test::kPrefill, Test::kDecode};
    if (shared_prefix_ > 0) tests_.push_back(Test::kShared);
    return {};
  }
  for (const std::string& part : split_list(tests_text_)) {
    CHORUS_ASSIGN_OR_RETURN(const int choice, parse_choice("--tests", part, kTestNames));
    const auto test = static_cast<Test>(choice);
    if (tests(test)) {
      return invalid_argument("--tests", "expected each test once, found " + part + " again");
    }
    tests_.push_back(test);
  }
  if (tests(Test::kShared) != (shared_prefix_ > 0)) {
    return invalid_argument("--tests", "expected shared together with --shared-prefix");
  }
  return {};
}

Status BenchVerb::parse() {
  CHORUS_ASSIGN_OR_RETURN(engine_options_, engine_flags_.parse(common_));
  const auto read = [](const char* flag, const std::string& text, int64_t high, int32_t& value) {
    if (text.empty()) return Status();
    CHORUS_ASSIGN_OR_RETURN(const int64_t count, parse_count(flag, text, 1, high));
    value = static_cast<int32_t>(count);
    return Status();
  };
  CHORUS_RETURN_IF_ERROR(read("--prompt", prompt_text_, kMaxTokensLimit, prompt_));
  CHORUS_RETURN_IF_ERROR(read("--generate", generate_text_, kMaxTokensLimit, generate_));
  CHORUS_RETURN_IF_ERROR(read("--shared-prefix", shared_text_, kMaxTokensLimit, shared_prefix_));
  CHORUS_RETURN_IF_ERROR(read("--reps", reps_text_, 1000, reps_));
  CHORUS_RETURN_IF_ERROR(parse_batches());
  return parse_tests();
}

// Tokens of the longest session of all tests.
int32_t BenchVerb::longest() const {
  int32_t most = 0;
  if (tests(Test::kPrefill)) most = prompt_ + 1;
  if (tests(Test::kDecode)) most = prompt_ + 1 + generate_;
  if (tests(Test::kShared)) most = std::max(most, shared_prefix_ + generate_);
  return most;
}

// What was not given is as large as the tests need: a pool for more sessions than they have would
// only take memory.
Status BenchVerb::choose_engine_options(const Program& program) {
  const int32_t context = engine_options_.context > 0
                              ? std::min(engine_options_.context, program.context())
                              : program.context();
  if (longest() > context) {
    const bool is_prefix = tests(Test::kShared) && shared_prefix_ + generate_ == longest();
    return invalid_argument(is_prefix ? "--shared-prefix" : "--prompt",
                            "expected sessions within the context of " + std::to_string(context) +
                                " tokens, found " + std::to_string(longest()) +
                                " with what they generate");
  }
  const auto at_least = [](const char* flag, int32_t given, int32_t needed) {
    if (given == 0 || given >= needed) return Status();
    return invalid_argument(flag, "expected at least " + std::to_string(needed) +
                                      " for --batch, found " + std::to_string(given));
  };
  const int32_t sessions = tests(Test::kDecode)   ? BenchRuns::sessions_for(widest())
                           : tests(Test::kShared) ? widest()
                                                  : 1;
  const int32_t width = tests(Test::kDecode) || tests(Test::kShared) ? widest() : 1;
  EngineOptions& options = engine_options_;
  CHORUS_RETURN_IF_ERROR(at_least("--max-sessions", options.max_sessions, sessions));
  CHORUS_RETURN_IF_ERROR(at_least("--max-decode-sequences", options.max_decode_sequences, width));
  if (options.max_sessions == 0) options.max_sessions = sessions;
  if (options.max_decode_sequences == 0) options.max_decode_sequences = std::max(32, width);
  if (options.context == 0) options.context = longest();
  options.profile = profile_;
  options.event_log = std::make_shared<EventLog>();
  return {};
}

// Whether the decode tests have room; a shared prompt needs less than its sessions would alone.
Status BenchVerb::check_pool() const {
  if (!tests(Test::kDecode)) return {};
  const KvCapacity& capacity = engine_->runner().effective().capacity;
  for (const KvCapacity::Group& group : capacity.groups) {
    const int64_t needed = widest() * capacity.blocks_for(group, longest());
    if (needed <= group.blocks) continue;
    return resource_exhausted("--kv-memory", "expected " + std::to_string(needed) +
                                                 " KV blocks for the sessions of --batch, found " +
                                                 std::to_string(group.blocks));
  }
  return {};
}

void BenchVerb::print_conditions(Console& console) const {
  const Program& program = engine_->program();
  const EngineSettings& settings = engine_->settings();
  const json::Value model = model_json(program, model_);
  if (console.json()) {
    json::Value value;
    value.set("type", "conditions");
    value.set("cpu", cpu_model());
    value.set("threads", settings.threads);
    value.set("isa", isa_name(settings.isa));
    value.set("model", model);
    value.set("engine", engine_json(settings));
    value.set("version", version_json());
    console.line(value);
    return;
  }
  const json::Value version = version_json();
  std::string text = "cpu      " + cpu_model() + "\n";
  text += "threads  " + std::to_string(settings.threads) + ", " +
          std::string(isa_name(settings.isa)) + "\n";
  text += "model    " + engine_->program().name() + ", hash " +
          model.find("hash")->as_string().substr(0, 16) + "\n";
  text += "chorus   " + version.find("version")->as_string() + ", commit " +
          version.find("commit")->as_string() + "\n\n";
  text +=
      "test     batch  prompt  generate  tokens/s (min to max)         step ms  p99 ms  overhead  "
      "KV MiB  others\n";
  console.text(text);
}

void BenchVerb::print(const Measurement& measurement, Console& console) const {
  if (console.json()) {
    json::Value value;
    value.set("type", "bench");
    value.set("test", measurement.test);
    value.set("batch", measurement.batch);
    value.set("prompt", measurement.prompt);
    value.set("generate", measurement.generate);
    value.set("reps", reps_);
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
    console.line(value);
    return;
  }
  char others[16] = "-";
  if (measurement.foreign_load >= 0) {
    std::snprintf(others, sizeof others, "%.1f %%", 100 * measurement.foreign_load);
  }
  char rate[64];
  std::snprintf(rate, sizeof rate, "%.1f (%.1f to %.1f)", measurement.tokens_per_s.median,
                measurement.tokens_per_s.min, measurement.tokens_per_s.max);
  char text[256];
  std::snprintf(text, sizeof text, "%-8s %5d  %6d  %8d  %-28s %8.2f %7.2f  %6.2f %%  %6.1f  %s\n",
                measurement.test.c_str(), measurement.batch, measurement.prompt,
                measurement.generate, rate, measurement.step.p50_ms, measurement.step.p99_ms,
                100 * measurement.overhead_share, static_cast<double>(measurement.kv_bytes) / kMiB,
                others);
  console.text(text);
}

// Per step, so that tests of different lengths compare.
void BenchVerb::print_profile(const Measurement& measurement, Console& console) const {
  const ModuleUsage& module = measurement.module;
  const auto steps = static_cast<double>(std::max<int64_t>(1, measurement.steps));
  if (console.json()) {
    json::Array operators;
    for (const OperatorUsage& each : module.operators) {
      json::Value entry;
      entry.set("name", each.name);
      entry.set("calls", each.calls);
      entry.set("ns", each.ns);
      entry.set("bytes", each.bytes);
      entry.set("int8_macs", each.int8_macs);
      entry.set("float_macs", each.float_macs);
      operators.push_back(std::move(entry));
    }
    json::Value value;
    value.set("type", "profile");
    value.set("test", measurement.test);
    value.set("batch", measurement.batch);
    value.set("prompt", measurement.prompt);
    value.set("generate", measurement.generate);
    value.set("steps", measurement.steps);
    value.set("graph_ns", module.graph_ns);
    value.set("operators", std::move(operators));
    console.line(value);
    return;
  }
  console.text(
      "  operator            calls    us a step  share   MB a step  int8 MMAC  float MMAC\n");
  for (const OperatorUsage& each : module.operators) {
    char text[160];
    std::snprintf(text, sizeof text, "  %-16s %8.1f  %11.1f  %4.1f %%  %10.2f  %9.2f  %10.2f\n",
                  each.name.c_str(), static_cast<double>(each.calls) / steps,
                  static_cast<double>(each.ns) * 1e-3 / steps,
                  100 * static_cast<double>(each.ns) / static_cast<double>(module.graph_ns),
                  static_cast<double>(each.bytes) * 1e-6 / steps,
                  static_cast<double>(each.int8_macs) * 1e-6 / steps,
                  static_cast<double>(each.float_macs) * 1e-6 / steps);
    console.text(text);
  }
}

void BenchVerb::print_total(Console& console) const {
  const int64_t pool = engine_->settings().kv_bytes;
  const double foreign = load_->foreign_share().value_or(-1);
  if (console.json()) {
    json::Value value;
    value.set("type", "summary");
    value.set("wall_s", static_cast<double>(clock_.now_ns() - started_ns_) * 1e-9);
    value.set("peak_resident_bytes", peak_resident_bytes());
    value.set("kv_pool_bytes", pool);
    value.set("foreign_load", share_json(foreign));
    console.line(value);
    return;
  }
  char text[160];
  std::snprintf(text, sizeof text, "\npeak memory %.1f MiB, KV pool %.1f MiB\n",
                static_cast<double>(peak_resident_bytes()) / kMiB,
                static_cast<double>(pool) / kMiB);
  console.text(text);
}

int BenchVerb::run_tests(Console& console, Interrupt& interrupt) {
  interrupt.on_request([] {});
  BenchRuns runs(*engine_, *engine_options_.event_log, interrupt, reps_);
  const auto run_one = [&](Test test, int32_t batch) {
    console.progress(kTestNames[static_cast<size_t>(test)] + ", " + std::to_string(batch) +
                     " sessions");
    if (test == Test::kPrefill) return runs.prefill(prompt_);
    if (test == Test::kDecode) return runs.decode(batch, prompt_, generate_);
    return runs.shared(batch, shared_prefix_, generate_);
  };
  for (const Test test : tests_) {
    for (const int32_t batch : test == Test::kPrefill ? std::vector<int32_t>{1} : batches_) {
      const auto measurement = run_one(test, batch);
      if (interrupt.requested()) return kInterrupted;
      if (!measurement.ok()) return console.error(measurement.status(), kFailed);
      print(*measurement, console);
      if (profile_) print_profile(*measurement, console);
    }
  }
  return kDone;
}

int BenchVerb::run(Console& console, Interrupt& interrupt) {
  auto program = open_program(model_, 0, console);
  if (!program.ok()) return program.exit_code;
  if (const Status status = choose_engine_options(*program.value); !status.ok()) {
    return console.error(status, kUsage);
  }
  auto engine = open_engine(program.value, engine_options_, clock_, console);
  if (!engine.ok()) return engine.exit_code;
  engine_ = std::move(engine.value);
  if (const Status status = check_pool(); !status.ok()) {
    const bool given = engine_options_.kv_memory_bytes > 0 || engine_options_.kv_blocks > 0;
    return console.error(status, given ? kUsage : kFailed);
  }
  load_.emplace();
  started_ns_ = clock_.now_ns();
  print_conditions(console);
  const int code = run_tests(console, interrupt);
  interrupt.on_request({});
  print_total(console);
  return code;
}

}  // namespace

std::unique_ptr<Verb> make_bench() { return std::make_unique<BenchVerb>(); }

}  // namespace chorus::cli
