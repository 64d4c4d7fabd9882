#include "server/api/delivery.h"

#include <algorithm>
#include <utility>

namespace chorus::api {

namespace {

constexpr int64_t kTickNs = 100'000'000;

}  // namespace

Result<std::unique_ptr<Delivery>> Delivery::start(const LiveContext& context,
                                                  const DeliveryLimits& limits,
                                                  std::shared_ptr<UpdateSignal> signal,
                                                  std::function<void()> on_tick) {
  std::unique_ptr<Delivery> delivery(
      new Delivery(context, limits, std::move(signal), std::move(on_tick)));
  CHORUS_ASSIGN_OR_RETURN(delivery->thread_, Thread::start([raw = delivery.get()] { raw->run(); }));
  return delivery;
}

void Delivery::submit(AcceptedRequest request) {
  {
    const MutexLock lock(mutex_);
    if (!is_stopping_) {
      submitted_.push_back(std::move(request));
      signal_->notify();
      return;
    }
  }
  LiveRequest(context_, std::move(request)).fail(draining());
}

void Delivery::stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  signal_->notify();
  thread_.reset();
}

std::vector<json::Value> Delivery::running() const {
  const MutexLock lock(mutex_);
  return published_;
}

// False when it is time to stop.
bool Delivery::take_submitted() {
  std::vector<AcceptedRequest> taken;
  bool is_stopping = false;
  {
    const MutexLock lock(mutex_);
    taken = std::exchange(submitted_, {});
    is_stopping = is_stopping_;
  }
  for (AcceptedRequest& request : taken) {
    auto live = std::make_unique<LiveRequest>(context_, std::move(request));
    const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) {
      return other->priority() < live->priority();
    });
    waiting_.insert(place, std::move(live));
  }
  return !is_stopping;
}

void Delivery::start_waiting() {
  size_t held = 0;
  for (const auto& request : running_) held += request->num_sessions();
  const auto start = [&](LiveRequest& request) {
    const size_t before = request.num_sessions();
    request.start(limits_.max_sessions - std::min(held, limits_.max_sessions));
    held += request.num_sessions() - before;
  };
  for (const auto& request : running_) start(*request);
  while (!waiting_.empty() && running_.size() < limits_.max_running &&
         (held < limits_.max_sessions || !waiting_.front()->needs_place())) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.erase(waiting_.begin());
    start(*running_.back());
  }
}

void Delivery::poll_all() {
  for (auto* list : {&running_, &waiting_}) {
    for (const auto& request : *list) request->poll();
    const bool has_place =
        std::erase_if(*list, [](const auto& request) { return request->done(); }) > 0;
    if (has_place && !waiting_.empty()) signal_->notify();  // to look again
  }
}

void Delivery::tick() {
  for (auto* list : {&running_, &waiting_}) {
    for (const auto& request : *list) request->tick();
  }
  on_tick_();
}

void Delivery::publish() {
  std::vector<json::Value> published;
  for (const auto& request : running_) published.push_back(request->to_json());
  const MutexLock lock(mutex_);
  published_ = std::move(published);
}

void Delivery::run() {
  int64_t next_tick_ns = 0;
  const SteadyClock clock;  // the tick is a time to look, the context's clock says how late it is
  for (;;) {
    const uint64_t seen = signal_->count();
    if (!take_submitted()) break;
    poll_all();
    start_waiting();
    poll_all();  // what has failed to start is gone, and makes place
    if (clock.now_ns() >= next_tick_ns) {
      tick();
      publish();
      next_tick_ns = clock.now_ns() + kTickNs;
    }
    signal_->wait_for(seen, kTickNs);
  }
  for (auto* list : {&running_, &waiting_}) {
    for (const auto& request : *list) request->fail(draining());
    list->clear();
  }
}

}  // namespace chorus::api
