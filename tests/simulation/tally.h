// What has happened in a simulation: that it says nothing about what never happened is checked.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>

namespace chorus::simulation {

enum class Count : uint8_t {
  kTurn,
  kIdleTurn,  // there was nothing to run
  kStep,
  kAbortedStep,
  kGeneration,
  kAppend,
  kToken,
  kScore,
  kEndStop,  // from here on in the order of EndKind
  kEndLength,
  kEndCancelled,
  kEndDeadline,
  kEndInjected,
  kEndNotFinite,
  kEndConstraint,
  kEndRefused,
  kPreemption,
  kEviction,
  kRecomputedToken,
  kCopiedBlock,
  kCloneIdle,
  kCloneLive,
  kBrokenSession,
  kRewind,
  kCut,
  kCutAfterEnd,
  kPause,
  kCloseLive,
  kSuspendIdle,
  kSuspendLive,
  kSave,
  kSaveFault,
  kLoad,
  kLoadWithoutKv,
  kLoadFault,
  kLoadDamaged,
  kFileRoundTrip,
  kRefusedSession,
  kRefusedQueue,
  kRefusedLength,
  kShutdownLive,
  kDrain,
  kNumCounts
};
inline constexpr size_t kNumCounts = static_cast<size_t>(Count::kNumCounts);

inline constexpr std::array<const char*, kNumCounts> kCountNames = {"turns",
                                                                    "idle turns",
                                                                    "steps",
                                                                    "aborted steps",
                                                                    "generations",
                                                                    "appends",
                                                                    "tokens",
                                                                    "scores",
                                                                    "ended: stop",
                                                                    "ended: length",
                                                                    "ended: cancel",
                                                                    "ended: deadline",
                                                                    "ended: fault",
                                                                    "ended: NaN",
                                                                    "ended: constraint",
                                                                    "ended: refused",
                                                                    "preemptions",
                                                                    "evictions",
                                                                    "recomputed",
                                                                    "copied blocks",
                                                                    "clones, idle",
                                                                    "clones, live",
                                                                    "broken sessions",
                                                                    "rewinds",
                                                                    "cuts",
                                                                    "cuts after end",
                                                                    "pauses",
                                                                    "closed live",
                                                                    "suspended, idle",
                                                                    "suspended, live",
                                                                    "saves",
                                                                    "saves failed",
                                                                    "loads",
                                                                    "loads, tokens",
                                                                    "loads failed",
                                                                    "loads of damaged",
                                                                    "file round trips",
                                                                    "max_sessions",
                                                                    "queue full",
                                                                    "too long",
                                                                    "shut down live",
                                                                    "drains"};

class Tally {
 public:
  void add(Count count, int64_t by = 1) { counts_[static_cast<size_t>(count)] += by; }
  void add(const Tally& other) {
    for (size_t i = 0; i < kNumCounts; ++i) counts_[i] += other.counts_[i];
  }
  int64_t of(Count count) const { return counts_[static_cast<size_t>(count)]; }

  // The name of something that never happened, or null.
  const char* never() const {
    for (size_t i = 0; i < kNumCounts; ++i) {
      if (counts_[i] == 0) return kCountNames[i];
    }
    return nullptr;
  }
  void print(std::FILE* out) const {
    for (size_t i = 0; i < kNumCounts; ++i) {
      std::fprintf(out, "%-18s %11lld%s", kCountNames[i], static_cast<long long>(counts_[i]),
                   i % 3 == 2 || i + 1 == kNumCounts ? "\n" : "   ");
    }
  }

 private:
  std::array<int64_t, kNumCounts> counts_{};
};

}  // namespace chorus::simulation
