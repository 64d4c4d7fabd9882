// Keys, places, clients that leave or do not read, the end of the server.
#include <chrono>
#include <gtest/gtest.h>
#include <thread>

#include "base/random.h"
#include "server/api/testing/service_under_test.h"

namespace chorus::api {
namespace {

using testing::FakeExchange;
using testing::read_reply;
using testing::Reply;
using testing::ServiceUnderTest;

std::string completion(int max_tokens, const std::string& members = "", int seed = 1) {
  return R"({"prompt":"the sea","temperature":1.5,"ignore_eos":true,"seed":)" +
         std::to_string(seed) + R"(,"max_tokens":)" + std::to_string(max_tokens) +
         (members.empty() ? "" : ",") + members + "}";
}

// Waits for what comes within finite time.
template <typename Condition>
void wait_until(Condition condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void wait_until_idle(ServiceUnderTest& service) {
  wait_until([&] {
    const ServiceCounts counts = service.service().counts();
    const RunnerMetrics metrics = service.engine().metrics();
    return counts.queued == 0 && counts.running == 0 && metrics.running == 0 &&
           metrics.waiting == 0 && service.blocks_in_use() == 0;
  });
}

std::vector<http::Header> bearer(const std::string& key) {
  return {{"authorization", "Bearer " + key}};
}

ServiceOptions with_keys() {
  ServiceOptions options;
  options.keys = {{"alice", "key-a"}, {"bob", "key-b"}};
  return options;
}

// For one request at a time, which streams that nobody reads keep; the others are read in order.
ServiceOptions one_place() {
  ServiceOptions options;
  options.max_running = 1;
  options.max_unsent_bytes = 0;
  options.num_threads = 1;
  return options;
}

// A stream that nobody reads: with max_unsent_bytes 0 it neither ends nor gives its place back.
std::shared_ptr<FakeExchange> send_unread(ServiceUnderTest& service,
                                          std::vector<http::Header> headers = {}) {
  const auto exchange = service.send_unread("/v1/completions", completion(200, R"("stream":true)"),
                                            std::move(headers));
  exchange->wait_for_head();
  return exchange;
}

TEST(ServiceKeys, AreAskedForWhereThereAreSome) {
  ServiceUnderTest service(with_keys());
  const auto refused = service.send("POST", "/v1/completions", completion(1));
  EXPECT_EQ(refused->status(), 401);
  EXPECT_EQ(refused->header("www-authenticate"), "Bearer");
  EXPECT_EQ(service.post("/v1/completions", completion(1), bearer("key-c")).status, 401);
  EXPECT_EQ(service.post("/v1/completions", completion(1), {{"authorization", "key-a"}}).status,
            401);
  EXPECT_EQ(service.call("GET", "/v1/models").status, 401);
  EXPECT_EQ(service.call("GET", "/metrics").status, 401);
  EXPECT_EQ(service.call("GET", "/health").status, 200);
  EXPECT_EQ(service.post("/v1/completions", completion(1), bearer("key-a")).status, 200);
  EXPECT_EQ(
      service.post("/v1/completions", completion(1), {{"authorization", "bearer key-b "}}).status,
      200);
}

TEST(ServiceKeys, DoNotSeeEachOthersPrefixes) {
  ServiceUnderTest service(with_keys());
  const std::string body = R"({"prompt":")" + std::string(60, 'x') + R"(","max_tokens":1})";
  const auto cached = [&](const std::string& key) {
    return service.post("/v1/completions", body, bearer(key))
        .number("usage.prompt_tokens_details.cached_tokens");
  };
  EXPECT_EQ(cached("key-a"), 0);
  EXPECT_EQ(cached("key-b"), 0);
  EXPECT_GT(cached("key-a"), 0);
}

TEST(ServiceKeys, ShareThemWhereThatIsAllowed) {
  ServiceOptions options = with_keys();
  options.share_prefixes = true;
  ServiceUnderTest service(options);
  const std::string body = R"({"prompt":")" + std::string(60, 'x') + R"(","max_tokens":1})";
  service.post("/v1/completions", body, bearer("key-a"));
  EXPECT_GT(service.post("/v1/completions", body, bearer("key-b"))
                .number("usage.prompt_tokens_details.cached_tokens"),
            0);
}

TEST(ServiceLimits, OneKeyCannotTakeAllPlaces) {
  ServiceOptions options = with_keys();
  options.max_requests_per_key = 2;
  options.max_unsent_bytes = 0;
  ServiceUnderTest service(options);
  const auto first = send_unread(service, bearer("key-a"));
  const auto second = send_unread(service, bearer("key-a"));
  const auto third = service.send("POST", "/v1/completions", completion(1), bearer("key-a"));
  EXPECT_EQ(third->status(), 429);
  EXPECT_FALSE(third->header("retry-after").empty());
  EXPECT_EQ(read_reply(*third).param(), "api_key");
  EXPECT_EQ(service.post("/v1/completions", completion(1), bearer("key-b")).status, 200);
  first->leave();
  EXPECT_EQ(service.post("/v1/completions", completion(1), bearer("key-a")).status, 200);
  second->leave();
  wait_until_idle(service);
}

TEST(ServiceLimits, MoreThanTheQueueHoldsAreRefused) {
  ServiceOptions options;
  options.max_running = 1;
  options.max_queued = 2;
  options.max_unsent_bytes = 0;
  ServiceUnderTest service(options);
  const auto running = send_unread(service);
  ASSERT_FALSE(running->has_ended());
  const auto second = service.send("POST", "/v1/completions", completion(2));
  const auto third = service.send("POST", "/v1/completions", completion(2));
  const auto refused = service.send("POST", "/v1/completions", completion(2));
  EXPECT_EQ(refused->status(), 429);
  EXPECT_FALSE(refused->header("retry-after").empty());
  EXPECT_EQ(read_reply(*refused).text("error.type"), "rate_limit_error");
  EXPECT_EQ(service.service().counts().queued, 2);
  EXPECT_EQ(service.service().counts().refused, 1);
  // Who leaves the queue makes place for another, and never runs.
  second->leave();
  const auto fourth = service.send("POST", "/v1/completions", completion(2));
  EXPECT_EQ(fourth->status(), 0);
  running->leave();
  third->wait();
  fourth->wait();
  EXPECT_EQ(third->status(), 200);
  EXPECT_EQ(fourth->status(), 200);
  wait_until_idle(service);
  EXPECT_EQ(service.engine().metrics().completed, 2) << "the third and the fourth";
  EXPECT_EQ(service.engine().metrics().cancelled, 1) << "the first";
}

TEST(ServiceLimits, EqualsAreServedInTheOrderInWhichTheyCame) {
  ServiceOptions options;
  options.max_running = 1;
  options.max_unsent_bytes = 0;
  options.num_threads = 1;  // which reads them in their order, too
  ServiceUnderTest service(options);
  std::vector<std::shared_ptr<FakeExchange>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(
        service.send_unread("/v1/completions", completion(200, R"("stream":true)", i)));
  }
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i]->wait_for_head();
    for (size_t later = i + 1; later < clients.size(); ++later) {
      EXPECT_EQ(clients[later]->status(), 0) << later << " came before " << i;
    }
    // Those who come meanwhile wait behind those who are there.
    if (i < 6) {
      clients.push_back(
          service.send_unread("/v1/completions", completion(200, R"("stream":true)", 100)));
    }
    clients[i]->leave();
  }
  wait_until_idle(service);
}

