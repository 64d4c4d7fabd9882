#include "engine/engine_loop.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/random.h"

namespace chorus {

EngineLoop::EngineLoop(Executor& executor, std::unique_ptr<DecodeFirstScheduler> scheduler,
                       EnginePort& port, uint64_t seed)
    : executor_(executor), scheduler_(std::move(scheduler)), port_(port), seed_(seed) {}

Status EngineLoop::initialize() {
  CHORUS_RETURN_IF_ERROR(executor_.initialize());
  pool_blocks_ = std::numeric_limits<int32_t>::max();
  for (const GroupUsage& group : executor_.usage().groups)
    pool_blocks_ = std::min(pool_blocks_, group.blocks_total);
  port_.options.pool_blocks = pool_blocks_;
  publish();
  return {};
}

void EngineLoop::run() {
  bool has_work = false;
  while (port_.inbox.take(!has_work, commands_)) {
    handle_commands();
    admit();
    if (!commands_.empty() || !deliveries_.empty()) deliver();
    has_work = step();
  }
  handle_commands();
  end_everything();
  deliver();
}

void EngineLoop::handle_commands() {
  for (Command& command : commands_) std::visit([this](auto& typed) { handle(typed); }, command);
}

void EngineLoop::end_everything() {
  for (auto& [key, record] : sessions_) {
    if (record.live.has_value()) finish(record, FinishReason::kCancelled);
    if (record.broken.ok()) executor_.close(record.id);
  }
  sessions_.clear();
  by_id_.clear();
  scheduler_->clear();
  blocks_reserved_ = blocks_held_ = 0;
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
  auto opened = executor_.open(command.options);
  if (opened.ok()) {
    record.id = *opened;
    by_id_[record.id] = &record;
  } else {
    record.broken = opened.status();
  }
}

void EngineLoop::handle(CloseCommand& command) {
  SessionRecord* record = find(command.session);
  CHORUS_CHECK(record != nullptr);
  if (record->live.has_value()) finish(*record, FinishReason::kCancelled);
  if (record->broken.ok()) {
    executor_.close(record->id);
    by_id_.erase(record->id);
  }
  set_executor_length(*record, 0);
  reserve(*record, 0);
  sessions_.erase(command.session);
  if (command.closed != nullptr) closed_.push_back(std::move(command.closed));
}

void EngineLoop::handle(StartCommand& command) {
  SessionRecord* record = find(command.generation->session());
  CHORUS_CHECK(record != nullptr && !record->live.has_value());
  const GenerationOptions& options = command.generation->options();
  LiveGeneration& generation = record->live.emplace();
  generation.state = std::move(command.generation);
  generation.max_new_tokens = options.max_new_tokens;
  generation.seed = options.seed.value_or(
      random_bits(seed_, options.sampling.choice, generation.state->number()));
  generation.num_prompt = static_cast<int32_t>(command.delta.size());
  const bool has_pending = record->context > record->executor_length;
  if (has_pending) command.delta.insert(command.delta.begin(), record->pending);
  generation.base = record->context - (has_pending ? 1 : 0);
  generation.prompt_end = generation.base + static_cast<Position>(command.delta.size());
  generation.tokens = std::make_shared<const std::vector<TokenId>>(std::move(command.delta));
  waiting_.push_back(record);
  if (!record->broken.ok()) finish(*record, FinishReason::kError, record->broken);
}

void EngineLoop::handle(CancelCommand& command) {
  SessionRecord* record = find_live(command.session, command.generation);
  if (record != nullptr) finish(*record, FinishReason::kCancelled);
}

void EngineLoop::handle(FinishAtCommand& command) {
  const int32_t n = command.num_tokens;
  GenerationState& state = *command.generation;
  if (SessionRecord* record = find_live(state.session(), state.number())) {
    LiveGeneration& live = *record->live;
    live.finish_at = live.finish_at == 0 ? n : std::min(live.finish_at, n);
    if (live.num_delivered < n) return;
    metrics_.generated_tokens -= live.num_delivered - n;
    live.num_delivered = n;
    set_context(*record, live.prompt_end + n);
    finish(*record, FinishReason::kStop);
    return;
  }
  state.cut_after_end(n);
  SessionRecord* record = find(state.session());
  // Once the session's next generation was submitted, its context stands.
  if (record == nullptr || record->live.has_value() || record->ended.number != state.number())
    return;
  if (n >= record->ended.num_delivered) return;
  metrics_.generated_tokens -= record->ended.num_delivered - n;
  record->ended.num_delivered = n;
  set_context(*record, record->ended.prompt_end + n);
}

void EngineLoop::handle(ResumeCommand& command) {
  SessionRecord* record = find_live(command.session, command.generation);
  if (record == nullptr || !record->live->is_paused) return;
  record->live->is_paused = false;
  submit_decode(*record);
}

// ---- Admission ----

int32_t EngineLoop::blocks_for(Position num_tokens) const {
  const int32_t size = port_.options.executor.block_size;
  return num_tokens / size + (num_tokens % size != 0 ? 1 : 0);
}

int32_t EngineLoop::blocks_promised(const SessionRecord& record) const {
  const LiveGeneration& live = *record.live;
  const Position end = std::max(record.executor_length, live.prompt_end + live.max_new_tokens);
  return blocks_for(end);
}

void EngineLoop::reserve(SessionRecord& record, int32_t blocks) {
  blocks_reserved_ += blocks - record.reserved_blocks;
  record.reserved_blocks = blocks;
}

void EngineLoop::set_executor_length(SessionRecord& record, Position length) {
  blocks_held_ += blocks_for(length) - blocks_for(record.executor_length);
  record.executor_length = length;
  const int32_t held = blocks_for(length);
  // An output of several tokens may commit more than was promised.
  const bool is_running = record.live.has_value() && record.live->is_running;
  if (!is_running || held > record.reserved_blocks) reserve(record, held);
}

void EngineLoop::set_context(SessionRecord& record, Position context) {
  record.context = context;
  record.shared->position.store(context, std::memory_order_release);
}

void EngineLoop::admit() {
  while (!waiting_.empty()) {
    const auto next = next_admissible();
    if (next != waiting_.end()) {
      SessionRecord& record = **next;
      waiting_.erase(next);
      port_.queue.give_back();
      begin(record);
    } else if (num_running_ == 0 && only_waiting_sessions_hold_blocks()) {
      SessionRecord& head = *waiting_.front();
      finish(head, FinishReason::kError,
             resource_exhausted("kv_blocks",
                                "expected " + std::to_string(blocks_promised(head)) +
                                    " blocks, found none to wait for: every session that holds "
                                    "blocks waits for more"));
    } else {
      return;
    }
  }
}

// The head of the queue. Where nothing runs and the head does not fit, the first that does: nobody
// else would give the head its blocks, and a session that holds some may end by running.
std::deque<SessionRecord*>::iterator EngineLoop::next_admissible() {
  const auto fits = [this](const SessionRecord* record) {
    return blocks_reserved_ - record->reserved_blocks + blocks_promised(*record) <= pool_blocks_;
  };
  if (fits(waiting_.front())) return waiting_.begin();
  if (num_running_ > 0) return waiting_.end();
  return std::find_if(waiting_.begin(), waiting_.end(), fits);
}

bool EngineLoop::only_waiting_sessions_hold_blocks() const {
  return std::all_of(sessions_.begin(), sessions_.end(), [](const auto& entry) {
    return entry.second.reserved_blocks == 0 || entry.second.live.has_value();
  });
}

void EngineLoop::begin(SessionRecord& record) {
  LiveGeneration& live = *record.live;
  live.is_running = true;
  ++num_running_;
  SamplingParams sampling = live.state->options().sampling;
  sampling.seed = live.seed;
  Status status = executor_.set_sampling(record.id, sampling);
  if (!status.ok()) {
    finish(record, FinishReason::kError, std::move(status));
    return;
  }
  reserve(record, blocks_promised(record));
  live.next_token = std::make_shared<std::vector<TokenId>>(1);
  submit_prompt(record);
}

void EngineLoop::submit_prompt(SessionRecord& record) {
  const LiveGeneration& live = *record.live;
  const auto total = static_cast<int32_t>(live.tokens->size());
  const bool wants_output = live.max_new_tokens > 0;
  std::vector<Task> tasks;
  Position held = record.executor_length;
  for (int32_t offset = 0; offset < total;) {
    Task& task = tasks.emplace_back();
    task.id = TaskId{next_task_++};
    BatchInput& input = task.input;
    input.session = record.id;
    input.tokens = live.tokens;
    input.offset = offset;
    input.size = std::min(port_.options.prefill_chunk, total - offset);
    input.position = live.base;
    input.score_from = live.state->options().score_from.value_or(BatchInput::kNoScores);
    offset += input.size;
    input.produce_output = wants_output && offset == total;
    task.is_decode = total == 1 && live.base > 0 && wants_output;
    task.blocks = std::max(0, blocks_for(input.end()) - blocks_for(held));
    held = std::max(held, input.end());
  }
  CHORUS_CHECK(scheduler_->submit(tasks));
}

void EngineLoop::submit_decode(SessionRecord& record) {
  CHORUS_CHECK_EQ(record.context, record.executor_length + 1);
  (*record.live->next_token)[0] = record.pending;
  Task task;
  task.id = TaskId{next_task_++};
  task.is_decode = true;
  task.input.session = record.id;
  task.input.tokens = record.live->next_token;
  task.input.size = 1;
  task.input.position = record.executor_length;
  task.input.produce_output = true;
  task.blocks = blocks_for(record.context) - blocks_for(record.executor_length);
  CHORUS_CHECK(scheduler_->submit(std::span(&task, 1)));
}

// ---- The end of a generation ----

void EngineLoop::finish(SessionRecord& record, FinishReason reason, Status error,
                        int32_t first_token, int32_t num_tokens) {
  LiveGeneration& live = *record.live;
  if (live.is_running) {
    (void)scheduler_->cancel(record.id);
    --num_running_;
  } else {
    std::erase(waiting_, &record);
    port_.queue.give_back();
  }
  switch (reason) {
    case FinishReason::kStop:
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
  Delivery& delivery = deliveries_.emplace_back();
  delivery.state = live.state;
  delivery.first_token = first_token;
  delivery.num_tokens = num_tokens;
  delivery.ending = Ending{reason, std::move(error), metrics_of(live)};
  record.live.reset();
  reserve(record, blocks_for(record.executor_length));
  record.shared->is_live.store(false, std::memory_order_release);
}

GenerationMetrics EngineLoop::metrics_of(const LiveGeneration& generation) const {
  const auto ms_since = [](int64_t from, int64_t to) {
    return static_cast<double>(to - from) * 1e-6;
  };
  const int64_t submitted = generation.state->submitted_ns();
  const int64_t now = port_.clock.now_ns();
  GenerationMetrics metrics;
  metrics.total_ms = ms_since(submitted, now);
  metrics.prompt_tokens = generation.num_prompt;
  metrics.generated_tokens = generation.num_delivered;
  metrics.seed = generation.seed;
  metrics.queue_ms = ms_since(submitted, generation.first_step_ns.value_or(now));
  if (generation.num_delivered > 0)
    metrics.ttft_ms = ms_since(submitted, generation.first_token_ns);
  if (generation.num_delivered > 1)
    metrics.tpot_ms = ms_since(generation.first_token_ns, generation.last_token_ns) /
                      (generation.num_delivered - 1);
  return metrics;
}

}  // namespace chorus
