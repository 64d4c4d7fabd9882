#include "server/api/token_text.h"

#include <algorithm>

namespace chorus::api {

void TokenText::push(TokenId token) {
  const auto piece = detokenizer_.push(token);
  if (piece.ok()) num_bytes_ += piece->size();  // a tokenizer may be smaller than the vocabulary
  const bool is_hidden = std::find(hidden_.begin(), hidden_.end(), token) != hidden_.end();
  places_.push_back({num_bytes_, is_hidden});
}

size_t TokenText::num_within(size_t shown) const {
  const auto behind = std::partition_point(places_.begin(), places_.end(),
                                           [&](const Place& place) { return place.end <= shown; });
  return static_cast<size_t>(behind - places_.begin());
}

size_t TokenText::num_begun(size_t shown) const {
  const size_t within = num_within(shown);
  return within < size() && begin(within) < shown ? within + 1 : within;
}

size_t num_characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace chorus::api
