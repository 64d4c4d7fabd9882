#include "server/api/host_names.h"

#include <algorithm>
#include <array>

namespace chorus::api {

namespace {

// Four numbers, of which browsers have made their usual form.
bool is_ipv4(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(),
                                      [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
}

// Without TLS a GET has neither origin nor sec-fetch-site, and in some browsers a page may change
// its user agent. Whatever changes something has an origin.
bool is_from_browser(const http::Request& request) {
  return !request.header("origin").empty() || !request.header("sec-fetch-site").empty() ||
         request.header("user-agent").starts_with("Mozilla/");
}

}  // namespace

std::string plain_host(std::string_view host) {
  std::string name = http::lower_case(host.substr(0, host.find(':')));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

bool is_private_host(std::string_view host) {
  if (host.starts_with('[')) return true;  // an IPv6 address
  const std::string name = plain_host(host);
  if (is_ipv4(name) || name.find('.') == std::string::npos) return true;
  static constexpr std::array<std::string_view, 4> kPrivate = {".localhost", ".local", ".internal",
                                                               ".home.arpa"};
  return std::any_of(kPrivate.begin(), kPrivate.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool comes_by_foreign_name(const http::Request& request, const std::vector<std::string>& allowed) {
  const std::string_view host = request.header("host");
  const bool shows_texts = request.path.starts_with("/v1/sessions");
  if ((!shows_texts && !is_from_browser(request)) || is_private_host(host)) return false;
  return std::none_of(allowed.begin(), allowed.end(), [&](const std::string& each) {
    return each == "*" || each == plain_host(host);
  });
}

}  // namespace chorus::api
