#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace chorus::text {

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops) {
  for (size_t index = 0; index < stops.size(); ++index) {
    if (stops[index].empty()) {
      return invalid_argument("stop[" + std::to_string(index) + "]",
                              "expected a text of at least one byte, found none");
    }
  }
  return StopMatcher(std::move(stops));
}

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    Stop stop{.text = std::move(text), .border = {}, .num_matched = 0};
    stop.border.assign(stop.text.size(), 0);
    for (size_t i = 1; i < stop.text.size(); ++i) {
      size_t length = stop.border[i - 1];
      while (length > 0 && stop.text[i] != stop.text[length]) length = stop.border[length - 1];
      stop.border[i] = stop.text[i] == stop.text[length] ? length + 1 : 0;
    }
    stops_.push_back(std::move(stop));
  }
}

void StopMatcher::advance(Stop& stop, char byte) {
  while (stop.num_matched > 0 && byte != stop.text[stop.num_matched]) {
    stop.num_matched = stop.border[stop.num_matched - 1];
  }
  if (byte == stop.text[stop.num_matched]) ++stop.num_matched;
}

StopMatcher::Output StopMatcher::feed(std::string_view text, bool may_match) {
  CHORUS_CHECK(!has_matched_);
  ++num_tokens_;
  for (const char byte : text) {
    held_.push_back(byte);
    const Stop* complete = nullptr;
    for (Stop& stop : stops_) {
      advance(stop, byte);
      const bool is_complete = stop.num_matched == stop.text.size();
      if (is_complete && !may_match) {
        stop.num_matched = stop.border.back();
      } else if (is_complete && (!complete || stop.text.size() > complete->text.size())) {
        complete = &stop;
      }
    }
    if (complete) {
      has_matched_ = true;
      held_.resize(held_.size() - complete->text.size());
      return {.text = std::exchange(held_, {}),
              .match = Match{static_cast<size_t>(complete - stops_.data()), num_tokens_}};
    }
  }
  size_t num_held = 0;
  for (const Stop& stop : stops_) num_held = std::max(num_held, stop.num_matched);
  Output output{.text = held_.substr(0, held_.size() - num_held), .match = std::nullopt};
  held_.erase(0, held_.size() - num_held);
  return output;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace chorus::text
