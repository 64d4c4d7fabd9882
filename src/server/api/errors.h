// Errors as OpenAI's clients expect them.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "json/value.h"
#include "server/http/exchange.h"

namespace chorus::api {

struct ApiError {
  int status = 500;  // of HTTP
  std::string message;
  std::string type;                  // "invalid_request_error"
  std::optional<std::string> param;  // the parameter at fault
  std::optional<std::string> code;   // "model_not_found"
  std::optional<int> retry_after_s = {};
};

// kInvalidArgument and kUnimplemented are 400, kNotFound 404, kResourceExhausted 429 (400 where the
// request itself asks for too much: a template that does not end; 507 where a file finds no room,
// field name), kDeadlineExceeded 504, kUnavailable 503 (409 for a session that is busy, field
// session), kCancelled 499, the others 500.
// 429 and 503 say when to try again. Requires: not ok.
ApiError error_of(const Status& status);

ApiError bad_key(bool was_given);                                               // 401
ApiError foreign_name(std::string_view host);                                   // 403
ApiError route_not_found(const std::string& path);                              // 404
ApiError route_not_offered(const std::string& path, std::string_view instead);  // 400
ApiError method_not_allowed(const std::string& method);                         // 405
ApiError not_json(std::string_view content_type);                               // 415
ApiError not_plain(std::string_view encoding);                                  // 415
ApiError too_much_work();                                                       // 429
ApiError draining();                                                            // 503

// {"error": {message, type, param, code}}
json::Value error_json(const ApiError& error);
http::Response error_response(const ApiError& error);

}  // namespace chorus::api
