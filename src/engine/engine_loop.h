// What runs on the engine thread. Internal to the engine.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "batching/decode_first_scheduler.h"
#include "engine/port.h"
#include "engine/records.h"
#include "exec/executor.h"

namespace chorus {

// The engine thread's sessions, queue and step. A step is: commands, admission, one batch, accounts
// of all its inputs, counters published, and only then deliveries, so that readers see a consistent
// state.
//
// Invariants: (1) context <= executor length + 1 for every session; when they differ by one, the
// last delivered token is pending: it is put in front of the next input. (2) context < executor
// length: the rest was not delivered, and the next input rewinds it. (3) the blocks reserved, which
// bound those held, never exceed the pool.
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

 private:
  // Commands (engine_loop.cpp).
  void handle(OpenCommand& command);
  void handle(CloseCommand& command);
  void handle(StartCommand& command);
  void handle(CancelCommand& command);
  void handle(FinishAtCommand& command);
  void handle(ResumeCommand& command);
  void handle_commands();
  void end_everything();
  SessionRecord* find(uint64_t session);
  // The record of a session whose live generation is the one named, or null.
  SessionRecord* find_live(uint64_t session, uint64_t generation);

  // Admission.
  void admit();
  std::deque<SessionRecord*>::iterator next_admissible();
  bool only_waiting_sessions_hold_blocks() const;
  void begin(SessionRecord& record);
  void submit_prompt(SessionRecord& record);
  void submit_decode(SessionRecord& record);
  int32_t blocks_for(Position num_tokens) const;
  int32_t blocks_promised(const SessionRecord& record) const;
  void reserve(SessionRecord& record, int32_t blocks);
  void set_executor_length(SessionRecord& record, Position length);
  void set_context(SessionRecord& record, Position context);

  // Ends the live generation with output_.tokens [first_token, first_token + num_tokens).
  void finish(SessionRecord& record, FinishReason reason, Status error = {},
              int32_t first_token = 0, int32_t num_tokens = 0);
  GenerationMetrics metrics_of(const LiveGeneration& generation) const;

  // The step (engine_step.cpp).
  bool step();  // false: there was nothing to run
  Status execute(std::span<const BatchInput> batch);
  void make_demands();
  void fit_to_pool();
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
  int32_t pool_blocks_ = 0;
  int32_t blocks_reserved_ = 0;
  int32_t blocks_held_ = 0;
  std::unordered_map<uint64_t, SessionRecord> sessions_;  // by key
  std::unordered_map<SessionId, SessionRecord*> by_id_;
  std::deque<SessionRecord*> waiting_;  // first in, first out
  int32_t num_running_ = 0;
  uint64_t next_task_ = 1;
  RunnerMetrics metrics_;

  // Reused from step to step.
  std::vector<Command> commands_;
  std::vector<Task> tasks_;
  std::vector<BatchInput> batch_;
  std::vector<SessionDemand> demands_;
  BatchOutput output_;
  std::vector<Delivery> deliveries_;
  std::vector<UpdateSignal*> signals_;
  std::vector<std::shared_ptr<Event>> closed_;
};

}  // namespace chorus
