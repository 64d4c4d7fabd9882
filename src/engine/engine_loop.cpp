// EngineLoop: commands, and the ends of generations.
#include "engine/engine_loop.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/random.h"

namespace chorus {
namespace {

// Requires: two tokens were delivered.
int64_t tpot_ns(const LiveGeneration& live) {
  return (live.last_token_ns - live.first_token_ns) / (live.num_delivered - 1);
}

}  // namespace

EngineLoop::EngineLoop(Executor& executor, std::unique_ptr<DecodeFirstScheduler> scheduler,
                       EnginePort& port, uint64_t seed)
    : executor_(executor),
      scheduler_(std::move(scheduler)),
      port_(port),
      seed_(seed),
      pacer_(int64_t{port.options.target_step_ms} * 1'000'000),
      order_(port.options.priority_age_ms, port.options.shortest_first_ms) {}

Status EngineLoop::initialize() {
  CHORUS_RETURN_IF_ERROR(executor_.initialize());
  KvCapacity& capacity = port_.options.capacity;
  capacity.block_size = port_.options.executor.block_size;
  capacity.max_step_tokens = port_.options.max_batch_tokens;
  for (const GroupUsage& group : executor_.usage().groups)
    capacity.groups.push_back({group.window, group.blocks_total});
  const LatencyHistogram counts(
      latency_marks::of_counts(port_.options.executor.max_session_tokens));
  {
    const MutexLock lock(port_.metrics_mutex);
    for (auto tokens :
         {&Latencies::prompt_tokens, &Latencies::generated_tokens, &Latencies::max_new_tokens})
      port_.latencies.*tokens = counts;
  }
  publish();
  return {};
}

void EngineLoop::run() {
  bool has_work = false;
  while (port_.inbox.take(has_work ? 0 : time_to_deadline(), commands_)) has_work = turn();
  handle_commands();
  end_everything();
  deliver();
}

bool EngineLoop::poll() {
  CHORUS_CHECK(port_.inbox.take(0, commands_));
  return turn();
}

bool EngineLoop::turn() {
  port_.busy_since_ns.store(port_.clock.now_ns(), std::memory_order_relaxed);
  handle_commands();
  end_overdue();
  admit();
  if (!commands_.empty() || !deliveries_.empty()) deliver();
  const bool had_work = step();
  port_.busy_since_ns.store(EnginePort::kNotBusy, std::memory_order_relaxed);
  return had_work;
}

void EngineLoop::handle_commands() {
  for (Command& command : commands_) std::visit([this](auto& typed) { handle(typed); }, command);
}

void EngineLoop::end_everything() {
  for (auto& [key, record] : sessions_) {
    if (record.live.has_value()) finish(record, FinishReason::kCancelled);
    if (record.is_in_executor()) executor_.close(record.id);
  }
  sessions_.clear();
  by_id_.clear();
  scheduler_->clear();
}

SessionRecord* EngineLoop::find(uint64_t session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

SessionRecord* EngineLoop::find_live(uint64_t session, uint64_t generation) {
  SessionRecord* record = find(session);
  const bool is_live =
      record != nullptr && record->live.has_value() && record->live->state->number() == generation;
  return is_live ? record : nullptr;
}

void EngineLoop::handle(OpenCommand& command) {
  SessionRecord& record = sessions_[command.session->key];
  record.shared = std::move(command.session);
  record.options = std::move(command.options);
  record.options.indexed = record.options.indexed && port_.options.prefix_cache;
  auto opened = executor_.open(record.options);
  if (opened.ok()) {
    record.id = *opened;
    by_id_[record.id] = &record;
  } else {
    record.broken = opened.status();
  }
}

void EngineLoop::handle(CloneCommand& command) {
  SessionRecord& record = sessions_[command.session->key];
  record.shared = std::move(command.session);
  SessionRecord* source = find(command.source);
  CHORUS_CHECK(source != nullptr);
  record.broken = source->broken;
  if (!record.broken.ok()) return;
  CHORUS_CHECK_LE(command.upto, source->position());
  Position shared = std::min(command.upto, source->executor_length);
  auto cloned = executor_.clone(source->id, shared);
  if (!cloned.ok() && cloned.status().field() == "upto") {
    shared = 0;  // a window has left behind what the clone needs: it is computed again
    cloned = executor_.clone(source->id, shared);
  }
  if (!cloned.ok()) {
    record.broken = cloned.status();
    return;
  }
  record.id = *cloned;
  record.options = source->options;
  record.sampling = source->sampling;
  by_id_[record.id] = &record;
  record.context.assign(source->context.begin(), source->context.begin() + command.upto);
  record.executor_length = shared;
  record.was_loaded = shared > 0 && source->was_loaded;
  record.computed = std::min(command.upto, source->computed);
  record.last_used = source->last_used = next_use_++;
}

void EngineLoop::handle(RewindCommand& command) {
  SessionRecord* record = find(command.session);
  CHORUS_CHECK(record != nullptr && !record->live.has_value());
  record->ended.number = 0;  // nobody cuts what was rewound
  record->last_used = next_use_++;
  cut_context(*record, std::min(command.length, record->position()));
  if (record->broken.ok()) drop_surplus(*record);
}

void EngineLoop::leave_executor(SessionRecord& record) {
  executor_.close(record.id);
  by_id_.erase(record.id);
}

void EngineLoop::handle(SuspendCommand& command) {
  SessionRecord* record = find(command.session);
  CHORUS_CHECK(record != nullptr);
  if (!record->is_in_executor()) return;
  if (record->live.has_value() && record->live->is_running) {
    preempt(*record);
  } else if (record->executor_length > 0) {
    evict(*record);
  }
  leave_executor(*record);
  record->is_suspended = true;
}

// The executor knows nothing of it any more: the choices of a generation that had begun are set
// anew, and what they remember follows from the tokens, which are computed again.
void EngineLoop::handle(ReturnCommand& command) {
  SessionRecord* record = find(command.session);
  CHORUS_CHECK(record != nullptr);
  if (!std::exchange(record->is_suspended, false)) return;
  auto opened = executor_.open(record->options);
  Status status = opened.status();
  if (opened.ok()) {
    record->id = *opened;
    by_id_[record->id] = record;
    if (record->live.has_value() && record->live->was_admitted)
      status = executor_.set_sampling(record->id, sampling_of(*record));
  } else {
    record->broken = status;
  }
  if (!status.ok() && record->live.has_value())
    finish(*record, FinishReason::kError, std::move(status));
}

void EngineLoop::handle(CloseCommand& command) {
  SessionRecord* record = find(command.session);
  CHORUS_CHECK(record != nullptr);
  if (record->live.has_value()) finish(*record, FinishReason::kCancelled);
  if (record->is_in_executor()) leave_executor(*record);
  sessions_.erase(command.session);
  if (command.closed != nullptr) closed_.push_back(std::move(command.closed));
}

void EngineLoop::handle(StartCommand& command) {
  SessionRecord* record = find(command.generation->session());
  CHORUS_CHECK(record != nullptr && !record->live.has_value());
  const GenerationOptions& options = command.generation->options();
  LiveGeneration& generation = record->live.emplace();
  generation.state = std::move(command.generation);
  generation.prompt = std::move(command.delta);
  generation.prompt_begin = record->position();
  generation.prompt_end = record->position() + static_cast<Position>(generation.prompt.size());
  generation.next_score =
      std::max(generation.prompt_begin, options.score_from.value_or(BatchInput::kNoScores));
  generation.max_new_tokens = options.max_new_tokens;
  generation.standing = {
      .priority = options.priority,
      .arrived_ns = generation.state->submitted_ns(),
      .tokens = static_cast<int64_t>(generation.prompt.size()) + options.max_new_tokens,
      .number = generation.state->number()};
  generation.seed = options.seed.value_or(
      random_bits(seed_, options.sampling.choice, generation.state->number()));
  if (options.deadline_ns.has_value())
    generation.deadline_ns =
        generation.state->submitted_ns() +
        std::min(*options.deadline_ns, std::numeric_limits<int64_t>::max() / 2);
  log({.kind = EngineEvent::Kind::kSubmitted,
       .time_ns = generation.state->submitted_ns(),
       .session = record->shared->key,
       .generation = generation.state->number(),
       .tokens = static_cast<int32_t>(generation.prompt.size())});
  wait_in_line(*record);
  if (!record->broken.ok()) finish(*record, FinishReason::kError, record->broken);
}

void EngineLoop::handle(CancelCommand& command) {
  SessionRecord* record = find_live(command.session, command.generation);
  if (record != nullptr) finish(*record, FinishReason::kCancelled);
}

void EngineLoop::handle(FinishAtCommand& command) {
  const int32_t n = command.num_tokens;
  if (SessionRecord* record = find_live(command.session, command.generation)) {
    LiveGeneration& live = *record->live;
    live.finish_at = live.finish_at == 0 ? n : std::min(live.finish_at, n);
    if (live.num_delivered < n) return;
    metrics_.generated_tokens -= live.num_delivered - n;
    log(EngineEvent::Kind::kCut, *record, live.num_delivered - n);
    live.num_delivered = n;
    cut_context(*record, live.prompt_end + n);
    finish(*record, FinishReason::kStop);
    return;
  }
  SessionRecord* record = find(command.session);
  // Once the session's next generation was submitted, its context stands.
  if (record == nullptr || record->live.has_value() || record->ended.number != command.generation)
    return;
  if (n >= record->ended.num_delivered) return;
  metrics_.generated_tokens -= record->ended.num_delivered - n;
  log({.kind = EngineEvent::Kind::kCut,
       .time_ns = port_.clock.now_ns(),
       .session = record->shared->key,
       .generation = command.generation,
       .tokens = record->ended.num_delivered - n});
  record->ended.num_delivered = n;
  cut_context(*record, record->ended.prompt_end + n);
}

void EngineLoop::handle(ResumeCommand& command) {
  SessionRecord* record = find_live(command.session, command.generation);
  if (record == nullptr || !record->live->is_paused) return;
  record->live->is_paused = false;
  if (record->live->is_running) submit_decode(*record);
}

void EngineLoop::set_executor_length(SessionRecord& record, Position length) {
  record.executor_length = length;
  record.attached = 0;
  if (length == 0) record.was_loaded = false;
  record.computed = std::max(record.computed, std::min(length, record.position()));
}

// While a generation is live.
void EngineLoop::publish_position(SessionRecord& record) {
  record.computed = std::max(record.computed, std::min(record.executor_length, record.position()));
  record.shared->position.store(record.position(), std::memory_order_release);
}

void EngineLoop::cut_context(SessionRecord& record, Position length) {
  record.context.resize(static_cast<size_t>(length));
  record.computed = std::min(record.computed, length);
  record.shared->lower_position(length);
}

// ---- The end of a generation ----

void EngineLoop::finish(SessionRecord& record, FinishReason reason, Status error,
                        int32_t first_token, int32_t num_tokens) {
  LiveGeneration& live = *record.live;
  if (live.is_running) {
    (void)scheduler_->cancel(record.id);
    std::erase(running_, &record);
  } else {
    std::erase(waiting_, &record);
    if (record.attached > 0) drop_surplus(record);
  }
  if (!live.was_admitted) port_.queue.give_back();
  switch (reason) {
    case FinishReason::kStop:
      ++metrics_.stopped;
      [[fallthrough]];
    case FinishReason::kLength:
      ++metrics_.completed;
      break;
    case FinishReason::kCancelled:
      ++metrics_.cancelled;
      break;
    case FinishReason::kError:
      ++metrics_.failed;
      break;
  }
  record.ended = {live.state->number(), live.prompt_end, live.num_delivered};
  Delivery& delivery = add_delivery(record);
  delivery.first_token = first_token;
  delivery.num_tokens = num_tokens;
  delivery.ending = Ending{reason, std::move(error)};
  const int64_t now = port_.clock.now_ns();
  measure_end(live, now);
  log({.kind = EngineEvent::Kind::kEnded,
       .time_ns = now,
       .session = record.shared->key,
       .generation = live.state->number(),
       .tokens = live.num_delivered,
       .reason = reason});
  record.live.reset();
  record.last_used = next_use_++;
  record.shared->is_live.store(false, std::memory_order_release);
}

void EngineLoop::measure_end(const LiveGeneration& live, int64_t now) {
  measure(&Latencies::total, now - live.state->submitted_ns());
  measure(&Latencies::prompt_tokens, std::ssize(live.prompt));
  measure(&Latencies::generated_tokens, live.num_delivered);
  if (live.max_new_tokens > 0) measure(&Latencies::max_new_tokens, live.max_new_tokens);
  if (live.num_delivered > 1) measure(&Latencies::tpot, tpot_ns(live));
  if (live.num_delivered == 0) return;
  measure(&Latencies::prefill, live.first_token_ns - *live.first_step_ns);
  measure(&Latencies::decode, live.last_token_ns - live.first_token_ns);
  measure(&Latencies::inference, live.last_token_ns - *live.first_step_ns);
}

GenerationMetrics EngineLoop::metrics_of(const LiveGeneration& generation) const {
  const auto ms_since = [](int64_t from, int64_t to) {
    return static_cast<double>(to - from) * 1e-6;
  };
  const int64_t submitted = generation.state->submitted_ns();
  const int64_t now = port_.clock.now_ns();
  GenerationMetrics metrics;
  metrics.total_ms = ms_since(submitted, now);
  metrics.prompt_tokens = static_cast<int32_t>(generation.prompt.size());
  metrics.recomputed_tokens = generation.recomputed_tokens;
  metrics.cached_tokens = generation.cached_tokens;
  metrics.preemptions = generation.preemptions;
  metrics.generated_tokens = generation.num_delivered;
  metrics.seed = generation.seed;
  metrics.queue_ms = ms_since(submitted, generation.first_step_ns.value_or(now));
  if (generation.num_delivered > 0)
    metrics.ttft_ms = ms_since(submitted, generation.first_token_ns);
  if (generation.num_delivered > 1) metrics.tpot_ms = ms_since(0, tpot_ns(generation));
  return metrics;
}

Delivery& EngineLoop::add_delivery(SessionRecord& record) {
  Delivery& delivery = deliveries_.emplace_back();
  delivery.state = record.live->state;
  delivery.progress = {metrics_of(*record.live), std::exchange(record.live->itl_ns, {})};
  return delivery;
}

// ---- What is told of it ----

void EngineLoop::log(EngineEvent::Kind kind, const SessionRecord& record, int32_t tokens) {
  log({.kind = kind,
       .time_ns = port_.clock.now_ns(),
       .session = record.shared->key,
       .generation = record.live.has_value() ? record.live->state->number() : 0,
       .tokens = tokens});
}

void EngineLoop::log(const EngineEvent& event) {
  if (port_.event_log != nullptr) events_.push_back(event);
}

}  // namespace chorus
