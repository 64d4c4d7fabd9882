#include "server/http/entity_tag.h"

namespace chorus::http {
namespace {

constexpr std::string_view kWeak = "W/";

std::string_view strong(std::string_view tag) {
  if (tag.starts_with(kWeak)) tag.remove_prefix(kWeak.size());
  return tag;
}

// Takes `separators` off the front.
void skip(std::string_view& text, std::string_view separators) {
  const size_t begin = text.find_first_not_of(separators);
  text.remove_prefix(begin == text.npos ? text.size() : begin);
}

// Takes an opaque tag with its quotes off the front; empty where there is none. A comma may be part
// of it, and no escape is.
std::string_view take_tag(std::string_view& list) {
  list = strong(list);
  if (!list.starts_with('"')) return {};
  const size_t end = list.find('"', 1);
  if (end == list.npos) return {};
  const std::string_view tag = list.substr(0, end + 1);
  list.remove_prefix(tag.size());
  return tag;
}

}  // namespace

bool names_entity_tag(std::string_view if_none_match, std::string_view entity_tag) {
  if (if_none_match == "*") return true;  // a header's value has no spaces around it
  std::string_view list = if_none_match;
  for (;;) {
    skip(list, ", \t");  // empty members are allowed
    const std::string_view tag = take_tag(list);
    if (tag.empty()) return false;
    if (tag == strong(entity_tag)) return true;
    skip(list, " \t");
    if (!list.empty() && !list.starts_with(',')) return false;
  }
}

}  // namespace chorus::http
