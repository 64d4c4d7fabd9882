// Which pages of other origins may use the API (the Fetch standard, "CORS protocol").
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/http/exchange.h"

namespace chorus::api {

bool is_allowed_origin(const std::vector<std::string>& allowed, std::string_view origin);

// What every answer to a request of that origin carries; nothing for origins that may not.
std::vector<http::Header> cors_headers(const std::vector<std::string>& allowed,
                                       std::string_view origin);

// The answer to OPTIONS.
http::Response options_response(const http::Request& request, std::string_view methods);

// The exchange, whose answer carries `headers`, too.
std::shared_ptr<http::Exchange> with_headers(std::shared_ptr<http::Exchange> exchange,
                                             std::vector<http::Header> headers);

}  // namespace chorus::api
