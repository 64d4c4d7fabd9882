#include "server/http/request_reader.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <optional>
#include <utility>

#include "base/check.h"

namespace chorus::http {

namespace beast = boost::beast;
using beast::http::error;

namespace {

std::string_view view_of(beast::string_view text) { return {text.data(), text.size()}; }

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Requires: `error` is one of Beast's, or of ours below.
ReadError read_error(const beast::error_code& code, const ReaderLimits& limits) {
  if (code == error::header_limit)
    return {431, "expected at most " + std::to_string(limits.max_header_bytes) +
                     " bytes of request line and headers"};
  if (code == error::body_limit)
    return {413, "expected a body of at most " + std::to_string(limits.max_body_bytes) + " bytes"};
  if (code == error::bad_version) return {505, "expected HTTP/1.1 or HTTP/1.0"};
  return {400, "expected a request of HTTP/1.1: " + code.message()};
}

// Path and query of a target in origin form, or in absolute form as proxies are sent it. False:
// neither.
bool split_target(std::string_view target, Request& request) {
  if (target == "*") {
    request.path = target;
    return request.method == "OPTIONS";
  }
  const std::string scheme = lower_case(target.substr(0, target.find(':')));
  if (scheme == "http" || scheme == "https") {
    target.remove_prefix(scheme.size());
    if (!target.starts_with("://")) return false;
    target.remove_prefix(3);
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    if (!target.starts_with("/")) request.path = "/";
  } else if (!target.starts_with("/")) {
    return false;
  }
  const size_t mark = target.find('?');
  request.path += target.substr(0, mark);
  if (mark != std::string_view::npos) request.query = target.substr(mark + 1);
  return true;
}

}  // namespace

// Receives what Beast finds. It belongs to one request.
class RequestReader::Parser final : public beast::http::basic_parser<true> {
 public:
  explicit Parser(const ReaderLimits& limits) : limits_(limits) {
    eager(true);
    header_limit(static_cast<uint32_t>(limits.max_header_bytes));
    body_limit(limits.max_body_bytes);
  }

  // Beast holds the request line and the fields against the limit each by itself where they come in
  // one piece, and together where they do not: until the header is whole, it is given no more than
  // both may have.
  size_t read(std::string_view bytes) {
    size_t consumed = 0;
    if (!is_header_done()) {
      const size_t room = limits_.max_header_bytes - header_bytes_;
      consumed = read_some(bytes.substr(0, room));
      header_bytes_ += consumed;
      if (state() == State::kHeader && bytes.size() >= room) {
        error_ = read_error(error::header_limit, limits_);
      }
      if (state() != State::kBody || consumed == bytes.size()) return consumed;
    }
    return consumed + read_some(bytes.substr(consumed));
  }

  State state() const {
    if (error_.has_value()) return State::kFailed;
    if (is_done()) return State::kDone;
    return is_header_done() ? State::kBody : State::kHeader;
  }

  bool wants_continue_ = false;
  std::optional<ReadError> error_;
  ReadRequest read_;

 private:
  size_t read_some(std::string_view bytes) {
    // The last chunk is looked at again with each byte that comes, and Beast asserts that it then
    // has its shortest length, which a client decides. No chunked body ends with fewer bytes left.
    constexpr size_t kShortestLastChunk = std::string_view("0\r\n\r\n").size();
    if (state() == State::kBody && chunked() && bytes.size() < kShortestLastChunk) return 0;
    beast::error_code code;
    const size_t consumed = put(boost::asio::buffer(bytes.data(), bytes.size()), code);
    if (code && code != error::need_more && !error_.has_value()) error_ = read_error(code, limits_);
    return consumed;
  }

  // Ends the parsing, whatever Beast would make of the bytes.
  void refuse(int status, std::string message, beast::error_code& code) {
    error_ = ReadError{status, std::move(message)};
    code = error::bad_value;
  }

  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view target,
                       int version, beast::error_code& code) override {
    read_.request.method = view_of(method);
    read_.is_1_1 = version == 11;
    if (version != 11 && version != 10) {
      code = error::bad_version;
    } else if (!split_target(view_of(target), read_.request)) {
      refuse(400, "expected a target that begins with a slash", code);
    }
  }
  void on_response_impl(int, beast::string_view, int, beast::error_code&) override {}

