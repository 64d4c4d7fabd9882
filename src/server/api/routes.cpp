#include "server/api/routes.h"

#include <array>
#include <optional>

namespace chorus::api {

namespace {

constexpr std::string_view kId = "{id}";

constexpr std::array kRoutes = {
    Route{"GET", "/health", Access::kOpen, false, get_health},
    Route{"GET", "/metrics", Access::kMetrics, false, get_metrics},
    Route{"GET", "/version", Access::kKey, false, get_version},
    Route{"GET", "/props", Access::kKey, false, get_props},
    Route{"GET", "/tokenizer_info", Access::kKey, false, get_tokenizer_info},
    Route{"GET", "/slots", Access::kKey, false, get_slots},
    Route{"GET", "/v1/models", Access::kKey, false, get_models},
    Route{"POST", "/v1/chat/completions", Access::kKey, true, post_chat},
    Route{"POST", "/v1/completions", Access::kKey, true, post_completion},
    Route{"POST", "/v1/responses", Access::kKey, false, post_response},
    Route{"POST", "/tokenize", Access::kKey, false, post_tokenize},
    Route{"POST", "/detokenize", Access::kKey, false, post_detokenize},
    Route{"POST", "/apply-template", Access::kKey, false, post_template},
    Route{"GET", "/v1/sessions", Access::kKey, false, get_sessions},
    Route{"POST", "/v1/sessions", Access::kKey, true, post_session},
    Route{"POST", "/v1/sessions/load", Access::kKey, false, post_load},
    Route{"POST", "/v1/sessions/{id}/generate", Access::kKey, true, post_generate},
    Route{"POST", "/v1/sessions/{id}/fork", Access::kKey, false, post_fork},
    Route{"POST", "/v1/sessions/{id}/rewind", Access::kKey, false, post_rewind},
    Route{"POST", "/v1/sessions/{id}/save", Access::kKey, false, post_save},
    Route{"GET", "/v1/sessions/{id}", Access::kKey, false, get_session},
    Route{"DELETE", "/v1/sessions/{id}", Access::kKey, false, delete_session},
    Route{"GET", "/v1/models/{id}", Access::kKey, false, get_model},
};

// What stands for {id}, or "" for a path without; nothing for another path.
std::optional<std::string_view> match(std::string_view pattern, std::string_view path) {
  const size_t at = pattern.find(kId);
  if (at == pattern.npos) return pattern == path ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view before = pattern.substr(0, at);
  const std::string_view behind = pattern.substr(at + kId.size());
  if (path.size() <= before.size() + behind.size() || !path.starts_with(before) ||
      !path.ends_with(behind)) {
    return std::nullopt;
  }
  const std::string_view id =
      path.substr(before.size(), path.size() - before.size() - behind.size());
  // A model's name may have slashes.
  const bool is_one = before == "/v1/models/" || id.find('/') == id.npos;
  return is_one ? std::optional(id) : std::nullopt;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string decode_path(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool has_digits = text[i] == '%' && i + 2 < text.size();
    const int high = has_digits ? hex_digit(text[i + 1]) : -1;
    const int low = has_digits ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      decoded += text[i];
      continue;
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

RouteMatch find_route(std::string_view method, std::string_view path) {
  RouteMatch found;
  if (method == "HEAD") method = "GET";
  for (const Route& route : kRoutes) {
    const auto id = match(route.path, path);
    if (!id) continue;
    found.methods += (found.methods.empty() ? "" : ", ") + std::string(route.method);
    if (route.method != method || found.route != nullptr) continue;
    found.route = &route;
    found.name = decode_path(*id);
  }
  return found;
}

}  // namespace chorus::api
