#include "serve_flags.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <limits>
#include <sstream>
#include <unistd.h>

#include "arguments.h"
#include "json/value.h"
#include "prompts.h"
#include "server/api/host_names.h"

namespace chorus::cli {

namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr double kMostSeconds = 1e6;
constexpr int64_t kMostCount = 1 << 20;

// Parses `text` when it was given.
template <typename Integer>
Status read_count(const char* flag, const std::string& text, int64_t low, Integer& value) {
  if (text.empty()) return Status();
  CHORUS_ASSIGN_OR_RETURN(const int64_t count, parse_count(flag, text, low, kMostCount));
  value = static_cast<Integer>(count);
  return Status();
}

Status read_seconds(const char* flag, const std::string& text, double low, int64_t& ns) {
  if (text.empty()) return Status();
  double seconds = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, seconds);
  const bool is_number = read.ec == std::errc() && read.ptr == end;
  if (!is_number || !(seconds >= low && seconds <= kMostSeconds))
    return invalid_argument(
        flag, "expected seconds of at least " + json::Value(low).dump() + ", found " + text);
  ns = static_cast<int64_t>(seconds * static_cast<double>(kNsPerSecond));
  return Status();
}

bool is_key(const std::string& key) {
  return !key.empty() &&
         std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
}

bool is_made_of(std::string_view text, std::string_view others) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           others.find(c) != std::string_view::npos;
  });
}

// In lower case.
bool is_host_name(std::string_view text) {
  return is_made_of(text, "-_.") && !text.starts_with('.') &&
         text.find("..") == std::string_view::npos;
}

// Scheme, host and maybe a port, as browsers send them (RFC 6454, 6.2), or "*". It is compared
// whole: with a slash or a scheme's own port behind it, it would never match.
bool is_origin(std::string_view text) {
  if (text == "*") return true;
  const size_t mark = text.find("://");
  const std::string_view scheme = text.substr(0, mark);
  if (mark == std::string_view::npos || !is_made_of(scheme, "+-.")) return false;
  std::string_view host = text.substr(mark + 3);
  std::string_view port;
  if (const size_t colon = host.rfind(':');
      colon != host.npos && host.find(']', colon) == host.npos) {
    port = host.substr(colon + 1);
    host = host.substr(0, colon);
    const bool is_own = port == (scheme == "http" ? "80" : scheme == "https" ? "443" : "");
    if (port.empty() || is_own || port.find_first_not_of("0123456789") != port.npos) return false;
  }
  if (host.starts_with('[') && host.ends_with(']'))
    return is_made_of(host.substr(1, host.size() - 2), ":.");
  return is_host_name(host);
}

// The name of this machine; empty where it has none.
std::string machine_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "";
}

}  // namespace

