// An executor without a model, for tests of what lies above the seam: deterministic tokens, counted
// blocks, and faults on request.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "exec/executor.h"

namespace chorus {

// The token that follows a history in the scripted model, in [0, vocabulary): a hash of every token
// of it and, unless the temperature is 0, of the draw (seed, choice, position).
TokenId scripted_next_token(std::span<const TokenId> history, const SamplingParams& sampling,
                            int32_t vocabulary);

// The log probability that the scripted model gives to `token` after a history; negative.
float scripted_logprob(std::span<const TokenId> history, TokenId token);

// What goes wrong, and when.
struct ScriptedFault {
  enum class Kind : uint8_t {
    kFailStep,         // execute returns an error, nothing changes
    kFailInput,        // inputs of `session` fail alone
    kShortOutput,      // Ok, but the entry of the last input is missing
    kMissingToken,     // inputs of `session` ask for output and get none
    kUnexpectedToken,  // inputs of `session` get a token that they did not ask for
    kTokenOutOfRange,  // inputs of `session` get a token outside the vocabulary
    kBadRange,         // inputs of `session` name tokens that are not there
  };
  Kind kind = Kind::kFailStep;
  // Steps are counted from 0 by calls of execute. Active in [first_step, first_step + num_steps).
  int64_t first_step = 0;
  int64_t num_steps = 1;
  SessionId session{};  // kFailStep: only steps that hold this session, 0: all
};

// An Executor over plain token lists. Every session is the list of its committed tokens; blocks are
// counted, not stored, and never shared: there is no prefix index.
//
// Thread: as Executor, except for what is under "For tests", which any thread may call at any time.
class ScriptedExecutor final : public Executor {
 public:
  struct Options {
    int32_t vocabulary = 1000;
    int32_t max_sessions = 64;
    int32_t max_session_tokens = 4096;
    int32_t preferred_batch_tokens = 0;
    int32_t block_size = 16;
    int32_t num_blocks = 1024;
    int32_t num_groups = 1;         // layer groups with full history, of num_blocks each
    int32_t tokens_per_output = 1;  // more: outputs shaped as by speculation
    Status initialize_status = {};
  };

  explicit ScriptedExecutor(const Options& options) : options_(options) {}

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
  bool shares_last_block(SessionId) const override { return false; }  // none share any
  Status execute(std::span<const BatchInput> batch, BatchOutput& output) override;
  Status truncate(SessionId session, Position length) override;
  Result<Position> attach_prefix(SessionId session, std::span<const TokenId> tokens) override;
  Status release(SessionId session) override;
  Status save(SessionId session, ByteSink& sink) override;
  Result<SessionId> load(const SessionOptions& options, std::span<const TokenId> tokens,
                         ByteSource& source) override;
  Usage usage() const override;

  // ---- For tests ----

  // One input as it was executed.
  struct SeenInput {
    int64_t step = 0;
    SessionId session{};
    Position start = 0;
    std::vector<TokenId> tokens;  // of the slice
    bool produce_output = false;
  };

  void add_fault(const ScriptedFault& fault);
  // The next `num_calls` calls of can_admit answer no.
  void refuse_admission(int num_calls);
  // Called at the start of every step on the engine thread, before anything changes; it may block.
  using OnStep = std::function<void(int64_t step, std::span<const BatchInput> batch)>;
  void set_on_step(OnStep on_step);
  int64_t num_steps() const;
  // Returns when num_steps() >= count.
  void wait_for_steps(int64_t count) const;
  int32_t num_sessions() const;
  std::vector<SeenInput> seen() const;
  std::optional<std::vector<TokenId>> tokens_of(SessionId session) const;

 private:
  struct SessionState {
    std::vector<TokenId> tokens;
    std::optional<SamplingParams> sampling;
  };
  // A session while a step is built; committed as a whole or, when an input failed, not at all.
  struct Draft {
    std::vector<TokenId> tokens;
    Status failed;
  };
  using Drafts = std::unordered_map<SessionId, Draft>;

  int32_t blocks_of(size_t num_tokens) const;
  int32_t blocks_used() const CHORUS_REQUIRES(mutex_);
  bool admits(std::span<const SessionDemand> demands) const CHORUS_REQUIRES(mutex_);
  bool is_faulty(ScriptedFault::Kind kind, SessionId session, int64_t step) const
      CHORUS_REQUIRES(mutex_);
  bool fits(std::span<const BatchInput> batch) const CHORUS_REQUIRES(mutex_);
  void record(std::span<const BatchInput> batch, int64_t step) CHORUS_REQUIRES(mutex_);
  Status check_input(const BatchInput& input, size_t num_tokens) const;
  Status check_tokens(const BatchInput& input) const;
  Status run_input(const BatchInput& input, int64_t step, Draft& draft, BatchOutput& output)
      CHORUS_REQUIRES(mutex_);
  void sample(const SamplingParams& sampling, int32_t count, std::vector<TokenId>& tokens,
              BatchOutput& output) const;
  TokenScore score_of(std::span<const TokenId> history, TokenId token, int32_t num_likeliest,
                      BatchOutput& output) const;
  void commit(std::span<const BatchInput> batch, Drafts& drafts, BatchOutput& output)
      CHORUS_REQUIRES(mutex_);
  void misreport(std::span<const BatchInput> batch, int64_t step, BatchOutput& output) const
      CHORUS_REQUIRES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  mutable CondVar stepped_;
  std::unordered_map<SessionId, SessionState> sessions_ CHORUS_GUARDED_BY(mutex_);
  uint64_t next_session_ CHORUS_GUARDED_BY(mutex_) = 1;
  std::vector<ScriptedFault> faults_ CHORUS_GUARDED_BY(mutex_);
  mutable int refusals_ CHORUS_GUARDED_BY(mutex_) = 0;
  OnStep on_step_ CHORUS_GUARDED_BY(mutex_);
  int64_t steps_ CHORUS_GUARDED_BY(mutex_) = 0;
  int64_t forwards_ CHORUS_GUARDED_BY(mutex_) = 0;
  int32_t blocks_peak_ CHORUS_GUARDED_BY(mutex_) = 0;
  std::vector<SeenInput> seen_ CHORUS_GUARDED_BY(mutex_);
};

}  // namespace chorus
