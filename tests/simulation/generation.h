// A generation as it must come out: what it delivers, and the ways in which it may end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/generation.h"
#include "engine/options.h"
#include "tests/simulation/constraint.h"
#include "tests/simulation/oracle.h"

namespace chorus::simulation {

using Tokens = std::vector<TokenId>;

struct Request {
  int64_t id = 0;
  size_t engine = 0;
  Tokens context;  // of the session before it
  Tokens prompt;
  GenerationOptions options;  // max_new_tokens is 0 for an append
  std::optional<ConstraintRules> constraint;
  int64_t submitted_ns = 0;
  bool session_is_broken = false;  // the executor has no such session: it must fail
  bool has_bad_sampling = false;   // the executor must refuse its parameters
  std::optional<int64_t> deadline_at_ns = {};
};

// How it ended, for whoever counts.
enum class EndKind : uint8_t {
  kStop,
  kLength,
  kCancelled,
  kDeadline,
  kInjected,  // a fault of the simulation
  kNotFinite,
  kConstraint,
  kRefused,  // by the executor: the session is broken, or the parameters are bad
};
inline constexpr size_t kNumEndKinds = 8;

// Compares everything that a handle gives with what the oracle says, as it is read. Failures abort.
class Generation {
 public:
  Generation(Request request, GenerationHandle handle, Oracle& oracle);

  const Request& request() const { return request_; }
  const GenerationHandle& handle() const { return handle_; }
  std::string name() const { return "generation " + std::to_string(request_.id); }

  // ---- What was asked of it ----
  bool was_started = false;  // there was a turn since it was submitted
  bool cancel_posted = false;
  bool close_posted = false;      // its session, or the engine
  std::optional<int32_t> cut;     // the least n of finish_at
  bool may_be_preempted = false;  // false: it was first in every order, and never paused

  // Reads what there is. Whether there was something.
  bool read();
  int32_t num_read() const { return static_cast<int32_t>(read_.size()); }
  bool end_was_read() const { return end_was_read_; }

  // Once handle().done(), after the first turn that could see it: checks the end, in an engine
  // whose last turn began at `turn_ns`. Requires: not ended().
  EndKind check_end(int64_t turn_ns);
  bool ended() const { return ended_; }
  // Takes the scores of the prompt and compares them. Requires: ended().
  void check_scores();
  // Of a position that the engine reports while it is live, or after the end.
  void check_position(Position position) const;

  Position prompt_begin() const { return static_cast<Position>(request_.context.size()); }
  Position prompt_end() const {
    return prompt_begin() + static_cast<Position>(request_.prompt.size());
  }
  // Tokens that were delivered, cut ones not counted. Requires: ended().
  int32_t num_delivered() const { return num_delivered_; }
  void cut_after_end(int32_t n);
  // Whether its tokens can be told: not without the seed that the engine has drawn for it.
  bool can_tell() const;
  // The first `length` tokens of the session while it is live, or after its end. Requires:
  // can_tell(), or length <= prompt_end(); the engine holds so many.
  Tokens history(Position length);
  uint64_t digest() const { return digest_; }

 private:
  const Scored* expected(int32_t index);
  std::optional<Scored> sample(int32_t index);
  std::vector<TokenAdjustment> adjustments() const;
  bool is_forbidden(TokenId token, int32_t index) const;
  bool is_stop(TokenId token) const;
  bool must_fail_in_prompt();
  Position first_scored() const;
  void check_read();
  void check_token(int32_t index);
  void check_metrics(const GenerationMetrics& metrics) const;
  void check_natural_end(FinishReason reason);
  EndKind check_cancelled(const Status& error, int64_t turn_ns) const;
  EndKind check_error(const Status& error);

  const Request request_;
  const GenerationHandle handle_;
  Oracle& oracle_;
  Tokens all_;                    // context, prompt and what is expected_
  std::vector<Scored> expected_;  // what it must deliver, as far as anybody asked
  bool expected_ends_ = false;    // behind them it must fail
  TokenId last_sampled_ = -1;
  std::optional<uint64_t> seed_;
  std::vector<Scored> read_;
  int32_t num_checked_ = 0;
  bool ended_ = false;
  bool end_was_read_ = false;
  int32_t num_delivered_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace chorus::simulation
