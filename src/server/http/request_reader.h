// HTTP/1 requests from bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/body_room.h"
#include "server/http/exchange.h"

namespace chorus::http {

struct ReaderLimits {
  size_t max_header_bytes = size_t{32} << 10;  // request line and headers
  size_t max_headers = 100;
  uint64_t max_body_bytes = uint64_t{64} << 20;
};

// A request that came whole; `id` and `peer` of it are the connection's.
struct ReadRequest {
  Request request;
  bool is_1_1 = true;       // else HTTP/1.0
  bool keep_alive = false;  // the client would go on with the connection
  BodyRoom room;            // the connection's to take
};

// What a client is told whose bytes are no acceptable request.
struct ReadError {
  int status = 0;
  std::string message;  // lower case, no full stop; of printable ASCII without quotes
};

// Reads one request. Body lengths that two readers could understand differently are refused:
// content-length beside transfer-encoding, either of them twice, codings other than chunked, and
// chunked in HTTP/1.0. So is a request without exactly one host, but in HTTP/1.0. Fields behind a
// chunked body are dropped.
// Source: RFC 9112; the grammar is Boost.Beast's basic_parser.
// Thread: one.
class RequestReader {
 public:
  enum class State : uint8_t { kHeader, kBody, kDone, kFailed };

  explicit RequestReader(const ReaderLimits& limits);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  // Reads on, and returns how many bytes are dealt with. The others are handed in again, with more
  // behind them; they belong to the next request once state() is kDone. Requires: kHeader or kBody.
  size_t feed(std::string_view bytes);

  State state() const;
  // The client waits for "100 Continue" before it sends the body. Requires: kBody.
  bool wants_continue() const;
  // As much as was read.
  const Request& request() const;
  // The request without its body, whose memory is free then; nothing can be read after it. Once.
  // Requires: kBody or kDone.
  ReadRequest take_head();
  // Requires: kFailed.
  const ReadError& error() const;
  // Once. Requires: kDone.
  ReadRequest take();

 private:
  class Parser;
  size_t skip_empty_lines(std::string_view bytes);

  const std::unique_ptr<Parser> parser_;
  int num_empty_lines_ = 0;
  bool has_begun_ = false;  // the parser has seen a part of the request line
};

// Whether a client's x-request-id can be passed on: 1 to 128 letters, digits, dots, dashes and
// underscores.
bool is_request_id(std::string_view text);

}  // namespace chorus::http
