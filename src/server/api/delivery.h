// The thread that runs requests: it gives them sessions, waits for the engine, and writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "engine/generation.h"
#include "engine/metrics.h"
#include "server/api/live_request.h"
#include "server/api/requests.h"

namespace chorus::api {

struct DeliveryLimits {
  size_t max_running = 1;   // requests that hold sessions
  size_t max_sessions = 1;  // that all of them hold together
};

// Requests get their sessions in the order of QueueOrder. Where there is no place, running ones of
// a lower priority that come behind give theirs, the last first. They wait in their order, and then
// go on where they were.
// Thread: any.
class Delivery {
 public:
  // `signal` is the one that the plans' options carry. `on_tick` is called on the thread several
  // times a second. kResourceExhausted (field threads).
  static Result<std::unique_ptr<Delivery>> start(const LiveContext& context,
                                                 const DeliveryLimits& limits,
                                                 std::shared_ptr<UpdateSignal> signal,
                                                 std::function<void()> on_tick);
  ~Delivery() { stop(); }
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  void submit(AcceptedRequest request);

  // Ends all requests with an error, and the thread. Idempotent.
  void stop();

  // The requests that run, as of the last look.
  std::vector<json::Value> running() const;
  // Places for requests that run.
  size_t num_places() const { return limits_.max_running; }
  // Choices asked for, once for each prompt of a request that generates.
  LatencyHistogram num_choices() const;

 private:
  Delivery(const LiveContext& context, const DeliveryLimits& limits,
           std::shared_ptr<UpdateSignal> signal, std::function<void()> on_tick)
      : context_(context),
        limits_(limits),
        signal_(std::move(signal)),
        on_tick_(on_tick),
        order_(context.runner.effective().priority_age_ms,
               context.runner.effective().shortest_first_ms),
        num_choices_(latency_marks::of_counts(kMaxHttpChoices)) {}

  void run();
  void measure(const AcceptedRequest& request) CHORUS_REQUIRES(mutex_);
  bool take_submitted();
  void wait_in_line(std::unique_ptr<LiveRequest> request);
  void start_waiting();
  void suspend(LiveRequest& victim);
  bool has_place_for(const LiveRequest& next, size_t num_running, size_t num_held) const;
  std::vector<LiveRequest*> victims_for(const LiveRequest& next, size_t num_held) const;
  void poll_all();
  void tick();
  void publish();

  const LiveContext context_;
  const DeliveryLimits limits_;
  const std::shared_ptr<UpdateSignal> signal_;  // owners: with the generations and exchanges
  const std::function<void()> on_tick_;
  const QueueOrder order_;  // the engine's own

  mutable Mutex mutex_;
  std::vector<AcceptedRequest> submitted_ CHORUS_GUARDED_BY(mutex_);
  bool is_stopping_ CHORUS_GUARDED_BY(mutex_) = false;
  std::vector<json::Value> published_ CHORUS_GUARDED_BY(mutex_);
  LatencyHistogram num_choices_ CHORUS_GUARDED_BY(mutex_);

  std::atomic<uint64_t> next_number_{0};

  // Of the thread alone:
  std::vector<std::unique_ptr<LiveRequest>> waiting_;  // in the order in which they begin
  std::vector<std::unique_ptr<LiveRequest>> running_;

  std::unique_ptr<Thread> thread_;  // last
};

}  // namespace chorus::api
