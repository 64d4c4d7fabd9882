#include "batching/decode_first_scheduler.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace chorus {
namespace {

constexpr int32_t kDefaultDecodes = 32;
constexpr int32_t kDefaultChunk = 512;

Status check_given(const char* field, int32_t value) {
  if (value >= 0) return {};
  return invalid_argument(field, "expected at least 1, found " + std::to_string(value));
}

}  // namespace

Result<SchedulerLimits> DecodeFirstScheduler::derive(const SchedulerLimits& given) {
  CHORUS_RETURN_IF_ERROR(check_given("max_batch_tokens", given.max_batch_tokens));
  CHORUS_RETURN_IF_ERROR(check_given("max_decode_sequences", given.max_decode_sequences));
  CHORUS_RETURN_IF_ERROR(check_given("prefill_chunk", given.prefill_chunk));
  const int64_t given_tokens = given.max_batch_tokens;
  const int64_t given_chunk = given.prefill_chunk;
  int64_t decodes = given.max_decode_sequences;
  if (decodes == 0) {
    decodes = kDefaultDecodes;
    if (given_tokens > 0) {
      const int64_t room = given_chunk > 0 ? given_tokens - given_chunk : given_tokens / 2;
      decodes = std::clamp<int64_t>(room, 1, kDefaultDecodes);
    }
  }
  const int64_t tokens =
      given_tokens > 0 ? given_tokens : decodes + (given_chunk > 0 ? given_chunk : kDefaultChunk);
  if (tokens > std::numeric_limits<int32_t>::max())
    return invalid_argument(
        "prefill_chunk",
        "expected at most 2147483647 tokens in a step, found " + std::to_string(tokens));
  if (decodes >= tokens)
    return invalid_argument("max_batch_tokens", "expected more than max_decode_sequences (" +
                                                    std::to_string(decodes) + "), found " +
                                                    std::to_string(tokens));
  const int64_t chunk =
      given_chunk > 0 ? given_chunk : std::min<int64_t>(kDefaultChunk, tokens - decodes);
  if (chunk > tokens - decodes)
    return invalid_argument("prefill_chunk",
                            "expected at most max_batch_tokens - max_decode_sequences (" +
                                std::to_string(tokens - decodes) + "), found " +
                                std::to_string(chunk));
  return SchedulerLimits{.max_batch_tokens = static_cast<int32_t>(tokens),
                         .max_decode_sequences = static_cast<int32_t>(decodes),
                         .prefill_chunk = static_cast<int32_t>(chunk)};
}

Result<std::unique_ptr<DecodeFirstScheduler>> DecodeFirstScheduler::create(
    const SchedulerLimits& given) {
  CHORUS_ASSIGN_OR_RETURN(const SchedulerLimits limits, derive(given));
  return std::unique_ptr<DecodeFirstScheduler>(new DecodeFirstScheduler(limits));
}

bool DecodeFirstScheduler::is_acceptable(const Task& task) const {
  if (task.input.size <= 0) return false;
  return task.is_decode ? task.input.size == 1 : task.input.size <= limits_.prefill_chunk;
}

bool DecodeFirstScheduler::claim_id(TaskId id) {
  if (spare_nodes_.empty()) return ids_.insert(id).second;
  if (ids_.contains(id)) return false;
  auto node = std::move(spare_nodes_.back());
  spare_nodes_.pop_back();
  node.value() = id;
  ids_.insert(std::move(node));
  return true;
}

void DecodeFirstScheduler::free_id(TaskId id) {
  auto node = ids_.extract(id);
  CHORUS_CHECK(!node.empty());
  spare_nodes_.push_back(std::move(node));
}

bool DecodeFirstScheduler::submit(std::span<Task> tasks) {
  size_t claimed = 0;
  bool acceptable = true;
  while (acceptable && claimed < tasks.size()) {
    acceptable = is_acceptable(tasks[claimed]) && claim_id(tasks[claimed].id);
    if (acceptable) ++claimed;
  }
  if (!acceptable) {
    for (const Task& task : tasks.first(claimed)) free_id(task.id);
    return false;
  }
  for (Task& task : tasks) {
    task.order = next_order_++;
    task.turn = 0;
    enqueue(std::move(task));
  }
  return true;
}

void DecodeFirstScheduler::enqueue(Task task) {
  Entry& entry = entries_[task.input.session];
  const bool is_decode = task.is_decode;
  const uint64_t turn = task.turn;
  const int32_t slot = new_slot(std::move(task));
  ++num_queued_;
  if (is_decode) {
    insert_by_order(decodes_, slot);
    return;
  }
  insert_by_order(entry.chunks, slot);
  if (!entry.in_rotation) {
    join_rotation(entry, turn > 0 ? turn : next_turn_++);
  } else {
    bring_forward(entry, turn);
  }
}

