// Sessions over KV sequences, and the packing of a batch of their inputs into one step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "batching/sampling_state.h"
#include "exec/executor.h"
#include "exec/module.h"
#include "exec/types.h"
#include "kv/books.h"

namespace chorus {

struct SessionTableOptions {
  int32_t max_sessions = 0;  // resident at once, clones included
  int32_t vocabulary = 0;
  KvOptions kv;                  // max_sequence_tokens bounds each session
  std::string kv_identity = {};  // of the program: bytes; prefixes are indexed under it
};

// A batch laid out on one axis of rows. Filled by SessionTable::pack, ended by finish or abort, and
// then ready to be filled again; reused, it does not allocate.
struct PackedStep {
  Step step;                        // no rows when no input checked out
  std::vector<int32_t> wanted;      // rows whose logits are needed, ascending, each once
  std::vector<RowSpec> specs;       // by row ascending
  std::vector<RowResult> results;   // [specs], for reduce_rows to fill
  std::vector<uint8_t> not_finite;  // [num_rows], zeroed, for run to fill

  // What follows is SessionTable's own.
  struct Input {
    Status status;
    int32_t session = -1;  // index into sessions; -1: unknown
    int32_t next = -1;     // the session's next input of the batch
    int32_t first_spec = 0;
    int32_t num_scored = 0;  // the specs of the scored tokens, then of the sampled one
    Position first_scored = 0;
    bool samples = false;
  };
  struct Session {  // one that has inputs in the batch; its rows are [start, start + count)
    int32_t slot = 0;
    int32_t first_input = 0;
    int32_t last_input = 0;
    int32_t failed_input = -1;  // the input whose status fails them all
    bool has_output = false;    // its last input asks for output
    int32_t mask = -1;          // index into masks, in units of mask_words
    int32_t sequence = -1;      // index into step.sequences and demands; -1: not in the step
    Position start = 0;
    int32_t count = 0;
  };
  std::vector<Input> inputs;  // [batch]
  std::vector<Session> sessions;
  std::vector<KvDemand> demands;   // [step.sequences]
  std::vector<Position> accepted;  // [step.sequences]
  std::vector<KvRows> rows;        // [step.sequences], with the tokens of step
  std::vector<uint32_t> masks;
  KvPlan plan;
};

// Sessions with their policies, bounded by max_sessions, over the KV books, which it owns. What it
// does is the same for every executor: an executor packs a batch, runs the step, and finishes or
// aborts it.
//
// A batch may hold several inputs of one session, not necessarily adjacent; they are consecutive
// slices in order, and only the last may ask for output. They succeed or fail together: an input
// that does not check out fails all of its session, and nothing else; a session that failed stands
// where it stood. Nothing about any session changes before finish, but what its policy was told of
// tokens, which is told anew by the next input.
// Thread: engine. Once warm, pack and finish allocate nothing unless an input fails.
// Source: ExecuTorch extension/llm/batching/util/session_table, for the table of refusals.
class SessionTable {
 public:
  // kInvalidArgument names max_sessions, vocabulary or a field of kv.
  static Result<std::unique_ptr<SessionTable>> create(const SessionTableOptions& options);

  // These are as in Executor.
  Result<SessionId> open(const SessionOptions& options);
  void close(SessionId session);
  Result<SessionId> clone(SessionId source, Position upto);
  Status set_sampling(SessionId session, const SamplingParams& params);
  Result<Position> length(SessionId session) const;
  Result<Position> attach_prefix(SessionId session, std::span<const TokenId> tokens);
  Status truncate(SessionId session, Position length);
  bool can_admit(std::span<const SessionDemand> demands) const;
  int64_t releasable_blocks(SessionId session) const;
  int64_t releasable_blocks(std::span<const SessionId> sessions, int32_t group) const;
  bool shares_last_block(SessionId session) const;
  Result<SequenceId> sequence_of(SessionId session) const;
  // A session of `length` tokens over KvBooks::restore, whose bytes the caller fills. Neither it
  // nor its clones are indexed, whatever its options say, before attach_prefix finds it empty:
  // nobody else is to see what somebody has brought along. Errors as open; kResourceExhausted
  // (field kv_blocks).
  Result<SessionId> restore(const SessionOptions& options, Position length,
                            std::span<const Position> first_positions);
  // Whether the session can be made `length` tokens long, by truncate, by a rewinding input or in a
  // clone: not when a window has left behind what the next token would see. False for unknown ones.
  bool can_rewind(SessionId session, Position length) const;

