// One run of producing tokens in a session, as its readers see it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "chorus/base/mutex.h"
#include "chorus/base/result.h"
#include "chorus/engine/latency.h"
#include "chorus/exec/types.h"

namespace chorus {

class GenerationState;

enum class FinishReason : uint8_t {
  kStop,       // a stop token, or finish_at
  kLength,     // max_new_tokens were delivered; for an append: all was consumed
  kCancelled,  // by cancel(), by closing the session, by shutdown, or (with an error) a deadline
  kError,      // the error says why; the session can be used again
};

// What a generation has delivered since the last read. Reuse one object: its memory is swapped.
struct Update {
  std::vector<TokenScore> tokens;       // likeliest_begin counts into `likeliest`
  std::vector<TokenLogprob> likeliest;  // filled when num_likeliest was asked for
  std::optional<FinishReason> finish;   // set in the last update, which may carry tokens too
  Status error;                         // why, when finish is kError, or kCancelled by a deadline

  void clear();
};

// Scores of given tokens: position first, first + 1, ...
struct PromptScores {
  Position first = 0;
  std::vector<TokenScore> tokens;  // likeliest_begin counts into `likeliest`
  std::vector<TokenLogprob> likeliest;
};

struct GenerationMetrics {
  double queue_ms = 0;  // from submission to the start of its first step
  double ttft_ms = 0;   // from submission to the first token; 0 when there was none
  double tpot_ms = 0;   // mean time of each token but the first; 0 with fewer than two
  double total_ms = 0;  // from submission to the end, or to the last update
  LatencySummary itl;   // time between updates with tokens, time without blocks included
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, not computed, because the prefix index had them
  int32_t generated_tokens = 0;
  int32_t recomputed_tokens = 0;  // of the session's context, because its blocks had been taken
  int32_t preemptions = 0;        // times that it lost its blocks
  uint64_t seed = 0;              // the one used
};

// Counts updates of every generation it was given to, so that one thread can wait for many:
//   uint64_t seen = signal->count();
//   while (...) { try_read each handle; seen = signal->wait(seen); }
// Thread: any.
class UpdateSignal {
 public:
  uint64_t count() const;
  // Returns the count once it differs from `seen`.
  uint64_t wait(uint64_t seen) const;
  // The same, but it returns the count as it is when `timeout_ns` have passed, or sooner.
  uint64_t wait_for(uint64_t seen, int64_t timeout_ns) const;
  // Called by the engine once a step; a caller may use it to wake the waiting thread.
  void notify();

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  uint64_t count_ CHORUS_GUARDED_BY(mutex_) = 0;
};

// A generation that was accepted. Copyable; copies share one stream of updates. It may outlive the
// session and the Runner; dropping it does not cancel. Thread: any.
// Every call but valid() requires: valid().
class GenerationHandle {
 public:
  GenerationHandle() = default;
  explicit GenerationHandle(std::shared_ptr<GenerationState> state) : state_(std::move(state)) {}
  bool valid() const { return state_ != nullptr; }

  // Asks for the end; the engine wakes at once, and the generation has ended within one step.
  // Tokens that were not delivered by then are not part of the context.
  void cancel() const;

  // Ends the generation with reason stop after its first n tokens, also when more were delivered:
  // the context is cut to those n, and position() says so at once. May be called after the end (a
  // stop string may be found in the last tokens); from the session's next generation or rewind on,
  // only the handle tells of it. What ended by a stop, its length, a cancel or a deadline after
  // more tokens than n has then ended with stop and without an error; kError stays, with its error.
  // kInvalidArgument (field n) for n < 1.
  Status finish_at(int32_t n) const;

  // Blocks until there is something to read and puts it in `update` (replaced). False: the last
  // update was read before. A generation pauses while max_unread_tokens wait to be read.
  bool read(Update& update) const;
  // The same without blocking; false also when there is nothing new.
  bool try_read(Update& update) const;

  // Blocks until the end. It lifts the limit of unread tokens: who waits for the end does not read.
  void wait() const;
  bool done() const;

  // Empty before the end.
  std::optional<FinishReason> finish_reason() const;
  Status error() const;
  // As of the last update; complete after the end.
  GenerationMetrics metrics() const;
  // Moves out the scores of prompt tokens, complete with the first token or the end.
  PromptScores take_prompt_scores() const;

 private:
  std::shared_ptr<GenerationState> state_;  // owners: the handles, and the engine until the end
};

}  // namespace chorus
