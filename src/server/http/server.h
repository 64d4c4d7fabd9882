// A server of HTTP/1.1 over TCP and Unix sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/http/exchange.h"
#include "server/http/request_reader.h"

namespace chorus::http {

// How one exchange ended, for the access log and the counters.
struct AccessRecord {
  std::string id = {};
  std::string peer = {};
  std::string method = {};  // this and the path as far as they were read
  std::string path = {};
  int status = 0;              // 499: the client left before an answer was begun
  bool client_left = false;    // before the answer was complete
  int64_t time_us = 0;         // when the request had come whole, since 1970
  int64_t duration_us = 0;     // from then until the last byte was handed to the system
  uint64_t request_bytes = 0;  // of the body
  uint64_t sent_bytes = 0;     // of the answer, its head and framing included
  std::vector<LogField> fields = {};
};

struct ServerOptions {
  // TCP, unless the host is empty. A name is resolved, and its first address taken. Port 0: one
  // that is free.
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  // A Unix socket besides, unless empty. What an ended server left behind at that path is replaced.
  std::string unix_socket = {};

  ReaderLimits reader = {};
  // Of all bodies that are read or whose requests somebody still holds, beyond the first 64 KiB of
  // each: what would exceed it is told 503. One body alone is always taken.
  uint64_t max_bodies_bytes = uint64_t{1} << 30;
  // At once. One more takes the place of the connection that has been idle for the longest time, or
  // is told 503.
  int max_connections = 1024;
  int64_t header_ms = 10'000;  // for the request line and the headers, from their first byte
  int64_t body_ms = 120'000;   // for the body
  int64_t idle_ms = 75'000;    // between requests
  int64_t write_ms = 30'000;   // in which the client takes something of an answer that waits
  // Of the system, for each connection. What exceeds it counts as unsent, so that a client that
  // does not read is noticed early.
  int send_buffer_bytes = 128 << 10;

  // Called on the I/O thread at the end of each exchange; it must not block.
  std::function<void(AccessRecord)> on_end = {};
};

struct ServerCounters {
  uint64_t accepted = 0;   // connections
  uint64_t refused = 0;    // of which there was no place for, or not for a body
  uint64_t requests = 0;   // handed to the handler
  uint64_t malformed = 0;  // answered with an error by the transport itself
  uint64_t left = 0;       // whose client left before the answer was complete
  int32_t open_connections = 0;
  int32_t open_requests = 0;  // handed to the handler, and not ended
};

// One thread of its own does all reading, parsing and writing. A connection's requests are answered
// one after the other, in order. While one is answered the connection is read on, so that a client
// that leaves is noticed at once; where it has sent more than fits the buffer, within a tenth of a
// second. A client that closes its sending direction has left.
// Thread: any, for every call.
class Server {
 public:
  // Listens, and starts. `handler` outlives the server. Errors: kInvalidArgument with field host,
  // port or unix_socket; kResourceExhausted (field threads).
  static Result<std::unique_ptr<Server>> create(ServerOptions options, Handler& handler);
  ~Server();  // stop()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;                       // 0: no TCP
  std::vector<std::string> addresses() const;  // "http://127.0.0.1:8080", "unix:/run/chorus.sock"
  ServerCounters counters() const;

  // From here on every answer ends its connection. Connections and requests are taken as before:
  // what the latter are told is the handler's.
  void drain();
  // Whether no request was being answered at some moment within `timeout_ns`.
  bool wait_until_idle(int64_t timeout_ns);
  // Cuts every connection, and ends the thread. Exchanges that are left know that their client has
  // gone. Idempotent. Not to be called on the I/O thread.
  void stop();

 private:
  class Core;
  explicit Server(std::unique_ptr<Core> core);

  const std::unique_ptr<Core> core_;
};

}  // namespace chorus::http
