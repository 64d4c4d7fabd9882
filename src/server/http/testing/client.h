// A client that does exactly what a test says, also what no sane client does.
#pragma once

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/http/exchange.h"

namespace chorus::http::testing {

struct ClientResponse {
  int status = 0;  // 0: none came whole up to the end of its head
  std::vector<Header> headers;
  std::string body;  // without the framing of chunks
  bool is_complete = false;

  std::string_view header(std::string_view name) const { return find_header(headers, name); }
};

// One connection. Reads give up after 30 s of nothing. Thread: one.
class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    CHORUS_CHECK(fd_ >= 0);
    if (receive_buffer > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  explicit Client(const std::string& unix_path) : fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    CHORUS_CHECK(fd_ >= 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, unix_path.c_str(), sizeof address.sun_path - 1);
    is_connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        is_connected_(other.is_connected_),
        buffered_(std::move(other.buffered_)) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool is_connected() const { return is_connected_; }

  // All of the bytes. False when the connection is gone.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // As much as the system takes at once.
  size_t send_some(std::string_view bytes) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent > 0 ? static_cast<size_t>(sent) : 0;
  }
  bool get(const std::string& path, const std::string& headers = "") {
    return send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n");
  }
  bool post(const std::string& path, const std::string& body) {
    return send("POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
  }

  void end_sending() { shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // With RST in place of FIN.
  void reset() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
  }

  // Reads into what is buffered. False at the end, after an error, and after the time limit.
  bool read_some(int timeout_ms = 30'000) {
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&entry, 1, timeout_ms) <= 0) return false;
    char bytes[16 << 10];
    const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
    was_reset_ = count < 0 && errno == ECONNRESET;
    if (count <= 0) return false;
    buffered_.append(bytes, static_cast<size_t>(count));
    return true;
  }
  // Everything until the end.
  std::string read_all() {
    while (read_some()) {
    }
    return std::exchange(buffered_, {});
  }
  bool read_until(std::string_view text) {
    while (buffered_.find(text) == std::string::npos) {
      if (!read_some()) return false;
    }
    return true;
  }
  const std::string& buffered() const { return buffered_; }
  bool was_reset() const { return was_reset_; }  // as far as was read
  // Whether the other side ends the connection, without more bytes.
  bool is_ended(int timeout_ms = 30'000) { return !read_some(timeout_ms) && buffered_.empty(); }

  ClientResponse read_head() {
    ClientResponse response;
    if (!read_until("\r\n\r\n")) return response;
    const size_t end = buffered_.find("\r\n\r\n");
    std::string_view head(buffered_.data(), end + 2);
    response.status = std::atoi(std::string(head.substr(9, 3)).c_str());
    head.remove_prefix(head.find("\r\n") + 2);
    while (!head.empty()) {
      const size_t line_end = head.find("\r\n");
      const size_t colon = head.find(": ");
      response.headers.push_back({std::string(head.substr(0, colon)),
                                  std::string(head.substr(colon + 2, line_end - colon - 2))});
      head.remove_prefix(line_end + 2);
    }
    buffered_.erase(0, end + 4);
    return response;
  }
  // The next answer. `has_body`: not that to HEAD.
  ClientResponse read_response(bool has_body = true) {
    ClientResponse response = read_head();
    if (response.status == 0) return response;
    if (!has_body || response.status == 204 || response.status == 304 || response.status == 100) {
      response.is_complete = true;
    } else if (response.header("transfer-encoding") == "chunked") {
      read_chunks(response);
    } else if (!response.header("content-length").empty()) {
      const size_t length = std::stoul(std::string(response.header("content-length")));
      while (buffered_.size() < length && read_some()) {
      }
      response.is_complete = buffered_.size() >= length;
      response.body = buffered_.substr(0, length);
      buffered_.erase(0, std::min(length, buffered_.size()));
    } else {
      response.body = read_all();
      response.is_complete = true;
    }
    return response;
  }

 private:
  void read_chunks(ClientResponse& response) {
    for (;;) {
      if (!read_until("\r\n")) return;
      const size_t line_end = buffered_.find("\r\n");
      const size_t length = std::stoul(buffered_.substr(0, line_end), nullptr, 16);
      while (buffered_.size() < line_end + 4 + length) {
        if (!read_some()) return;
      }
      response.body += buffered_.substr(line_end + 2, length);
      buffered_.erase(0, line_end + 4 + length);
      if (length == 0) break;
    }
    response.is_complete = true;
  }

  int fd_;
  bool is_connected_ = false;
  bool was_reset_ = false;
  std::string buffered_;
};

}  // namespace chorus::http::testing
