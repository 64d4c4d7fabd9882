// EngineLoop: a step, its accounts, and what readers are told of it.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/engine_loop.h"

namespace chorus {

bool EngineLoop::step() {
  const int64_t start_ns = port_.clock.now_ns();
  StepBudget budget = scheduler_->full_budget();
  budget.prefill_beside_decodes = pacer_.prefill_tokens();
  scheduler_->get_work(budget, tasks_);
  if (tasks_.empty()) return false;
  fit_to_pool();
  metrics_.schedule_ns += port_.clock.now_ns() - start_ns;
  if (tasks_.empty()) {
    deliver();
    return true;
  }
  if (execute().ok()) {
    account_all();
    deliver();
  } else {
    ++metrics_.aborted_steps;
    run_alone();
  }
  return true;
}

// One step over tasks_.
Status EngineLoop::execute() {
  const int64_t start_ns = port_.clock.now_ns();
  batch_.clear();
  int32_t num_decodes = 0;
  int32_t num_prefill = 0;
  for (const Task& task : tasks_) {
    batch_.push_back(task.input);
    (task.is_decode ? num_decodes : num_prefill) += task.input.size;
    SessionRecord& record = *by_id_.at(task.input.session);
    LiveGeneration& live = *record.live;
    if (live.first_step_ns.has_value()) continue;
    live.first_step_ns = start_ns;
    measure(&Latencies::queue, start_ns - live.state->submitted_ns());
    log(EngineEvent::Kind::kFirstStep, record, 0);
  }
  Status status = executor_.execute(batch_, output_);
  const int64_t ns = port_.clock.now_ns() - start_ns;
  ++metrics_.steps;
  metrics_.execute_ns += ns;
  if (status.ok()) pacer_.note(num_decodes, num_prefill, ns);
  measure(&Latencies::step, ns);
  log({.kind = EngineEvent::Kind::kStep,
       .time_ns = start_ns + ns,
       .tokens = num_decodes + num_prefill,
       .ns = ns,
       .aborted = !status.ok()});
  return status;
}

// The step was aborted and left every session as it was. Whoever fails alone is at fault.
void EngineLoop::run_alone() {
  std::vector<Task> together;
  std::swap(together, tasks_);
  for (Task& task : together) {
    SessionRecord& record = *by_id_.at(task.input.session);
    // An earlier input of this session ended its generation.
    if (!record.live.has_value()) continue;
    tasks_.clear();
    tasks_.push_back(std::move(task));
    Status status = execute();
    if (status.ok()) {
      account_all();
    } else {
      fail(record, std::move(status));
    }
    deliver();
  }
  std::swap(together, tasks_);
}

// ---- Blocks ----

// One demand per session that takes part: its inputs are consecutive.
void EngineLoop::make_demands() {
  demands_.clear();
  for (const Task& task : tasks_) {
    const auto same = std::find_if(demands_.begin(), demands_.end(), [&](const SessionDemand& d) {
      return d.session == task.input.session;
    });
    if (same == demands_.end()) {
      demands_.push_back({task.input.session, task.input.start(), task.input.size});
    } else {
      same->count += task.input.size;
    }
  }
}

// Leaves in tasks_ what the executor has blocks for, after taking blocks from others.
void EngineLoop::fit_to_pool() {
  make_demands();
  while (!executor_.can_admit(demands_)) {
    if (take_blocks(1)) {
      // A running victim took its tasks along.
    } else if (tasks_.size() > 1) {
      scheduler_->put_back(std::move(tasks_.back()));
      tasks_.pop_back();
    } else if (!take_blocks(0) && !last_resort()) {
      return;
    }
    if (tasks_.empty()) return;
    make_demands();
  }
}

// For the only task, where nobody is left to take blocks from. False: it can run now.
bool EngineLoop::last_resort() {
  SessionRecord& record = *by_id_.at(tasks_[0].input.session);
  if (&record != running_.front()) {
    preempt(record);  // it holds nothing, and waits for the first one, which has the pool
    return true;
  }
  // In a pool of its own a session goes on in a last block that only the index holds besides.
  if (executor_.truncate(record.id, record.executor_length).ok() && executor_.can_admit(demands_))
    return false;
  const int32_t size = tasks_[0].input.size;
  tasks_.clear();
  fail(record, resource_exhausted("kv_blocks", "expected blocks for " + std::to_string(size) +
                                                   " tokens, found the pool full"));
  return true;
}

void EngineLoop::drop_tasks(const SessionRecord& record) {
  std::erase_if(tasks_, [&](const Task& task) { return task.input.session == record.id; });
}

// ---- Accounts ----

// Requires: the step was not aborted; tasks_ and output_ belong to it.
void EngineLoop::account_all() {
  // A session whose input failed stands where it stood before the step, also when other inputs of
  // it are reported as good: so failures are dealt with first.
  for (size_t i = 0; i < tasks_.size(); ++i) {
    SessionRecord& record = *by_id_.at(tasks_[i].input.session);
    if (!record.live.has_value()) continue;
    Status status = i < output_.inputs.size()
                        ? check_output(tasks_[i], output_.inputs[i])
                        : internal_error("executor", "expected an entry per input, found " +
                                                         std::to_string(output_.inputs.size()) +
                                                         " for " + std::to_string(tasks_.size()));
    if (!status.ok()) fail(record, std::move(status));
  }
  for (size_t i = 0; i < tasks_.size(); ++i) {
    SessionRecord& record = *by_id_.at(tasks_[i].input.session);
    if (record.live.has_value()) account(record, tasks_[i], output_.inputs[i]);
  }
}

// Not ok: the input failed, or what the executor reports does not fit what it was asked.
Status EngineLoop::check_output(const Task& task, const InputOutput& result) const {
  CHORUS_RETURN_IF_ERROR(result.status);
  const auto num_tokens = static_cast<int32_t>(output_.tokens.size());
  const auto is_range = [&](int32_t begin, int32_t count) {
    return begin >= 0 && count >= 0 && begin <= num_tokens && count <= num_tokens - begin;
  };
  if (!is_range(result.sampled_begin, result.sampled_count) ||
      !is_range(result.scored_begin, result.scored_count))
    return internal_error("executor", "an output names tokens that are not there");
  if ((result.sampled_count > 0) != task.input.produce_output)
    return internal_error("executor", task.input.produce_output ? "expected an output, found none"
                                                                : "expected no output, found one");
  const auto num_likeliest = static_cast<int32_t>(output_.likeliest.size());
  const int32_t vocabulary = port_.options.executor.vocabulary;
  const auto is_good = [&](const TokenScore& token) {
    return token.id >= 0 && token.id < vocabulary && token.likeliest_begin >= 0 &&
           token.likeliest_count >= 0 && token.likeliest_begin <= num_likeliest &&
           token.likeliest_count <= num_likeliest - token.likeliest_begin;
  };
  const auto sampled = output_.sampled(result);
  const auto scored = output_.scored(result);
  if (!std::all_of(sampled.begin(), sampled.end(), is_good) ||
      !std::all_of(scored.begin(), scored.end(), is_good))
    return internal_error("executor", "an output holds a token outside the vocabulary");
  return {};
}

// The part of the prompt that an input consumed becomes context.
void EngineLoop::take_consumed(SessionRecord& record, const BatchInput& input) {
  const int32_t recomputed = std::min(record.computed, input.end()) - input.start();
  if (recomputed > 0) {
    record.live->recomputed_tokens += recomputed;
    metrics_.recomputed_tokens += recomputed;
    log(EngineEvent::Kind::kRecomputed, record, recomputed);
  }
  const Position known = record.position();
  if (input.end() > known) {
    const auto& tokens = *input.tokens;
    record.context.insert(record.context.end(), tokens.begin() + (known - input.position),
                          tokens.begin() + (input.end() - input.position));
    metrics_.prompt_tokens += input.end() - known;
    log(EngineEvent::Kind::kConsumed, record, input.end() - known);
  }
}

void EngineLoop::account(SessionRecord& record, const Task& task, const InputOutput& result) {
  LiveGeneration& live = *record.live;
  const BatchInput& input = task.input;
  metrics_.computed_tokens += input.size;
  take_consumed(record, input);
  set_executor_length(record, input.end() + std::max(0, result.sampled_count - 1));
  publish_position(record);
  if (result.scored_count > 0) {
    live.state->add_scores(result.first_scored, output_.scored(result), output_.likeliest);
    live.next_score = result.first_scored + result.scored_count;
  }
  if (live.state->cancel_requested()) {
    finish(record, FinishReason::kCancelled);
  } else if (result.sampled_count > 0) {
    take_sampled(record, result);
  } else if (live.max_new_tokens == 0 && input.end() == live.prompt_end) {
    finish(record, FinishReason::kLength);
  }
}

// Decides how many of the sampled tokens are delivered, and whether the generation ends there.
void EngineLoop::take_sampled(SessionRecord& record, const InputOutput& result) {
  LiveGeneration& live = *record.live;
  const GenerationOptions& options = live.state->options();
  const auto is_stop = [&](TokenId token) {
    return !options.ignore_stop_tokens &&
           std::binary_search(options.stop_tokens.begin(), options.stop_tokens.end(), token);
  };
  const int64_t now = port_.clock.now_ns();
  if (live.num_delivered == 0) {
    live.first_token_ns = now;
    measure(&Latencies::ttft, now - live.state->submitted_ns());
  } else {
    live.itl_ns = now - live.last_token_ns;
    measure(&Latencies::itl, *live.itl_ns);
  }
  live.last_token_ns = now;
  int32_t num_taken = 0;
  std::optional<FinishReason> reason;
  for (const TokenScore& token : output_.sampled(result)) {
    ++num_taken;
    ++live.num_delivered;
    record.context.push_back(token.id);
    if (is_stop(token.id) || live.num_delivered == live.finish_at) {
      reason = FinishReason::kStop;
    } else if (live.num_delivered == live.max_new_tokens) {
      reason = FinishReason::kLength;
    }
    if (reason.has_value()) break;
  }
  metrics_.generated_tokens += num_taken;
  log(EngineEvent::Kind::kDelivered, record, num_taken);
  publish_position(record);
  if (reason.has_value()) {
    finish(record, *reason, {}, result.sampled_begin, num_taken);
    return;
  }
  Delivery& delivery = add_delivery(record);
  delivery.continues = &record;
  delivery.first_token = result.sampled_begin;
  delivery.num_tokens = num_taken;
}

// Ends the live generation with an error and takes the session as the executor has it.
void EngineLoop::fail(SessionRecord& record, Status error) {
  const auto length = executor_.length(record.id);
  if (length.ok()) set_executor_length(record, *length);
  finish(record, FinishReason::kError, std::move(error));
}

// ---- Deliveries ----

void EngineLoop::publish() {
  metrics_.sessions = static_cast<int32_t>(sessions_.size());
  metrics_.running = static_cast<int32_t>(running_.size());
  metrics_.waiting = static_cast<int32_t>(
      std::count_if(waiting_.begin(), waiting_.end(),
                    [](const SessionRecord* record) { return record->live->was_admitted; }));
  metrics_.usage = executor_.usage();
  if (port_.event_log != nullptr) port_.event_log->append(events_);
  events_.clear();
  const MutexLock lock(port_.metrics_mutex);
  port_.metrics = metrics_;
  for (const auto& [latency, ns] : measured_) (port_.latencies.*latency).add(ns);
  measured_.clear();
}

// Publishes the counters, then tells readers and waiting callers. output_ is still that of the
// step.
void EngineLoop::deliver() {
  const int64_t start_ns = port_.clock.now_ns();
  publish();
  for (Delivery& delivery : deliveries_) {
    const auto tokens = std::span(output_.tokens)
                            .subspan(static_cast<size_t>(delivery.first_token),
                                     static_cast<size_t>(delivery.num_tokens));
    const bool pauses = delivery.state->deliver(tokens, output_.likeliest, delivery.progress,
                                                delivery.ending, port_.options.max_unread_tokens);
    if (delivery.continues != nullptr) {
      delivery.continues->live->is_paused = pauses;
      if (!pauses && delivery.continues->live->is_running) submit_decode(*delivery.continues);
    }
    UpdateSignal* signal = delivery.state->options().signal.get();
    if (signal != nullptr && std::find(signals_.begin(), signals_.end(), signal) == signals_.end())
      signals_.push_back(signal);
  }
  for (UpdateSignal* signal : signals_) signal->notify();
  signals_.clear();
  deliveries_.clear();
  for (const auto& closed : closed_) closed->set();
  closed_.clear();
  metrics_.deliver_ns += port_.clock.now_ns() - start_ns;
}

}  // namespace chorus
