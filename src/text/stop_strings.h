// Stop strings over streamed text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace chorus::text {

// Finds the first stop string in a text that comes token by token, and holds back what may still
// become one. Works on bytes; fed with whole characters it gives whole characters.
//
// The match is the one that is complete first in the text, and of those that end at the same byte
// the longest. So it does not depend on how the text was cut into tokens.
// Cost: O(bytes * stops), at most longest stop - 1 bytes held. Thread: one at a time.
class StopMatcher {
 public:
  struct Match {
    size_t stop_index = 0;  // into the list given to create()
    size_t num_tokens = 0;  // calls of feed() up to the one that completed it
  };
  struct Output {
    std::string text;            // what can be shown now
    std::optional<Match> match;  // then `text` ends where the stop string begins
  };

  // No stops: everything passes. Errors: kInvalidArgument on "stop[i]" for an empty string.
  static Result<StopMatcher> create(std::vector<std::string> stops);

  // The text of the next token, which may be empty. With `may_match` false a stop string that is
  // complete in it is none; one that is complete later is, wherever it began. Requires: no match
  // yet.
  Output feed(std::string_view text, bool may_match = true);

  // The text still held when no more tokens come. Empty after a match.
  std::string finish();

  bool has_matched() const { return has_matched_; }
  // Of the list given to create().
  const std::string& stop(size_t index) const { return stops_[index].text; }

 private:
  // One stop string and how much of it the text ends with (Knuth, Morris, Pratt 1977).
  struct Stop {
    std::string text;
    std::vector<size_t> border;  // [text.size()]: longest proper prefix of text[0..i] that ends it
    size_t num_matched = 0;
  };

  explicit StopMatcher(std::vector<std::string> stops);
  static void advance(Stop& stop, char byte);

  std::vector<Stop> stops_;
  std::string held_;
  size_t num_tokens_ = 0;
  bool has_matched_ = false;
};

}  // namespace chorus::text
