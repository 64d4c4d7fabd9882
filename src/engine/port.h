// What callers and the engine thread share: an inbox of commands and a few counters. Internal to
// the engine.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/event_log.h"
#include "engine/metrics.h"
#include "engine/options.h"
#include "engine/saved_session.h"

namespace chorus {

class GenerationState;

// Something that happens once and can be waited for. Thread: any.
class Event {
 public:
  void set();
  void wait();
  bool is_set() const;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_set_ CHORUS_GUARDED_BY(mutex_) = false;
};

// A session's facts that its owner may read. Written by the engine thread while a generation is
// live; between generations the position is only lowered, by the owner or by the engine.
//
// The owner and whoever ends its generation by finish_at use the session in turn: each decides what
// is legal and posts its command under `mutex`, so that the engine finds it as they have seen it.
struct SessionShared {
  explicit SessionShared(uint64_t key_in) : key(key_in) {}
  // The tokens that the session holds once the commands posted so far are handled, as far as its
  // live generation is known. Thread: of the session's owner.
  Position length() const {
    return std::min(position.load(std::memory_order_acquire), end.load(std::memory_order_acquire));
  }
  // From here on no earlier generation can be cut. Thread: as length().
  void begin_use(uint64_t generation) CHORUS_REQUIRES(mutex) {
    lower_position(end.exchange(kNoEnd, std::memory_order_acq_rel));
    last_generation = generation;
  }
  // Whether finish_at reaches the session: its last generation is the one named. Then it ends at
  // `at` tokens, if it gets there. Thread: any.
  bool cut(uint64_t generation, int64_t at) CHORUS_REQUIRES(mutex) {
    if (generation != last_generation) return false;
    end.store(static_cast<Position>(std::min<int64_t>(at, end)), std::memory_order_release);
    return true;
  }
  void lower_position(Position length) {
    Position now = position.load(std::memory_order_acquire);
    while (length < now &&
           !position.compare_exchange_weak(now, length, std::memory_order_acq_rel)) {
    }
  }
  static constexpr Position kNoEnd = std::numeric_limits<Position>::max();
  const uint64_t key;
  Mutex mutex;
  uint64_t last_generation CHORUS_GUARDED_BY(mutex) = 0;  // 0: none that can be cut
  std::atomic<Position> end{kNoEnd};  // where finish_at lets the last generation end
  std::atomic<Position> position{0};  // as the engine has it, or less
  std::atomic<bool> is_live{false};   // set by generate, cleared by the engine before the end shows
  bool is_suspended = false;          // it has no place. Thread: of the session's owner
};

struct OpenCommand {
  std::shared_ptr<SessionShared> session;  // owners: the Session and the engine's record of it
  SessionOptions options;
};
// `session` becomes a copy of the first `upto` tokens of `source`.
struct CloneCommand {
  std::shared_ptr<SessionShared> session;  // as above
  uint64_t source = 0;
  Position upto = 0;
};
// The answer to a command that a caller waits for.
template <typename T>
class Reply {
 public:
  void set(Result<T> result) {
    result_ = std::move(result);
    ready_.set();
  }
  Event& ready() { return ready_; }
  // Requires: ready() is set.
  Result<T> take() { return std::move(result_); }

