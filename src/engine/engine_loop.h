// What runs on the engine thread. Internal to the engine.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "batching/decode_first_scheduler.h"
#include "engine/port.h"
#include "engine/records.h"
#include "engine/step_pacer.h"
#include "exec/executor.h"

namespace chorus {

// The engine thread's sessions, queue and step. A step is: commands, admission, one batch, accounts
// of all its inputs, counters published, and only then deliveries, so that readers see a consistent
// state.
//
// Invariants: (1) the executor's tokens and the context of a session agree as far as both go. What
// the executor lacks (the last delivered token, or more after its blocks were taken) is put in
// front of the next input; what it has beyond the context was not delivered, and is dropped before
// the next input. (2) a generation is in running_ or in waiting_ from its start command to its end.
//
// KV blocks are over-committed. A generation is admitted when its prompt and one token fit beside
// what the running ones still need for theirs; where blocks run out later, they are taken from idle
// sessions (least recently used first), then from generations that wait for their reader, then from
// running ones (the last of QueueOrder first). The first that runs is never a victim, so
// there is always progress.
//
// A suspended session has no place in the executor, and its generation is passed over in waiting_
// until the session's owner has taken a place for it again. It then goes on as after a preemption.
//
// A generation whose session holds nothing first takes what the prefix index has of its tokens.
// Where a running one is about to compute more of them, it follows that one: it is admitted and has
// no tasks until its leader has computed what they share, or has ended or lost its blocks. Leaders
// stop there for a moment, so that followers find also the windows' blocks. A leader follows nobody
// when it is chosen, so followers make no circles, and somebody has tasks as long as anybody
// follows.
// Thread: engine.
class EngineLoop {
 public:
  // All references outlive it. `seed` keys the seeds of generations that bring none.
  EngineLoop(Executor& executor, std::unique_ptr<DecodeFirstScheduler> scheduler, EnginePort& port,
             uint64_t seed);

  // Starts the executor and completes the options of the port.
  Status initialize();
  // Returns when the inbox is stopped and everything was ended and closed. Requires: initialize().
  void run();
  // One turn of run(), without waiting: the commands posted so far, then a step. Whether there was
  // something to run. Requires: initialize(), the inbox is not stopped.
  bool poll();

 private:
  bool turn();  // the commands taken, then a step

  // Commands (engine_loop.cpp).
  void handle(OpenCommand& command);
  void handle(CloneCommand& command);
  void handle(SaveCommand& command);
  void handle(LoadCommand& command);
  void handle(RewindCommand& command);
  void handle(SuspendCommand& command);
  void handle(ReturnCommand& command);
  void handle(CloseCommand& command);
  void handle(StartCommand& command);
  void handle(CancelCommand& command);
  void handle(FinishAtCommand& command);
  void handle(ResumeCommand& command);
  void handle_commands();
  void end_everything();
  void leave_executor(SessionRecord& record);
  SessionRecord* find(uint64_t session);
  // The record of a session whose live generation is the one named, or null.
  SessionRecord* find_live(uint64_t session, uint64_t generation);

  // Admission and preemption (engine_admission.cpp).
  void admit();
  void admit_waiting();
  bool try_admit(SessionRecord& record);
  bool fits(const SessionRecord& record) const;
  int64_t growth(const KvCapacity::Group& group, const SessionRecord& record) const;
  bool make_room(const SessionRecord& record);
  bool would_fit(const SessionRecord& record) const;
  bool is_victim(const SessionRecord& record, int64_t at_least) const;
  SessionRecord* idle_victim(int64_t at_least, const SessionRecord* except) const;
  SessionRecord* paused_victim(int64_t at_least) const;
  SessionRecord* running_victim(int64_t at_least) const;
  bool take_blocks(int64_t at_least);
  void give_up_blocks(SessionRecord& record);
  void evict(SessionRecord& record);
  void preempt(SessionRecord& record);
  void insert_in_order(std::vector<SessionRecord*>& list, SessionRecord& record);
  bool gives_way(const SessionRecord& running, const SessionRecord& waiting) const;
  SessionRecord* last_that_gives_way(const SessionRecord& waiting) const;
  void wait_in_line(SessionRecord& record);
  void end_overdue();
  int64_t time_to_deadline() const;
  void begin(SessionRecord& record);
  SamplingParams sampling_of(const SessionRecord& record) const;
  void feed(SessionRecord& record);
  void submit_prefill(SessionRecord& record);
  void submit_decode(SessionRecord& record);
  Position score_start(const SessionRecord& record) const;

