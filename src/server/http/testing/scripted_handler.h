// A handler whose exchanges the test answers.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "server/http/exchange.h"

namespace chorus::http::testing {

// GET /echo, and any other path but /hold..., is answered at once with the request's method, path
// and body. A request to /hold... waits for the test. Bodies for /bare... are not wanted. Thread:
// any.
class ScriptedHandler final : public Handler {
 public:
  bool wants_body(const Request& head) const override { return !head.path.starts_with("/bare"); }
  void handle(std::shared_ptr<Exchange> exchange) override {
    if (on_request_) on_request_(*exchange);
    if (exchange->request().path.starts_with("/hold")) {
      const MutexLock lock(mutex_);
      held_.push_back(std::move(exchange));
      changed_.notify_all();
    } else {
      echo(*exchange);
    }
  }

  static void echo(Exchange& exchange) {
    const Request& request = exchange.request();
    exchange.respond({200,
                      {{"content-type", "text/plain"}},
                      request.method + " " + request.path + " " + request.body});
  }

  // The next one that is held, waiting for it.
  std::shared_ptr<Exchange> next() {
    const MutexLock lock(mutex_);
    while (held_.empty()) changed_.wait(mutex_);
    auto exchange = std::move(held_.front());
    held_.pop_front();
    return exchange;
  }
  size_t num_held() {
    const MutexLock lock(mutex_);
    return held_.size();
  }

  // Called first for each request, on the I/O thread. Set before the server is made.
  std::function<void(Exchange&)> on_request_;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Exchange>> held_ CHORUS_GUARDED_BY(mutex_);
};

}  // namespace chorus::http::testing
