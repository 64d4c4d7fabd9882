#include "server/http/request_reader.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace chorus::http {
namespace {

using State = RequestReader::State;

struct Outcome {
  State state = State::kHeader;
  ReadRequest read;
  ReadError error;
  size_t consumed = 0;
};

// Hands in the bytes in pieces of the sizes that `next_size` gives.
template <typename NextSize>
Outcome read_in_pieces(std::string_view bytes, NextSize next_size,
                       const ReaderLimits& limits = {}) {
  RequestReader reader(limits);
  Outcome outcome;
  size_t seen = 0;
  while (seen < bytes.size()) {
    seen = std::min(bytes.size(), seen + next_size());
    outcome.consumed += reader.feed(bytes.substr(outcome.consumed, seen - outcome.consumed));
    outcome.state = reader.state();
    if (outcome.state == State::kDone || outcome.state == State::kFailed) break;
  }
  if (outcome.state == State::kDone) outcome.read = reader.take();
  if (outcome.state == State::kFailed) outcome.error = reader.error();
  return outcome;
}

Outcome read_whole(std::string_view bytes, const ReaderLimits& limits = {}) {
  return read_in_pieces(bytes, [&] { return bytes.size(); }, limits);
}

Outcome read_by_byte(std::string_view bytes, const ReaderLimits& limits = {}) {
  return read_in_pieces(bytes, [] { return size_t{1}; }, limits);
}

// The error of bytes that are refused, however they come.
ReadError error_of(std::string_view bytes, const ReaderLimits& limits = {}) {
  const Outcome whole = read_whole(bytes, limits);
  const Outcome by_byte = read_by_byte(bytes, limits);
  EXPECT_EQ(whole.state, State::kFailed) << bytes;
  EXPECT_EQ(by_byte.state, State::kFailed) << bytes;
  EXPECT_EQ(whole.error.status, by_byte.error.status) << bytes;
  return whole.error;
}

TEST(RequestReader, ReadsLineHeadersAndBody) {
  const std::string_view bytes =
      "POST /v1/chat?a=b&c=%20d HTTP/1.1\r\nHost: here\r\nContent-Type:  application/json \r\n"
      "X-Many: 1\r\nX-Many: 2\r\nContent-Length: 5\r\n\r\nhello and more";
  for (const Outcome& outcome : {read_whole(bytes), read_by_byte(bytes)}) {
    ASSERT_EQ(outcome.state, State::kDone);
    const Request& request = outcome.read.request;
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/chat");
    EXPECT_EQ(request.query, "a=b&c=%20d");
    EXPECT_EQ(request.body, "hello");
    EXPECT_EQ(request.headers, (std::vector<Header>{{"host", "here"},
                                                    {"content-type", "application/json"},
                                                    {"x-many", "1"},
                                                    {"x-many", "2"},
                                                    {"content-length", "5"}}));
    EXPECT_EQ(request.header("x-many"), "1");
    EXPECT_EQ(request.header("x-none"), "");
    EXPECT_TRUE(outcome.read.is_1_1);
    EXPECT_TRUE(outcome.read.keep_alive);
    EXPECT_EQ(outcome.consumed, bytes.size() - std::string_view(" and more").size());
  }
}

TEST(RequestReader, KnowsWhetherTheConnectionGoesOn) {
  const auto keeps = [](const std::string& version, const std::string& connection) {
    const Outcome outcome =
        read_whole("GET / " + version + "\r\nHost: h\r\n" + connection + "\r\n");
    EXPECT_EQ(outcome.state, State::kDone);
    EXPECT_EQ(outcome.read.is_1_1, version == "HTTP/1.1");
    return outcome.read.keep_alive;
  };
  EXPECT_TRUE(keeps("HTTP/1.1", ""));
  EXPECT_FALSE(keeps("HTTP/1.1", "Connection: close\r\n"));
  EXPECT_FALSE(keeps("HTTP/1.0", ""));
  EXPECT_TRUE(keeps("HTTP/1.0", "Connection: keep-alive\r\n"));
}

TEST(RequestReader, ReadsChunkedBodiesAndDropsWhatComesBehind) {
  const std::string_view bytes =
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "4;name=value\r\nWiki\r\nA\r\n0123456789\r\n0\r\nAuthorization: Bearer x\r\n\r\nGET";
  for (const Outcome& outcome : {read_whole(bytes), read_by_byte(bytes)}) {
    ASSERT_EQ(outcome.state, State::kDone) << outcome.error.message;
    EXPECT_EQ(outcome.read.request.body, "Wiki0123456789");
    EXPECT_EQ(outcome.read.request.header("authorization"), "");
    EXPECT_EQ(outcome.consumed, bytes.size() - 3);
  }
}

// However the last chunk comes: behind the header, alone, or byte by byte.
TEST(RequestReader, TheLastChunkMayComeInAnyPieces) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string body : {"0\r\n\r\n", "000;a=b\r\n\r\n", "0\r\nA: b\r\n\r\n",
                                 "1\r\nx\r\n0\r\n\r\n", "1\r\nx\r\n0\r\nA: b\r\n\r\n"}) {
    const std::string bytes = head + body + "GET";
    for (size_t first = 1; first < bytes.size(); ++first) {
      for (const size_t piece : {1, 2, 3, 4, 5, 100}) {
        bool is_first = true;
        const Outcome outcome =
            read_in_pieces(bytes, [&] { return std::exchange(is_first, false) ? first : piece; });
        ASSERT_EQ(outcome.state, State::kDone) << body << " " << first << " " << piece;
        EXPECT_EQ(outcome.consumed, bytes.size() - 3);
        EXPECT_EQ(outcome.read.request.body, body[0] == '1' ? "x" : "");
      }
    }
  }
}