void DecodeFirstScheduler::put_back(Task task) {
  CHORUS_CHECK_GT(task.order, 0u);
  if (join_to_rest(task)) return;
  CHORUS_CHECK(claim_id(task.id));
  enqueue(std::move(task));
}

// Whether the rest of the task is queued: then it is whole again.
bool DecodeFirstScheduler::join_to_rest(const Task& task) {
  const auto found = entries_.find(task.input.session);
  if (task.is_decode || found == entries_.end()) return false;
  Entry& entry = found->second;
  for (int32_t slot = entry.chunks.head; slot != kNone;
       slot = slots_[static_cast<size_t>(slot)].next) {
    BatchInput& rest = slots_[static_cast<size_t>(slot)].task.input;
    if (slots_[static_cast<size_t>(slot)].task.id != task.id) continue;
    CHORUS_CHECK_EQ(rest.start(), task.input.end());
    rest.offset = task.input.offset;
    rest.size += task.input.size;
    bring_forward(entry, task.turn);
    return true;
  }
  return false;
}

// A task that was put back brings the turn its session had before it was served.
void DecodeFirstScheduler::bring_forward(Entry& entry, uint64_t turn) {
  if (turn == 0 || turn >= entry.turn) return;
  leave_rotation(entry);
  join_rotation(entry, turn);
}

void DecodeFirstScheduler::get_work(const StepBudget& budget, std::vector<Task>& batch) {
  batch.clear();
  ++batch_number_;
  Room room{.tokens = budget.tokens,
            .decodes = budget.decodes,
            .prefill = std::numeric_limits<int32_t>::max()};
  take_decodes(room, batch);
  if (!batch.empty()) room.prefill = budget.prefill_beside_decodes;
  while (room.tokens > 0 && room.prefill > 0 && prefill_pass(room, batch)) {
  }
}

void DecodeFirstScheduler::take_decodes(Room& room, std::vector<Task>& batch) {
  int32_t slot = decodes_.head;
  while (slot != kNone && room.decodes > 0 && room.tokens > 0) {
    const int32_t next = slots_[static_cast<size_t>(slot)].next;
    const Task& task = slots_[static_cast<size_t>(slot)].task;
    Entry& entry = entries_.at(task.input.session);
    if (entry.closed_in_batch != batch_number_) {
      entry.closed_in_batch = batch_number_;
      --room.decodes;
      --room.tokens;
      batch.push_back(take_slot(decodes_, slot));
    }
    slot = next;
  }
}

bool DecodeFirstScheduler::prefill_pass(Room& room, std::vector<Task>& batch) {
  // Served sessions move behind `last`, so the pass ends there and offers each session once.
  Entry* const last = rotation_tail_;
  Entry* entry = rotation_head_;
  bool moved = false;
  while (entry != nullptr && room.tokens > 0 && room.prefill > 0) {
    Entry* const next = entry->next;
    const bool is_last = entry == last;
    moved |= serve(*entry, room, batch);
    if (is_last) break;
    entry = next;
  }
  return moved;
}

bool DecodeFirstScheduler::serve(Entry& entry, Room& room, std::vector<Task>& batch) {
  if (entry.closed_in_batch == batch_number_) return false;
  const int32_t slot = entry.chunks.head;
  Task& task = slots_[static_cast<size_t>(slot)].task;
  const int32_t size = std::min(task.input.size, room.prefill);
  if (size > room.tokens) return false;
  room.tokens -= size;
  room.prefill -= size;
  const uint64_t turn = entry.turn;
  leave_rotation(entry);
  if (size < task.input.size) {
    batch.push_back(task);
    batch.back().input.size = size;
    batch.back().input.produce_output = false;
    task.input.offset += size;
    task.input.size -= size;
  } else {
    if (task.input.produce_output) entry.closed_in_batch = batch_number_;
    batch.push_back(take_slot(entry.chunks, slot));
  }
  batch.back().turn = turn;
  if (entry.chunks.head != kNone) join_rotation(entry, next_turn_++);
  return true;
}

std::vector<Task> DecodeFirstScheduler::cancel(SessionId session) {
  std::vector<Task> dropped;
  const auto found = entries_.find(session);
  if (found == entries_.end()) return dropped;
  Entry& entry = found->second;
  for (int32_t slot = decodes_.head; slot != kNone;) {
    const int32_t next = slots_[static_cast<size_t>(slot)].next;
    if (slots_[static_cast<size_t>(slot)].task.input.session == session)
      dropped.push_back(take_slot(decodes_, slot));
    slot = next;
  }
  if (entry.in_rotation) leave_rotation(entry);
  while (entry.chunks.head != kNone) dropped.push_back(take_slot(entry.chunks, entry.chunks.head));
  entries_.erase(found);
  std::sort(dropped.begin(), dropped.end(),
            [](const Task& a, const Task& b) { return a.order < b.order; });
  return dropped;
}

