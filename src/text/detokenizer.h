// Text from tokens as they come. A token may hold part of a character, so bytes are carried until
// their character is whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/tokenizer.h"

namespace chorus::text {

// Cuts a stream of bytes into valid UTF-8. Each maximal part of an invalid or unfinished character
// becomes one U+FFFD (Unicode 15, section 3.9, "U+FFFD substitution of maximal subparts").
// The output does not depend on how the bytes were cut into pushes. Thread: one at a time.
class Utf8Carry {
 public:
  // The text that is certain now. At most 3 bytes stay held.
  std::string push(std::string_view bytes);

  // The rest: U+FFFD if a character is unfinished. Afterwards as new.
  std::string finish();

  bool is_empty() const { return held_.empty(); }

 private:
  void push_byte(uint8_t byte, std::string& out);

  std::string held_;       // the bytes of an unfinished character, valid so far
  int num_missing_ = 0;    // bytes it still needs
  uint8_t lowest_ = 0x80;  // range of the next byte
  uint8_t highest_ = 0xbf;
};

// All of `bytes` as valid UTF-8, by the rule of Utf8Carry.
std::string to_valid_utf8(std::string_view bytes);

// Whether `bytes` is valid UTF-8.
bool is_valid_utf8(std::string_view bytes);

// One generation's tokens as text. All pushes and finish() together give
// to_valid_utf8(tokenizer.decode(all)). Thread: one at a time.
class Detokenizer {
 public:
  // The tokenizer must outlive this object.
  explicit Detokenizer(const Tokenizer& tokenizer, DecodeOptions options = {})
      : tokenizer_(tokenizer), options_(options) {}

  // Valid UTF-8, empty while a character is unfinished. Errors: kInvalidArgument on "token", then
  // nothing has changed.
  Result<std::string> push(int32_t id);

  // The text of what is still held. Afterwards as new.
  std::string finish() { return carry_.finish(); }

 private:
  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  Utf8Carry carry_;
};

}  // namespace chorus::text
