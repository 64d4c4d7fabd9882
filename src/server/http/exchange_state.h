// What passes between the threads that answer a request and its connection. Internal to the
// transport.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "server/http/exchange.h"
#include "server/http/request_reader.h"

namespace chorus::http {

// The way onto the I/O thread for others. Thread: any.
class IoPort {
 public:
  virtual ~IoPort() = default;
  // Runs `action` on the I/O thread, or lets it go when that has ended.
  virtual void post(std::function<void()> action) = 0;
};

// One request and the bytes of its answer that have not been sent.
class ExchangeState : public std::enable_shared_from_this<ExchangeState> {
 public:
  // `wake` is called on the I/O thread when there is something to send, or nothing will come; it is
  // let go by close(). `closes`: the connection is to end with this answer.
  ExchangeState(ReadRequest read, bool closes, std::shared_ptr<IoPort> port,
                std::function<void()> wake);

  // ---- For whoever answers. Thread: any ----

  const Request& request() const { return read_.request; }
  void respond(Response response);
  void begin_stream(int status, std::vector<Header> headers);
  void write(std::string bytes);
  void end_stream();
  void abandon();  // the exchange was let go
  size_t unsent_bytes() const { return unsent_.load(std::memory_order_relaxed); }
  bool client_left() const { return has_left_.load(std::memory_order_acquire); }
  void on_change(std::function<void()> action);
  void add_log_field(LogField field);

  // ---- For the connection. Thread: I/O ----

  enum class Phase : uint8_t {
    kWaiting,    // no answer was begun
    kStreaming,  // more may come
    kComplete,   // nothing more will come
    kCut,        // the same, and the body has no end
  };
  // Moves out what is to be sent, in order, behind what `bytes` holds. The phase as of then.
  Phase take(std::vector<std::string>& bytes);
  // So many bytes of those taken have been handed to the system.
  void note_sent(size_t num_bytes);
  // The last byte taken has gone: tells whoever asked.
  void note_drained();
  // The client has left: what is unsent and all that will be written is dropped. Tells whoever
  // asked, once.
  void leave();
  // The connection has nothing more to do with it.
  void close();
  bool is_complete() const;  // nothing more will come
  bool closes_connection() const;
  int status() const;  // of the answer; 0: none was begun
  std::vector<LogField> take_log_fields();

 private:
  void begin(int status, std::vector<Header> headers, bool is_stream, size_t length)
      CHORUS_REQUIRES(mutex_);
  void add(std::string bytes) CHORUS_REQUIRES(mutex_);
  void wake_connection() CHORUS_REQUIRES(mutex_);
  void call_action();

  const ReadRequest read_;
  const std::shared_ptr<IoPort> port_;  // owners: the server and its exchanges
  std::atomic<size_t> unsent_{0};
  std::atomic<bool> has_left_{false};
  mutable Mutex mutex_;
  std::function<void()> wake_ CHORUS_GUARDED_BY(mutex_);
  bool is_waking_ CHORUS_GUARDED_BY(mutex_) = false;  // posted and not yet run
  bool closes_ CHORUS_GUARDED_BY(mutex_);
  Phase phase_ CHORUS_GUARDED_BY(mutex_) = Phase::kWaiting;
  bool has_body_ CHORUS_GUARDED_BY(mutex_) = false;  // bytes of it are sent
  bool is_chunked_ CHORUS_GUARDED_BY(mutex_) = false;
  int status_ CHORUS_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> pending_ CHORUS_GUARDED_BY(mutex_);
  std::vector<LogField> log_fields_ CHORUS_GUARDED_BY(mutex_);
  // Owners: this, and whoever calls it.
  std::shared_ptr<const std::function<void()>> action_ CHORUS_GUARDED_BY(mutex_);
};

// The exchange that a handler is given. Owner of the state beside the connection.
std::shared_ptr<Exchange> make_exchange(std::shared_ptr<ExchangeState> state);

}  // namespace chorus::http
