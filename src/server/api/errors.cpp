#include "server/api/errors.h"

#include "server/api/sse.h"

namespace chorus::api {

namespace {

constexpr int kRetryAfterFullS = 1;
constexpr int kRetryAfterDrainS = 5;

constexpr const char* kInvalidRequest = "invalid_request_error";

std::optional<std::string> given(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

// What a client sent may stand in its error, and be long. A character that is cut is written as
// none.
json::Value shortened(std::string_view text) {
  constexpr size_t kMostBytes = 500;
  if (text.size() <= kMostBytes) return json::Value(text);
  return json::Value(std::string(text.substr(0, kMostBytes)) + "...");
}

json::Value text_or_null(const std::optional<std::string>& text) {
  return text ? shortened(*text) : json::Value();
}

}  // namespace

ApiError error_of(const Status& status) {
  CHORUS_CHECK(!status.ok());
  ApiError error{500, status.to_string(), "server_error", given(status.field()),
                 std::string(code_name(status.code()))};
  const auto set = [&](int http_status, const char* type) {
    error.status = http_status;
    error.type = type;
  };
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kUnimplemented:
      set(400, kInvalidRequest);
      break;
    case Code::kNotFound:
      set(404, kInvalidRequest);
      if (status.field() == "model") error.code = "model_not_found";
      break;
    case Code::kResourceExhausted:
      if (status.field() == "chat_template") {
        set(400, kInvalidRequest);
      } else if (status.field() == "name") {
        error.status = 507;
        error.code = "insufficient_storage";
      } else {
        set(429, "rate_limit_error");
        error.retry_after_s = kRetryAfterFullS;
      }
      break;
    case Code::kCancelled:
      set(499, "cancelled_error");
      break;
    case Code::kDeadlineExceeded:
      set(504, "timeout_error");
      break;
    case Code::kUnavailable:
      if (status.field() == "session") {
        set(409, kInvalidRequest);
        error.code = "conflict";
      } else {
        set(503, "unavailable_error");
        error.retry_after_s = kRetryAfterDrainS;
      }
      break;
    case Code::kOk:
    case Code::kDataLoss:
    case Code::kInternal:
      break;
  }
  return error;
}

ApiError bad_key(bool was_given) {
  return {401,
          was_given ? "the API key is not known" : "expected an API key: authorization: Bearer KEY",
          "authentication_error",
          {},
          "invalid_api_key"};
}

ApiError foreign_name(std::string_view host) {
  return {403,
          "expected a name of this server in host, found " + std::string(host) +
              "; without API keys, others have to be named (--allow-host)",
          "permission_error",
          {},
          "host_not_allowed"};
}

ApiError route_not_found(const std::string& path) {
  return {404, "there is nothing at " + path, kInvalidRequest, {}, "route_not_found"};
}

ApiError route_not_offered(const std::string& path, std::string_view instead) {
  return {400,
          path + " is not offered: " + std::string(instead) + " is",
          kInvalidRequest,
          {},
          "unimplemented"};
}

ApiError method_not_allowed(const std::string& method) {
  return {
      405, "expected another method, found " + method, kInvalidRequest, {}, "method_not_allowed"};
}

ApiError not_json(std::string_view content_type) {
  return {415,
          "expected content-type application/json, found " + std::string(content_type),
          kInvalidRequest,
          {},
          "unsupported_media_type"};
}

ApiError not_plain(std::string_view encoding) {
  return {415,
          "expected a body without content-encoding, found " + std::string(encoding),
          kInvalidRequest,
          {},
          "unsupported_media_type"};
}

ApiError too_much_work() {
  return {429,
          "too many requests wait to be read",
          "rate_limit_error",
          {},
          "resource_exhausted",
          kRetryAfterFullS};
}

ApiError draining() {
  return {503,
          "the server is shutting down",
          "unavailable_error",
          {},
          "unavailable",
          kRetryAfterDrainS};
}

json::Value error_json(const ApiError& error) {
  json::Value inner;
  inner.set("message", shortened(error.message));
  inner.set("type", error.type);
  inner.set("param", text_or_null(error.param));
  inner.set("code", text_or_null(error.code));
  json::Value value;
  value.set("error", std::move(inner));
  return value;
}

http::Response error_response(const ApiError& error) {
  http::Response response = json_response(error_json(error), error.status);
  if (error.retry_after_s) {
    response.headers.push_back({"retry-after", std::to_string(*error.retry_after_s)});
  }
  if (error.status == 401) response.headers.push_back({"www-authenticate", "Bearer"});
  return response;
}

}  // namespace chorus::api
