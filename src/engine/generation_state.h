// The meeting place of a generation's readers and the engine thread. Internal to the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "base/mutex.h"
#include "engine/generation.h"
#include "engine/options.h"

namespace chorus {

struct EnginePort;
struct SessionShared;

// How a generation ended.
struct Ending {
  FinishReason reason = FinishReason::kStop;
  Status error;
};

// How far it is.
struct Progress {
  GenerationMetrics metrics;   // but for itl
  std::optional<int64_t> itl;  // nanoseconds since the update before, of one that brings tokens
};

// Thread: any. The outbox holds at most max_new_tokens tokens.
class GenerationState {
 public:
  // Its prompt ends at position `prompt_end` of the session.
  GenerationState(std::shared_ptr<EnginePort> port, std::shared_ptr<SessionShared> session,
                  uint64_t number, Position prompt_end, GenerationOptions options,
                  int64_t submitted_ns);

  // Fixed from construction on.
  uint64_t session() const;  // its key
  uint64_t number() const { return number_; }
  const GenerationOptions& options() const { return options_; }
  int64_t submitted_ns() const { return submitted_ns_; }

  // ---- Engine thread ----

  // Appends tokens and, in the same update, the end. True: the generation is to pause until a
  // reader posts a resume, because max_unread tokens or more wait to be read.
  bool deliver(std::span<const TokenScore> tokens, std::span<const TokenLogprob> likeliest,
               const Progress& progress, const std::optional<Ending>& ending, int32_t max_unread);
  void add_scores(Position first, std::span<const TokenScore> tokens,
                  std::span<const TokenLogprob> likeliest);
  bool cancel_requested() const { return cancel_requested_.load(std::memory_order_acquire); }

  // ---- Readers ----

  // GenerationHandle::finish_at. Requires: n >= 1.
  void finish_at(int32_t n);
  void cancel();
  bool read(Update& update, bool blocking);
  void wait();
  bool done() const;
  std::optional<FinishReason> finish_reason() const;
  Status error() const;
  GenerationMetrics metrics() const;
  PromptScores take_prompt_scores();

 private:
  bool cut(int32_t n);
  void post_resume();
  bool has_news() const;
  void apply_cut() CHORUS_REQUIRES(mutex_);

  const std::shared_ptr<EnginePort> port_;        // owners: Runner, sessions, generations
  const std::shared_ptr<SessionShared> session_;  // owners: its owner, the engine, generations
  const uint64_t number_;
  const Position prompt_end_;
  const GenerationOptions options_;
  const int64_t submitted_ns_;
  std::atomic<bool> cancel_requested_{false};

  mutable Mutex mutex_;
  CondVar changed_;
  Update outbox_ CHORUS_GUARDED_BY(mutex_);
  PromptScores scores_ CHORUS_GUARDED_BY(mutex_);
  GenerationMetrics metrics_ CHORUS_GUARDED_BY(mutex_);
  std::vector<int64_t> itl_ CHORUS_GUARDED_BY(mutex_);
  std::optional<Ending> ending_ CHORUS_GUARDED_BY(mutex_);
  int32_t cut_ CHORUS_GUARDED_BY(mutex_) = std::numeric_limits<int32_t>::max();
  bool end_was_read_ CHORUS_GUARDED_BY(mutex_) = false;
  bool is_paused_ CHORUS_GUARDED_BY(mutex_) = false;
  bool limit_is_lifted_ CHORUS_GUARDED_BY(mutex_) = false;
};

}  // namespace chorus
