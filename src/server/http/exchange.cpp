#include "server/http/exchange.h"

#include <algorithm>

namespace chorus::http {

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return result;
}

std::string_view find_header(const std::vector<Header>& headers, std::string_view lower_case_name) {
  const auto found = std::find_if(headers.begin(), headers.end(), [&](const Header& header) {
    return header.name == lower_case_name;
  });
  return found == headers.end() ? std::string_view() : found->value;
}

}  // namespace chorus::http
