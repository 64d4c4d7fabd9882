#include "server/http/answer_head.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include "base/check.h"

namespace chorus::http {

namespace {

struct Reason {
  int status;
  std::string_view phrase;
};

constexpr Reason kReasons[] = {
    {200, "OK"},
    {201, "Created"},
    {204, "No Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {499, "Client Closed Request"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {507, "Insufficient Storage"},
    {505, "HTTP Version Not Supported"},
};

constexpr std::string_view kOwnHeaders[] = {"connection", "content-length", "date",
                                            "transfer-encoding", "x-request-id"};

void add_header(std::string& text, std::string_view name, std::string_view value) {
  const size_t begin = text.size();
  text.append(name).append(": ").append(value);
  std::replace_if(
      text.begin() + static_cast<ptrdiff_t>(begin), text.end(),
      [](char c) { return c == '\r' || c == '\n' || c == '\0'; }, ' ');
  text += "\r\n";
}

// The time in the one form that RFC 9110 lets a sender use, whatever the locale.
std::string http_date() {
  constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 40> text{};
  const size_t length =
      std::strftime(text.data(), text.size(), "---, %d --- %Y %H:%M:%S GMT", &utc);
  std::copy_n(kDays[static_cast<size_t>(utc.tm_wday)], 3, text.begin());
  std::copy_n(kMonths[static_cast<size_t>(utc.tm_mon)], 3, text.begin() + 8);
  return {text.data(), length};
}

}  // namespace

std::string_view reason_phrase(int status) {
  const auto found = std::find_if(std::begin(kReasons), std::end(kReasons),
                                  [&](const Reason& reason) { return reason.status == status; });
  return found == std::end(kReasons) ? "Unknown" : found->phrase;
}

std::string write_head(const AnswerHead& head) {
  CHORUS_CHECK(head.status >= 100 && head.status <= 999);
  std::string text = "HTTP/1.1 " + std::to_string(head.status) + " ";
  text.append(reason_phrase(head.status)).append("\r\n");
  for (const Header& header : head.headers) {
    const auto* own = std::find(std::begin(kOwnHeaders), std::end(kOwnHeaders), header.name);
    if (own == std::end(kOwnHeaders)) add_header(text, header.name, header.value);
  }
  add_header(text, "date", http_date());
  if (head.framing == Framing::kLength)
    add_header(text, "content-length", std::to_string(head.content_length));
  if (head.framing == Framing::kChunked) add_header(text, "transfer-encoding", "chunked");
  add_header(text, "connection", head.keep_alive ? "keep-alive" : "close");
  add_header(text, "x-request-id", head.request_id);
  return text + "\r\n";
}

Response error_response(int status, std::string_view message) {
  const std::string_view type = status == 503   ? "unavailable_error"
                                : status >= 500 ? "server_error"
                                                : "invalid_request_error";
  Response response;
  response.status = status;
  response.headers = {{"content-type", "application/json"}};
  if (status == 503) response.headers.push_back({"retry-after", "1"});
  response.body.append(R"({"error":{"message":")").append(message);
  response.body.append(R"(","type":")").append(type).append(R"(","param":null,"code":null}})");
  return response;
}

std::string write_chunk(std::string_view bytes) {
  CHORUS_CHECK(!bytes.empty());
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), bytes.size(), 16);
  std::string chunk(digits.data(), end.ptr);
  chunk.append("\r\n").append(bytes).append("\r\n");
  return chunk;
}

}  // namespace chorus::http
