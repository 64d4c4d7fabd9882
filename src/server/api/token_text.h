// Which tokens lie in a text that was generated from them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "exec/types.h"
#include "text/detokenizer.h"

namespace chorus::api {

// Follows one generation. Thread: one at a time.
class TokenText {
 public:
  // The tokenizer outlives it. `hidden` are tokens that end a text and are no part of it.
  TokenText(const text::Tokenizer& tokenizer, bool shows_special, std::vector<TokenId> hidden)
      : detokenizer_(tokenizer, {.skip_special = !shows_special}), hidden_(std::move(hidden)) {}

  void push(TokenId token);
  size_t size() const { return places_.size(); }

  // The bytes of text when the token had come, and before it.
  size_t begin(size_t token) const { return token == 0 ? 0 : places_[token - 1].end; }
  size_t end(size_t token) const { return places_[token].end; }
  bool is_hidden(size_t token) const { return places_[token].is_hidden; }

  // How many tokens lie wholly within the first `shown` bytes.
  size_t num_within(size_t shown) const;
  // How many begin within a text of `shown` bytes that has ended.
  size_t num_begun(size_t shown) const;

 private:
  struct Place {
    size_t end;
    bool is_hidden;
  };

  text::Detokenizer detokenizer_;
  const std::vector<TokenId> hidden_;
  std::vector<Place> places_;
  size_t num_bytes_ = 0;
};

// Characters of valid UTF-8.
size_t num_characters(std::string_view text);

}  // namespace chorus::api
