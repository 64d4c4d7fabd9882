// A service over a small model, and clients for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "chorus/engine.h"
#include "json/value.h"
#include "server/api/service.h"
#include "server/http/testing/fake_exchange.h"

namespace chorus::api::testing {

using http::testing::FakeExchange;

// An answer as its client takes it.
struct Reply {
  int status = 0;
  json::Value body;                 // of a whole answer
  std::vector<json::Value> events;  // of a stream
  bool is_done = false;             // the stream ended with [DONE]

  // The member at "choices.0.message.content" and the like; null where there is none.
  static const json::Value& at(const json::Value& value, std::string_view path) {
    static const json::Value none;
    const json::Value* found = &value;
    while (!path.empty() && found != nullptr) {
      const std::string_view name = path.substr(0, path.find('.'));
      path.remove_prefix(std::min(path.size(), name.size() + 1));
      if (found->is_array()) {
        const auto index = static_cast<size_t>(std::stoul(std::string(name)));
        found = index < found->as_array().size() ? &found->as_array()[index] : nullptr;
      } else {
        found = found->find(name);
      }
    }
    return found == nullptr ? none : *found;
  }
  const json::Value& at(std::string_view path) const { return at(body, path); }
  std::string text(std::string_view path) const {
    return at(path).is_string() ? at(path).as_string() : at(path).dump();
  }
  int64_t number(std::string_view path) const {
    return at(path).to_integer(path, INT64_MIN, INT64_MAX).value();
  }
  std::string param() const { return text("error.param"); }

  // The text of a choice of a stream.
  std::string streamed(int64_t index = 0) const {
    std::string text;
    for (const json::Value& event : events) {
      const json::Value& choice = at(event, "choices.0");
      if (choice.is_null() || choice.find("index")->to_integer("", 0, 1 << 20).value() != index) {
        continue;
      }
      for (const char* path : {"delta.content", "text"}) {
        if (at(choice, path).is_string()) text += at(choice, path).as_string();
      }
    }
    return text;
  }
};

// Everything that was written, read as a client does: frames end with a blank line, comments are
// passed over. Checks that every frame has data.
inline Reply read_reply(const FakeExchange& exchange) {
  Reply reply;
  reply.status = exchange.status();
  const std::string body = exchange.body();
  if (!exchange.is_stream()) {
    if (!body.empty()) reply.body = json::parse(body, "body").value();
    return reply;
  }
  std::string_view rest = body;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    CHORUS_CHECK(end != rest.npos);
    const std::string_view frame = rest.substr(0, end);
    rest.remove_prefix(end + 2);
    if (frame.starts_with(':')) continue;
    CHORUS_CHECK(frame.starts_with("data: ") && !reply.is_done);
    if (frame == "data: [DONE]") {
      reply.is_done = true;
    } else {
      reply.events.push_back(json::parse(frame.substr(6), "event").value());
    }
  }
  return reply;
}

// The file of a small model with a tokenizer and a chat template; the test program says where.
extern const char* const kServedModel;

// Of the order in which members are destroyed: the service goes before its engine.
class ServiceUnderTest {
 public:
  explicit ServiceUnderTest(ServiceOptions options = {}, EngineOptions engine = {})
      : ServiceUnderTest(std::move(options), std::move(engine), clock_) {}
  // `clock` is the service's; that of the engine is the machine's.
  ServiceUnderTest(ServiceOptions options, EngineOptions engine, const Clock& clock) {
    if (engine.threads == 0) engine.threads = 1;
    if (engine.context == 0) engine.context = 256;
    if (engine.kv_blocks == 0) engine.kv_blocks = 512;
    if (engine.max_sessions == 0) engine.max_sessions = 64;
    if (options.models.empty()) options.models = {"tiny"};
    engine_ = Engine::open(kServedModel, engine).value();
    service_ = Service::create(*engine_, std::move(options), clock).value();
  }

  Engine& engine() { return *engine_; }
  Service& service() { return *service_; }

  std::shared_ptr<FakeExchange> send(std::string method, std::string path, std::string body = "",
                                     std::vector<http::Header> headers = {}) {
    const auto exchange =
        make(std::move(method), std::move(path), std::move(body), std::move(headers));
    service_->handle(exchange);
    return exchange;
  }
  // The client reads nothing, from the beginning.
  std::shared_ptr<FakeExchange> send_unread(std::string path, std::string body,
                                            std::vector<http::Header> headers = {}) {
    const auto exchange = make("POST", std::move(path), std::move(body), std::move(headers));
    exchange->stop_reading();
    service_->handle(exchange);
    return exchange;
  }
  Reply call(std::string method, std::string path, std::string body = "",
             std::vector<http::Header> headers = {}) {
    const auto exchange =
        send(std::move(method), std::move(path), std::move(body), std::move(headers));
    exchange->wait();
    return read_reply(*exchange);
  }
  Reply post(std::string path, std::string body, std::vector<http::Header> headers = {}) {
    return call("POST", std::move(path), std::move(body), std::move(headers));
  }
  Reply chat(std::string members) {
    return post("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"the sea"}],)" + members + "}");
  }

  // Blocks that sessions hold, cached ones not counted. Waits for nothing.
  int64_t blocks_in_use() {
    int64_t blocks = 0;
    for (const GroupUsage& group : engine_->metrics().usage.groups) {
      blocks += group.blocks_total - group.blocks_free - group.blocks_cached;
    }
    return blocks;
  }

 private:
  static std::shared_ptr<FakeExchange> make(std::string method, std::string path, std::string body,
                                            std::vector<http::Header> headers) {
    http::Request request;
    request.method = std::move(method);
    if (const size_t at = path.find('?'); at != path.npos) {
      request.query = path.substr(at + 1);
      path.resize(at);
    }
    request.path = std::move(path);
    request.headers = std::move(headers);
    if (!body.empty() && request.header("content-type").empty()) {
      request.headers.push_back({"content-type", "application/json"});
    }
    request.body = std::move(body);
    request.id = "request-1";
    return std::make_shared<FakeExchange>(std::move(request));
  }

  SteadyClock clock_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Service> service_;
};

}  // namespace chorus::api::testing
