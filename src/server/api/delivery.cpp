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
      measure(request);
      submitted_.push_back(std::move(request));
      signal_->notify();
      return;
    }
  }
  LiveRequest(context_, std::move(request), next_number_++).fail(draining());
}

void Delivery::measure(const AcceptedRequest& request) {
  if (request.answers_with_session) return;
  for (size_t i = 0; i < request.prompts.size(); ++i) num_choices_.add(request.num_choices);
}

LatencyHistogram Delivery::num_choices() const {
  const MutexLock lock(mutex_);
  return num_choices_;
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
    wait_in_line(std::make_unique<LiveRequest>(context_, std::move(request), next_number_++));
  }
  return !is_stopping;
}

void Delivery::wait_in_line(std::unique_ptr<LiveRequest> request) {
  const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) {
    return order_.is_before(request->standing(), other->standing());
  });
  waiting_.insert(place, std::move(request));
}

bool Delivery::has_place_for(const LiveRequest& next, size_t num_running, size_t num_held) const {
  return num_running < limits_.max_running &&
         (next.num_needed() == 0 || num_held + next.num_needed() <= limits_.max_sessions);
}

// Those that have to give way for `next` to run, or none where that would not do either: nobody
// gives way in vain, nor to an equal, so that two never displace each other in turn.
std::vector<LiveRequest*> Delivery::victims_for(const LiveRequest& next, size_t num_held) const {
  std::vector<LiveRequest*> lower;
  for (const auto& request : running_) {
    if (request->can_give_way() && order_.gives_way(request->standing(), next.standing())) {
      lower.push_back(request.get());
    }
  }
  std::sort(lower.begin(), lower.end(), [&](const LiveRequest* a, const LiveRequest* b) {
    return order_.is_before(b->standing(), a->standing());
  });
  std::vector<LiveRequest*> victims;
  size_t num_running = running_.size();
  for (LiveRequest* request : lower) {
    if (has_place_for(next, num_running, num_held)) break;
    const bool needs_sessions = !has_place_for(next, 0, num_held);
    if (needs_sessions && request->num_sessions() == 0) continue;
    victims.push_back(request);
    num_held -= request->num_sessions();
    --num_running;
  }
  if (!has_place_for(next, num_running, num_held)) victims.clear();
  return victims;
}

void Delivery::start_waiting() {
  size_t held = 0;
  for (const auto& request : running_) held += request->num_sessions();
  const auto start = [&](LiveRequest& request) {
    const size_t before = request.is_suspended() ? 0 : request.num_sessions();
    request.start(limits_.max_sessions - std::min(held, limits_.max_sessions));
    held += request.num_sessions() - before;
  };
  for (const auto& request : running_) start(*request);
  while (!waiting_.empty()) {
    const LiveRequest& next = *waiting_.front();
    for (LiveRequest* victim : victims_for(next, held)) {
      held -= victim->num_sessions();
      suspend(*victim);
    }
    if (!has_place_for(next, running_.size(), held)) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.erase(waiting_.begin());
    start(*running_.back());
  }
}

// `victim` comes behind whoever waits first.
void Delivery::suspend(LiveRequest& victim) {
  victim.suspend();
  const auto found = std::find_if(running_.begin(), running_.end(),
                                  [&](const auto& other) { return other.get() == &victim; });
  std::unique_ptr<LiveRequest> request = std::move(*found);
  running_.erase(found);
  wait_in_line(std::move(request));
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