void ServeFlags::declare(CommandLine& line) {
  line.group("Server");
  line.flag("--host", host_, "ADDRESS",
            "where to listen (default: 127.0.0.1, this machine alone; 0.0.0.0: everywhere)");
  line.flag("--port", port_, "N", "0: one that is free, which is told (default: 8080)");
  line.flag("--unix-socket", unix_socket_, "PATH", "listen at a Unix socket, too");
  line.flag("--no-tcp", no_tcp_, "at the Unix socket alone");
  line.flag("--served-model-name", model_names_, "NAME",
            "what clients call the model; repeatable (default: its file's name)");
  line.flag("--access-log", access_log_, "FILE",
            "a line of JSON for each request, without prompts; - is stdout");
  line.flag("--vllm-metric-names", vllm_metric_names_,
            "metrics that vLLM has are called vllm:..., as its dashboards expect");
  line.flag("--drain-timeout", drain_timeout_, "S",
            "seconds that requests have to end after SIGTERM (default: 30)");
  line.flag("--stuck-after", stuck_after_, "S",
            "seconds of one step after which /health fails (default: 60)");
  line.flag("--ping-interval", ping_interval_, "S",
            "seconds of silence in a stream before a comment (default: 15; 0: no comments)");

  line.group("Access");
  line.flag("--api-key", api_keys_, "KEY",
            "let in whoever knows a key; repeatable (also: CHORUS_API_KEY)");
  line.flag("--api-key-file", api_key_file_, "FILE", "keys, a line each: KEY, or NAME KEY");
  line.flag("--open-metrics", open_metrics_, "GET /metrics needs no key");
  line.flag("--cors", cors_origins_, "ORIGIN",
            "let pages of this origin in, such as https://example.org, or *; repeatable");
  line.flag("--allow-host", allowed_hosts_, "NAME",
            "a name by which browsers come, such as a proxy's, where there is no key; repeatable");
  line.flag("--share-prefixes", share_prefixes_,
            "users of different keys share the KV of equal prefixes (cached_tokens then tells)");

  line.group("Limits");
  line.flag("--queue", queue_, "N", "requests that wait; more are told 429 (default: 256)");
  line.flag("--max-running", max_running_, "N",
            "requests that hold sessions at once (default: as many as sessions)");
  line.flag("--max-requests-per-key", max_per_key_, "N", "of one key at once (default: any)");
  line.flag("--max-body", max_body_, "SIZE", "of a request (default: 64MiB)");
  line.flag("--max-bodies", max_bodies_, "SIZE",
            "of all requests together; then 503 (default: 16 times --max-body)");
  line.flag("--max-connections", max_connections_, "N", "at once (default: 1024)");
  line.flag("--max-held-sessions", max_held_, "N",
            "sessions that clients hold (default: a quarter of --max-sessions)");
  line.flag("--session-idle", session_idle_, "S",
            "seconds without use after which a held session is closed (default: 1800)");
  line.flag("--session-dir", session_dir_, "FOLDER",
            "where sessions may be saved (default: saving is refused)");
}

Status ServeFlags::parse_server(http::ServerOptions& options) const {
  constexpr int64_t kMostPort = 65535;
  options.port = 8080;
  if (!host_.empty()) options.host = host_;
  if (!port_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int64_t port, parse_count("--port", port_, 0, kMostPort));
    options.port = static_cast<uint16_t>(port);
  }
  options.unix_socket = unix_socket_;
  if (no_tcp_) {
    if (unix_socket_.empty())
      return invalid_argument("--no-tcp", "expected --unix-socket beside it");
    if (!host_.empty() || !port_.empty())
      return invalid_argument("--no-tcp", "expected neither --host nor --port beside it");
    options.host.clear();
  }
  if (!max_body_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int64_t size, parse_size("--max-body", max_body_));
    options.reader.max_body_bytes = static_cast<uint64_t>(size);
  }
  constexpr uint64_t kBodiesAtOnce = 16;
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max() / kBodiesAtOnce;
  options.max_bodies_bytes = kBodiesAtOnce * std::min(kMost, options.reader.max_body_bytes);
  if (!max_bodies_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int64_t size, parse_size("--max-bodies", max_bodies_));
    options.max_bodies_bytes = static_cast<uint64_t>(size);
  }
  return read_count("--max-connections", max_connections_, 1, options.max_connections);
}

Status ServeFlags::parse_limits(api::ServiceOptions& options) const {
  CHORUS_RETURN_IF_ERROR(read_count("--queue", queue_, 0, options.max_queued));
  CHORUS_RETURN_IF_ERROR(read_count("--max-running", max_running_, 1, options.max_running));
  CHORUS_RETURN_IF_ERROR(
      read_count("--max-requests-per-key", max_per_key_, 1, options.max_requests_per_key));
  CHORUS_RETURN_IF_ERROR(
      read_count("--max-held-sessions", max_held_, 0, options.max_held_sessions));
  CHORUS_RETURN_IF_ERROR(read_seconds("--session-idle", session_idle_, 1, options.session_idle_ns));
  CHORUS_RETURN_IF_ERROR(
      read_seconds("--ping-interval", ping_interval_, 0, options.ping_interval_ns));
  return read_seconds("--stuck-after", stuck_after_, 0.1, options.stuck_after_ns);
}