  // Checks every input and lays out those that pass. kResourceExhausted (field blocks) when there
  // are too few KV blocks: then no session has changed and there is nothing to finish.
  Status pack(std::span<const BatchInput> batch, PackedStep& packed);
  // After a step that ran (or has no rows): fails sessions with rows that are not finite, commits
  // the others, tells their constraints, and builds the output. Of `output`, likeliest is what
  // reduce_rows appended to, and stays; the rest is replaced.
  void finish(PackedStep& packed, BatchOutput& output);
  // After a step that failed or was not run: every session stands where it stood.
  void abort(PackedStep& packed);

  const SessionTableOptions& options() const { return options_; }
  const KvBooks& books() const { return *books_; }
  int32_t num_sessions() const { return static_cast<int32_t>(slot_of_.size()); }
  void check_invariants() const;

 private:
  struct Session {
    SessionId id{};
    SequenceId sequence{};
    SessionOptions options;
    std::string key;  // of its prefixes
    bool is_indexed = false;
    std::optional<SamplingState> policy;
    bool is_starting = false;   // its next output is the first under this policy
    uint64_t packed_epoch = 0;  // the pack that packed_index belongs to
    int32_t packed_index = 0;   // into PackedStep::sessions
  };

  SessionTable(const SessionTableOptions& options, std::unique_ptr<KvBooks> books);
  int32_t find(SessionId session) const;  // its slot, -1 when unknown
  Status check_rewind(const Session& session, Position length, std::string_view field) const;
  Session& at(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  const Session& at(int32_t slot) const { return slots_[static_cast<size_t>(slot)]; }
  Status check_capacity() const;
  Status check_new(const SessionOptions& options) const;
  SessionId insert(SequenceId sequence, const SessionOptions& options, bool is_indexed);
  std::string key_of(const SessionOptions& options) const;

  void add_input(const BatchInput& input, int32_t index, PackedStep& packed);
  Status check_input(const BatchInput& input, const PackedStep::Session* earlier,
                     const Session& session) const;
  Status check_slice(const BatchInput& input) const;
  Status check_tokens(const BatchInput& input) const;
  Status check_start(const BatchInput& input, const PackedStep::Session* earlier,
                     const Session& session) const;
  void fill_masks(PackedStep& packed);
  void fail_siblings(PackedStep& packed) const;
  Status plan_blocks(PackedStep& packed) const;
  void lay_out(std::span<const BatchInput> batch, PackedStep& packed);
  void lay_out_rows(std::span<const BatchInput> batch, const PackedStep::Session& session,
                    PackedStep& packed);
  void add_specs(const BatchInput& input, const PackedStep::Session& session,
                 PackedStep::Input& packed_input, PackedStep& packed);
  void fail_not_finite(PackedStep& packed) const;
  void accept_sampled(PackedStep& packed);
  void commit(PackedStep& packed);

  SessionTableOptions options_;
  std::unique_ptr<KvBooks> books_;
  std::vector<Session> slots_;       // [max_sessions]
  std::vector<int32_t> free_slots_;  // a stack
  std::unordered_map<SessionId, int32_t> slot_of_;
  uint64_t next_session_ = 1;
  uint64_t epoch_ = 0;
  mutable std::vector<KvDemand> demands_;  // scratch of can_admit
};

}  // namespace chorus
