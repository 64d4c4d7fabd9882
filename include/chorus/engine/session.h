// One token history, held by its owner.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "chorus/base/result.h"
#include "chorus/engine/generation.h"
#include "chorus/engine/options.h"
#include "chorus/engine/saved_session.h"

namespace chorus {

struct EnginePort;
struct SessionShared;

// A session of a Runner. Where a call posts a command and is said not to wait, it waits for the
// step in flight if some thousand commands wait for the engine already. Move-only; it belongs to
// one thread at a time. It may outlive the Runner, and then refuses everything with kUnavailable.
//
// Context rule: the context after a generation is the context before, the tokens given, and exactly
// the tokens delivered. (The KV of an idle session may be taken for others; it is computed again
// when it is needed, which metrics report and nothing else shows.) A generation that is cancelled
// or fails while its prompt is consumed leaves the part consumed so far. A session has one live
// generation at most.
class Session {
 public:
  Session() = default;
  Session(std::shared_ptr<EnginePort> port, std::shared_ptr<SessionShared> shared);
  ~Session();  // as close(), without waiting
  Session(Session&& other) noexcept = default;
  Session& operator=(Session&& other) noexcept;
  bool valid() const { return shared_ != nullptr; }

  // Consumes tokens and generates. Refused at once, with nothing changed:
  //   kInvalidArgument  session (a generation is live, or closed), prompt (empty, an unknown id, or
  //                     longer than a session or the pool can be), max_tokens (below 1, or too many
  //                     beside the prompt; the message names the tokens it would need),
  //                     score_from, min_tokens (above max_tokens), or what names an unknown id
  //                     ("logit_bias["7"]", "stop_token_ids[0]")
  //   kResourceExhausted  queue (max_queued_generations wait already)
  //   kUnavailable        engine (it is stopping)
  // What only the executor can refuse (sampling parameters, session options) ends the generation
  // with error. It waits for KV blocks, by priority and then first in first out, until its prompt
  // fits beside what runs; blocks of idle sessions are taken first, and those of generations of a
  // lower priority. A running generation may lose its blocks to others; it then waits again, and
  // resumes with the identical continuation.
  Result<GenerationHandle> generate(std::vector<TokenId> prompt, const GenerationOptions& options);

  // Consumes tokens without generating; ends with reason length. max_new_tokens, seed and stop
  // tokens are not read. Refused as generate.
  Result<GenerationHandle> append(std::vector<TokenId> tokens,
                                  const GenerationOptions& options = {});

  // The tokens of the context, delivered ones included. It moves while a generation is live.
  // Requires: valid().
  Position position() const;

  // A new session with the first `upto` tokens of this one, its settings and its KV, which is
  // shared and not copied. Also while a generation is live. Refused, with nothing changed:
  //   kInvalidArgument    session (closed), upto (outside [0, position()])
  //   kResourceExhausted  max_sessions (so many are open)
  //   kUnavailable        engine (it is stopping)
  Result<Session> clone(Position upto) const;

  // The session as a value: its tokens, its sampling state, and the KV that it holds. Waits for the
  // engine to copy it, between two steps. kInvalidArgument: session (a generation is live, or
  // closed); kUnavailable: engine; else the executor's error.
  Result<SavedSession> save() const;

  // Shortens the context to its first `length` tokens, 0 included; the rest's blocks go back to the
  // pool. kInvalidArgument: session (a generation is live, or closed), length (outside
  // [0, position()]); kUnavailable: engine.
  Status rewind(Position length);

  // Gives the session's place among max_sessions to others, with all KV: a live generation waits,
  // preempted if it ran, and reads, cancels and deadlines work as before. Nothing happens when it
  // has none. Does not wait. Until resume() has succeeded, generate, append, clone and save are
  // refused (kInvalidArgument, field session). kInvalidArgument: session (closed); kUnavailable:
  // engine.
  Status suspend();
  // Takes a place again; the generation goes on with the identical continuation, in its order of
  // priority and submission. Nothing happens when it has one. kResourceExhausted: max_sessions;
  // kInvalidArgument: session (closed); kUnavailable: engine.
  Status resume();

  // Cancels the live generation, and returns when the session's blocks are back in the pool: within
  // one step. Nothing happens when it is closed already.
  void close();

 private:
  Result<GenerationHandle> start(std::vector<TokenId> prompt, GenerationOptions options);
  Status check_prompt(const std::vector<TokenId>& prompt, const GenerationOptions& options) const;
  Status check_sampled(const GenerationOptions& options) const;
  Status check_length(size_t num_prompt, int32_t max_new_tokens) const;
  Status check_usable() const;
  void post_close(bool wait);

  std::shared_ptr<EnginePort> port_;       // owners: Runner, sessions, generations
  std::shared_ptr<SessionShared> shared_;  // owners: this and the engine's record of the session
};

}  // namespace chorus
