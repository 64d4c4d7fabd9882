// How values go over HTTP: as one JSON document, or as server-sent events.
#pragma once

#include <string>
#include <vector>

#include "json/value.h"
#include "server/http/exchange.h"

namespace chorus::api {

http::Response json_response(const json::Value& value, int status = 200);

// Proxies are told not to hold a stream back, and nobody to keep it.
std::vector<http::Header> stream_headers();

// "data: VALUE" and a blank line. A value is never empty, which clients could not read.
std::string sse_event(const json::Value& value);
// A comment, which every client passes over: it keeps proxies from giving up.
inline constexpr const char* kSsePing = ": ping\n\n";
inline constexpr const char* kSseDone = "data: [DONE]\n\n";

}  // namespace chorus::api
