// The HTTP API over an engine: OpenAI's routes, those of vLLM and llama.cpp that clients expect,
// and sessions.
//
//   GET  /health /metrics /version /props /slots /tokenizer_info /v1/models /v1/models/{id}
//   POST /v1/chat/completions /v1/completions /tokenize /detokenize /apply-template
//   POST /v1/sessions  GET /v1/sessions  GET, DELETE /v1/sessions/{id}
//   POST /v1/sessions/{id}/generate, .../fork, .../rewind, .../save  POST /v1/sessions/load
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "chorus/engine.h"
#include "engine/metrics.h"
#include "server/api/options.h"
#include "server/http/exchange.h"

namespace chorus::api {

// What tells of its load, for GET /metrics.
struct ServiceCounts {
  int64_t queued = 0;         // requests that were accepted and hold no session of the engine
  int64_t running = 0;        // requests that do
  int64_t held_sessions = 0;  // sessions of clients
  int64_t refused = 0;        // since the start, for lack of a place (429)
};

// Thread: any, for every call; handle() does not wait for engine, tokenizer or template.
class Service final : public http::Handler {
 public:
  // `engine` and `clock` outlive it; what answers late may outlive both. Errors:
  // kInvalidArgument with the option as field.
  static Result<std::unique_ptr<Service>> create(Engine& engine, ServiceOptions options,
                                                 const Clock& clock);
  ~Service() override;  // as stop()
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Not of those whom nothing is done for: without a key, or where there is no such route.
  bool wants_body(const http::Request& head) const override;
  void handle(std::shared_ptr<http::Exchange> exchange) override;

  // From here on what would generate is refused with 503, and so is /health. What runs goes on.
  void drain();
  // Waits until nothing that was accepted is left to be answered, at most `timeout_ns`.
  bool wait_idle(int64_t timeout_ns);
  // Ends what is left with an error, closes all sessions and ends the threads. Idempotent.
  void stop();

  ServiceCounts counts() const;
  // Of the choices that requests ask for, once for each prompt.
  LatencyHistogram num_choices() const;

 private:
  struct State;
  explicit Service(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace chorus::api
