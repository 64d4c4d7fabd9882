// Bytes read as requests of a connection, in one piece and in several: both have to find the same
// requests, and neither may find one where the other finds an error. (Which error, and how early
// within a request that is cut short, may differ.) The first byte chooses the pieces; limits are
// small, so that they are met.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/http/request_reader.h"

namespace {

using namespace chorus::http;
using State = RequestReader::State;

constexpr ReaderLimits kLimits{.max_header_bytes = 512, .max_headers = 8, .max_body_bytes = 256};

// The requests that are found in the bytes, written down.
std::vector<std::string> read_all(std::string_view bytes, size_t piece) {
  std::vector<std::string> found;
  size_t seen = 0;
  while (seen < bytes.size() || !bytes.empty()) {
    RequestReader reader(kLimits);
    size_t consumed = 0;
    while (reader.state() == State::kHeader || reader.state() == State::kBody) {
      const size_t before = seen;
      seen = std::min(bytes.size(), seen + piece);
      consumed += reader.feed(bytes.substr(consumed, seen - consumed));
      CHORUS_CHECK(consumed <= seen);
      if (seen == before && seen == bytes.size()) break;  // all of it was looked at
    }
    if (reader.state() == State::kFailed) {
      CHORUS_CHECK(reader.error().status >= 400 && reader.error().status < 600);
      break;
    }
    if (reader.state() != State::kDone) break;
    const ReadRequest read = reader.take();
    const Request& request = read.request;
    CHORUS_CHECK(request.body.size() <= kLimits.max_body_bytes);
    CHORUS_CHECK(request.headers.size() <= kLimits.max_headers);
    CHORUS_CHECK(request.path == "*" || request.path.starts_with("/"));
    std::string text =
        request.method + " " + request.path + " " + request.query + " " + request.body;
    for (const Header& header : request.headers) {
      CHORUS_CHECK(header.value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
      text += header.name + ":" + header.value;
    }
    (void)is_request_id(request.header("x-request-id"));
    found.push_back(text + (read.keep_alive ? "+" : "-"));
    bytes.remove_prefix(consumed);
    seen -= consumed;
  }
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto whole = read_all(bytes, bytes.size() + 1);
  const auto pieces = read_all(bytes, size_t{1} + data[0] % 16);
  CHORUS_CHECK(whole == pieces);
  return 0;
}