void DecodeFirstScheduler::clear() {
  slots_.clear();
  free_slots_.clear();
  decodes_ = {};
  entries_.clear();
  rotation_head_ = rotation_tail_ = nullptr;
  ids_.clear();
  spare_nodes_.clear();
  num_queued_ = 0;
}

int32_t DecodeFirstScheduler::new_slot(Task task) {
  if (free_slots_.empty()) {
    slots_.emplace_back();
    free_slots_.push_back(static_cast<int32_t>(slots_.size()) - 1);
  }
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[static_cast<size_t>(slot)].task = std::move(task);
  return slot;
}

Task DecodeFirstScheduler::take_slot(List& list, int32_t slot) {
  Slot& taken = slots_[static_cast<size_t>(slot)];
  (taken.previous == kNone ? list.head : slots_[static_cast<size_t>(taken.previous)].next) =
      taken.next;
  (taken.next == kNone ? list.tail : slots_[static_cast<size_t>(taken.next)].previous) =
      taken.previous;
  taken.next = taken.previous = kNone;
  free_slots_.push_back(slot);
  --num_queued_;
  free_id(taken.task.id);
  return std::move(taken.task);
}

void DecodeFirstScheduler::insert_by_order(List& list, int32_t slot) {
  Slot& inserted = slots_[static_cast<size_t>(slot)];
  // New tasks belong at the tail and those put back near the head.
  const auto order_of = [this](int32_t s) { return slots_[static_cast<size_t>(s)].task.order; };
  int32_t after = list.tail;
  if (after != kNone && order_of(after) > inserted.task.order) {
    after = kNone;
    int32_t next = list.head;
    while (order_of(next) < inserted.task.order) {
      after = next;
      next = slots_[static_cast<size_t>(next)].next;
    }
  }
  inserted.previous = after;
  inserted.next = after == kNone ? list.head : slots_[static_cast<size_t>(after)].next;
  (inserted.previous == kNone ? list.head : slots_[static_cast<size_t>(inserted.previous)].next) =
      slot;
  (inserted.next == kNone ? list.tail : slots_[static_cast<size_t>(inserted.next)].previous) = slot;
}

void DecodeFirstScheduler::leave_rotation(Entry& entry) {
  (entry.previous == nullptr ? rotation_head_ : entry.previous->next) = entry.next;
  (entry.next == nullptr ? rotation_tail_ : entry.next->previous) = entry.previous;
  entry.next = entry.previous = nullptr;
  entry.in_rotation = false;
}

void DecodeFirstScheduler::join_rotation(Entry& entry, uint64_t turn) {
  Entry* after = rotation_tail_;
  while (after != nullptr && after->turn > turn) after = after->previous;
  entry.turn = turn;
  entry.in_rotation = true;
  entry.previous = after;
  entry.next = after == nullptr ? rotation_head_ : after->next;
  (entry.previous == nullptr ? rotation_head_ : entry.previous->next) = &entry;
  (entry.next == nullptr ? rotation_tail_ : entry.next->previous) = &entry;
}

void DecodeFirstScheduler::check_invariants() const {
  int32_t num_tasks = 0;
  const auto check_list = [&](const List& list, bool is_decode) {
    int32_t previous = kNone;
    for (int32_t slot = list.head; slot != kNone; slot = slots_[static_cast<size_t>(slot)].next) {
      const Slot& here = slots_[static_cast<size_t>(slot)];
      CHORUS_CHECK_EQ(here.previous, previous);
      CHORUS_CHECK_EQ(here.task.is_decode, is_decode);
      CHORUS_CHECK(ids_.contains(here.task.id));
      CHORUS_CHECK(entries_.contains(here.task.input.session));
      if (previous != kNone)
        CHORUS_CHECK_LT(slots_[static_cast<size_t>(previous)].task.order, here.task.order);
      previous = slot;
      ++num_tasks;
    }
    CHORUS_CHECK_EQ(list.tail, previous);
  };
  check_list(decodes_, true);
  size_t num_rotating = 0;
  for (const auto& [session, entry] : entries_) {
    check_list(entry.chunks, false);
    CHORUS_CHECK_EQ(entry.in_rotation, entry.chunks.head != kNone);
    num_rotating += entry.in_rotation ? 1 : 0;
  }
  CHORUS_CHECK_EQ(num_tasks, num_queued_);
  CHORUS_CHECK_EQ(ids_.size(), static_cast<size_t>(num_queued_));
  const Entry* previous = nullptr;
  for (const Entry* entry = rotation_head_; entry != nullptr; entry = entry->next) {
    CHORUS_CHECK(entry->in_rotation && entry->previous == previous);
    if (previous != nullptr) CHORUS_CHECK_LT(previous->turn, entry->turn);
    previous = entry;
    CHORUS_CHECK_GT(num_rotating, 0u);
    --num_rotating;
  }
  CHORUS_CHECK_EQ(num_rotating, 0u);
  CHORUS_CHECK(rotation_tail_ == previous);
}

}  // namespace chorus
