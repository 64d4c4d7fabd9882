#include "server/http/connection.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>
#include <poll.h>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "server/http/answer_head.h"

namespace chorus::http {

namespace {

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr SteadyTime kNever = SteadyTime::max();
// A client that is told of an error may still be sending: cut at once, it would not see the answer.
constexpr int64_t kLingerMs = 1000;
// Strings that are given to the system in one call.
constexpr size_t kMostBuffers = 64;

int64_t unix_time_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

// ---- Signal ----

void Signal::set() {
  is_set_ = true;
  timer_.cancel();
}

asio::awaitable<void> Signal::wait() {
  if (!is_set_) {
    timer_.expires_at(kNever);
    co_await timer_.async_wait(kAwait);
  }
  is_set_ = false;
}

// ---- ConnectionHost ----

void ConnectionHost::begin_request() {
  requests.fetch_add(1, std::memory_order_relaxed);
  const MutexLock lock(mutex);
  ++open_requests;
}

void ConnectionHost::end_request() {
  const MutexLock lock(mutex);
  if (--open_requests == 0) idle.notify_all();
}

// ---- Connection ----

Connection::Connection(ConnectionHost& host, Socket socket, std::string peer, bool is_refused)
    : host_(host),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      is_refused_(is_refused),
      most_buffered_(host.options.reader.max_header_bytes + kChunkBytes),
      phase_began_(std::chrono::steady_clock::now()),
      read_deadline_(kNever),
      write_deadline_(kNever),
      wake_(host.io),
      space_(host.io) {}

void Connection::start() {
  host_.open_connections.fetch_add(1, std::memory_order_relaxed);
  asio::co_spawn(host_.io, [self = shared_from_this()] { return self->pump(); }, asio::detached);
  asio::co_spawn(host_.io, [self = shared_from_this()] { return self->serve(); }, asio::detached);
}

void Connection::enter(Phase phase, int64_t limit_ms) {
  phase_ = phase;
  phase_began_ = std::chrono::steady_clock::now();
  is_overdue_ = false;
  read_deadline_ = limit_ms > 0 ? phase_began_ + std::chrono::milliseconds(limit_ms) : kNever;
}

void Connection::sweep(SteadyTime now) {
  if (is_closed()) return;
  if (now >= write_deadline_ || (phase_ == Phase::kAnswering && has_hung_up())) {
    close();
  } else if (now >= read_deadline_) {
    is_overdue_ = true;
    read_deadline_ = kNever;
    wake_.set();
  }
}

// With the buffer full nothing is read, and so no end either; the system knows of it all the same.
bool Connection::has_hung_up() {
  if (buffered_.size() < most_buffered_) return false;
  pollfd entry{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Connection::close() {
  if (is_closed()) return;
  boost::system::error_code ignored;
  socket_.close(ignored);
  is_at_end_ = true;
  if (exchange_ != nullptr) exchange_->leave();
  wake_.set();
  space_.set();
}

// Nothing more can be read. An answer that is complete is still sent, if the client takes it.
void Connection::notice_end() {
  is_at_end_ = true;
  if (exchange_ != nullptr && !exchange_->is_complete()) {
    close();
  } else {
    wake_.set();
  }
}

asio::awaitable<void> Connection::pump() {
  while (!is_at_end_) {
    while (buffered_.size() >= most_buffered_ && !is_at_end_) co_await space_.wait();
    if (is_at_end_) break;
    const auto [error, num_bytes] = co_await socket_.async_read_some(asio::buffer(chunk_), kAwait);
    if (is_at_end_) break;
    if (error) {
      notice_end();
    } else if (phase_ != Phase::kLingering) {
      buffered_.append(chunk_.data(), num_bytes);
      wake_.set();
    }
  }
}

asio::awaitable<void> Connection::serve() {
  if (is_refused_) {
    co_await refuse(503, "all connections are taken", nullptr);
  } else {
    for (;;) {
      ReadRequest read;
      const bool has_request = co_await read_request(read);
      if (!has_request) break;
      const bool goes_on = co_await answer(std::move(read));
      if (!goes_on) break;
      is_first_ = false;
    }
  }
  co_await linger();
  close();
  host_.open_connections.fetch_sub(1, std::memory_order_relaxed);
}

// False: the connection ends, and its client was told why if it can be.
asio::awaitable<bool> Connection::read_request(ReadRequest& read) {
  using State = RequestReader::State;
  RequestReader reader(host_.options.reader);
  BodyRoom room(host_.bodies);
  enter(Phase::kIdle, is_first_ ? host_.options.header_ms : host_.options.idle_ms);
  for (;;) {
    if (!buffered_.empty()) {
      const size_t consumed = reader.feed(buffered_);
      buffered_.erase(0, consumed);
      if (consumed > 0) space_.set();
      const bool has_begun = reader.state() != State::kHeader || !buffered_.empty();
      if (phase_ == Phase::kIdle && has_begun) enter(Phase::kHeader, host_.options.header_ms);
    }
    if (reader.state() == State::kFailed) {
      co_await refuse(reader.error().status, reader.error().message, &reader.request());
      co_return false;
    }
    if (!room.resize(reader.request().body.size())) {
      const ReadRequest head = reader.take_head();
      room.release();  // others may go on
      co_await refuse(503, "too much is being sent at once; try again", &head.request);
      co_return false;
    }
    if (reader.state() == State::kDone) break;
    if (buffered_.size() >= most_buffered_) {
      co_await refuse(400, "expected shorter lines in a chunked body", &reader.request());
      co_return false;
    }
    if (reader.state() == State::kBody && phase_ == Phase::kHeader) {
      if (!host_.handler.wants_body(reader.request())) {
        read = reader.take_head();
        co_return true;
      }
      enter(Phase::kBody, host_.options.body_ms);
      if (reader.wants_continue() && buffered_.empty()) {
        std::vector<std::string> bytes = {"HTTP/1.1 100 Continue\r\n\r\n"};
        uint64_t sent = 0;
        const bool is_sent = co_await write_all(bytes, nullptr, sent);
        if (!is_sent) co_return false;
        continue;  // bytes may have come meanwhile
      }
    }
    if (is_at_end_) co_return false;
    if (is_overdue_) {
      if (phase_ != Phase::kIdle)
        co_await refuse(408, "expected the whole request within the time limit", &reader.request());
      co_return false;
    }
    co_await wake_.wait();
  }
  read = reader.take();
  read.room = std::move(room);
  co_return true;
}

std::string Connection::draw_id() {
  const uint64_t number = host_.next_id++;
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx",
                static_cast<unsigned long long>(random_bits(host_.id_seed, 0, number)),
                static_cast<unsigned long long>(random_bits(host_.id_seed, 1, number)));
  return {text.data(), text.size() - 1};
}

// Whether the connection goes on.
asio::awaitable<bool> Connection::answer(ReadRequest read) {
  enter(Phase::kAnswering, 0);
  const SteadyTime begin = phase_began_;
  const int64_t begin_us = unix_time_us();
  const std::string_view id = read.request.header("x-request-id");
  read.request.id = is_request_id(id) ? std::string(id) : draw_id();
  read.request.peer = peer_;
  const auto exchange = std::make_shared<ExchangeState>(std::move(read), host_.is_draining.load(),
                                                        host_.port, [weak = weak_from_this()] {
                                                          if (const auto connection = weak.lock())
                                                            connection->wake_.set();
                                                        });
  exchange_ = exchange;
  host_.begin_request();
  host_.handler.handle(make_exchange(exchange));
  if (is_at_end_ && !exchange->is_complete()) close();  // it left before this was handled
  uint64_t sent_bytes = 0;
  const bool is_whole = co_await send_answer(*exchange, sent_bytes);
  exchange_ = nullptr;
  if (!is_whole && !is_closed()) {
    // Where the end of the connection is the end of the answer, a reset tells that it is not.
    boost::system::error_code ignored;
    socket_.set_option(Socket::linger(true, 0), ignored);
    close();
  }
  report(*exchange, begin_us, begin, sent_bytes);
  exchange->close();
  host_.end_request();
  co_return is_whole && !exchange->closes_connection() && !is_at_end_;
}

// True when the answer was sent to its end.
asio::awaitable<bool> Connection::send_answer(ExchangeState& exchange, uint64_t& sent_bytes) {
  std::vector<std::string> bytes;
  while (!is_closed()) {
    const ExchangeState::Phase phase = exchange.take(bytes);
    if (!bytes.empty()) {
      const bool is_sent = co_await write_all(bytes, &exchange, sent_bytes);
      if (is_sent) {
        exchange.note_drained();
      } else {
        close();
      }
    } else if (phase == ExchangeState::Phase::kComplete) {
      co_return true;
    } else if (phase == ExchangeState::Phase::kCut) {
      co_return false;
    } else {
      co_await wake_.wait();
    }
  }
  co_return false;
}

// Writes the strings and empties the list. False: they cannot be written any more.
asio::awaitable<bool> Connection::write_all(std::vector<std::string>& bytes,
                                            ExchangeState* exchange, uint64_t& sent_bytes) {
  std::vector<asio::const_buffer> buffers;
  size_t first = 0;   // string that is not written in full
  size_t offset = 0;  // of it that is
  bool is_good = true;
  while (is_good && first < bytes.size()) {
    buffers.clear();
    for (size_t i = first; i < std::min(bytes.size(), first + kMostBuffers); ++i)
      buffers.push_back(asio::buffer(bytes[i]));
    buffers.front() += offset;
    write_deadline_ =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(host_.options.write_ms);
    const auto [error, num_bytes] = co_await socket_.async_write_some(buffers, kAwait);
    is_good = !error && !is_closed();
    sent_bytes += num_bytes;
    if (exchange != nullptr) exchange->note_sent(num_bytes);
    offset += num_bytes;
    while (first < bytes.size() && offset >= bytes[first].size()) offset -= bytes[first++].size();
  }
  write_deadline_ = kNever;
  bytes.clear();
  co_return is_good;
}

void Connection::report(ExchangeState& exchange, int64_t begin_us, SteadyTime begin,
                        uint64_t sent_bytes) {
  constexpr int kClientClosedRequest = 499;
  const bool has_left = exchange.client_left();
  if (has_left) host_.left.fetch_add(1, std::memory_order_relaxed);
  if (!host_.options.on_end) return;
  const Request& request = exchange.request();
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  const int status = exchange.status();
  host_.options.on_end(
      {.id = request.id,
       .peer = peer_,
       .method = request.method,
       .path = request.path,
       .status = status != 0 ? status : kClientClosedRequest,
       .client_left = has_left,
       .time_us = begin_us,
       .duration_us = std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count(),
       .request_bytes = request.body.size(),
       .sent_bytes = sent_bytes,
       .fields = exchange.take_log_fields()});
}

// An answer of the transport's own, behind which the connection ends.
asio::awaitable<void> Connection::refuse(int status, std::string_view message,
                                         const Request* request) {
  constexpr int kNoPlace = 503;
  (status == kNoPlace ? host_.refused : host_.malformed).fetch_add(1, std::memory_order_relaxed);
  const std::string id = draw_id();
  Response response = error_response(status, message);
  const AnswerHead head{.status = status,
                        .headers = std::move(response.headers),
                        .content_length = response.body.size(),
                        .request_id = id};
  std::vector<std::string> bytes = {write_head(head), std::move(response.body)};
  uint64_t sent_bytes = 0;
  const int64_t begin_us = unix_time_us();
  co_await write_all(bytes, nullptr, sent_bytes);
  if (host_.options.on_end)
    host_.options.on_end({.id = id,
                          .peer = peer_,
                          .method = request != nullptr ? request->method : "",
                          .path = request != nullptr ? request->path : "",
                          .status = status,
                          .time_us = begin_us,
                          .sent_bytes = sent_bytes});
}

// Lets the client read to the end before the connection goes.
asio::awaitable<void> Connection::linger() {
  if (is_closed() || is_at_end_) co_return;
  boost::system::error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  enter(Phase::kLingering, kLingerMs);
  buffered_.clear();
  space_.set();
  while (!is_at_end_ && !is_overdue_) co_await wake_.wait();
}

}  // namespace chorus::http