 private:
  Event ready_;
  Result<T> result_ = internal_error("reply", "not given yet");
};
struct SaveCommand {
  uint64_t session = 0;
  std::shared_ptr<Reply<SavedSession>> reply;  // owners: the waiting caller and the engine
};
struct LoadCommand {
  std::shared_ptr<SessionShared> session;  // as above
  SessionOptions options;
  const SavedSession* saved = nullptr;  // of the waiting caller
  bool with_kv = false;
  std::shared_ptr<Reply<SessionId>> reply;  // as above
};
struct RewindCommand {
  uint64_t session = 0;
  Position length = 0;
};
// Takes its place in the executor from a session; ReturnCommand gives it one again.
struct SuspendCommand {
  uint64_t session = 0;
};
struct ReturnCommand {
  uint64_t session = 0;
};
struct CloseCommand {
  uint64_t session = 0;
  std::shared_ptr<Event> closed;  // null: nobody waits. Owners: the waiting caller and the engine
};
struct StartCommand {
  std::shared_ptr<GenerationState> generation;  // owners: the handles and the engine
  std::vector<TokenId> delta;
};
struct CancelCommand {
  uint64_t session = 0;
  uint64_t generation = 0;
};
struct FinishAtCommand {
  uint64_t session = 0;
  uint64_t generation = 0;
  int32_t num_tokens = 0;
};
// The reader of a paused generation has made room.
struct ResumeCommand {
  uint64_t session = 0;
  uint64_t generation = 0;
};
using Command = std::variant<OpenCommand, CloneCommand, SaveCommand, LoadCommand, RewindCommand,
                             SuspendCommand, ReturnCommand, CloseCommand, StartCommand,
                             CancelCommand, FinishAtCommand, ResumeCommand>;

// Commands in the order in which they were posted, kMostCommands at once and those of post_at_once.
// Thread: any; take() belongs to the engine thread.
class Inbox {
 public:
  static constexpr size_t kMostCommands = 4096;
  // Waits while it is full, for a step at most. False when the engine is stopping: the command is
  // not taken.
  bool post(Command command);
  // The same without waiting: for what comes once for each generation, or for each of its pauses.
  bool post_at_once(Command command);
  bool is_full() const;
  // Replaces `commands` by all that was posted, waiting up to `timeout_ns` while there is nothing
  // (kForever: until there is something or the engine is to stop). False: the engine is to stop,
  // and nothing more will come.
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
  bool take(int64_t timeout_ns, std::vector<Command>& commands);
  void stop();

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  CondVar taken_;
  std::vector<Command> commands_ CHORUS_GUARDED_BY(mutex_);
  bool is_stopping_ CHORUS_GUARDED_BY(mutex_) = false;
};

// A number of places that callers take and give back. Thread: any.
class Places {
 public:
  // False when `limit` are taken.
  bool try_take(int32_t limit);
  void give_back() { taken_.fetch_sub(1, std::memory_order_acq_rel); }
  int32_t taken() const { return taken_.load(std::memory_order_acquire); }

 private:
  std::atomic<int32_t> taken_{0};
};

struct EnginePort {
  explicit EnginePort(const Clock& clock_in) : clock(clock_in) {}

  // As Inbox::post; an engine without a thread makes its turns meanwhile.
  bool post(Command command);
  // Returns when the engine has set `event`.
  void await(Event& event);

  const Clock& clock;
  EffectiveOptions options;             // written before Runner::create returns, fixed from then on
  std::shared_ptr<EventLog> event_log;  // the same; null: none. Owners: this and the user
  Inbox inbox;
  Places sessions;  // opened and not yet closed by their owner
  Places queue;     // generations submitted and not yet admitted for the first time
  std::atomic<uint64_t> next_key{1};
  // When the engine began its turn in flight; kNotBusy: it waits.
  static constexpr int64_t kNotBusy = std::numeric_limits<int64_t>::min();
  std::atomic<int64_t> busy_since_ns{kNotBusy};
  // Runs one turn of an engine that has no thread of its own: whoever waits for it calls this.
  // Empty where there is a thread. Written as `options`.
  std::function<void()> turn;

  // The engine thread's counters as of its last step.
  mutable Mutex metrics_mutex;
  RunnerMetrics metrics CHORUS_GUARDED_BY(metrics_mutex);  // but for its latencies
  Latencies latencies CHORUS_GUARDED_BY(metrics_mutex);
};

// A place for one more session, given back when its command cannot be posted or it is closed.
// kResourceExhausted (field max_sessions) when none is left.
Result<std::shared_ptr<SessionShared>> take_place(EnginePort& port);

}  // namespace chorus
