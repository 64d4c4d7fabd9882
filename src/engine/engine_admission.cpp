// EngineLoop: who gets KV blocks, and who gives them back.
#include <algorithm>
#include <utility>

#include "engine/engine_loop.h"

namespace chorus {
namespace {

// A generation at the head of the queue that does not fit lets so many behind it go first, of the
// next few.
constexpr int32_t kMaxOvertakes = 16;
constexpr int32_t kMaxPassedOver = 8;

bool is_running(const SessionRecord& record) {
  return record.live.has_value() && record.live->is_running;
}

}  // namespace

void EngineLoop::insert_in_order(std::vector<SessionRecord*>& list, SessionRecord& record) {
  const auto is_before = [&](const SessionRecord* a, const SessionRecord* b) {
    return order_.is_before(a->live->standing, b->live->standing);
  };
  list.insert(std::upper_bound(list.begin(), list.end(), &record, is_before), &record);
}

bool EngineLoop::gives_way(const SessionRecord& running, const SessionRecord& waiting) const {
  return order_.gives_way(running.live->standing, waiting.live->standing);
}

// Of the running ones, or null.
SessionRecord* EngineLoop::last_that_gives_way(const SessionRecord& waiting) const {
  const auto found =
      std::find_if(running_.rbegin(), running_.rend(),
                   [&](const SessionRecord* running) { return gives_way(*running, waiting); });
  return found == running_.rend() ? nullptr : *found;
}

void EngineLoop::wait_in_line(SessionRecord& record) { insert_in_order(waiting_, record); }

// ---- Admission ----

void EngineLoop::admit() {
  admit_waiting();
  resume_followers();
}

// Admits from the head of the queue; past one that does not fit, smaller ones may go, until it was
// overtaken too often. Paused generations wait for their reader first, suspended ones for a place.
void EngineLoop::admit_waiting() {
  SessionRecord* head = nullptr;  // the first that does not fit
  int32_t passed_over = 0;
  for (size_t i = 0; i < waiting_.size();) {
    SessionRecord& record = *waiting_[i];
    if (record.live->is_paused || record.is_suspended) {
      ++i;
    } else if (try_admit(record)) {
      if (head != nullptr) ++head->live->overtaken;
    } else {
      if (head == nullptr) head = &record;
      ++passed_over;
      ++i;
    }
    if (passed_over > kMaxPassedOver) return;
    if (head != nullptr && head->live->overtaken >= kMaxOvertakes) return;
  }
}

bool EngineLoop::try_admit(SessionRecord& record) {
  const bool is_empty = record.executor_length == 0;
  if (is_empty) attach(record);
  find_leader(record);
  if (!fits(record) && !make_room(record)) {
    record.live->leader = {};
    return false;
  }
  std::erase(waiting_, &record);
  if (!is_empty) attach(record);  // the index may have more by now
  begin(record);
  return true;
}

// Most blocks that a session will take until its prompt is consumed and one token is generated.
int64_t EngineLoop::growth(const KvCapacity::Group& group, const SessionRecord& record) const {
  const LiveGeneration& live = *record.live;
  const Position prompt_end = live.prompt_end + (live.max_new_tokens > 0 ? 1 : 0);
  const Position end = std::max(prompt_end, record.position() + 1);
  const KvCapacity& capacity = port_.options.capacity;
  Position held =
      record.attached > 0 ? record.attached : std::min(record.executor_length, record.position());
  // What a leader computes is shared; the last of a generation's own tokens always is to be run.
  if (live.leader.session != 0)
    held =
        std::max(held, std::min(live.leader.end, std::max(live.prompt_end, record.position()) - 1));
  const int64_t all = capacity.blocks_for(group, end);
  const int64_t missing = all - capacity.blocks_for(group, held);
  if (held % capacity.block_size == 0) return missing;
  // One more: a last block that is shared is copied by the first write into it. For one that is
  // not, it is kept for what will be generated, but never where the generation ends before.
  const bool is_own = held == record.executor_length && !executor_.shares_last_block(record.id);
  if (is_own && group.window == 0) {
    const Position last = std::max(end, live.prompt_end + live.max_new_tokens);
    return std::min(missing + 1,
                    capacity.blocks_for(group, last) - capacity.blocks_for(group, held));
  }
  return std::min(all, missing + 1);
}

bool EngineLoop::fits(const SessionRecord& record) const {
  const KvCapacity& capacity = port_.options.capacity;
  for (size_t i = 0; i < capacity.groups.size(); ++i) {
    const KvCapacity::Group& group = capacity.groups[i];
    int64_t needed = growth(group, record);
    for (const SessionRecord* other : running_) needed += growth(group, *other);
    if (needed > executor_.available_blocks(static_cast<int32_t>(i))) return false;
  }
  return true;
}

// Takes blocks from idle sessions, and from running generations that are paused or of a lower
// priority, until `record` fits, or has the pool to itself.
// Nobody is preempted for one that would not fit all the same.
bool EngineLoop::make_room(const SessionRecord& record) {
  while (!fits(record)) {
    if (SessionRecord* idle = idle_victim(1, &record)) {
      evict(*idle);
    } else if (running_.empty()) {
      SessionRecord* sharing = idle_victim(0, &record);
      if (sharing == nullptr) return true;
      evict(*sharing);
    } else if (!would_fit(record)) {
      return false;
    } else if (SessionRecord* paused = paused_victim(1)) {
      preempt(*paused);
    } else if (SessionRecord* lower = last_that_gives_way(record)) {
      preempt(*lower);
    } else if (SessionRecord* sharing = idle_victim(0, &record)) {
      evict(*sharing);
    } else {
      SessionRecord* sharing_paused = paused_victim(0);
      if (sharing_paused == nullptr) return false;
      preempt(*sharing_paused);
    }
  }
  return true;
}

// Whether `record` fits once all who have to give way for it have done so.
bool EngineLoop::would_fit(const SessionRecord& record) const {
  const auto yields = [&](const SessionRecord& other) {
    return !is_running(other) || other.live->is_paused || gives_way(other, record);
  };
  // Then it has the pool to itself, where what growth() says of it is too much by a block.
  if (std::all_of(running_.begin(), running_.end(),
                  [&](const SessionRecord* other) { return yields(*other); }))
    return true;
  std::vector<SessionId> yielding;
  for (const auto& [id, other] : by_id_) {
    if (other != &record && yields(*other)) yielding.push_back(id);
  }
  const KvCapacity& capacity = port_.options.capacity;
  for (size_t i = 0; i < capacity.groups.size(); ++i) {
    const auto group = static_cast<int32_t>(i);
    int64_t needed = growth(capacity.groups[i], record);
    for (const SessionRecord* other : running_) {
      if (!yields(*other)) needed += growth(capacity.groups[i], *other);
    }
    if (needed > executor_.available_blocks(group) + executor_.releasable_blocks(yielding, group))
      return false;
  }
  return true;
}

void EngineLoop::begin(SessionRecord& record) {
  LiveGeneration& live = *record.live;
  insert_in_order(running_, record);
  live.is_running = true;
  live.overtaken = 0;
  if (!live.was_admitted) {
    live.was_admitted = true;
    port_.queue.give_back();
    Status status = executor_.set_sampling(record.id, sampling_of(record));
    if (!status.ok()) {
      finish(record, FinishReason::kError, std::move(status));
      return;
    }
    record.sampling = live.state->options().sampling;
    record.sampling.seed = live.seed;
    record.sampling.constraint = nullptr;
    record.sampling.min_tokens = 0;
    live.next_token = std::make_shared<std::vector<TokenId>>(1);
  }
  feed(record);
}

// The parameters of the live generation, with what the executor has to know of it.
SamplingParams EngineLoop::sampling_of(const SessionRecord& record) const {
  const LiveGeneration& live = *record.live;
  const GenerationOptions& options = live.state->options();
  SamplingParams sampling = options.sampling;
  sampling.seed = live.seed;
  sampling.late_tokens.clear();
  sampling.before = nullptr;
  if (live.max_new_tokens == 0) return sampling;  // nothing is chosen
  if (sampling.min_tokens > 0 && !options.ignore_stop_tokens)
    sampling.late_tokens = options.stop_tokens;
  sampling.first_position = live.prompt_end;
  sampling.max_tokens = live.max_new_tokens;
  if (sampling.repetition_penalty != 1.0f) {
    std::vector<TokenId> before(record.context.begin(), record.context.begin() + live.prompt_begin);
    before.insert(before.end(), live.prompt.begin(), live.prompt.end());
    sampling.before = std::make_shared<const std::vector<TokenId>>(std::move(before));
  }
  return sampling;
}

// The first position of the prompt that is still to be scored. Delivered tokens that are computed
// again are not the prompt's.
Position EngineLoop::score_start(const SessionRecord& record) const {
  const LiveGeneration& live = *record.live;
  return live.num_delivered > 0 ? BatchInput::kNoScores : live.next_score;
}

// Takes from the prefix index what it has, and follows whoever computes more of the same; or else
// submits everything that the executor lacks of the context, and what is left of the prompt.
void EngineLoop::feed(SessionRecord& record) {
  LiveGeneration& live = *record.live;
  if (record.attached == 0) drop_surplus(record);
  // The row before the first scored token is run again where only its KV is left.
  const Position before = record.position() - 1;
  if (record.executor_length > before && score_start(record) == before + 1 && before >= 0) {
    if (executor_.truncate(record.id, before).ok()) {
      set_executor_length(record, before);
    } else {
      give_up_blocks(record);
    }
  }
  if (record.executor_length == 0) attach(record);
  consume_attached(record);
  if (leader_of(record) == nullptr) find_leader(record);
  if (SessionRecord* leader = leader_of(record)) {
    let_wait_for(*leader, live.leader.end);
    return;
  }
  const Position consumed = record.position();
  live.base = live.fed_end = record.executor_length;
  std::vector<TokenId> tokens(record.context.begin() + live.base, record.context.end());
  if (consumed < live.prompt_end)
    tokens.insert(tokens.end(), live.prompt.begin() + (consumed - live.prompt_begin),
                  live.prompt.end());
  live.tokens = std::make_shared<const std::vector<TokenId>>(std::move(tokens));
  submit_prefill(record);
}

// Submits what was not of live.tokens, up to where the next follower waits.
void EngineLoop::submit_prefill(SessionRecord& record) {
  LiveGeneration& live = *record.live;
  Position stop = live.tokens_end();
  for (const SessionRecord* other : running_) {
    const LiveGeneration::Leader& leader = other->live->leader;
    if (leader.session == record.shared->key && leader.end > live.fed_end)
      stop = std::min(stop, leader.end);
  }
  const bool wants_output = live.max_new_tokens > 0;
  const Position score_from = score_start(record);
  std::vector<Task> tasks;
  while (live.fed_end < stop) {
    Task& task = tasks.emplace_back();
    task.id = TaskId{next_task_++};
    BatchInput& input = task.input;
    input.session = record.id;
    input.tokens = live.tokens;
    input.offset = live.fed_end - live.base;
    input.size = std::min(port_.options.prefill_chunk, stop - live.fed_end);
    input.position = live.base;
    input.score_from = score_from;
    live.fed_end += input.size;
    input.produce_output = wants_output && live.fed_end == live.tokens_end();
    task.is_decode = live.tokens->size() == 1 && live.base > 0 && wants_output;
  }
  CHORUS_CHECK(scheduler_->submit(tasks));
}

void EngineLoop::submit_decode(SessionRecord& record) {
  CHORUS_CHECK_EQ(record.position(), record.executor_length + 1);
  (*record.live->next_token)[0] = record.context.back();
  Task task;
  task.id = TaskId{next_task_++};
  task.is_decode = true;
  task.input.session = record.id;
  task.input.tokens = record.live->next_token;
  task.input.size = 1;
  task.input.position = record.executor_length;
  task.input.produce_output = true;
  CHORUS_CHECK(scheduler_->submit(std::span(&task, 1)));
}

// ---- Victims ----

// A victim holds blocks and would really free `at_least` of them. Where sessions share blocks, none
// frees any by itself: then 0, as the last resort.
bool EngineLoop::is_victim(const SessionRecord& record, int64_t at_least) const {
  return record.executor_length > 0 && executor_.releasable_blocks(record.id) >= at_least;
}

// The least recently used session that does not run, or null.
SessionRecord* EngineLoop::idle_victim(int64_t at_least, const SessionRecord* except) const {
  SessionRecord* victim = nullptr;
  for (const auto& [id, record] : by_id_) {
    if (is_running(*record) || record == except) continue;
    if (victim != nullptr && victim->last_used < record->last_used) continue;
    if (is_victim(*record, at_least)) victim = record;
  }
  return victim;
}

// The last in the running order that waits for its reader, or null.
SessionRecord* EngineLoop::paused_victim(int64_t at_least) const {
  for (size_t i = running_.size(); i > 0; --i) {
    SessionRecord* record = running_[i - 1];
    if (record->live->is_paused && is_victim(*record, at_least)) return record;
  }
  return nullptr;
}

// The last in the running order, never the first; or null.
SessionRecord* EngineLoop::running_victim(int64_t at_least) const {
  for (size_t i = running_.size(); i > 1; --i) {
    if (is_victim(*running_[i - 1], at_least)) return running_[i - 1];
  }
  return nullptr;
}

// Takes the blocks of one victim; false when there is none.
bool EngineLoop::take_blocks(int64_t at_least) {
  if (SessionRecord* idle = idle_victim(at_least, nullptr)) {
    evict(*idle);
  } else if (SessionRecord* paused = paused_victim(at_least)) {
    preempt(*paused);
  } else if (SessionRecord* running = running_victim(at_least)) {
    preempt(*running);
  } else {
    return false;
  }
  return true;
}

void EngineLoop::give_up_blocks(SessionRecord& record) {
  CHORUS_CHECK(executor_.release(record.id).ok());
  set_executor_length(record, 0);
}

void EngineLoop::evict(SessionRecord& record) {
  const bool has_computed = record.attached == 0;
  give_up_blocks(record);
  if (!has_computed) return;  // the index had it, and still has
  ++metrics_.evictions;
  log(EngineEvent::Kind::kEvicted, record, 0);
}

void EngineLoop::preempt(SessionRecord& record) {
  LiveGeneration& live = *record.live;
  (void)scheduler_->cancel(record.id);
  drop_tasks(record);
  std::erase(running_, &record);
  live.is_running = false;
  live.leader = {};
  ++live.preemptions;
  ++metrics_.preemptions;
  log(EngineEvent::Kind::kPreempted, record, 0);
  give_up_blocks(record);
  wait_in_line(record);
}

// ---- Deadlines ----

void EngineLoop::end_overdue() {
  const int64_t now = port_.clock.now_ns();
  const auto end = [&](const std::vector<SessionRecord*>& list) {
    for (size_t i = list.size(); i > 0; --i) {
      SessionRecord& record = *list[i - 1];
      if (record.live->deadline_ns.value_or(now + 1) > now) continue;
      finish(
          record, FinishReason::kCancelled,
          deadline_exceeded(
              "deadline_ms",
              "expected to end within " +
                  std::to_string(*record.live->state->options().deadline_ns / 1000000) +
                  " ms, found " + std::to_string(record.live->num_delivered) + " tokens by then"));
    }
  };
  end(waiting_);
  end(running_);
}

// Nanoseconds to the first deadline, at least 1.
int64_t EngineLoop::time_to_deadline() const {
  int64_t first = Inbox::kForever;
  for (const auto* list : {&waiting_, &running_}) {
    for (const SessionRecord* record : *list)
      first = std::min(first, record->live->deadline_ns.value_or(first));
  }
  return first == Inbox::kForever ? first : std::max<int64_t>(1, first - port_.clock.now_ns());
}

}  // namespace chorus
