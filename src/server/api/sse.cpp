#include "server/api/sse.h"

namespace chorus::api {

http::Response json_response(const json::Value& value, int status) {
  return {status, {{"content-type", "application/json"}}, value.dump() + "\n"};
}

std::vector<http::Header> stream_headers() {
  return {{"content-type", "text/event-stream; charset=utf-8"},
          {"cache-control", "no-cache"},
          {"x-accel-buffering", "no"}};
}

std::string sse_event(const json::Value& value) { return "data: " + value.dump() + "\n\n"; }

}  // namespace chorus::api