TEST(RequestReader, TakesTargetsAsProxiesWriteThem) {
  const auto target = [](const std::string& written) {
    const Outcome outcome = read_whole("GET " + written + " HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_EQ(outcome.state, State::kDone) << written;
    return outcome.read.request.path + "|" + outcome.read.request.query;
  };
  EXPECT_EQ(target("/"), "/|");
  EXPECT_EQ(target("/a?"), "/a|");
  EXPECT_EQ(target("/a?b?c"), "/a|b?c");
  EXPECT_EQ(target("http://host:80/a/b?c"), "/a/b|c");
  EXPECT_EQ(target("HTTP://host"), "/|");
  EXPECT_EQ(target("http://host?c"), "/|c");
  EXPECT_EQ(target("/a%2Fb/../c"), "/a%2Fb/../c|") << "as sent";
  EXPECT_EQ(error_of("GET host:80 HTTP/1.1\r\nHost: h\r\n\r\n").status, 400);
  EXPECT_EQ(error_of("GET * HTTP/1.1\r\nHost: h\r\n\r\n").status, 400);
  EXPECT_EQ(read_whole("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").read.request.path, "*");
}

TEST(RequestReader, PassesOverEmptyLinesInFront) {
  const Outcome outcome = read_by_byte("\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(outcome.state, State::kDone);
  std::string many;
  for (int i = 0; i < 10; ++i) many += "\r\n";
  EXPECT_EQ(error_of(many + "GET / HTTP/1.1\r\nHost: h\r\n\r\n").status, 400);
}

TEST(RequestReader, BodiesOfTwoLengthsAreRefused) {
  const std::string line = "POST / HTTP/1.1\r\nHost: h\r\n";
  const std::string chunks = "\r\n0\r\n\r\n";
  for (const std::string headers : {
           "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
           "Content-Length: 5\r\nContent-Length: 5\r\n",
           "Content-Length: 5\r\nContent-Length: 6\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
           "Content-Length: 5, 5\r\n",
           "Content-Length: +5\r\n",
           "Content-Length: -1\r\n",
           "Content-Length: 5 6\r\n",
           "Content-Length: 0x5\r\n",
           "Content-Length:\r\n",
           "Content-Length: 99999999999999999999999\r\n",
       }) {
    EXPECT_EQ(error_of(line + headers + chunks).status, 400) << headers;
  }
  for (const std::string coding : {"gzip", "gzip, chunked", "chunked, gzip", "identity", "xchunked",
                                   "chunked;q=1", "\"chunked\""}) {
    const int status = error_of(line + "Transfer-Encoding: " + coding + "\r\n" + chunks).status;
    EXPECT_TRUE(status == 501 || status == 400) << coding << " " << status;
  }
  EXPECT_EQ(error_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n" + chunks).status, 400);
  EXPECT_EQ(read_whole(line + "Transfer-Encoding: Chunked\r\n" + chunks).state, State::kDone);
}

TEST(RequestReader, MalformedRequestsAreRefused) {
  for (const std::string& bytes : {
           std::string("GET /\r\n\r\n"),
           std::string("GET  / HTTP/1.1\r\nHost: h\r\n\r\n"),
           std::string("GET / HTTP/1.1 \r\nHost: h\r\n\r\n"),
           std::string("GET / HTTP/1.1\nHost: h\n\r\n\r\n"),
           std::string("G ET / HTTP/1.1\r\nHost: h\r\n\r\n"),
           std::string("GET / HTTP/1.1\r\nHost : h\r\n\r\n"),
           std::string("GET / HTTP/1.1\r\nHost\r\n\r\n"),
           std::string("GET / HTTP/1.1\r\n: h\r\nHost: h\r\n\r\n"),
           std::string("GET / HTTP/1.1\r\nHost: h\r\nA: b") + '\0' + "c\r\n\r\n",
           std::string("GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n"),
           std::string("GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n"),
           std::string("GET / HTTP/1.1\r\n\r\n"),
           std::string("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
           std::string("\x16\x03\x01\x02 hello of another protocol\r\n\r\n"),
           std::string(
               "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"),
           std::string("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
                       "chunked\r\n\r\n4\r\nWikiX\r\n0\r\n\r\n"),
       }) {
    const ReadError error = error_of(bytes);
    EXPECT_TRUE(error.status == 400 || error.status == 505) << bytes << error.status;
    EXPECT_NE(error.message, "");
    for (const char c : error.message) EXPECT_TRUE(c >= ' ' && c < 127 && c != '"' && c != '\\');
  }
  EXPECT_EQ(error_of("GET / HTTP/1.2\r\nHost: h\r\n\r\n").status, 505);
  EXPECT_EQ(error_of("POST / HTTP/1.1\r\nHost: h\r\nExpect: more\r\n\r\n").status, 417);
}

TEST(RequestReader, LimitsHold) {
  const ReaderLimits limits{.max_header_bytes = 200, .max_headers = 5, .max_body_bytes = 10};
  const std::string line = "POST / HTTP/1.1\r\nHost: h\r\n";
  const auto with_length = [&](int length) {
    return line + "Content-Length: " + std::to_string(length) + "\r\n\r\n" +
           std::string(static_cast<size_t>(length), 'x');
  };
  EXPECT_EQ(read_by_byte(with_length(10), limits).state, State::kDone);
  EXPECT_EQ(error_of(with_length(11), limits).status, 413);
  const std::string chunked = line + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(read_by_byte(chunked + "5\r\naaaaa\r\n5\r\nbbbbb\r\n0\r\n\r\n", limits).state,
            State::kDone);
  EXPECT_EQ(error_of(chunked + "5\r\naaaaa\r\n6\r\nbbbbbb\r\n0\r\n\r\n", limits).status, 413);
  EXPECT_EQ(error_of(chunked + "ffffffffffffffff\r\na", limits).status, 413);
  EXPECT_EQ(error_of(line + "A: " + std::string(300, 'x') + "\r\n\r\n", limits).status, 431);
  EXPECT_EQ(error_of("GET /" + std::string(300, 'x'), limits).status, 431) << "before it has ended";
  // The request line and the headers together, in whatever pieces they come.
  const std::string long_line = "GET /" + std::string(100, 'x') + " HTTP/1.1\r\nHost: h\r\nA: ";
  const auto with_header = [&](size_t bytes) {
    return long_line + std::string(bytes - long_line.size() - 4, 'x') + "\r\n\r\n";
  };
  EXPECT_EQ(read_whole(with_header(200), limits).state, State::kDone);
  EXPECT_EQ(read_by_byte(with_header(200), limits).state, State::kDone);
  EXPECT_EQ(error_of(with_header(201), limits).status, 431);
  EXPECT_EQ(read_by_byte(with_header(201), limits).state, State::kFailed);
  std::string many = line;
  for (int i = 0; i < 4; ++i) many += "A: b\r\n";
  EXPECT_EQ(read_whole(many + "\r\n", limits).state, State::kDone);
  EXPECT_EQ(error_of(many + "A: b\r\n\r\n", limits).status, 431);
}

TEST(RequestReader, KnowsWhoWaitsForLeaveToSend) {
  RequestReader reader({});
  const std::string_view head =
      "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n";
  EXPECT_EQ(reader.feed(head), head.size());
  ASSERT_EQ(reader.state(), State::kBody);
  EXPECT_TRUE(reader.wants_continue());
  EXPECT_EQ(reader.feed("ab"), 2u);
  EXPECT_EQ(reader.state(), State::kDone);
}

TEST(RequestReader, PiecesMakeNoDifference) {
  std::string stream;
  for (int i = 0; i < 20; ++i) {
    const std::string body(static_cast<size_t>(i * 7), static_cast<char>('a' + i));
    stream += "POST /" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\n";
    if (i % 2 == 0) {
      stream += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    } else {
      char size[20];
      std::snprintf(size, sizeof size, "%zx", body.size());
      stream += "Transfer-Encoding: chunked\r\n\r\n" + std::string(size) + "\r\n" + body +
                "\r\n0\r\n\r\n";
    }
  }
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    std::string_view left = stream;
    for (int i = 0; i < 20; ++i) {
      const Outcome outcome =
          read_in_pieces(left, [&] { return 1 + static_cast<size_t>(random.below(40)); });
      ASSERT_EQ(outcome.state, State::kDone) << i << " " << outcome.error.message;
      EXPECT_EQ(outcome.read.request.path, "/" + std::to_string(i));
      EXPECT_EQ(outcome.read.request.body,
                std::string(static_cast<size_t>(i * 7), static_cast<char>('a' + i)));
      left.remove_prefix(outcome.consumed);
    }
    EXPECT_EQ(left, "");
  }
}

TEST(RequestReader, IdsThatArePassedOn) {
  EXPECT_TRUE(is_request_id("a"));
  EXPECT_TRUE(is_request_id("req_0123-ABC.z"));
  EXPECT_TRUE(is_request_id(std::string(128, 'a')));
  EXPECT_FALSE(is_request_id(""));
  EXPECT_FALSE(is_request_id(std::string(129, 'a')));
  EXPECT_FALSE(is_request_id("a b"));
  EXPECT_FALSE(is_request_id("a\"b"));
  EXPECT_FALSE(is_request_id("\xc3\xa4"));
}

}  // namespace
}  // namespace chorus::http
