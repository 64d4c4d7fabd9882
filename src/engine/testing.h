// A Runner over a scripted executor, and what its model says: for tests of the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/port.h"
#include "engine/runner.h"
#include "exec/scripted_executor.h"

namespace chorus::testing {

using Tokens = std::vector<TokenId>;

// Holds the engine thread at the start of a step.
class Gate {
 public:
  // Requires: the engine has not begun `step`.
  void hold_at(int64_t step) {
    const MutexLock lock(mutex_);
    held_step_ = step;
  }
  void open() {
    const MutexLock lock(mutex_);
    held_step_ = -1;
    changed_.notify_all();
  }
  void pass(int64_t step) {
    const MutexLock lock(mutex_);
    while (held_step_ >= 0 && step >= held_step_) changed_.wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int64_t held_step_ CHORUS_GUARDED_BY(mutex_) = -1;
};

// An engine whose steps can be held.
struct Engine {
  explicit Engine(const ScriptedExecutor::Options& executor_options = {},
                  const RunnerOptions& options = {}, const Clock* clock = nullptr) {
    auto owned = std::make_unique<ScriptedExecutor>(executor_options);
    executor = owned.get();
    executor->set_on_step([this](int64_t step, auto) { gate.pass(step); });
    auto created =
        Runner::create(std::move(owned), options, clock != nullptr ? *clock : steady_clock);
    CHORUS_CHECK(created.ok());
    runner = std::move(created).value();
  }
  ~Engine() { gate.open(); }

  Session open() {
    auto session = runner->open();
    CHORUS_CHECK(session.ok());
    return std::move(session).value();
  }
  // Returns when every command posted before was handled. Requires: a session place is free.
  void sync() { open().close(); }

  SteadyClock steady_clock;
  Gate gate;
  ScriptedExecutor* executor = nullptr;
  std::unique_ptr<Runner> runner;
};

// How a generation ended, and everything it delivered.
struct Ended {
  Tokens tokens;
  FinishReason reason = FinishReason::kError;
  Status error;
};

// Reads to the end, update by update.
inline Ended read_all(const GenerationHandle& handle) {
  Ended ended;
  Update update;
  while (handle.read(update)) {
    for (const TokenScore& token : update.tokens) ended.tokens.push_back(token.id);
    if (update.finish.has_value()) {
      ended.reason = *update.finish;
      ended.error = update.error;
    }
  }
  return ended;
}

inline GenerationHandle start(Session& session, Tokens prompt, const GenerationOptions& options) {
  auto handle = session.generate(std::move(prompt), options);
  CHORUS_CHECK(handle.ok());
  return *handle;
}

inline Ended generate(Session& session, Tokens prompt, const GenerationOptions& options) {
  return read_all(start(session, std::move(prompt), options));
}

// What the model says after a context, computed without an engine.
inline Tokens continuation(Tokens context, int count, const SamplingParams& sampling = {},
                           int32_t vocabulary = 1000) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(scripted_next_token(context, sampling, vocabulary));
    context.push_back(tokens.back());
  }
  return tokens;
}

inline Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Tokens first(const Tokens& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<int64_t>(count)};
}

inline GenerationOptions up_to(int32_t max_new_tokens) {
  return {.max_new_tokens = max_new_tokens};
}

}  // namespace chorus::testing