TEST(ServiceLimits, TheTimeInTheQueueIsPartOfWhatIsMeasured) {
  constexpr double kWaitMs = 120;
  ServiceOptions options;
  options.max_running = 1;
  options.max_unsent_bytes = 0;
  ServiceUnderTest service(options);
  const auto running = send_unread(service);
  running->wait_for_head();
  const auto waiting = service.send("POST", "/v1/completions", completion(2));
  wait_until([&] { return service.service().counts().queued == 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(static_cast<int>(kWaitMs)));
  running->leave();
  waiting->wait();
  wait_until_idle(service);
  const RunnerMetrics metrics = service.engine().metrics();
  EXPECT_GE(metrics.queue.max_ms, kWaitMs);
  EXPECT_GE(metrics.ttft.max_ms, kWaitMs);
}

TEST(ServiceLimits, ThePriorityDecidesWhoComesNext) {
  ServiceOptions options;
  options.max_running = 1;
  options.max_unsent_bytes = 0;
  ServiceUnderTest service(options);
  const auto running = send_unread(service);
  const auto low = service.send_unread("/v1/completions", completion(200, R"("stream":true)"));
  wait_until([&] { return service.service().counts().queued == 1; });
  const auto high =
      service.send_unread("/v1/completions", completion(200, R"("stream":true,"priority":5)"));
  // Both are known to the thread that chooses when a third that is refused has come back from it.
  const auto marker =
      service.send("POST", "/v1/completions", completion(1, R"("deadline_ms":0,"priority":9)"));
  marker->wait();
  EXPECT_EQ(marker->status(), 504);
  running->leave();
  high->wait_for_head();
  EXPECT_EQ(low->status(), 0);
  high->leave();
  low->wait_for_head();
  EXPECT_EQ(low->status(), 200);
  low->leave();
  wait_until_idle(service);
}

// Text and logprobs of two choices of a stream, however it was cut into events.
std::string choices_of(const FakeExchange& exchange) {
  const Reply reply = read_reply(exchange);
  std::string logprobs[2];
  for (const json::Value& event : reply.events) {
    for (const json::Value& choice : Reply::at(event, "choices").as_array()) {
      const json::Value& shown = Reply::at(choice, "logprobs.token_logprobs");
      if (!shown.is_array()) continue;
      const int64_t index = Reply::at(choice, "index").to_integer("index", 0, 1).value();
      for (const json::Value& each : shown.as_array()) logprobs[index] += each.dump() + ' ';
    }
  }
  EXPECT_TRUE(reply.is_done);
  return reply.streamed(0) + logprobs[0] + reply.streamed(1) + logprobs[1];
}

// What is long enough that another request comes while it runs, and remembers its own tokens.
const char* const kLong = R"("stream":true,"logprobs":2,"repetition_penalty":1.3,"n":2)";

TEST(ServicePriority, ARunningRequestOfALowerOneGivesItsPlace) {
  for (const bool places_are_sessions : {false, true}) {
    SCOPED_TRACE(places_are_sessions);
    ServiceOptions options;
    options.max_running = places_are_sessions ? 0 : 1;
    options.max_held_sessions = 0;
    options.max_sessions_per_request = 2;
    EngineOptions engine;
    engine.max_sessions = 2;
    ServiceUnderTest service(options, engine);
    const auto alone = service.send("POST", "/v1/completions", completion(200, kLong));
    alone->wait();
    // On a busy machine the first may have ended before the second one comes.
    for (int i = 0; i < 50 && service.engine().metrics().preemptions == 0; ++i) {
      const auto low = service.send("POST", "/v1/completions", completion(200, kLong));
      low->wait_for_writes(2);
      EXPECT_EQ(service.post("/v1/completions", completion(3, R"("priority":5)")).status, 200);
      low->wait();
      EXPECT_EQ(choices_of(*low), choices_of(*alone));
    }
    EXPECT_GT(service.engine().metrics().preemptions, 0);
    wait_until_idle(service);
  }
}

TEST(ServicePriority, TheNewestOfTheLowestGivesWayAndEqualsNever) {
  ServiceOptions options;
  options.max_running = 3;
  options.max_unsent_bytes = 0;  // streams that nobody reads keep their places
  options.num_threads = 1;
  ServiceUnderTest service(options);
  const auto send = [&](int priority) {
    const auto exchange = service.send_unread(
        "/v1/completions",
        completion(200, R"("stream":true,"priority":)" + std::to_string(priority)));
    // It is known to the thread that chooses when one that came later has an answer from it.
    service.post("/v1/completions", completion(1, R"("deadline_ms":0,"priority":-9)"));
    return exchange;
  };
  std::vector<std::shared_ptr<FakeExchange>> first;
  for (const int priority : {1, 0, 0}) {
    first.push_back(send(priority));
    first.back()->wait_for_head();
  }
  const auto equal = send(0);
  EXPECT_EQ(equal->status(), 0) << "it waits for those that came before";
  std::vector<std::shared_ptr<FakeExchange>> high;
  for (int i = 0; i < 2; ++i) {
    high.push_back(send(1));
    high.back()->wait_for_head();
  }
  const auto third = send(1);
  EXPECT_EQ(third->status(), 0) << "those that run are its equals";
  first[0]->leave();
  third->wait_for_head();
  // Of the places that come free, those who gave theirs have the first.
  high[0]->leave();
  high[1]->leave();
  service.post("/v1/completions", completion(1, R"("deadline_ms":0,"priority":-9)"));
  EXPECT_EQ(equal->status(), 0);
  for (const auto& exchange : {first[1], first[2], third}) exchange->leave();
  equal->wait_for_head();
  equal->leave();
  wait_until_idle(service);
}

TEST(ServicePriority, WaitingCountsForAsMuchAsAHigherOne) {
  EngineOptions engine;
  engine.priority_age_ms = 1000;
  ManualClock clock;
  ServiceUnderTest service(one_place(), engine, clock);
  const auto send = [&](int priority) {
    return service.send_unread("/v1/completions", completion(200, R"("stream":true,"priority":)" +
                                                                      std::to_string(priority)));
  };
  const auto running = send(0);
  running->wait_for_head();
  const auto low = send(0);
  clock.advance_ns(1'500'000'000);
  const auto next = send(1);
  const auto urgent = send(2);
  urgent->wait_for_head();
  EXPECT_EQ(next->status(), 0) << "it comes behind those that wait for longer than it is worth";
  urgent->leave();
  running->leave();
  low->wait_for_head();
  EXPECT_EQ(next->status(), 0);
  low->leave();
  next->wait_for_head();
  next->leave();
  wait_until_idle(service);
}

TEST(ServicePriority, ShortOnesGoFirstWhereThatIsAsked) {
  EngineOptions engine;
  engine.shortest_first_ms = 10;
  ManualClock clock;
  ServiceUnderTest service(one_place(), engine, clock);
  const auto send = [&](int max_tokens, const std::string& more = "") {
    return service.send_unread("/v1/completions",
                               completion(max_tokens, R"("stream":true)" + more));
  };
  const auto running = send(200);
  running->wait_for_head();
  const auto book = send(150);
  const auto choices = send(50, R"(,"n":4)");
  clock.advance_ns(900'000'000);
  const auto chat = send(50);
  clock.advance_ns(200'000'000);
  const auto late = send(50);
  // All are known to the thread that chooses when one that came last has an answer from it.
  service.post("/v1/completions", completion(1, R"("deadline_ms":0,"priority":-9)"));
  running->leave();
  const std::shared_ptr<FakeExchange> in_order[] = {chat, book, late, choices};
  for (size_t i = 0; i < std::size(in_order); ++i) {
    in_order[i]->wait_for_head();
    for (size_t later = i + 1; later < std::size(in_order); ++later) {
      EXPECT_EQ(in_order[later]->status(), 0) << later << " came before " << i;
    }
    in_order[i]->leave();
  }
  wait_until_idle(service);
}

TEST(ServicePriority, AHeldSessionThatGaveWayIsItsClientsAgain) {
  ServiceOptions options;
  options.max_running = 1;
  options.max_held_sessions = 1;
  options.max_unsent_bytes = 0;
  EngineOptions engine;
  engine.max_sessions = 2;
  ServiceUnderTest service(options, engine);
  const std::string id = service.post("/v1/sessions", R"({"prompt":"the sea"})").text("id");
  const std::string path = "/v1/sessions/" + id;
  const auto low = service.send_unread(
      path + "/generate", R"({"max_tokens":150,"ignore_eos":true,"temperature":0,"stream":true})");
  low->wait_for_head();
  const auto high =
      service.send_unread("/v1/completions", completion(200, R"("stream":true,"priority":5)"));
  high->wait_for_head();
  low->leave();  // while it waits
  wait_until([&] { return service.call("GET", path).text("is_busy") == "false"; });
  high->leave();
  EXPECT_EQ(service.post(path + "/generate", R"({"prompt":" and","max_tokens":3})").status, 200);
  EXPECT_EQ(service.call("DELETE", path).status, 200);
  wait_until_idle(service);
}

TEST(ServiceLimits, ARequestWithMorePromptsThanPlacesIsAnsweredInOrder) {
  EngineOptions engine;
  engine.max_sessions = 3;
  ServiceOptions options;
  options.max_held_sessions = 1;
  ServiceUnderTest service(options, engine);
  const Reply reply = service.post(
      "/v1/completions",
      R"({"prompt":["a","b","c","d","e","f","g"],"n":3,"max_tokens":5,"seed":3,"ignore_eos":true})");
  ASSERT_EQ(reply.status, 200) << reply.body.dump();
  ASSERT_EQ(reply.at("choices").as_array().size(), 21u);
  const Reply alone = service.post(
      "/v1/completions", R"({"prompt":"f","n":3,"max_tokens":5,"seed":3,"ignore_eos":true})");
  for (int choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(reply.text("choices." + std::to_string(15 + choice) + ".text"),
              alone.text("choices." + std::to_string(choice) + ".text"));
  }
  wait_until_idle(service);
}

// ---- Clients ----

TEST(ServiceClients, WhoDoesNotReadWaitsAlone) {
  ServiceOptions options;
  options.max_unsent_bytes = 0;
  ServiceUnderTest service(options);
  const auto slow = send_unread(service);
  const Reply other = service.post("/v1/completions", completion(60, "", 2));
  EXPECT_EQ(other.number("usage.completion_tokens"), 60);
  EXPECT_FALSE(slow->has_ended());
  slow->drain();
  slow->wait();
  const Reply alone = service.post("/v1/completions", completion(200, R"("stream":true)"));
  EXPECT_EQ(read_reply(*slow).streamed(), alone.streamed());
  EXPECT_TRUE(read_reply(*slow).is_done);
}

// Of a request whose client leaves, the engine ends what runs for it, and nothing else.
TEST(ServiceClients, WhoLeavesEndsTheirOwnWorkInEveryPhase) {
  struct Phase {
    const char* name;
    std::string body;
    int32_t running;  // generations that run when the client leaves; 0: it waits
  };
  std::string ids = "[5";
  for (int i = 0; i < 200; ++i) ids += ",5";
  const std::string prefill = R"({"prompt":)" + ids + R"(],"max_tokens":1)";
  const Phase phases[] = {
      {"prefill", prefill + "}", 1},
      {"prefill of a stream", prefill + R"(,"stream":true})", 1},
      {"decode", completion(200), 1},
      {"decode of a stream", completion(200, R"("stream":true)"), 1},
      {"decode of four choices", completion(200, R"("n":4)"), 4},
      {"of four choices in a stream", completion(200, R"("n":4,"stream":true)"), 4},
  };
  EngineOptions engine;
  engine.max_batch_tokens = 8;  // so that prompts take their time
  engine.max_decode_sequences = 7;
  engine.prefix_cache = false;
  ServiceUnderTest service({}, engine);
  const auto cancelled = [&] { return service.engine().metrics().cancelled; };
  const std::string alone = service.post("/v1/completions", completion(40)).text("choices.0.text");
  for (const Phase& phase : phases) {
    SCOPED_TRACE(phase.name);
    // On a busy machine it may have ended before its client leaves: once more, then.
    bool was_seen = false;
    for (int tries = 0; tries < 200 && !was_seen; ++tries) {
      const int64_t before = cancelled();
      const auto other = service.send("POST", "/v1/completions", completion(40));
      const auto client = service.send("POST", "/v1/completions", phase.body);
      wait_until([&] {
        return service.engine().metrics().running > phase.running || client->has_ended();
      });
      client->leave();
      other->wait();
      EXPECT_EQ(read_reply(*other).text("choices.0.text"), alone);
      wait_until_idle(service);
      EXPECT_LE(cancelled() - before, phase.running);
      was_seen = cancelled() - before == phase.running;
    }
    EXPECT_TRUE(was_seen) << "it always ran to its end";
  }
}

TEST(ServiceClients, DisconnectsAtAnyMomentLeaveNothing) {
  ServiceOptions options;
  options.max_running = 6;
  options.max_queued = 100;
  EngineOptions engine;
  engine.kv_blocks = 48;
  engine.max_sessions = 16;
  ServiceUnderTest service(options, engine);
  constexpr uint64_t kSeed = 20;
  SCOPED_TRACE(kSeed);
  RandomStream random(kSeed);
  std::vector<std::shared_ptr<FakeExchange>> clients;
  for (int i = 0; i < 60; ++i) {
    std::string members = "\"n\":" + std::to_string(random.between(1, 4));
    if (random.below(2) == 0) members += R"(,"stream":true)";
    if (random.below(3) == 0) members += R"(,"echo":true,"logprobs":1)";
    const auto client =
        service.send("POST", "/v1/completions",
                     completion(static_cast<int>(random.between(1, 150)), members, i));
    clients.push_back(client);
    switch (random.below(4)) {
      case 0:  // before it was read
        client->leave();
        break;
      case 1:  // while somebody else is served
        clients[random.below(clients.size())]->leave();
        break;
      case 2:
        std::this_thread::sleep_for(std::chrono::milliseconds(random.below(8)));
        client->leave();
        break;
      default:
        break;
    }
  }
  for (size_t i = 0; i < clients.size(); i += 2) clients[i]->leave();
  for (const auto& client : clients) {
    if (!client->client_left()) client->wait();
  }
  wait_until_idle(service);
  EXPECT_EQ(service.engine().metrics().failed, 0);
  for (const auto& client : clients) {
    if (client->client_left()) continue;
    EXPECT_EQ(client->status(), 200);
  }
  EXPECT_EQ(service.post("/v1/completions", completion(3)).status, 200);
}

TEST(ServiceClients, APingComesWhileNothingElseDoes) {
  ManualClock clock;
  ServiceOptions options;
  options.max_running = 1;
  options.max_unsent_bytes = 0;
  ServiceUnderTest service(options, {}, clock);
  const auto running = send_unread(service);
  const auto waiting = service.send("POST", "/v1/completions", completion(3, R"("stream":true)"));
  wait_until([&] { return service.service().counts().queued == 1; });
  // The clock is looked at when the request has been taken in, and at every tick from then on.
  wait_until([&] {
    clock.advance_ns(16'000'000'000);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return !waiting->writes().empty();
  });
  EXPECT_EQ(waiting->writes()[0], ": ping\n\n");
  EXPECT_EQ(waiting->status(), 200);
  running->leave();
  waiting->wait();
  const Reply reply = read_reply(*waiting);
  EXPECT_TRUE(reply.is_done);
  EXPECT_FALSE(reply.streamed().empty());
}

TEST(ServiceClients, NoPingComesWhereNoneIsWanted) {
  ManualClock clock;
  ServiceOptions options;
  options.max_running = 1;
  options.max_unsent_bytes = 0;
  options.ping_interval_ns = 0;
  ServiceUnderTest service(options, {}, clock);
  const auto running = send_unread(service);
  const auto waiting = service.send("POST", "/v1/completions", completion(3, R"("stream":true)"));
  wait_until([&] { return service.service().counts().queued == 1; });
  clock.advance_ns(3'600'000'000'000);
  // What has passed its time is refused at a tick, and the next one has looked at the stream.
  for (int i = 0; i < 2; ++i) {
    service.post("/v1/completions", completion(1, R"("deadline_ms":0,"priority":-9)"));
  }
  EXPECT_TRUE(waiting->writes().empty());
  running->leave();
  waiting->wait();
  for (const std::string& written : waiting->writes()) EXPECT_FALSE(written.starts_with(':'));
  EXPECT_TRUE(read_reply(*waiting).is_done);
}

// ---- Health ----

TEST(ServiceHealth, FailsWhileAStepDoesNotEnd) {
  ServiceOptions options;
  options.stuck_after_ns = 1;  // as if each step were one that hangs
  ServiceUnderTest service(options);
  EXPECT_EQ(service.call("GET", "/health").status, 200);
  bool has_failed = false;
  for (int tries = 0; tries < 50 && !has_failed; ++tries) {
    const auto client = service.send("POST", "/v1/completions", completion(200));
    while (!client->has_ended() && !has_failed) {
      const auto health = service.send("GET", "/health");  // nobody is waited for
      ASSERT_TRUE(health->has_ended());
      has_failed = health->status() == 503;
      if (has_failed) {
        EXPECT_EQ(read_reply(*health).text("error.type"), "unavailable_error");
      }
    }
    client->wait();
  }
  EXPECT_TRUE(has_failed);
  wait_until([&] { return service.call("GET", "/health").status == 200; });
}

// ---- The end ----

TEST(ServiceEnd, ADrainRefusesWhatIsNewAndFinishesTheRest) {
  ServiceUnderTest service;
  const auto running = service.send("POST", "/v1/completions", completion(120, R"("stream":true)"));
  service.service().drain();
  const auto refused = service.send("POST", "/v1/completions", completion(1));
  EXPECT_EQ(refused->status(), 503);
  EXPECT_FALSE(refused->header("retry-after").empty());
  EXPECT_EQ(service.call("GET", "/health").status, 503);
  EXPECT_EQ(service.call("GET", "/v1/models").status, 200);
  EXPECT_TRUE(service.service().wait_idle(int64_t{600} * 1'000'000'000));
  running->wait();
  EXPECT_TRUE(read_reply(*running).is_done);
}

TEST(ServiceEnd, WhatIsCutGetsAnErrorAndItsEnd) {
  ServiceOptions options;
  options.max_unsent_bytes = 0;
  options.max_running = 1;
  ServiceUnderTest service(options);
  const auto stream = send_unread(service);
  const auto waiting = service.send("POST", "/v1/completions", completion(5));
  wait_until([&] { return service.service().counts().queued == 1; });
  EXPECT_FALSE(service.service().wait_idle(1'000'000));
  service.service().stop();
  const Reply reply = read_reply(*stream);
  EXPECT_TRUE(reply.is_done);
  EXPECT_EQ(Reply::at(reply.events.back(), "error.type").dump(), "\"unavailable_error\"");
  EXPECT_EQ(waiting->status(), 503);
  EXPECT_EQ(service.post("/v1/completions", completion(1)).status, 503);
  EXPECT_TRUE(service.service().wait_idle(0));
}

// ---- Pages of other origins ----

TEST(ServiceCors, IsOffUnlessAskedFor) {
  ServiceUnderTest service;
  const auto exchange =
      service.send("OPTIONS", "/v1/chat/completions", "", {{"origin", "https://example.org"}});
  EXPECT_EQ(exchange->status(), 204);
  EXPECT_EQ(exchange->header("access-control-allow-origin"), "");
}

TEST(ServiceCors, AllowsTheOriginsThatAreNamed) {
  ServiceOptions options;
  options.cors_origins = {"https://example.org"};
  options.keys = {{"alice", "key-a"}};
  ServiceUnderTest service(options);
  const auto preflight = service.send("OPTIONS", "/v1/chat/completions", "",
                                      {{"origin", "https://example.org"},
                                       {"access-control-request-method", "POST"},
                                       {"access-control-request-headers", "authorization"}});
  EXPECT_EQ(preflight->status(), 204);
  EXPECT_EQ(preflight->header("access-control-allow-origin"), "https://example.org");
  EXPECT_EQ(preflight->header("access-control-allow-methods"), "POST");
  EXPECT_EQ(preflight->header("access-control-allow-headers"), "authorization");
  const auto refused = service.send("GET", "/v1/models", "", {{"origin", "https://example.org"}});
  EXPECT_EQ(refused->status(), 401);
  EXPECT_EQ(refused->header("access-control-allow-origin"), "https://example.org");
  const auto other = service.send("GET", "/health", "", {{"origin", "https://evil.example"}});
  EXPECT_EQ(other->header("access-control-allow-origin"), "");
}

TEST(ServicePages, AreThereForEverybody) {
  ServiceOptions options = with_keys();
  options.pages = {{"/", {{"content-type", "text/html"}, {"etag", "\"1\""}}, "<p>hello"}};
  ServiceUnderTest service(options);
  const auto page = service.send("GET", "/");
  EXPECT_EQ(page->status(), 200);
  EXPECT_EQ(page->body(), "<p>hello");
  EXPECT_EQ(page->header("content-type"), "text/html");
  for (const char* named : {"\"1\"", "W/\"1\"", "\"0\", W/\"1\"", "*"}) {
    EXPECT_EQ(service.send("GET", "/", "", {{"if-none-match", named}})->status(), 304) << named;
  }
  EXPECT_EQ(service.send("GET", "/", "", {{"if-none-match", "W/\"2\""}})->status(), 200);
  EXPECT_EQ(service.call("POST", "/", "{}").status, 405);
}

TEST(ServiceOptionsAreChecked, AndNamed) {
  EngineOptions small;
  small.threads = 1;
  small.context = 64;
  small.kv_blocks = 32;
  small.max_sessions = 4;
  auto engine = Engine::open(testing::kServedModel, small).value();
  const SteadyClock clock;
  const auto field = [&](const ServiceOptions& options) {
    return Service::create(*engine, options, clock).status().field();
  };
  EXPECT_EQ(field({}), "models");
  ServiceOptions options;
  options.models = {"m"};
  options.max_held_sessions = 4;
  EXPECT_EQ(field(options), "max_held_sessions");
  options.max_held_sessions = 0;
  options.keys = {{"a", ""}};
  EXPECT_EQ(field(options), "keys");
}

}  // namespace
}  // namespace chorus::api