Result<ServeSettings> ServeFlags::parse(const std::string& model,
                                        const char* environment_key) const {
  ServeSettings settings;
  CHORUS_RETURN_IF_ERROR(parse_server(settings.server));
  CHORUS_RETURN_IF_ERROR(parse_limits(settings.service));
  CHORUS_RETURN_IF_ERROR(
      read_seconds("--drain-timeout", drain_timeout_, 0, settings.drain_timeout_ns));
  settings.access_log = access_log_;
  settings.vllm_metric_names = vllm_metric_names_;

  api::ServiceOptions& service = settings.service;
  service.models = model_names_;
  if (service.models.empty()) service.models.push_back(default_model_name(model));
  for (const std::string& name : service.models) {
    if (name.empty()) return invalid_argument("--served-model-name", "expected a name");
  }
  for (size_t i = 0; i < api_keys_.size(); ++i) {
    if (!is_key(api_keys_[i]))
      return invalid_argument("--api-key", "expected printable ASCII without spaces");
    service.keys.push_back({"key " + std::to_string(i + 1), api_keys_[i]});
  }
  if (!api_key_file_.empty()) {
    const auto text = read_input(api_key_file_);
    if (!text.ok()) return at_flag("--api-key-file", text.status());
    CHORUS_ASSIGN_OR_RETURN(const auto keys, parse_key_file(*text));
    service.keys.insert(service.keys.end(), keys.begin(), keys.end());
  }
  if (service.keys.empty() && environment_key != nullptr) {
    if (!is_key(environment_key))
      return invalid_argument("CHORUS_API_KEY", "expected printable ASCII without spaces");
    service.keys.push_back({"key 1", environment_key});
  }
  service.metrics_need_key = !open_metrics_;
  for (const std::string& origin : cors_origins_) {
    if (!is_origin(origin))
      return invalid_argument("--cors",
                              "expected an origin in lower case without a path, such as "
                              "https://example.org, or *, found " +
                                  origin);
  }
  service.cors_origins = cors_origins_;
  service.allowed_hosts = {api::plain_host(host_), api::plain_host(machine_name())};
  for (const std::string& text : allowed_hosts_) {
    const std::string name = http::lower_case(text);
    if (name != "*" && !is_host_name(name))
      return invalid_argument("--allow-host",
                              "expected a name such as chat.example.org, or *, found " + text);
    service.allowed_hosts.push_back(api::plain_host(name));
  }
  service.share_prefixes = share_prefixes_;
  if (!session_dir_.empty()) {
    std::error_code error;
    std::filesystem::create_directories(session_dir_, error);
    if (!std::filesystem::is_directory(session_dir_))
      return invalid_argument("--session-dir",
                              "expected a folder, or a place for one, found " + session_dir_);
  }
  service.session_directory = session_dir_;
  return settings;
}

Result<std::vector<api::ApiKey>> parse_key_file(const std::string& text) {
  std::vector<api::ApiKey> keys;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line);
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    if (found.empty() || found[0].starts_with("#")) continue;
    const std::string place = "line " + std::to_string(number);
    if (found.size() > 2 || !is_key(found.back()))
      return invalid_argument("--api-key-file",
                              "expected KEY or NAME KEY of printable ASCII in " + place);
    keys.push_back({found.size() == 2 ? found[0] : place, found.back()});
  }
  if (keys.empty()) return invalid_argument("--api-key-file", "expected a key, found none");
  return keys;
}

void widen_steps(const api::ServiceOptions& service, EngineOptions& engine) {
  constexpr int32_t kEnginesDefault = 32, kMost = 256;
  if (engine.max_decode_sequences > 0 || engine.max_batch_tokens > 0) return;
  const int32_t wanted = std::min(service.max_running, kMost);
  if (wanted > kEnginesDefault) engine.max_decode_sequences = wanted;
}

std::string default_model_name(const std::string& path) {
  std::filesystem::path name(path);
  if (!name.has_filename()) name = name.parent_path();  // "folder/"
  const std::string ending = name.extension().string();
  const bool is_file = ending == ".gguf" || ending == ".chorus";
  const std::string text = is_file ? name.stem().string() : name.filename().string();
  return text.empty() || text == "." || text == ".." ? "model" : text;
}

}  // namespace chorus::cli
