// A request and its answer, as they pass between the transport and whoever answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace chorus::http {

// Names are in lower case.
struct Header {
  std::string name;
  std::string value;

  friend bool operator==(const Header&, const Header&) = default;
};

// Of ASCII: as names, types and codings are compared.
std::string lower_case(std::string_view text);

// The value of the first header of that name; empty where there is none.
std::string_view find_header(const std::vector<Header>& headers, std::string_view lower_case_name);

struct Request {
  std::string method;  // as sent: "GET"
  std::string path;    // from the slash to the question mark, as sent, percent signs included
  std::string query;   // behind the question mark; empty without one
  std::vector<Header> headers;  // in the order in which they came
  std::string body;
  std::string id;    // the client's x-request-id where that is a word, else a drawn one
  std::string peer;  // "127.0.0.1:40000", or "unix"

  std::string_view header(std::string_view lower_case_name) const {
    return find_header(headers, lower_case_name);
  }
};

// content-length, connection, transfer-encoding, date and x-request-id are the transport's.
struct Response {
  int status = 200;
  std::vector<Header> headers;  // content-type among them
  std::string body;
};

// A fact of a request for the access log.
struct LogField {
  std::string name;
  std::variant<int64_t, std::string> value;
};

// One request and its answer: respond(), or begin_stream(), any number of write(), end_stream().
// The answer to HEAD is sent without its body. Once the client has left, what is written is
// dropped. An exchange that is let go without an answer answers 500 itself; a stream that is let go
// is cut short, so that the client can tell. Thread: any, for every call; calls that write come
// from one thread at a time. Nothing waits.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const Request& request() const = 0;

  // The whole answer. Requires: no answer was begun.
  virtual void respond(Response response) = 0;

  // The head of a chunked answer; it is sent at once. Requires: no answer was begun.
  virtual void begin_stream(int status, std::vector<Header> headers) = 0;
  // Requires: begin_stream, no end_stream. Empty bytes are nothing.
  virtual void write(std::string bytes) = 0;
  virtual void end_stream() = 0;

  // What was written and has not been handed to the system: a writer that would rather wait than
  // pile up looks at it.
  virtual size_t unsent_bytes() const = 0;
  // The client closed or lost its connection, in either direction, or does not read; or the server
  // stopped.
  virtual bool client_left() const = 0;

  // `action` is called, on the I/O thread, when the client has left and when the last unsent byte
  // has gone, each time: it must not block. If the client has left already, it is called soon. It
  // replaces the one before and is let go with the connection, or when the answer has been sent.
  virtual void on_change(std::function<void()> action) = 0;

  // Goes to the access log with the end of this exchange.
  virtual void add_log_field(LogField field) = 0;
};

// Answers requests. Thread: both are called on the I/O thread and must not block.
class Handler {
 public:
  virtual ~Handler() = default;
  // Whether a request is worth the memory that its body takes. Where it is not, handle() is called
  // with the body left out, and the connection ends with the answer.
  virtual bool wants_body(const Request& /*head*/) const { return true; }
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
};

}  // namespace chorus::http
