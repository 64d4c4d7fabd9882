#include "server/http/server.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <netinet/tcp.h>
#include <optional>
#include <random>
#include <sys/stat.h>
#include <unistd.h>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/thread.h"
#include "server/http/connection.h"

namespace chorus::http {

namespace {

using Tcp = asio::ip::tcp;
using Unix = asio::local::stream_protocol;
using ErrorCode = boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr auto kSweepInterval = std::chrono::milliseconds(100);
// Connections that are told at once that there is no place for them; more are closed.
constexpr int kMostRefused = 64;

class ContextPort final : public IoPort {
 public:
  explicit ContextPort(asio::io_context& io) : io_(&io) {}
  void post(std::function<void()> action) override {
    const MutexLock lock(mutex_);
    if (io_ != nullptr) asio::post(*io_, std::move(action));
  }
  // From here on nothing is posted.
  void close() {
    const MutexLock lock(mutex_);
    io_ = nullptr;
  }

 private:
  Mutex mutex_;
  asio::io_context* io_ CHORUS_GUARDED_BY(mutex_);
};

std::string address_of(const Tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  const std::string host = endpoint.address().is_v6() ? "[" + address + "]" : address;
  return host + ":" + std::to_string(endpoint.port());
}

// Opens, binds and listens; what failed is in `error`.
template <typename Acceptor, typename Endpoint>
void open_acceptor(Acceptor& acceptor, const Endpoint& endpoint, ErrorCode& error) {
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  // Nobody else may connect before the mode of the file is what it is to be.
  if (!error) fchmod(acceptor.native_handle(), S_IRUSR | S_IWUSR);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
}

// Removes a socket that nobody listens at.
Status remove_stale_socket(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return Status();
  if (!S_ISSOCK(info.st_mode))
    return invalid_argument("unix_socket", "expected a path for a socket, found the file " + path);
  asio::io_context io;
  Unix::socket probe(io);
  ErrorCode error;
  probe.connect(Unix::endpoint(path), error);
  if (error != asio::error::connection_refused)
    return invalid_argument("unix_socket", "expected a free path, found " + path + " in use");
  unlink(path.c_str());
  return Status();
}

// A peer that has vanished without a word is noticed within a minute.
void set_keep_alive(Tcp::socket& socket) {
  constexpr int kIdleSeconds = 30;
  constexpr int kIntervalSeconds = 10;
  constexpr int kProbes = 3;
  const auto set = [&](int option, const int& value) {
    (void)setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  };
  ErrorCode ignored;
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  set(TCP_KEEPIDLE, kIdleSeconds);
  set(TCP_KEEPINTVL, kIntervalSeconds);
  set(TCP_KEEPCNT, kProbes);
}

}  // namespace

class Server::Core {
 public:
  Core(ServerOptions options, Handler& handler)
      : options_(std::move(options)), host_(options_, handler), sweep_timer_(host_.io) {
    auto port = std::make_shared<ContextPort>(host_.io);
    context_port_ = port.get();
    host_.port = std::move(port);
    std::random_device entropy;
    host_.id_seed = static_cast<uint64_t>(entropy()) << 32 | entropy();
  }
  ~Core() { stop(); }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  Status listen();
  Status start();
  void stop();

  const ServerOptions options_;
  ConnectionHost host_;
  uint16_t port_ = 0;
  std::vector<std::string> addresses_;

 private:
  Status listen_tcp();
  Status listen_unix();
  template <typename Acceptor>
  asio::awaitable<void> accept(Acceptor& acceptor);
  void adopt(Tcp::socket socket);
  void adopt(Unix::socket socket) { add(Socket(std::move(socket)), "unix"); }
  void add(Socket socket, std::string peer);
  bool make_place();
  asio::awaitable<void> sweep();
  void close_everything();

