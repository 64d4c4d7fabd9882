// The part of an Executor that is the same for every program: sessions, steps, counters.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "batching/session_table.h"
#include "batching/step_plan.h"
#include "exec/executor.h"
#include "exec/module.h"

namespace chorus {

struct SessionExecutorOptions {
  int32_t max_sessions = 0;        // resident at once, clones included
  int32_t max_session_tokens = 0;  // longest session; at most the program's context
  // Most tokens of one session in a step. Given, the pools of windowed groups must be large enough
  // for such a step (smallest_pool of kv/types.h); 0: they are not checked.
  int32_t max_step_tokens = 0;
};

// An Executor over one Module. An executor derived from it holds only what differs: how its program
// is checked, and how the rows of a step map onto its methods.
// Thread: engine. Once warm, execute allocates nothing of its own unless an input fails.
class SessionExecutor : public Executor {
 public:
  Status initialize() override;
  ExecutorInfo info() const override;
  Result<SessionId> open(const SessionOptions& options) override;
  void close(SessionId session) override;
  Result<SessionId> clone(SessionId source, Position upto) override;
  Status set_sampling(SessionId session, const SamplingParams& params) override;
  Result<Position> length(SessionId session) const override;
  bool can_admit(std::span<const SessionDemand> demands) const override;
  int32_t available_blocks(int32_t group) const override;
  int64_t releasable_blocks(SessionId session) const override;
  int64_t releasable_blocks(std::span<const SessionId> sessions, int32_t group) const override;
  bool shares_last_block(SessionId session) const override;
  Status execute(std::span<const BatchInput> batch, BatchOutput& output) override;
  Status truncate(SessionId session, Position length) override;
  Result<Position> attach_prefix(SessionId session, std::span<const TokenId> tokens) override;
  Status release(SessionId session) override;
  Status save(SessionId session, ByteSink& sink) override;
  Result<SessionId> load(const SessionOptions& options, std::span<const TokenId> tokens,
                         ByteSource& source) override;
  Usage usage() const override;

  const SessionTable& sessions() const { return *sessions_; }

 protected:
  // Checks what every program must have, and makes its table. kInvalidArgument names the option, or
  // the field of ModuleInfo; groups[i].num_blocks of a pool that is too small for its window.
  static Result<std::unique_ptr<SessionTable>> make_sessions(const ModuleInfo& info,
                                                             const SessionExecutorOptions& options);

  // `module` outlives the executor, and nobody else runs steps on it.
  SessionExecutor(Module& module, std::unique_ptr<SessionTable> sessions);

  // Cuts a step of num_rows > 0 rows into forwards, in ascending order, each row in one of them.
  // Those that the last one has behind num_rows are padding, and fewer than it has in all.
  virtual void plan_forwards(int32_t num_rows, std::vector<Forward>& forwards) const = 0;

 private:
  Status run_step();
  void add_padding();
  template <typename Visit>
  Status for_held_cells(SequenceId sequence, Visit visit) const;
  Status read_extent(ByteSource& source, Position& length,
                     std::vector<Position>& first_positions) const;

  Module& module_;
  std::unique_ptr<SessionTable> sessions_;
  PackedStep packed_;
  std::vector<Forward> forwards_;
  std::vector<int32_t> selected_;     // scratch of select_rows
  std::vector<MethodUsage> methods_;  // of the module
  int64_t steps_ = 0;                 // committed
};

}  // namespace chorus