  void on_field_impl(beast::http::field, beast::string_view name, beast::string_view value,
                     beast::error_code& code) override {
    if (has_header_) return;  // behind a chunked body
    auto& headers = read_.request.headers;
    if (headers.size() == limits_.max_headers) {
      refuse(431, "expected at most " + std::to_string(limits_.max_headers) + " headers", code);
      return;
    }
    headers.push_back({lower_case(view_of(name)), std::string(view_of(value))});
  }

  int64_t count(std::string_view name) const {
    return std::count_if(read_.request.headers.begin(), read_.request.headers.end(),
                         [&](const Header& header) { return header.name == name; });
  }

  void on_header_impl(beast::error_code& code) override {
    has_header_ = true;
    read_.keep_alive = keep_alive();
    const Request& request = read_.request;
    const int64_t num_codings = count("transfer-encoding");
    const int64_t num_lengths = count("content-length");
    const std::string expectation = lower_case(request.header("expect"));
    if (num_codings + num_lengths > 1) {
      refuse(400, "expected one of content-length and transfer-encoding, once", code);
    } else if (num_lengths == 1 && !is_number(request.header("content-length"))) {
      refuse(400, "expected content-length to be one number", code);
    } else if (num_codings == 1 && !read_.is_1_1) {
      refuse(400, "expected no transfer-encoding in HTTP/1.0", code);
    } else if (num_codings == 1 && lower_case(request.header("transfer-encoding")) != "chunked") {
      refuse(501, "expected transfer-encoding chunked alone", code);
    } else if (count("host") != 1 && (read_.is_1_1 || count("host") > 1)) {
      refuse(400, "expected exactly one host header", code);
    } else if (expectation == "100-continue") {
      wants_continue_ = read_.is_1_1;
    } else if (!expectation.empty()) {
      refuse(417, "expected expect to be 100-continue", code);
    }
  }

  void on_body_init_impl(const boost::optional<uint64_t>&, beast::error_code&) override {}
  size_t on_body_impl(beast::string_view body, beast::error_code&) override {
    read_.request.body += view_of(body);
    return body.size();
  }
  void on_chunk_header_impl(uint64_t, beast::string_view, beast::error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, beast::string_view body, beast::error_code&) override {
    read_.request.body += view_of(body);
    return body.size();
  }
  void on_finish_impl(beast::error_code&) override {}

  const ReaderLimits limits_;
  size_t header_bytes_ = 0;  // that are consumed of a header which is not whole
  bool has_header_ = false;
};

RequestReader::RequestReader(const ReaderLimits& limits)
    : parser_(std::make_unique<Parser>(limits)) {}

RequestReader::~RequestReader() = default;

// Some clients send an empty line behind a body; a server passes over it (RFC 9112, 2.2).
size_t RequestReader::skip_empty_lines(std::string_view bytes) {
  constexpr int kMostEmptyLines = 4;
  size_t skipped = 0;
  while (num_empty_lines_ < kMostEmptyLines && bytes.substr(skipped).starts_with("\r\n")) {
    skipped += 2;
    ++num_empty_lines_;
  }
  return skipped;
}

size_t RequestReader::feed(std::string_view bytes) {
  CHORUS_CHECK(state() == State::kHeader || state() == State::kBody);
  size_t consumed = 0;
  if (!has_begun_) {
    consumed = skip_empty_lines(bytes);
    const std::string_view rest = bytes.substr(consumed);
    if (rest.empty() || rest == "\r") return consumed;
    has_begun_ = true;
  }
  return consumed + parser_->read(bytes.substr(consumed));
}

RequestReader::State RequestReader::state() const { return parser_->state(); }

bool RequestReader::wants_continue() const { return parser_->wants_continue_; }

const Request& RequestReader::request() const { return parser_->read_.request; }

ReadRequest RequestReader::take_head() {
  CHORUS_CHECK(state() == State::kBody || state() == State::kDone);
  ReadRequest read = std::move(parser_->read_);
  std::string().swap(read.request.body);
  read.keep_alive = false;
  return read;
}

const ReadError& RequestReader::error() const {
  CHORUS_CHECK(state() == State::kFailed);
  return *parser_->error_;
}

ReadRequest RequestReader::take() {
  CHORUS_CHECK(state() == State::kDone);
  return std::move(parser_->read_);
}

bool is_request_id(std::string_view text) {
  constexpr size_t kLongest = 128;
  return !text.empty() && text.size() <= kLongest &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

}  // namespace chorus::http
