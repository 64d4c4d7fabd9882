// The head of an answer as bytes, and the answers that the transport gives itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/exchange.h"

namespace chorus::http {

// How the client finds the end of the body.
enum class Framing : uint8_t {
  kLength,   // content-length
  kChunked,  // not in HTTP/1.0
  kClose,    // the end of the connection
  kNone,     // there is no body: 204 and 304
};

struct AnswerHead {
  int status = 200;
  std::vector<Header> headers = {};  // those of the transport among them are left out
  Framing framing = Framing::kLength;
  uint64_t content_length = 0;
  bool keep_alive = false;
  std::string_view request_id = {};
};

// "Not Found"; "Unknown" for a status without a name.
std::string_view reason_phrase(int status);

// The status line and the headers, with the empty line behind them. Bytes that would end a header
// are replaced by spaces.
std::string write_head(const AnswerHead& head);

// An error in the shape in which OpenAI's clients read one, with what a client needs to try again
// where that makes sense. `message`: printable ASCII without quotes and backslashes.
Response error_response(int status, std::string_view message);

// Framed as one chunk. Requires: bytes is not empty, which would end the body.
std::string write_chunk(std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace chorus::http
