// What an engine did, event by event.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "chorus/base/mutex.h"
#include "chorus/engine/generation.h"

namespace chorus {

// Times are of the engine's clock. `session` and `generation` number those of one Runner from 1;
// 0: none.
struct EngineEvent {
  enum class Kind : uint8_t {
    kSubmitted,   // at the time of the call, logged when the engine has heard of it
    kStep,        // a step of the executor ended: `ns` it took; `tokens` it ran; `aborted`
    kFirstStep,   // the generation's first step began
    kConsumed,    // `tokens` given ones became context
    kQueried,     // the prefix index was asked for `tokens` of the prompt
    kCached,      // `tokens` of those consumed were not computed: the index had them
    kRecomputed,  // `tokens` of the context were computed again
    kDelivered,   // `tokens` were generated
    kCut,         // `tokens` delivered ones were taken back, by finish_at
    kPreempted,   // the generation lost its blocks
    kEvicted,     // the idle session lost its blocks
    kEnded,       // for `reason`
  };
  Kind kind = Kind::kStep;
  int64_t time_ns = 0;
  uint64_t session = 0;
  uint64_t generation = 0;
  int32_t tokens = 0;
  int64_t ns = 0;
  bool aborted = false;
  FinishReason reason = FinishReason::kStop;
};

// Filled by the engine thread once a step, emptied by whoever owns it; it grows until then. What is
// in it explains every count and every latency of RunnerMetrics. Thread: any.
class EventLog {
 public:
  void append(std::span<const EngineEvent> events) {
    const MutexLock lock(mutex_);
    events_.insert(events_.end(), events.begin(), events.end());
  }
  // Moves out everything logged since the last call.
  std::vector<EngineEvent> take() {
    const MutexLock lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  Mutex mutex_;
  std::vector<EngineEvent> events_ CHORUS_GUARDED_BY(mutex_);
};

}  // namespace chorus
