// Clients that leave, or do not read.
#include <gtest/gtest.h>
#include <thread>

#include "base/random.h"
#include "server/http/server.h"
#include "server/http/testing/client.h"
#include "server/http/testing/scripted_handler.h"

namespace chorus::http {
namespace {

using testing::Client;
using testing::ClientResponse;
using testing::ScriptedHandler;

struct ServerLeaving : ::testing::Test {
  void start(ServerOptions options = {}) {
    auto created = Server::create(std::move(options), handler);
    ASSERT_TRUE(created.ok()) << created.status().to_string();
    server = std::move(created).value();
    port = server->port();
  }
  void wait_until_quiet() const {
    while (server->counters().open_connections > 0) std::this_thread::yield();
  }
  void expect_that_others_are_served() const {
    Client other(port);
    ASSERT_TRUE(other.get("/echo"));
    EXPECT_EQ(other.read_response().status, 200);
  }

  ScriptedHandler handler;
  std::unique_ptr<Server> server;
  uint16_t port = 0;
};

// Counts the calls, and waits for them.
class Calls {
 public:
  void add() {
    const MutexLock lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  void wait_for(int count) {
    const MutexLock lock(mutex_);
    while (count_ < count) changed_.wait(mutex_);
  }
  int count() {
    const MutexLock lock(mutex_);
    return count_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int count_ CHORUS_GUARDED_BY(mutex_) = 0;
};

enum class Way { kClose, kReset, kEndSending };

void leave(Client& client, Way way) {
  if (way == Way::kClose) client.close();
  if (way == Way::kReset) client.reset();
  if (way == Way::kEndSending) client.end_sending();
}

constexpr Way kWays[] = {Way::kClose, Way::kReset, Way::kEndSending};

TEST_F(ServerLeaving, IsNoticedBeforeTheAnswerHasBegun) {
  start();
  for (const Way way : kWays) {
    Client client(port);
    ASSERT_TRUE(client.get("/hold"));
    const auto exchange = handler.next();
    const auto calls = std::make_shared<Calls>();
    exchange->on_change([calls] { calls->add(); });
    EXPECT_FALSE(exchange->client_left());
    leave(client, way);
    calls->wait_for(1);
    EXPECT_TRUE(exchange->client_left());
    exchange->respond({});  // goes nowhere
    EXPECT_EQ(exchange->unsent_bytes(), 0u);
  }
  wait_until_quiet();
  EXPECT_EQ(server->counters().left, 3u);
}

TEST_F(ServerLeaving, IsNoticedInASilentStream) {
  start();
  for (const Way way : kWays) {
    Client client(port);
    ASSERT_TRUE(client.get("/hold"));
    const auto exchange = handler.next();
    exchange->begin_stream(200, {});
    exchange->write("first");
    ASSERT_TRUE(client.read_until("first"));
    const auto calls = std::make_shared<Calls>();
    exchange->on_change([calls, raw = exchange.get()] {  // also called when all is sent
      if (raw->client_left()) calls->add();
    });
    leave(client, way);
    calls->wait_for(1);
    exchange->write("more");
    exchange->end_stream();
  }
  wait_until_quiet();
}

TEST_F(ServerLeaving, IsNoticedBehindOtherRequests) {
  start();
  for (const Way way : kWays) {
    Client client(port);
    ASSERT_TRUE(client.get("/hold/1"));
    const auto exchange = handler.next();
    ASSERT_TRUE(client.get("/hold/2") && client.get("/hold/3"));
    leave(client, way);
    while (!exchange->client_left()) std::this_thread::yield();
    const auto calls = std::make_shared<Calls>();
    exchange->on_change([calls] { calls->add(); });  // also when it is asked for afterwards
    calls->wait_for(1);
  }
  wait_until_quiet();
  EXPECT_EQ(handler.num_held(), 0u) << "what lay behind is not handled";
}

TEST_F(ServerLeaving, IsNoticedBehindMoreThanIsRead) {
  start();
  for (const Way way : kWays) {
    Client client(port);
    ASSERT_TRUE(client.get("/hold"));
    const auto exchange = handler.next();
    // More than the buffer of 48 KiB holds, and no more than the system takes besides: behind that
    // it would not be told of the end.
    ASSERT_TRUE(client.send(std::string(70'000, 'x')));
    leave(client, way);
    while (!exchange->client_left()) std::this_thread::yield();
  }
  wait_until_quiet();
}

TEST_F(ServerLeaving, ACompleteAnswerReachesOneThatHasEndedSending) {
  start();
  Client client(port);
  ASSERT_TRUE(client.get("/echo"));
  client.end_sending();
  EXPECT_EQ(client.read_response().body, "GET /echo ");
  EXPECT_TRUE(client.is_ended());
}

TEST_F(ServerLeaving, ActionsAreLetGoWithTheAnswer) {
  start();
  const auto token = std::make_shared<int>(0);
  Client client(port);
  ASSERT_TRUE(client.get("/hold"));
  auto exchange = handler.next();
  exchange->on_change([token, exchange] {});  // a circle, if it were kept
  ScriptedHandler::echo(*exchange);
  exchange.reset();
  EXPECT_EQ(client.read_response().status, 200);
  while (token.use_count() > 1) std::this_thread::yield();
}

// What a client does not read piles up until whoever writes stops, and nobody else is kept.
TEST_F(ServerLeaving, ASlowReaderIsSeenAndOthersAreServed) {
  start({.send_buffer_bytes = 16 << 10});
  Client client(port, 16 << 10);
  ASSERT_TRUE(client.get("/hold"));
  const auto exchange = handler.next();
  constexpr size_t kBound = 256 << 10;
  const auto calls = std::make_shared<Calls>();
  exchange->on_change([calls] { calls->add(); });
  exchange->begin_stream(200, {});
  std::string expected;
  int line = 0;
  const auto write_up_to_bound = [&] {
    while (exchange->unsent_bytes() < kBound) {
      const std::string text = "line " + std::to_string(line++) + std::string(1000, 'x') + "\n";
      exchange->write(text);
      expected += text;
    }
  };
  write_up_to_bound();
  expect_that_others_are_served();
  EXPECT_GT(exchange->unsent_bytes(), kBound / 2) << "it does not read";
  EXPECT_LT(exchange->unsent_bytes(), 2 * kBound);
  ClientResponse response;
  std::thread reader([&] { response = client.read_response(); });
  while (exchange->unsent_bytes() > 0) std::this_thread::yield();
  calls->wait_for(1);
  write_up_to_bound();
  exchange->end_stream();
  reader.join();
  EXPECT_TRUE(response.is_complete);
  EXPECT_EQ(response.body, expected);
}

TEST_F(ServerLeaving, OneThatNeverReadsIsCut) {
  start({.write_ms = 300, .send_buffer_bytes = 16 << 10});
  Client client(port, 16 << 10);
  ASSERT_TRUE(client.get("/hold"));
  const auto exchange = handler.next();
  exchange->begin_stream(200, {});
  exchange->write(std::string(8 << 20, 'x'));
  while (!exchange->client_left()) std::this_thread::yield();
  EXPECT_EQ(exchange->unsent_bytes(), 0u);
  wait_until_quiet();
  expect_that_others_are_served();
}

// Clients that leave at random moments, and threads that answer them at random moments.
TEST_F(ServerLeaving, AStormLeavesNothingBehind) {
  constexpr int kClients = 400;
  constexpr int kAnswerers = 2;
  std::atomic<int> alive{0};
  handler.on_request_ = [&](Exchange& exchange) {
    ++alive;
    exchange.on_change([token = std::shared_ptr<void>(nullptr, [&](void*) { --alive; })] {});
  };
  start({.max_connections = 64, .send_buffer_bytes = 16 << 10});
  std::atomic<bool> is_over{false};
  const auto answer = [&](uint64_t seed) {
    RandomStream random(seed);
    while (!is_over) {
      if (handler.num_held() == 0) {
        std::this_thread::yield();
        continue;
      }
      const auto exchange = handler.next();
      if (exchange->request().path == "/hold/over") return;
      if (random.below(4) == 0) continue;  // given up
      exchange->begin_stream(200, {});
      const uint64_t writes = random.below(20);
      for (uint64_t i = 0; i < writes && !exchange->client_left(); ++i)
        exchange->write(std::string(random.below(30'000), 'x'));
      if (random.below(4) != 0) exchange->end_stream();
    }
  };
  std::vector<std::thread> answerers;
  for (uint64_t i = 0; i < kAnswerers; ++i) answerers.emplace_back(answer, 100 + i);
  RandomStream random(7);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) {
    auto owned = std::make_unique<Client>(port);
    Client& client = *owned;
    const std::string request = "GET /hold/" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\n\r\n";
    client.send(std::string_view(request).substr(
        0, random.below(2) == 0 ? request.size() : random.below(40)));
    if (random.below(2) == 0) client.send(request);
    if (random.below(3) == 0) client.read_some(static_cast<int>(random.below(3)));
    clients.push_back(std::move(owned));
    while (clients.size() > random.below(40)) {
      const auto victim = static_cast<size_t>(random.below(clients.size()));
      if (random.below(2) == 0) clients[victim]->reset();
      std::swap(clients[victim], clients.back());
      clients.pop_back();
    }
  }
  clients.clear();
  wait_until_quiet();
  EXPECT_EQ(server->counters().open_requests, 0);
  is_over = true;
  std::vector<Client> last;  // for those who wait for one more
  for (int i = 0; i < kAnswerers; ++i) {
    last.emplace_back(port);
    ASSERT_TRUE(last.back().get("/hold/over"));
  }
  for (std::thread& thread : answerers) thread.join();
  last.clear();
  wait_until_quiet();
  while (handler.num_held() > 0) (void)handler.next();
  server = nullptr;
  EXPECT_EQ(alive.load(), 0) << "exchanges that were never let go";
}

}  // namespace
}  // namespace chorus::http
