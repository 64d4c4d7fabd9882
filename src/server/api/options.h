// How the service is set up. apps/chorus/serve.cpp fills it from flags.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/http/exchange.h"

namespace chorus::api {

// Who knows the key may do everything, under this name in logs and limits. Names may repeat: then
// the keys are those of one user.
struct ApiKey {
  std::string name;
  std::string key;
};

// Something that is there at a path for everybody: a page, its icon.
struct Page {
  std::string path;
  std::vector<http::Header> headers;  // content-type among them; an etag is compared
  std::string body;
};

struct ServiceOptions {
  // The names of the model, one at least. All are listed; answers show the one that was asked for,
  // or the first.
  std::vector<std::string> models;
  std::vector<ApiKey> keys;          // none: everybody may do everything
  bool metrics_need_key = true;      // with keys: so does GET /metrics
  int32_t max_requests_per_key = 0;  // that generate at once; 0: no limit of its own

  // Requests that hold sessions of the engine at once; 0: as many as there are sessions for.
  int32_t max_running = 0;
  // Requests beyond those; more are refused with 429.
  int32_t max_queued = 256;
  // Engine sessions that one request may hold, for its choices and prompts; 0: a quarter.
  int32_t max_sessions_per_request = 0;

  // Sessions that clients hold; more are refused with 429. -1: a quarter of the engine's.
  int32_t max_held_sessions = -1;
  int64_t session_idle_ns = int64_t{30} * 60 * 1'000'000'000;  // then they are closed
  std::string session_directory;  // where they are saved; empty: saving is refused

  // Whether prompts of different keys may share their KV: cached_tokens then tells one user of
  // another's prompts.
  bool share_prefixes = false;

  // Names of this server, in lower case, besides private ones (host_names.h): without keys, pages
  // that came by another name are refused, and who comes so to sessions. "*": by any is good.
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> cors_origins;  // "https://example.org", or "*"; none: CORS is off
  std::vector<Page> pages;

  int64_t ping_interval_ns = int64_t{15} * 1'000'000'000;  // between comments; 0: none are sent
  size_t max_unsent_bytes = size_t{256} << 10;             // then a stream waits for its client
  int64_t stuck_after_ns = int64_t{60} * 1'000'000'000;    // /health fails when no step ends
  int32_t num_threads = 2;                                 // that read, render and tokenise

  // The body of GET /metrics; unset: 404. Thread: any; must not wait.
  std::function<std::string()> metrics_text;
};

}  // namespace chorus::api