  // Prefix reuse (engine_prefix.cpp).
  void make_history(const SessionRecord& record);
  void attach(SessionRecord& record);
  void consume_attached(SessionRecord& record);
  void find_leader(SessionRecord& record);
  bool can_lead(const SessionRecord& other, const SessionRecord& record) const;
  SessionRecord* leader_of(const SessionRecord& record);
  void let_wait_for(SessionRecord& leader, Position end);
  void resume_followers();

  // Saving (engine_saving.cpp).
  void drop_surplus(SessionRecord& record);
  bool could_hold(Position num_tokens) const;
  Result<SessionId> open_saved(const SessionOptions& options, const LoadCommand& command);

  void set_executor_length(SessionRecord& record, Position length);
  void publish_position(SessionRecord& record);
  void cut_context(SessionRecord& record, Position length);

  // Ends the live generation with output_.tokens [first_token, first_token + num_tokens).
  void finish(SessionRecord& record, FinishReason reason, Status error = {},
              int32_t first_token = 0, int32_t num_tokens = 0);
  void measure_end(const LiveGeneration& live, int64_t now);
  GenerationMetrics metrics_of(const LiveGeneration& generation) const;
  // One more delivery of the live generation, with how far it is.
  Delivery& add_delivery(SessionRecord& record);

  // What is logged and measured goes out with the next publish().
  void log(EngineEvent::Kind kind, const SessionRecord& record, int32_t tokens);
  void log(const EngineEvent& event);
  void measure(LatencyHistogram Latencies::* histogram, int64_t value) {
    measured_.push_back({histogram, value});
  }

  // The step (engine_step.cpp).
  bool step();  // false: there was nothing to run
  Status execute();
  void make_demands();
  void fit_to_pool();
  bool last_resort();
  void drop_tasks(const SessionRecord& record);
  void take_consumed(SessionRecord& record, const BatchInput& input);
  void run_alone();
  void account_all();
  Status check_output(const Task& task, const InputOutput& result) const;
  void account(SessionRecord& record, const Task& task, const InputOutput& result);
  void take_sampled(SessionRecord& record, const InputOutput& result);
  void fail(SessionRecord& record, Status error);
  void publish();
  void deliver();

  Executor& executor_;
  const std::unique_ptr<DecodeFirstScheduler> scheduler_;
  EnginePort& port_;
  const uint64_t seed_;
  StepPacer pacer_;
  const QueueOrder order_;
  std::unordered_map<uint64_t, SessionRecord> sessions_;  // by key
  std::unordered_map<SessionId, SessionRecord*> by_id_;
  // Both in order_.
  std::vector<SessionRecord*> running_;
  std::vector<SessionRecord*> waiting_;
  uint64_t next_use_ = 1;
  uint64_t next_task_ = 1;
  RunnerMetrics metrics_;

  // Reused from step to step.
  std::vector<Command> commands_;
  std::vector<Task> tasks_;
  std::vector<BatchInput> batch_;
  std::vector<SessionDemand> demands_;
  std::vector<TokenId> history_;
  BatchOutput output_;
  std::vector<Delivery> deliveries_;
  std::vector<EngineEvent> events_;
  std::vector<std::pair<LatencyHistogram Latencies::*, int64_t>> measured_;
  std::vector<UpdateSignal*> signals_;
  std::vector<std::shared_ptr<Event>> closed_;
};

}  // namespace chorus
