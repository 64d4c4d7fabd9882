// An exchange without a connection: for tests of what answers requests.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "server/http/exchange.h"

namespace chorus::http::testing {

// Records the answer. The test is the client: it leaves, and says how much it has not read.
// Thread: any.
class FakeExchange final : public Exchange {
 public:
  explicit FakeExchange(Request request) : request_(std::move(request)) {}

  // ---- As an exchange ----

  const Request& request() const override { return request_; }

  void respond(Response response) override {
    const MutexLock lock(mutex_);
    CHORUS_CHECK(!has_begun_);
    has_begun_ = true;
    head_ = {response.status, std::move(response.headers), {}};
    if (!has_left_) body_ = std::move(response.body);
    end();
  }

  void begin_stream(int status, std::vector<Header> headers) override {
    const MutexLock lock(mutex_);
    CHORUS_CHECK(!has_begun_);
    has_begun_ = true;
    is_stream_ = true;
    head_ = {status, std::move(headers), {}};
    if (is_slow_) ++unsent_;  // the head is something to read, too
    changed_.notify_all();
  }

  void write(std::string bytes) override {
    const MutexLock lock(mutex_);
    CHORUS_CHECK(is_stream_ && !has_ended_);
    if (has_left_) return;
    if (is_slow_) unsent_ += bytes.size();
    body_ += bytes;
    writes_.push_back(std::move(bytes));
    changed_.notify_all();
  }

  void end_stream() override {
    const MutexLock lock(mutex_);
    CHORUS_CHECK(is_stream_ && !has_ended_);
    end();
  }

  size_t unsent_bytes() const override {
    const MutexLock lock(mutex_);
    return unsent_;
  }
  bool client_left() const override {
    const MutexLock lock(mutex_);
    return has_left_;
  }
  void on_change(std::function<void()> action) override {
    {
      const MutexLock lock(mutex_);
      action_ = action;
      if (!has_left_) return;
    }
    if (action) action();
  }
  void add_log_field(LogField field) override {
    const MutexLock lock(mutex_);
    log_fields_.push_back(std::move(field));
  }

  // ---- As its client ----

  // Closes the connection; the action of on_change is called on this thread.
  void leave() {
    const MutexLock lock(mutex_);
    has_left_ = true;
    unsent_ = 0;
    call_action();
  }
  // From here on nothing that is written gets away, until drain().
  void stop_reading() {
    const MutexLock lock(mutex_);
    is_slow_ = true;
  }
  void drain() {
    const MutexLock lock(mutex_);
    is_slow_ = false;
    unsent_ = 0;
    call_action();
  }

  // Waits for the end of the answer.
  void wait() const {
    const MutexLock lock(mutex_);
    while (!has_ended_) changed_.wait(mutex_);
  }
  // Waits until the answer has begun.
  void wait_for_head() const {
    const MutexLock lock(mutex_);
    while (!has_begun_) changed_.wait(mutex_);
  }
  // Waits until so many writes were made, or the answer has ended.
  void wait_for_writes(size_t count) const {
    const MutexLock lock(mutex_);
    while (writes_.size() < count && !has_ended_) changed_.wait(mutex_);
  }
  bool has_ended() const {
    const MutexLock lock(mutex_);
    return has_ended_;
  }
  bool is_stream() const {
    const MutexLock lock(mutex_);
    return is_stream_;
  }
  // 0 before the answer has begun.
  int status() const {
    const MutexLock lock(mutex_);
    return has_begun_ ? head_.status : 0;
  }
  std::string header(std::string_view lower_case_name) const {
    const MutexLock lock(mutex_);
    return std::string(find_header(head_.headers, lower_case_name));
  }
  // Everything that was written so far.
  std::string body() const {
    const MutexLock lock(mutex_);
    return body_;
  }
  std::vector<std::string> writes() const {
    const MutexLock lock(mutex_);
    return writes_;
  }
  std::vector<LogField> log_fields() const {
    const MutexLock lock(mutex_);
    return log_fields_;
  }

 private:
  void end() CHORUS_REQUIRES(mutex_) {
    has_ended_ = true;
    changed_.notify_all();
  }
  // The action runs without the lock, which it may need.
  void call_action() CHORUS_REQUIRES(mutex_) {
    const std::function<void()> action = action_;
    mutex_.unlock();
    if (action) action();
    mutex_.lock();
  }

  const Request request_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool has_begun_ CHORUS_GUARDED_BY(mutex_) = false;
  bool is_stream_ CHORUS_GUARDED_BY(mutex_) = false;
  bool has_ended_ CHORUS_GUARDED_BY(mutex_) = false;
  bool has_left_ CHORUS_GUARDED_BY(mutex_) = false;
  bool is_slow_ CHORUS_GUARDED_BY(mutex_) = false;
  size_t unsent_ CHORUS_GUARDED_BY(mutex_) = 0;
  Response head_ CHORUS_GUARDED_BY(mutex_);
  std::string body_ CHORUS_GUARDED_BY(mutex_);
  std::vector<std::string> writes_ CHORUS_GUARDED_BY(mutex_);
  std::vector<LogField> log_fields_ CHORUS_GUARDED_BY(mutex_);
  std::function<void()> action_ CHORUS_GUARDED_BY(mutex_);
};

}  // namespace chorus::http::testing
