// Many sessions in one batch: the owner of the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "chorus/base/clock.h"
#include "chorus/base/mutex.h"
#include "chorus/base/result.h"
#include "chorus/engine/metrics.h"
#include "chorus/engine/options.h"
#include "chorus/engine/session.h"
#include "chorus/exec/executor.h"

namespace chorus {

class EngineLoop;
class Thread;

// Runs the generations of its sessions step by step on one engine thread, which alone touches the
// executor and the scheduler. Callers post commands and read their own outboxes; nothing polls.
//
// After an aborted step its inputs are run again once, each alone, and only those that fail alone
// end with error. One bad input ends its own generation; the session can be used again.
// Thread: any, for every call.
class Runner {
 public:
  // Starts the engine thread and waits until the executor is initialised on it. Fails with the
  // executor's error, with kInvalidArgument naming an option that does not go with the others, or
  // with kResourceExhausted (field threads) where the system gives no thread.
  // `clock` outlives the Runner, its sessions and handles.
  static Result<std::unique_ptr<Runner>> create(std::unique_ptr<Executor> executor,
                                                const RunnerOptions& options, const Clock& clock);
  // The same without a thread: the engine runs in turn(), and in calls that wait for it. All calls
  // come from one thread, those to sessions and handles included. For programs that have a loop of
  // their own, and for simulations, which can be repeated exactly.
  static Result<std::unique_ptr<Runner>> create_without_thread(std::unique_ptr<Executor> executor,
                                                               const RunnerOptions& options,
                                                               const Clock& clock);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  const EffectiveOptions& effective() const;

  // An empty session, at once: the executor opens it behind the commands posted before, and what it
  // refuses ends the session's generations with its error. kResourceExhausted (field max_sessions)
  // when so many are open, kUnavailable when the engine is stopping.
  Result<Session> open(const SessionOptions& options = {});

  // A session with the context of a saved one. With its KV where that is of this engine's kv_format
  // and there is room for it; what is missing is computed when it is needed. That KV is trusted for
  // this session and its clones, and shared with no others. Waits for the engine.
  //   kInvalidArgument    tokens (an unknown id, or more than a session can have), or the field of
  //                       the format that differs (identity, kv_type, activations, isa,
  //                       numerics_version), unless `recompute` asks for the tokens alone
  //   kDataLoss           kv, or what of it cannot be
  //   kResourceExhausted, kUnavailable  as open
  Result<Session> load(const SavedSession& saved, bool recompute = false,
                       const SessionOptions& options = {});

  // The commands posted so far, then a step. Whether there was something to run; if not, nothing
  // happens until the next call, or the next deadline. Requires: create_without_thread, and no
  // shutdown yet.
  bool turn();

  // The state after the last step. Never waits for one.
  RunnerMetrics metrics() const;

  // The distributions behind the latencies of metrics(), as of the last step.
  Latencies latencies() const;

  // How long the engine has been at its turn in flight (commands, a step, deliveries), by its
  // clock; nothing while it waits for something to do. Reads atomics alone: it tells an engine that
  // is stuck.
  std::optional<int64_t> busy_ns() const;

  // Ends every generation with reason cancelled, closes every session and stops the engine thread,
  // after the step in flight. Idempotent; returns when it is done, to every caller.
  void shutdown();

 private:
  Runner(std::unique_ptr<Executor> executor, std::shared_ptr<EnginePort> port);
  static Result<std::unique_ptr<Runner>> make(std::unique_ptr<Executor> executor,
                                              const RunnerOptions& options, const Clock& clock);
  Status start_thread();

  const std::shared_ptr<EnginePort> port_;  // owners: Runner, sessions, generations
  const std::unique_ptr<Executor> executor_;
  std::unique_ptr<EngineLoop> loop_;
  Mutex join_mutex_;
  std::unique_ptr<Thread> thread_ CHORUS_GUARDED_BY(join_mutex_);
  bool has_ended_ CHORUS_GUARDED_BY(join_mutex_) = false;
};

}  // namespace chorus