  ContextPort* context_port_ = nullptr;  // of host_
  asio::steady_timer sweep_timer_;
  std::optional<Tcp::acceptor> tcp_;
  std::optional<Unix::acceptor> unix_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  bool is_stopping_ = false;
  Mutex join_mutex_;
  std::unique_ptr<Thread> thread_ CHORUS_GUARDED_BY(join_mutex_);
};

// ---- Listening ----

Status Server::Core::listen_tcp() {
  Tcp::resolver resolver(host_.io);
  ErrorCode error;
  const auto found =
      resolver.resolve(options_.host, std::to_string(options_.port),
                       Tcp::resolver::passive | Tcp::resolver::numeric_service, error);
  if (error || found.empty())
    return invalid_argument("host", "expected an address of this machine, found " + options_.host);
  const Tcp::endpoint endpoint = found.begin()->endpoint();
  tcp_.emplace(host_.io);
  open_acceptor(*tcp_, endpoint, error);
  if (error == asio::error::address_in_use || error == asio::error::access_denied)
    return invalid_argument("port", "expected one that is free, found " +
                                        std::to_string(options_.port) + ": " + error.message());
  if (error)
    return invalid_argument("host", "expected an address of this machine, found " + options_.host +
                                        ": " + error.message());
  const Tcp::endpoint bound = tcp_->local_endpoint(error);
  port_ = bound.port();
  addresses_.push_back("http://" + address_of(bound));
  return Status();
}

Status Server::Core::listen_unix() {
  const std::string& path = options_.unix_socket;
  constexpr size_t kLongestPath = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kLongestPath)
    return invalid_argument(
        "unix_socket", "expected a path of at most " + std::to_string(kLongestPath) + " bytes");
  CHORUS_RETURN_IF_ERROR(remove_stale_socket(path));
  ErrorCode error;
  unix_.emplace(host_.io);
  open_acceptor(*unix_, Unix::endpoint(path), error);
  if (error) {
    unix_.reset();
    return invalid_argument(
        "unix_socket", "expected a path that can be made, found " + path + ": " + error.message());
  }
  addresses_.push_back("unix:" + path);
  return Status();
}

Status Server::Core::listen() {
  if (options_.host.empty() && options_.unix_socket.empty())
    return invalid_argument("host", "expected one, or a unix_socket, found neither");
  if (!options_.host.empty()) CHORUS_RETURN_IF_ERROR(listen_tcp());
  if (!options_.unix_socket.empty()) CHORUS_RETURN_IF_ERROR(listen_unix());
  return Status();
}

Status Server::Core::start() {
  if (tcp_) asio::co_spawn(host_.io, accept(*tcp_), asio::detached);
  if (unix_) asio::co_spawn(host_.io, accept(*unix_), asio::detached);
  asio::co_spawn(host_.io, sweep(), asio::detached);
  const MutexLock lock(join_mutex_);
  CHORUS_ASSIGN_OR_RETURN(thread_, Thread::start([this] { host_.io.run(); }));
  return Status();
}

void Server::Core::stop() {
  const MutexLock lock(join_mutex_);
  if (thread_ != nullptr) host_.port->post([this] { close_everything(); });
  thread_ = nullptr;
  context_port_->close();
  if (unix_) unlink(options_.unix_socket.c_str());
  unix_.reset();
}

// ---- On the I/O thread ----

void Server::Core::close_everything() {
  is_stopping_ = true;
  ErrorCode ignored;
  if (tcp_) tcp_->close(ignored);
  if (unix_) unix_->close(ignored);
  sweep_timer_.cancel();
  for (const auto& connection : connections_) connection->close();
  connections_.clear();
}

template <typename Acceptor>
asio::awaitable<void> Server::Core::accept(Acceptor& acceptor) {
  while (!is_stopping_) {
    auto [error, socket] = co_await acceptor.async_accept(kAwait);
    if (is_stopping_) break;
    if (!error) {
      adopt(std::move(socket));
      continue;
    }
    // Out of file descriptors, most likely; the next sweep may free some.
    asio::steady_timer pause(host_.io, kSweepInterval);
    co_await pause.async_wait(kAwait);
  }
}

