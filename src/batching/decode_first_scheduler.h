// Which of the queued inputs run in the next step: decodes first, then prefill chunks in rotation.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "exec/types.h"

namespace chorus {

// Names a task while any of it is queued; free again once it was handed out or cancelled.
enum class TaskId : uint64_t {};

// One input that waits for a step. The class is decided by is_decode, not by width: a prefill of
// one token is a prefill.
struct Task {
  TaskId id{};
  BatchInput input;
  bool is_decode = false;

  // Where it stood in line; written by the scheduler, read by put_back.
  uint64_t order = 0;
  uint64_t turn = 0;
};

// What one step may hold.
struct StepBudget {
  int32_t tokens = 0;
  int32_t decodes = 0;
  // Most prompt tokens beside a decode, so that those who decode do not wait long for the step.
  int32_t prefill_beside_decodes = std::numeric_limits<int32_t>::max();
};

// Zero: not given.
struct SchedulerLimits {
  int32_t max_batch_tokens = 0;
  int32_t max_decode_sequences = 0;
  int32_t prefill_chunk = 0;
  friend bool operator==(const SchedulerLimits&, const SchedulerLimits&) = default;
};

// A queue of tasks that fills steps. It never calls out and does not look at positions.
//
// Every batch satisfies: (a) a session appears more than once only as successive prefill chunks, in
// order, not necessarily adjacent; (b) at most one input of a session asks for output; (c) a
// session has at most one decode, and then no chunk; (d) the tokens, the decodes and the prompt
// tokens beside decodes are at most the budget's.
//
// No starvation: decodes leave room for a full chunk (prefill_chunk <= max_batch_tokens -
// max_decode_sequences), and sessions that were served go to the back of the rotation.
//
// A chunk that goes beyond the prompt tokens beside decodes is cut: its first tokens are handed
// out, without output, and the rest keeps its id and its place.
//
// There are no priorities: decodes go first in first out, prefills round robin.
// Thread: one. Cost: submit, get_work and put_back are linear in the tasks looked at; nothing is
// allocated once the queue has been as long as it gets.
// Source: ExecuTorch extension/llm/batching DecodeFirstScheduler (commit cff6f4dd).
class DecodeFirstScheduler {
 public:
  // Fills in the limits not given from those given (defaults: 32 decodes beside a chunk of 512).
  // kInvalidArgument names a limit that is negative or inconsistent with the others.
  static Result<SchedulerLimits> derive(const SchedulerLimits& given);
  static Result<std::unique_ptr<DecodeFirstScheduler>> create(const SchedulerLimits& given);

  const SchedulerLimits& limits() const { return limits_; }
  // The budget of a full step.
  StepBudget full_budget() const {
    return {.tokens = limits_.max_batch_tokens, .decodes = limits_.max_decode_sequences};
  }

  // All or nothing; false: nothing was queued and `tasks` is as it was. Refused: an empty input, a
  // decode wider than one token, a chunk above prefill_chunk, and an id that is queued already or
  // twice in `tasks`. The tasks are moved from.
  bool submit(std::span<Task> tasks);

  bool has_work() const { return num_queued_ > 0; }
  int32_t num_queued() const { return num_queued_; }

  // Hands out a batch in `batch` (replaced); empty: nothing can run within the budget. Decodes come
  // first. A chunk too large for the tokens left is passed over, and smaller ones behind it may
  // still fit.
  void get_work(const StepBudget& budget, std::vector<Task>& batch);

  // Returns a task that was handed out and did not run to its place in line; what was cut off is
  // joined to its rest. Tasks of a batch may be put back in any order. Requires: its id is not
  // queued, but for that rest.
  void put_back(Task task);

  // Drops and returns the queued tasks of a session in order of submission, and forgets the
  // session. Tasks handed out are not affected. An unknown session has none.
  std::vector<Task> cancel(SessionId session);
  void clear();

  void check_invariants() const;

 private:
  static constexpr int32_t kNone = -1;

  // A queued task, linked into its list by index.
  struct Slot {
    Task task;
    int32_t next = kNone;
    int32_t previous = kNone;
  };
  struct List {
    int32_t head = kNone;
    int32_t tail = kNone;
  };
  // A session's chunks and its place in the rotation; the pair is kept together, so that no session
  // can hold two places.
  struct Entry {
    List chunks;
    bool in_rotation = false;  // exactly when it has chunks
    uint64_t turn = 0;         // the rotation is in ascending order of turn
    Entry* next = nullptr;
    Entry* previous = nullptr;
    uint64_t closed_in_batch = 0;  // the last batch that took its decode or an output input
  };
  // What is left of a budget while a batch is filled.
  struct Room {
    int32_t tokens;
    int32_t decodes;
    int32_t prefill;
  };

  explicit DecodeFirstScheduler(const SchedulerLimits& limits) : limits_(limits) {}

  bool is_acceptable(const Task& task) const;
  bool claim_id(TaskId id);
  void free_id(TaskId id);
  void take_decodes(Room& room, std::vector<Task>& batch);
  // One offer to every session in the rotation; whether any was served.
  bool prefill_pass(Room& room, std::vector<Task>& batch);
  bool serve(Entry& entry, Room& room, std::vector<Task>& batch);

  bool join_to_rest(const Task& task);
  void bring_forward(Entry& entry, uint64_t turn);
  int32_t new_slot(Task task);
  Task take_slot(List& list, int32_t slot);
  void insert_by_order(List& list, int32_t slot);
  void enqueue(Task task);
  void leave_rotation(Entry& entry);
  void join_rotation(Entry& entry, uint64_t turn);

  const SchedulerLimits limits_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_slots_;
  List decodes_;
  std::unordered_map<SessionId, Entry> entries_;
  Entry* rotation_head_ = nullptr;
  Entry* rotation_tail_ = nullptr;
  std::unordered_set<TaskId> ids_;
  std::vector<std::unordered_set<TaskId>::node_type>
      spare_nodes_;  // so that ids cost no allocation
  int32_t num_queued_ = 0;
  uint64_t next_order_ = 1;
  uint64_t next_turn_ = 1;
  uint64_t batch_number_ = 0;
};

}  // namespace chorus
