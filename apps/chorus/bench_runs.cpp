#include "bench_runs.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "machine_load.h"
#include "program/program.h"

namespace chorus::cli {

namespace {

// Tokens of a session that keeps the engine busy while the sessions to be measured are submitted,
// so that they begin together.
constexpr int32_t kGateTokens = 64;
constexpr int32_t kWarmUpTokens = 8;  // at most, of a warm-up's generations
constexpr int kAttempts = 30;         // to have all sessions of a decode test run together

GenerationOptions generation_options(int32_t generate) {
  GenerationOptions options;
  options.max_new_tokens = generate;
  options.ignore_stop_tokens = true;
  return options;
}

int64_t held_bytes(const Usage& usage) {
  int64_t bytes = 0;
  for (const GroupUsage& group : usage.groups) {
    bytes += (group.blocks_total - group.blocks_free - group.blocks_cached) * group.bytes_per_block;
  }
  return bytes;
}

void add(ModuleUsage& total, const ModuleUsage& more, int64_t sign) {
  total.graph_ns += sign * more.graph_ns;
  for (const OperatorUsage& each : more.operators) {
    const auto same = [&](const OperatorUsage& other) { return other.name == each.name; };
    auto found = std::find_if(total.operators.begin(), total.operators.end(), same);
    if (found == total.operators.end()) {
      found = total.operators.insert(found, OperatorUsage{each.name});
    }
    found->calls += sign * each.calls;
    found->ns += sign * each.ns;
    found->bytes += sign * each.bytes;
    found->int8_macs += sign * each.int8_macs;
    found->float_macs += sign * each.float_macs;
  }
}

int64_t busy_ns(const RunnerMetrics& metrics) {
  return metrics.schedule_ns + metrics.execute_ns + metrics.deliver_ns;
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

std::vector<TokenId> BenchRuns::random_tokens(int32_t count) {
  RandomStream random(++num_prompts_);
  const auto vocabulary = static_cast<uint64_t>(engine_.program().vocabulary());
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(vocabulary));
  return tokens;
}

// Looks at the generations from time to time: often at first, then seldom enough not to be noticed.
Status BenchRuns::wait_for(std::vector<GenerationHandle>& handles) const {
  constexpr std::chrono::microseconds kLongest(50'000);
  std::chrono::microseconds pause(200);
  Update update;
  bool cancelled = false;
  for (GenerationHandle& handle : handles) {
    while (!handle.done()) {
      if (interrupt_.requested() && !std::exchange(cancelled, true)) {
        for (const GenerationHandle& each : handles) each.cancel();
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(kLongest, pause * 2);
      for (const GenerationHandle& each : handles) each.try_read(update);
    }
  }
  if (interrupt_.requested()) return Status(Code::kCancelled, "bench", "interrupted");
  for (const GenerationHandle& handle : handles) CHORUS_RETURN_IF_ERROR(handle.error());
  return {};
}

// What the engine counted and logged since `before`.
Status BenchRuns::note(const RunnerMetrics& before, Rep& rep) {
  const RunnerMetrics after = engine_.metrics();
  if (after.preemptions > before.preemptions || after.evictions > before.evictions) {
    return resource_exhausted("--kv-memory",
                              "sessions lost their KV blocks to others while they were measured");
  }
  const std::vector<EngineEvent> events = log_.take();
  rep.log = logged_run(events);
  rep.busy_ns = busy_ns(after) - busy_ns(before);
  rep.steps = after.steps - before.steps;
  rep.cached_tokens = after.cached_tokens - before.cached_tokens;
  rep.kv_bytes = held_bytes(after.usage);
  rep.module = after.usage.module;
  add(rep.module, before.usage.module, -1);
  return {};
}

template <typename Once>
Result<Measurement> BenchRuns::measure(Measurement measurement, const Once& once) {
  Rep warm_up;
  CHORUS_RETURN_IF_ERROR(once(std::min(measurement.generate, kWarmUpTokens), warm_up));
  std::vector<double> rates;
  std::vector<double> walls;
  std::vector<int64_t> steps_ns;
  const LoadMeter load;
  for (int32_t i = 0; i < reps_; ++i) {
    Rep rep;
    CHORUS_RETURN_IF_ERROR(once(measurement.generate, rep));
    rates.push_back(rep.tokens / rep.wall_s);
    walls.push_back(rep.wall_s);
    steps_ns.insert(steps_ns.end(), rep.steps_ns.begin(), rep.steps_ns.end());
    measurement.busy_ns += rep.busy_ns;
    measurement.steps += rep.steps;
    measurement.kv_bytes = std::max(measurement.kv_bytes, rep.kv_bytes);
    measurement.cached_tokens = rep.cached_tokens;
    add(measurement.module, rep.module, 1);
  }
  measurement.foreign_load = load.foreign_share().value_or(-1);
  measurement.tokens_per_s = spread_of(rates);
  measurement.wall_s = spread_of(walls);
  measurement.step = summarize(steps_ns);
  measurement.overhead_share = 1 - static_cast<double>(measurement.module.graph_ns) /
                                       static_cast<double>(measurement.busy_ns);
  return measurement;
}

// ---- Prefill ----

Status BenchRuns::prefill_once(int32_t prompt, Rep& rep) {
  CHORUS_ASSIGN_OR_RETURN(Session session, engine_.open_session());
  const RunnerMetrics before = engine_.metrics();
  log_.take();
  CHORUS_ASSIGN_OR_RETURN(auto handle,
                          session.generate(random_tokens(prompt), generation_options(1)));
  std::vector<GenerationHandle> handles{std::move(handle)};
  CHORUS_RETURN_IF_ERROR(wait_for(handles));
  CHORUS_RETURN_IF_ERROR(note(before, rep));
  session.close();
  rep.steps_ns = all_steps_ns(rep.log);
  rep.wall_s = seconds(rep.log.steps.back().end_ns - rep.log.first_submitted_ns);
  rep.tokens = prompt;
  return {};
}

Result<Measurement> BenchRuns::prefill(int32_t prompt) {
  sessions_.clear();
  Measurement measurement;
  measurement.test = "prefill";
  measurement.prompt = prompt;
  measurement.generate = 1;
  return measure(std::move(measurement),
                 [&](int32_t, Rep& rep) { return prefill_once(prompt, rep); });
}

// ---- Decode ----

Status BenchRuns::fit_sessions(int32_t count, int32_t prompt) {
  const auto wanted = static_cast<size_t>(count);
  if (session_tokens_ != prompt) sessions_.clear();
  session_tokens_ = prompt;
  if (sessions_.size() > wanted) sessions_.resize(wanted);
  std::vector<GenerationHandle> handles;
  while (sessions_.size() < wanted) {
    CHORUS_ASSIGN_OR_RETURN(Session session, engine_.open_session());
    CHORUS_ASSIGN_OR_RETURN(auto handle, session.append(random_tokens(prompt)));
    sessions_.push_back(std::move(session));
    handles.push_back(std::move(handle));
  }
  return wait_for(handles);
}

Status BenchRuns::decode_once(int32_t prompt, int32_t generate, Rep& rep) {
  const auto width = static_cast<int32_t>(sessions_.size());
  std::vector<Session> forks;
  for (const Session& session : sessions_) {
    CHORUS_ASSIGN_OR_RETURN(Session fork, session.clone(prompt));
    forks.push_back(std::move(fork));
  }
  CHORUS_ASSIGN_OR_RETURN(Session gate, engine_.open_session());
  GenerationHandle in_gate;
  RunnerMetrics before = engine_.metrics();
  log_.take();
  if (width > 1) {
    const int32_t tokens = std::min(kGateTokens, engine_.settings().context);
    CHORUS_ASSIGN_OR_RETURN(in_gate, gate.append(random_tokens(tokens)));
  }
  std::vector<GenerationHandle> generations;
  for (Session& fork : forks) {
    CHORUS_ASSIGN_OR_RETURN(auto handle,
                            fork.generate(random_tokens(1), generation_options(generate)));
    generations.push_back(std::move(handle));
  }
  if (width > 1) {
    in_gate.wait();
    const RunnerMetrics behind_gate = engine_.metrics();
    // Unless most was generated before this thread woke up.
    const int64_t generated = behind_gate.generated_tokens - before.generated_tokens;
    if (2 * generated < int64_t{width} * generate) before = behind_gate;
    gate.close();  // its blocks are free before those of the others are counted
  }
  CHORUS_RETURN_IF_ERROR(wait_for(generations));
  CHORUS_RETURN_IF_ERROR(note(before, rep));
  rep.steps_ns = decode_steps_ns(rep.log, width);
  int64_t sum = 0;
  for (const int64_t ns : rep.steps_ns) sum += ns;
  rep.wall_s = seconds(sum);
  rep.tokens = static_cast<double>(width) * static_cast<double>(rep.steps_ns.size());
  return {};
}

Result<Measurement> BenchRuns::decode(int32_t batch, int32_t prompt, int32_t generate) {
  CHORUS_RETURN_IF_ERROR(fit_sessions(batch, prompt));
  Measurement measurement;
  measurement.test = "decode";
  measurement.batch = batch;
  measurement.prompt = prompt;
  measurement.generate = generate;
  return measure(std::move(measurement), [&](int32_t tokens, Rep& rep) {
    // Where steps are short, the first sessions may be done before the last are submitted.
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      rep = {};
      CHORUS_RETURN_IF_ERROR(decode_once(prompt, tokens, rep));
      if (!rep.steps_ns.empty()) return Status();
    }
    return invalid_argument("--generate",
                            "expected more tokens: the sessions never ran all together");
  });
}

// ---- A shared prompt ----

Status BenchRuns::shared_once(int32_t batch, int32_t prompt, int32_t generate, Rep& rep) {
  const std::vector<TokenId> tokens = random_tokens(prompt);
  const bool forks = !engine_.settings().prefix_cache;
  std::vector<Session> sessions;
  std::vector<GenerationHandle> handles;
  const RunnerMetrics before = engine_.metrics();
  log_.take();
  CHORUS_ASSIGN_OR_RETURN(Session first, engine_.open_session());
  sessions.push_back(std::move(first));
  if (forks && prompt > 1) {
    CHORUS_ASSIGN_OR_RETURN(auto handle, sessions[0].append({tokens.begin(), tokens.end() - 1}));
    std::vector<GenerationHandle> prefix{std::move(handle)};
    CHORUS_RETURN_IF_ERROR(wait_for(prefix));
  }
  while (sessions.size() < static_cast<size_t>(batch)) {
    CHORUS_ASSIGN_OR_RETURN(Session session,
                            forks ? sessions[0].clone(prompt - 1) : engine_.open_session());
    sessions.push_back(std::move(session));
  }
  for (Session& session : sessions) {
    CHORUS_ASSIGN_OR_RETURN(auto handle,
                            session.generate(forks ? std::vector<TokenId>{tokens.back()} : tokens,
                                             generation_options(generate)));
    handles.push_back(std::move(handle));
  }
  CHORUS_RETURN_IF_ERROR(wait_for(handles));
  CHORUS_RETURN_IF_ERROR(note(before, rep));
  rep.steps_ns = decode_steps_ns(rep.log, batch);
  rep.wall_s = seconds(rep.log.last_ended_ns - rep.log.first_submitted_ns);
  rep.tokens = static_cast<double>(batch) * generate;
  return {};
}

Result<Measurement> BenchRuns::shared(int32_t batch, int32_t prompt, int32_t generate) {
  sessions_.clear();
  Measurement measurement;
  measurement.test = "shared";
  measurement.batch = batch;
  measurement.prompt = prompt;
  measurement.generate = generate;
  return measure(std::move(measurement),
                 [&](int32_t tokens, Rep& rep) { return shared_once(batch, prompt, tokens, rep); });
}

}  // namespace chorus::cli