void Server::Core::adopt(Tcp::socket socket) {
  ErrorCode error;
  const Tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;  // it has gone already
  socket.set_option(Tcp::no_delay(true), error);
  set_keep_alive(socket);
  add(Socket(std::move(socket)), address_of(peer));
}

void Server::Core::add(Socket socket, std::string peer) {
  host_.accepted.fetch_add(1, std::memory_order_relaxed);
  ErrorCode ignored;
  socket.set_option(asio::socket_base::send_buffer_size(options_.send_buffer_bytes), ignored);
  const bool has_place = make_place();
  if (!has_place) {
    const auto num_refused = std::count_if(connections_.begin(), connections_.end(),
                                           [](const auto& other) { return other->is_refused(); });
    if (num_refused >= kMostRefused) {
      host_.refused.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  const auto connection =
      std::make_shared<Connection>(host_, std::move(socket), std::move(peer), !has_place);
  connections_.insert(connection);
  connection->start();
}

// Whether there is a place for one more connection; the one idle for the longest time gives way.
bool Server::Core::make_place() {
  std::erase_if(connections_, [](const auto& connection) { return connection->is_closed(); });
  const auto num_served =
      std::count_if(connections_.begin(), connections_.end(),
                    [](const auto& connection) { return !connection->is_refused(); });
  if (num_served < options_.max_connections) return true;
  std::shared_ptr<Connection> oldest;
  for (const auto& connection : connections_) {
    if (connection->is_refused() || !connection->is_idle()) continue;
    if (oldest == nullptr || connection->idle_since() < oldest->idle_since()) oldest = connection;
  }
  if (oldest == nullptr) return false;
  oldest->close();
  connections_.erase(oldest);
  return true;
}

asio::awaitable<void> Server::Core::sweep() {
  while (!is_stopping_) {
    sweep_timer_.expires_after(kSweepInterval);
    co_await sweep_timer_.async_wait(kAwait);
    const SteadyTime now = std::chrono::steady_clock::now();
    // What a connection does when it is told may close others, but adds none.
    for (const auto& connection : connections_) connection->sweep(now);
    std::erase_if(connections_, [](const auto& connection) { return connection->is_closed(); });
  }
}

// ---- Server ----

Server::Server(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::create(ServerOptions options, Handler& handler) {
  auto core = std::make_unique<Core>(std::move(options), handler);
  CHORUS_RETURN_IF_ERROR(core->listen());
  CHORUS_RETURN_IF_ERROR(core->start());
  return std::unique_ptr<Server>(new Server(std::move(core)));
}

uint16_t Server::port() const { return core_->port_; }
std::vector<std::string> Server::addresses() const { return core_->addresses_; }

ServerCounters Server::counters() const {
  ConnectionHost& host = core_->host_;
  ServerCounters counters{.accepted = host.accepted,
                          .refused = host.refused,
                          .requests = host.requests,
                          .malformed = host.malformed,
                          .left = host.left,
                          .open_connections = host.open_connections};
  const MutexLock lock(host.mutex);
  counters.open_requests = host.open_requests;
  return counters;
}

void Server::drain() { core_->host_.is_draining.store(true); }

bool Server::wait_until_idle(int64_t timeout_ns) {
  const SteadyClock clock;
  const int64_t deadline = clock.now_ns() + timeout_ns;
  ConnectionHost& host = core_->host_;
  const MutexLock lock(host.mutex);
  while (host.open_requests > 0) {
    const int64_t left = deadline - clock.now_ns();
    if (left <= 0) return false;
    host.idle.wait_for_ns(host.mutex, left);
  }
  return true;
}

void Server::stop() { core_->stop(); }

}  // namespace chorus::http
