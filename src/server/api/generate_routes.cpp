// POST /v1/chat/completions and /v1/completions.
#include "server/api/accept.h"
#include "server/api/core.h"
#include "server/api/errors.h"

namespace chorus::api {

namespace {

void generate(Core& core, const Call& call, const Result<GenerateRequest>& request) {
  if (!request.ok()) return respond_error(*call.exchange, request.status());
  auto accepted = accept(core, call, *request);
  if (!accepted.ok()) return respond_error(*call.exchange, accepted.status());
  core.delivery->submit(std::move(accepted).value());
}

}  // namespace

void post_chat(Core& core, const Call& call) { generate(core, call, read_chat_request(call.body)); }

void post_completion(Core& core, const Call& call) {
  generate(core, call, read_completion_request(call.body));
}

void post_response(Core&, const Call& call) {
  const ApiError error = route_not_offered("/v1/responses", "/v1/chat/completions");
  call.exchange->respond(error_response(error));
}

}  // namespace chorus::api
