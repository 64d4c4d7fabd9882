#include "engine/runner.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "base/sha256.h"
#include "base/thread.h"
#include "batching/decode_first_scheduler.h"
#include "engine/engine_loop.h"
#include "engine/port.h"

namespace chorus {
namespace {

constexpr int32_t kDefaultUnreadTokens = 1024;
constexpr int32_t kDefaultStepMs = 100;
constexpr int32_t kDefaultPriorityAgeMs = 30'000;

Result<int32_t> positive_or(const char* field, int32_t given, int32_t otherwise) {
  if (given < 0)
    return invalid_argument(field, "expected at least 1, found " + std::to_string(given));
  return given > 0 ? given : otherwise;
}

// The executor's packing hint decides the width of a step where nobody else does.
Result<SchedulerLimits> scheduler_limits(const RunnerOptions& options, const ExecutorInfo& info) {
  const SchedulerLimits given{.max_batch_tokens = options.max_batch_tokens,
                              .max_decode_sequences = options.max_decode_sequences,
                              .prefill_chunk = options.prefill_chunk};
  if (given.max_batch_tokens == 0 && info.preferred_batch_tokens > 0) {
    SchedulerLimits hinted = given;
    hinted.max_batch_tokens = info.preferred_batch_tokens;
    auto limits = DecodeFirstScheduler::derive(hinted);
    if (limits.ok()) return limits;
  }
  return DecodeFirstScheduler::derive(given);
}

Result<EffectiveOptions> derive(const RunnerOptions& options, const ExecutorInfo& info) {
  CHORUS_ASSIGN_OR_RETURN(const SchedulerLimits limits, scheduler_limits(options, info));
  EffectiveOptions effective;
  effective.max_batch_tokens = limits.max_batch_tokens;
  effective.max_decode_sequences = limits.max_decode_sequences;
  effective.prefill_chunk = limits.prefill_chunk;
  CHORUS_ASSIGN_OR_RETURN(
      effective.max_queued_generations,
      positive_or("max_queued_generations", options.max_queued_generations, info.max_sessions));
  CHORUS_ASSIGN_OR_RETURN(
      effective.max_unread_tokens,
      positive_or("max_unread_tokens", options.max_unread_tokens, kDefaultUnreadTokens));
  CHORUS_ASSIGN_OR_RETURN(effective.target_step_ms,
                          positive_or("target_step_ms", options.target_step_ms, kDefaultStepMs));
  CHORUS_ASSIGN_OR_RETURN(
      effective.priority_age_ms,
      positive_or("priority_age_ms", options.priority_age_ms, kDefaultPriorityAgeMs));
  CHORUS_ASSIGN_OR_RETURN(effective.shortest_first_ms,
                          positive_or("shortest_first_ms", options.shortest_first_ms, 0));
  effective.prefix_cache = options.prefix_cache && info.has_prefix_index;
  effective.executor = info;
  return effective;
}

}  // namespace

Runner::Runner(std::unique_ptr<Executor> executor, std::shared_ptr<EnginePort> port)
    : port_(std::move(port)), executor_(std::move(executor)) {}

Result<std::unique_ptr<Runner>> Runner::make(std::unique_ptr<Executor> executor,
                                             const RunnerOptions& options, const Clock& clock) {
  CHORUS_CHECK(executor != nullptr);
  auto port = std::make_shared<EnginePort>(clock);
  CHORUS_ASSIGN_OR_RETURN(port->options, derive(options, executor->info()));
  port->event_log = options.event_log;
  CHORUS_ASSIGN_OR_RETURN(
      auto scheduler,
      DecodeFirstScheduler::create({.max_batch_tokens = port->options.max_batch_tokens,
                                    .max_decode_sequences = port->options.max_decode_sequences,
                                    .prefill_chunk = port->options.prefill_chunk}));
  std::random_device entropy;
  const uint64_t seed = options.seed.value_or(static_cast<uint64_t>(entropy()) << 32 | entropy());
  std::unique_ptr<Runner> runner(new Runner(std::move(executor), std::move(port)));
  runner->loop_ =
      std::make_unique<EngineLoop>(*runner->executor_, std::move(scheduler), *runner->port_, seed);
  return runner;
}

Status Runner::start_thread() {
  Event started;
  Status status;
  {
    const MutexLock lock(join_mutex_);
    CHORUS_ASSIGN_OR_RETURN(thread_, Thread::start([loop = loop_.get(), &started, &status] {
                              status = loop->initialize();
                              const bool ok = status.ok();
                              started.set();  // from here on `status` and `started` may be gone
                              if (ok) loop->run();
                            }));
  }
  started.wait();
  return status;
}

Result<std::unique_ptr<Runner>> Runner::create(std::unique_ptr<Executor> executor,
                                               const RunnerOptions& options, const Clock& clock) {
  CHORUS_ASSIGN_OR_RETURN(auto runner, make(std::move(executor), options, clock));
  CHORUS_RETURN_IF_ERROR(runner->start_thread());
  return runner;
}

Result<std::unique_ptr<Runner>> Runner::create_without_thread(std::unique_ptr<Executor> executor,
                                                              const RunnerOptions& options,
                                                              const Clock& clock) {
  CHORUS_ASSIGN_OR_RETURN(auto runner, make(std::move(executor), options, clock));
  CHORUS_RETURN_IF_ERROR(runner->loop_->initialize());
  runner->port_->turn = [loop = runner->loop_.get()] { loop->poll(); };
  return runner;
}

bool Runner::turn() {
  CHORUS_CHECK(port_->turn != nullptr);
  return loop_->poll();
}

Runner::~Runner() { shutdown(); }

const EffectiveOptions& Runner::effective() const { return port_->options; }

Result<Session> Runner::open(const SessionOptions& options) {
  CHORUS_ASSIGN_OR_RETURN(auto shared, take_place(*port_));
  if (!port_->post(OpenCommand{shared, options})) {
    port_->sessions.give_back();
    return unavailable("engine", "the engine is stopping");
  }
  return Session(port_, std::move(shared));
}

namespace {

Status check_format(const KvFormat& here, const KvFormat& saved) {
  const auto check = [](const char* field, const std::string& expected,
                        const std::string& found) -> Status {
    if (expected == found) return {};
    return invalid_argument(field, "expected " + expected + ", found " + found +
                                       " in the saved session; its tokens alone can be used, and "
                                       "their KV computed again");
  };
  CHORUS_RETURN_IF_ERROR(check("identity", to_hex(here.identity), to_hex(saved.identity)));
  CHORUS_RETURN_IF_ERROR(check("numerics_version", std::to_string(here.numerics_version),
                               std::to_string(saved.numerics_version)));
  CHORUS_RETURN_IF_ERROR(check("kv_type", here.kv_type, saved.kv_type));
  CHORUS_RETURN_IF_ERROR(check("activations", here.activations, saved.activations));
  return check("isa", here.isa, saved.isa);
}

Status check_tokens(const ExecutorInfo& info, const std::vector<TokenId>& tokens) {
  if (tokens.size() > static_cast<size_t>(info.max_session_tokens))
    return invalid_argument("tokens",
                            "expected at most " + std::to_string(info.max_session_tokens) +
                                " tokens in a session, found " + std::to_string(tokens.size()));
  for (const TokenId token : tokens) {
    if (token < 0 || token >= info.vocabulary)
      return invalid_argument("tokens", "expected ids from 0 to " +
                                            std::to_string(info.vocabulary - 1) + ", found " +
                                            std::to_string(token));
  }
  return {};
}

}  // namespace

Result<Session> Runner::load(const SavedSession& saved, bool recompute,
                             const SessionOptions& options) {
  const ExecutorInfo& info = port_->options.executor;
  if (!recompute) CHORUS_RETURN_IF_ERROR(check_format(info.kv_format, saved.format));
  CHORUS_RETURN_IF_ERROR(check_tokens(info, saved.tokens));
  CHORUS_ASSIGN_OR_RETURN(auto shared, take_place(*port_));
  shared->position.store(static_cast<Position>(saved.tokens.size()), std::memory_order_release);
  auto reply = std::make_shared<Reply<SessionId>>();
  if (!port_->post(LoadCommand{shared, options, &saved, !recompute, reply})) {
    port_->sessions.give_back();
    return unavailable("engine", "the engine is stopping");
  }
  Session session(port_, std::move(shared));  // closed again when it could not be loaded
  port_->await(reply->ready());
  CHORUS_RETURN_IF_ERROR(reply->take().status());
  return session;
}

RunnerMetrics Runner::metrics() const {
  const MutexLock lock(port_->metrics_mutex);
  RunnerMetrics metrics = port_->metrics;
  metrics.queue = port_->latencies.queue.summary();
  metrics.ttft = port_->latencies.ttft.summary();
  metrics.itl = port_->latencies.itl.summary();
  metrics.tpot = port_->latencies.tpot.summary();
  metrics.total = port_->latencies.total.summary();
  metrics.step = port_->latencies.step.summary();
  metrics.waiting += port_->queue.taken();
  return metrics;
}

Latencies Runner::latencies() const {
  const MutexLock lock(port_->metrics_mutex);
  return port_->latencies;
}

std::optional<int64_t> Runner::busy_ns() const {
  const int64_t since = port_->busy_since_ns.load(std::memory_order_relaxed);
  if (since == EnginePort::kNotBusy) return std::nullopt;
  return port_->clock.now_ns() - since;
}

void Runner::shutdown() {
  port_->inbox.stop();
  const MutexLock lock(join_mutex_);
  thread_ = nullptr;
  if (port_->turn && !has_ended_) loop_->run();  // it only winds up: the inbox is stopped
  has_ended_ = true;
}

}  // namespace chorus
