// One connection of the server. Internal to the transport: it brings Boost.Asio along.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "server/http/exchange_state.h"
#include "server/http/server.h"

namespace chorus::http {

namespace asio = boost::asio;
using Socket = asio::generic::stream_protocol::socket;
using SteadyTime = std::chrono::steady_clock::time_point;

// A flag that one coroutine waits for. Thread: I/O.
class Signal {
 public:
  explicit Signal(asio::io_context& io) : timer_(io) {}
  void set();
  // Returns when it is set, and clears it.
  asio::awaitable<void> wait();

 private:
  asio::steady_timer timer_;
  bool is_set_ = false;
};

// What the connections of a server share. Thread: I/O, but for what is atomic and the drained
// condition.
struct ConnectionHost {
  ConnectionHost(const ServerOptions& options_in, Handler& handler_in)
      : options(options_in),
        handler(handler_in),
        bodies(std::make_shared<BodyBudget>(options_in.max_bodies_bytes)) {}

  void begin_request();
  void end_request();

  const ServerOptions& options;
  Handler& handler;
  asio::io_context io{1};
  std::shared_ptr<BodyBudget> bodies;  // owners: this and the requests
  std::shared_ptr<IoPort> port;        // owners: this and the exchanges
  uint64_t id_seed = 0;                // request ids are drawn from it
  uint64_t next_id = 0;
  std::atomic<bool> is_draining{false};
  std::atomic<uint64_t> accepted{0}, refused{0}, requests{0}, malformed{0}, left{0};
  std::atomic<int32_t> open_connections{0};
  Mutex mutex;
  CondVar idle;
  int32_t open_requests CHORUS_GUARDED_BY(mutex) = 0;
};

// Two coroutines: pump() reads into a bounded buffer for as long as the connection lives; serve()
// makes requests of what is there, has each answered, and writes. Deadlines are looked at by the
// server's sweep.
//
// Owners: its coroutines, and the server until is_closed(). Thread: I/O.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `is_refused`: there is no place for it, and it is told so.
  Connection(ConnectionHost& host, Socket socket, std::string peer, bool is_refused);

  void start();
  // Ends what is overdue, and looks for clients that left behind a full buffer.
  void sweep(SteadyTime now);
  // Cuts it; a request that is being answered is told that its client left.
  void close();

  bool is_closed() const { return !socket_.is_open(); }
  bool is_refused() const { return is_refused_; }
  // Waits for a request of which nothing has come, or for its end, since idle_since().
  bool is_idle() const { return phase_ == Phase::kIdle || phase_ == Phase::kLingering; }
  SteadyTime idle_since() const { return phase_began_; }

 private:
  static constexpr size_t kChunkBytes = size_t{16} << 10;  // most that is read at once
  enum class Phase : uint8_t { kIdle, kHeader, kBody, kAnswering, kLingering };

  asio::awaitable<void> pump();
  asio::awaitable<void> serve();
  asio::awaitable<bool> read_request(ReadRequest& read);
  asio::awaitable<bool> answer(ReadRequest read);
  asio::awaitable<bool> send_answer(ExchangeState& exchange, uint64_t& sent_bytes);
  asio::awaitable<void> refuse(int status, std::string_view message, const Request* request);
  asio::awaitable<bool> write_all(std::vector<std::string>& bytes, ExchangeState* exchange,
                                  uint64_t& sent_bytes);
  asio::awaitable<void> linger();
  void enter(Phase phase, int64_t limit_ms);
  void notice_end();
  bool has_hung_up();
  std::string draw_id();
  void report(ExchangeState& exchange, int64_t begin_us, SteadyTime begin, uint64_t sent_bytes);

  ConnectionHost& host_;
  Socket socket_;
  const std::string peer_;
  const bool is_refused_;
  const size_t most_buffered_;
  Phase phase_ = Phase::kIdle;
  SteadyTime phase_began_;
  SteadyTime read_deadline_;   // of the phase
  SteadyTime write_deadline_;  // for the next progress of a write
  bool is_overdue_ = false;    // the phase
  bool is_at_end_ = false;     // nothing more can be read
  bool is_first_ = true;
  std::string buffered_;  // read, and not yet part of a request
  std::array<char, kChunkBytes> chunk_;
  Signal wake_;   // serve(): bytes, an end, a deadline, something to send
  Signal space_;  // pump(): buffered_ has become shorter
  std::shared_ptr<ExchangeState> exchange_;  // being answered; owners: this and its handler
};

}  // namespace chorus::http
