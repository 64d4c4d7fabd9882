// chorus bench: how fast a model runs on this machine, through the same engine as every other verb.
#include <algorithm>
#include <cstdio>

#include "arguments.h"
#include "bench_report.h"
#include "bench_runs.h"
#include "machine_limits.h"
#include "machine_load.h"
#include "models.h"
#include "program/program.h"
#include "verbs.h"

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
  int measure_limits(Console& console, const Interrupt& interrupt);
  int open(Console& console);
  int run_tests(Console& console, const Interrupt& interrupt);
  void print(const Measurement& measurement, Console& console) const;
  void print_total(Console& console) const;

  std::vector<std::string> models_;  // one, or none with --machine
  std::string prompt_text_, generate_text_, batch_text_, shared_text_, reps_text_, tests_text_;
  bool profile_ = false;
  bool machine_ = false;
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
  std::optional<MachineLimits> limits_;
  int64_t started_ns_ = 0;
};

void BenchVerb::declare(CommandLine& line) {
  line.rest("MODEL", models_, "[MODEL]",
            std::string(kModelKinds) + "; --machine does without, and then measures nothing else");
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
  line.flag("--machine", machine_,
            "first measure what the machine can do with one thread and with --threads: reading "
            "memory, multiplying, a round trip between cores; then tests show the share of that");
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
  if (models_.size() > 1) return invalid_argument(models_[1], "expected no further argument");
  if (models_.empty() && !machine_) {
    return invalid_argument("MODEL", "expected " + std::string(kModelKinds) + ", or --machine");
  }
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
  options.profile = profile_ || machine_;  // limits need its counts
  options.event_log = std::make_shared<EventLog>();
  return {};
}

// Whether the decode tests have room; a shared prompt needs less than its sessions would alone.
Status BenchVerb::check_pool() const {
  if (!tests(Test::kDecode)) return {};
  const KvCapacity& capacity = engine_->runner().effective().capacity;
  for (const KvCapacity::Group& group : capacity.groups) {
    const int64_t needed = widest() * capacity.blocks_for(group, prompt_ + 1 + generate_);
    if (needed <= group.blocks) continue;
    return resource_exhausted(engine_options_.kv_blocks > 0 ? "--kv-blocks" : "--kv-memory",
                              "expected " + std::to_string(needed) +
                                  " KV blocks for the sessions of --batch, found " +
                                  std::to_string(group.blocks));
  }
  return {};
}

void BenchVerb::print(const Measurement& measurement, Console& console) const {
  const MachineLimits* limits = machine_ ? &*limits_ : nullptr;
  if (console.json()) {
    console.line(bench_json(measurement, reps_, limits));
    if (profile_) console.line(profile_json(measurement, limits));
  } else {
    console.text(bench_text(measurement, limits));
    if (profile_) console.text(profile_text(measurement, limits));
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

int BenchVerb::run_tests(Console& console, const Interrupt& interrupt) {
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
    }
  }
  return kDone;
}

int BenchVerb::measure_limits(Console& console, const Interrupt& interrupt) {
  console.progress("what the machine can do");
  const auto isa = choose_isa(engine_options_.force_isa);
  if (!isa.ok()) return console.error(isa.status(), kUsage);
  const int threads = engine_options_.threads > 0 ? engine_options_.threads : available_cores();
  auto limits = measure_machine(*isa, threads, interrupt);
  if (interrupt.requested()) return kInterrupted;
  if (!limits.ok()) return console.error(limits.status(), kFailed);
  limits_ = std::move(limits).value();
  forget_peak_resident_bytes();
  if (console.json()) {
    console.line(machine_json(*limits_));
  } else {
    console.text(machine_text(*limits_));
  }
  return kDone;
}

// The engine of the model, with what its tests need.
int BenchVerb::open(Console& console) {
  auto program = open_program(models_[0], 0, console);
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
  return kDone;
}

int BenchVerb::run(Console& console, Interrupt& interrupt) {
  int code = kDone;
  if (machine_) {
    interrupt.on_request([] {});  // it is looked at
    code = measure_limits(console, interrupt);
    interrupt.on_request({});
  }
  if (code == kDone && !models_.empty()) code = open(console);
  if (code == kDone && engine_ != nullptr) {
    interrupt.on_request([] {});
    load_.emplace();
    started_ns_ = clock_.now_ns();
    if (console.json()) {
      console.line(conditions_json(engine_->program(), models_[0], engine_->settings()));
    } else {
      console.text(conditions_text(engine_->program(), engine_->settings()) +
                   bench_heading(machine_));
    }
    code = run_tests(console, interrupt);
    print_total(console);
    interrupt.on_request({});
  }
  return code;
}

}  // namespace

std::unique_ptr<Verb> make_bench() { return std::make_unique<BenchVerb>(); }

}  // namespace chorus::cli
