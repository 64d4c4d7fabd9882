#include "server/http/server.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <thread>

#include "server/http/body_room.h"
#include "server/http/testing/client.h"
#include "server/http/testing/scripted_handler.h"

namespace chorus::http {
namespace {

using testing::Client;
using testing::ClientResponse;
using testing::ScriptedHandler;

struct ServerTest : ::testing::Test {
  void start(ServerOptions options = {}) {
    options.on_end = [this](AccessRecord record) {
      const MutexLock lock(mutex);
      records.push_back(std::move(record));
    };
    auto created = Server::create(std::move(options), handler);
    ASSERT_TRUE(created.ok()) << created.status().to_string();
    server = std::move(created).value();
    port = server->port();
  }
  // Waits until nothing is open any more.
  void wait_until_quiet() const {
    while (server->counters().open_connections > 0) std::this_thread::yield();
  }
  std::vector<AccessRecord> take_records() {
    const MutexLock lock(mutex);
    return std::exchange(records, {});
  }

  Mutex mutex;
  std::vector<AccessRecord> records;
  ScriptedHandler handler;
  std::unique_ptr<Server> server;
  uint16_t port = 0;
};

TEST_F(ServerTest, AThousandRequestsOnOneConnection) {
  start();
  Client client(port);
  for (int i = 0; i < 1000; ++i) {
    const std::string body = std::to_string(i);
    ASSERT_TRUE(client.post("/echo", body));
    const ClientResponse response = client.read_response();
    ASSERT_EQ(response.status, 200);
    ASSERT_EQ(response.body, "POST /echo " + body);
    ASSERT_EQ(response.header("connection"), "keep-alive");
  }
  EXPECT_EQ(server->counters().accepted, 1u);
  EXPECT_EQ(server->counters().requests, 1000u);
}

TEST_F(ServerTest, ARequestThatComesByteByByte) {
  start();
  Client client(port);
  for (int i = 0; i < 3; ++i) {
    for (const char byte : std::string("POST /a?b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked"
                                       "\r\n\r\n3\r\nabc\r\n0\r\n\r\n"))
      ASSERT_TRUE(client.send({&byte, 1}));
    EXPECT_EQ(client.read_response().body, "POST /a abc");
  }
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrderOneAtATime) {
  start();
  Client client(port);
  constexpr int kRequests = 300;
  std::string bytes;
  for (int i = 0; i < kRequests; ++i)
    bytes += "GET /hold/" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\n\r\n";
  std::thread sender([&] { ASSERT_TRUE(client.send(bytes)); });
  for (int i = 0; i < kRequests; ++i) {
    const auto exchange = handler.next();
    EXPECT_EQ(handler.num_held(), 0u);
    EXPECT_EQ(exchange->request().path, "/hold/" + std::to_string(i));
    ScriptedHandler::echo(*exchange);
  }
  sender.join();
  for (int i = 0; i < kRequests; ++i)
    ASSERT_EQ(client.read_response().body, "GET /hold/" + std::to_string(i) + " ");
}

TEST_F(ServerTest, OlderClientsAreToldTheEndByTheEnd) {
  start();
  Client client(port);
  ASSERT_TRUE(client.send("GET /hold HTTP/1.0\r\n\r\n"));
  const auto exchange = handler.next();
  exchange->begin_stream(200, {});
  exchange->write("a");
  exchange->write("b");
  exchange->end_stream();
  const ClientResponse response = client.read_response();
  EXPECT_EQ(response.header("transfer-encoding"), "");
  EXPECT_EQ(response.header("connection"), "close");
  EXPECT_EQ(response.body, "ab");
  Client keeping(port);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(keeping.send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    EXPECT_EQ(keeping.read_response().body, "GET /echo ");
  }
}

TEST_F(ServerTest, HeadIsAnsweredWithoutBody) {
  start();
  Client client(port);
  ASSERT_TRUE(
      client.send("HEAD /echo HTTP/1.1\r\nHost: h\r\n\r\nHEAD /hold HTTP/1.1\r\nHost: h\r\n\r\n"));
  ClientResponse response = client.read_response(false);
  EXPECT_EQ(response.header("content-length"), "11");
  const auto exchange = handler.next();
  exchange->begin_stream(200, {});
  exchange->write("not sent");
  exchange->end_stream();
  EXPECT_EQ(client.read_response(false).header("transfer-encoding"), "chunked");
  ASSERT_TRUE(client.get("/echo"));
  EXPECT_EQ(client.read_response().body, "GET /echo ");
}

TEST_F(ServerTest, StreamsAreChunkedAsTheyAreWritten) {
  start();
  Client client(port);
  ASSERT_TRUE(client.get("/hold"));
  const auto exchange = handler.next();
  exchange->begin_stream(200, {{"content-type", "text/event-stream"}, {"x-evil", "a\r\nb: c"}});
  const ClientResponse head = client.read_head();
  EXPECT_EQ(head.header("content-type"), "text/event-stream");
  EXPECT_EQ(head.header("x-evil"), "a  b: c");
  for (const std::string text : {"one", "", "two and more"}) exchange->write(text);
  ASSERT_TRUE(client.read_until("two and more\r\n"));
  EXPECT_EQ(client.buffered(), "3\r\none\r\nc\r\ntwo and more\r\n");
  while (exchange->unsent_bytes() > 0) std::this_thread::yield();
  exchange->end_stream();
  ASSERT_TRUE(client.read_until("0\r\n\r\n"));
}

TEST_F(ServerTest, WhatIsLetGoWithoutAnAnswerIsAnError) {
  start();
  Client client(port);
  ASSERT_TRUE(client.get("/hold"));
  handler.next().reset();
  EXPECT_EQ(client.read_response().status, 500);
  ASSERT_TRUE(client.get("/hold"));
  auto exchange = handler.next();
  exchange->begin_stream(200, {});
  exchange->write("half");
  exchange.reset();
  const ClientResponse response = client.read_response();
  EXPECT_FALSE(response.is_complete);
  Client older(port);
  ASSERT_TRUE(older.send("GET /hold HTTP/1.0\r\n\r\n"));
  exchange = handler.next();
  exchange->begin_stream(200, {});
  exchange.reset();
  older.read_all();
  EXPECT_TRUE(older.was_reset()) << "the end is not that of the answer";
}

TEST_F(ServerTest, IdsArePassedOnOrDrawn) {
  start();
  Client client(port);
  ASSERT_TRUE(client.get("/echo", "X-Request-Id: mine-1\r\n"));
  EXPECT_EQ(client.read_response().header("x-request-id"), "mine-1");
  std::vector<std::string> drawn;
  for (const std::string headers : {"", "X-Request-Id: a b\r\n", "X-Request-Id: \r\n"}) {
    ASSERT_TRUE(client.get("/echo", headers));
    drawn.emplace_back(client.read_response().header("x-request-id"));
    EXPECT_EQ(drawn.back().size(), 32u);
  }
  EXPECT_NE(drawn[0], drawn[1]);
  EXPECT_NE(drawn[1], drawn[2]);
}

TEST_F(ServerTest, ALeaveToSendTheBodyIsGivenOnce) {
  start();
  Client client(port);
  ASSERT_TRUE(client.send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"));
  EXPECT_EQ(client.read_response().status, 100);
  ASSERT_TRUE(client.send("ab"));
  EXPECT_EQ(client.read_response().body, "POST /echo ab");
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: "
                  "99999999999\r\n\r\n"));
  EXPECT_EQ(client.read_response().status, 413) << "before the body is sent";
}

TEST_F(ServerTest, BadRequestsEndTheConnection) {
  start();
  for (const auto& [bytes, status] : std::vector<std::pair<std::string, int>>{
           {"nonsense\r\n\r\n", 400},
           {"GET / HTTP/1.1\r\n\r\n", 400},
           {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
            "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
            400},
           {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
           {"GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505},
           {"GET /" + std::string(100'000, 'a'), 431}}) {
    Client client(port);
    ASSERT_TRUE(client.send(bytes));
    const ClientResponse response = client.read_response();
    EXPECT_EQ(response.status, status) << bytes.substr(0, 40);
    EXPECT_EQ(response.header("content-type"), "application/json");
    EXPECT_TRUE(response.body.starts_with(R"({"error":{"message":")")) << response.body;
    EXPECT_TRUE(client.is_ended());
  }
  EXPECT_EQ(server->counters().requests, 0u) << "also what lay behind them";
  EXPECT_EQ(server->counters().malformed, 6u);
}

TEST_F(ServerTest, ABodyThatIsTooLongIsRefusedWhileItIsSent) {
  start({.reader = {.max_body_bytes = 1000}});
  Client client(port);
  ASSERT_TRUE(client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"));
  const std::string chunk = "400\r\n" + std::string(1024, 'x') + "\r\n";
  for (int i = 0; i < 20; ++i) client.send(chunk);
  EXPECT_EQ(client.read_response().status, 413);
}

TEST_F(ServerTest, BodiesTogetherAreBounded) {
  start({.max_bodies_bytes = 300'000});
  const std::string large(200'000, 'x');
  Client first(port);
  Client second(port);
  ASSERT_TRUE(first.post("/hold/first", large));
  auto first_exchange = handler.next();
  ASSERT_TRUE(second.post("/hold/second", large));
  auto second_exchange = handler.next();
  Client third(port);
  third.post("/", large);
  const auto refused = third.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  third.close();
  for (int i = 0; i < 10; ++i) {
    Client small(port);
    ASSERT_TRUE(small.post("/", std::string(kFreeBodyBytes, 'x')));
    EXPECT_EQ(small.read_response().status, 200);
  }
  first_exchange->respond({200, {}, ""});
  EXPECT_EQ(first.read_response().status, 200);
  second_exchange->respond({200, {}, ""});
  EXPECT_EQ(second.read_response().status, 200);
  first.close();
  second.close();
  wait_until_quiet();
  first_exchange = second_exchange = nullptr;
  std::vector<Client> clients;
  std::vector<std::shared_ptr<Exchange>> exchanges;  // nothing is held any more
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(clients.emplace_back(port).post("/hold", large));
    exchanges.push_back(handler.next());
  }
}

TEST_F(ServerTest, ABodyCountsAsLongAsItsRequestIsThere) {
  start({.max_bodies_bytes = 300'000});
  const std::string large(300'000, 'x');
  Client first(port);
  ASSERT_TRUE(first.post("/hold", large));
  auto exchange = handler.next();
  first.close();
  wait_until_quiet();
  Client second(port);
  second.post("/", large);
  EXPECT_EQ(second.read_response().status, 503);
  second.close();
  EXPECT_EQ(server->counters().refused, 1u);
  exchange = nullptr;
  Client third(port);
  ASSERT_TRUE(third.post("/", large));
  EXPECT_EQ(third.read_response().status, 200);
}

TEST_F(ServerTest, OneBodyIsTakenWhateverTheBoundOfAll) {
  start({.max_bodies_bytes = 1});
  Client client(port);
  ASSERT_TRUE(client.post("/", std::string(1'000'000, 'x')));
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(ServerTest, ABodyThatNobodyWantsIsNotWaitedFor) {
  start();
  for (const std::string length : {"Content-Length: 1000000", "Transfer-Encoding: chunked"}) {
    for (const std::string more : {"", "Expect: 100-continue\r\n"}) {
      Client client(port);
      ASSERT_TRUE(client.send("POST /bare HTTP/1.1\r\nHost: h\r\n" + more + length + "\r\n\r\n5"));
      const auto response = client.read_response();
      EXPECT_EQ(response.status, 200);
      EXPECT_EQ(response.body, "POST /bare ");
      EXPECT_TRUE(client.is_ended());
    }
  }
}

TEST_F(ServerTest, ALineWithoutEndInAChunkedBodyIsRefused) {
  start();
  Client client(port);
  ASSERT_TRUE(client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;"));
  for (int i = 0; i < 100; ++i) client.send(std::string(1024, 'x'));
  EXPECT_EQ(client.read_response().status, 400);
}

TEST_F(ServerTest, HeadersHaveTheirTime) {
  start({.header_ms = 1000});
  Client silent(port);
  Client client(port);
  ASSERT_TRUE(client.send("GET / HTTP/1.1\r\nHo"));
  EXPECT_EQ(client.read_response().status, 408);
  EXPECT_TRUE(client.is_ended());
  EXPECT_TRUE(silent.is_ended()) << "nothing was asked, nothing is answered";
}

TEST_F(ServerTest, ASlowSenderDoesNotProlongItsTime) {
  start({.header_ms = 1000});
  Client client(port);
  const std::string bytes = "GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(10'000, 'x');
  size_t sent = 0;
  while (sent < bytes.size() && client.send({&bytes[sent++], 1})) {
    if (client.read_some(20)) break;
  }
  EXPECT_LT(sent, bytes.size());
  EXPECT_EQ(client.read_response().status, 408);
}

TEST_F(ServerTest, BodiesHaveTheirTime) {
  start({.body_ms = 200});
  Client client(port);
  ASSERT_TRUE(client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nab"));
  EXPECT_EQ(client.read_response().status, 408);
}

TEST_F(ServerTest, IdleConnectionsEndAndWaitingOnesDoNot) {
  start({.idle_ms = 200});
  Client idle(port);
  ASSERT_TRUE(idle.get("/echo"));
  EXPECT_EQ(idle.read_response().status, 200);
  EXPECT_TRUE(idle.is_ended());
  Client waiting(port);
  ASSERT_TRUE(waiting.get("/hold"));
  const auto exchange = handler.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_FALSE(exchange->client_left());
  ScriptedHandler::echo(*exchange);
  EXPECT_EQ(waiting.read_response().status, 200);
}

TEST_F(ServerTest, TheConnectionIdleForTheLongestTimeGivesWay) {
  start({.max_connections = 2});
  Client first(port);
  ASSERT_TRUE(first.get("/echo"));
  EXPECT_EQ(first.read_response().status, 200);
  Client second(port);
  ASSERT_TRUE(second.get("/hold"));
  const auto exchange = handler.next();
  Client third(port);
  ASSERT_TRUE(third.get("/hold/3"));
  const auto exchange_3 = handler.next();
  EXPECT_TRUE(first.is_ended());
  Client fourth(port);
  ASSERT_TRUE(fourth.get("/echo"));
  const ClientResponse refused = fourth.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  ScriptedHandler::echo(*exchange);
  EXPECT_EQ(second.read_response().status, 200);
  EXPECT_EQ(server->counters().refused, 1u);
  EXPECT_FALSE(exchange_3->client_left());
}

TEST_F(ServerTest, ACrowdThatIsRefusedIsBounded) {
  start({.max_connections = 1});
  Client busy(port);
  ASSERT_TRUE(busy.get("/hold"));
  const auto exchange = handler.next();
  std::vector<Client> crowd;
  for (int i = 0; i < 200; ++i) crowd.emplace_back(port);
  for (Client& client : crowd) client.read_all();
  EXPECT_EQ(server->counters().refused, 200u);
  crowd.clear();
  ScriptedHandler::echo(*exchange);
  EXPECT_EQ(busy.read_response().status, 200);
}

TEST_F(ServerTest, DrainsWhatIsOpen) {
  start();
  Client stream(port);
  ASSERT_TRUE(stream.get("/hold"));
  const auto exchange = handler.next();
  exchange->begin_stream(200, {});
  Client idle(port);
  ASSERT_TRUE(idle.get("/echo"));
  EXPECT_EQ(idle.read_response().header("connection"), "keep-alive");
  server->drain();
  EXPECT_FALSE(server->wait_until_idle(50'000'000));
  ASSERT_TRUE(idle.get("/echo"));
  const ClientResponse last = idle.read_response();
  EXPECT_EQ(last.header("connection"), "close");
  EXPECT_EQ(last.status, 200) << "what is answered is the handler's";
  EXPECT_TRUE(idle.is_ended());
  exchange->write("rest");
  exchange->end_stream();
  EXPECT_TRUE(server->wait_until_idle(30'000'000'000));
  EXPECT_EQ(stream.read_response().body, "rest");
}

TEST_F(ServerTest, StoppingTellsThoseWhoAnswer) {
  start();
  Client waiting(port);
  ASSERT_TRUE(waiting.get("/hold"));
  const auto first = handler.next();
  Client stream(port);
  ASSERT_TRUE(stream.get("/hold"));
  const auto second = handler.next();
  second->begin_stream(200, {});
  std::atomic<int> told{0};
  first->on_change([&] { told += first->client_left() ? 1 : 0; });
  second->on_change([&] { told += second->client_left() ? 1 : 0; });
  server->stop();
  server->stop();
  EXPECT_EQ(told.load(), 2);
  first->respond({});
  second->write("too late");
  second->end_stream();
  EXPECT_EQ(second->unsent_bytes(), 0u);
  server = nullptr;
  EXPECT_TRUE(first->client_left()) << "exchanges outlive the server";
}

TEST_F(ServerTest, ExchangesAreReported) {
  start();
  Client client(port);
  ASSERT_TRUE(client.post("/hold", "body"));
  auto exchange = handler.next();
  exchange->add_log_field({"tokens", int64_t{7}});
  exchange->respond({404, {}, "none"});
  EXPECT_EQ(client.read_response().status, 404);
  ASSERT_TRUE(client.get("/hold/left"));
  exchange = handler.next();
  client.close();
  wait_until_quiet();
  Client bad(port);
  ASSERT_TRUE(bad.send("bad\r\n\r\n"));
  EXPECT_EQ(bad.read_response().status, 400);
  bad.close();
  wait_until_quiet();  // the report follows the answer
  Client lengthless(port);
  ASSERT_TRUE(lengthless.send("POST /left HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n"));
  EXPECT_EQ(lengthless.read_response().status, 400);
  lengthless.close();
  wait_until_quiet();
  const auto seen = take_records();
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0].method, "POST");
  EXPECT_EQ(seen[0].path, "/hold");
  EXPECT_EQ(seen[0].status, 404);
  EXPECT_EQ(seen[0].request_bytes, 4u);
  EXPECT_GT(seen[0].sent_bytes, 4u);
  EXPECT_FALSE(seen[0].client_left);
  ASSERT_EQ(seen[0].fields.size(), 1u);
  EXPECT_EQ(std::get<int64_t>(seen[0].fields[0].value), 7);
  EXPECT_TRUE(seen[0].peer.starts_with("127.0.0.1:"));
  EXPECT_EQ(seen[1].path, "/hold/left");
  EXPECT_EQ(seen[1].status, 499);
  EXPECT_TRUE(seen[1].client_left);
  EXPECT_EQ(seen[2].status, 400);
  EXPECT_EQ(seen[2].path, "");
  EXPECT_EQ(seen[3].status, 400);
  EXPECT_EQ(seen[3].method + seen[3].path, "POST/left");
  EXPECT_EQ(server->counters().left, 1u);
}

TEST_F(ServerTest, ListensAtAUnixSocketAlone) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("chorus_http_" + std::to_string(getpid())))
          .string();
  start({.host = "", .unix_socket = path});
  EXPECT_EQ(server->port(), 0);
  EXPECT_EQ(server->addresses(), std::vector<std::string>{"unix:" + path});
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  Client client(path);
  ASSERT_TRUE(client.get("/echo"));
  EXPECT_EQ(client.read_response().body, "GET /echo ");
  ScriptedHandler other;
  const auto taken = Server::create({.host = "", .unix_socket = path}, other);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.status().field(), "unix_socket");
  server = nullptr;
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ServerTest, ASocketThatWasLeftBehindIsReplacedAndAFileIsNot) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("chorus_left_" + std::to_string(getpid())))
          .string();
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), address.sun_path);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(fd);
  start({.host = "", .unix_socket = path});
  EXPECT_TRUE(Client(path).is_connected());
  server = nullptr;
  std::FILE* file = std::fopen(path.c_str(), "w");
  std::fclose(file);
  EXPECT_FALSE(Server::create({.host = "", .unix_socket = path}, handler).ok());
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
}

TEST_F(ServerTest, WhereItCannotListenIsSaid) {
  start();
  const auto field = [&](ServerOptions options) {
    const auto created = Server::create(std::move(options), handler);
    return created.ok() ? "" : created.status().field();
  };
  EXPECT_EQ(field({.host = "127.0.0.1", .port = port}), "port");
  EXPECT_EQ(field({.host = std::string(300, 'a')}), "host");
  EXPECT_EQ(field({.host = "203.0.113.1"}), "host");
  EXPECT_EQ(field({.host = ""}), "host");
  EXPECT_EQ(field({.host = "", .unix_socket = "/nowhere/at/all"}), "unix_socket");
  EXPECT_EQ(field({.host = "", .unix_socket = std::string(200, 'a')}), "unix_socket");
  EXPECT_EQ(server->addresses(),
            std::vector<std::string>{"http://127.0.0.1:" + std::to_string(port)});
}

}  // namespace
}  // namespace chorus::http
