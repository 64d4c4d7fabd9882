#include "text/detokenizer.h"

namespace chorus::text {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

}  // namespace

void Utf8Carry::push_byte(uint8_t byte, std::string& out) {
  if (num_missing_ > 0) {
    if (byte >= lowest_ && byte <= highest_) {
      held_.push_back(static_cast<char>(byte));
      lowest_ = 0x80;
      highest_ = 0xbf;
      if (--num_missing_ == 0) {
        out += held_;
        held_.clear();
      }
      return;
    }
    out += finish();  // and the byte may begin the next character
  }
  if (byte < 0x80) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  if (byte >= 0xc2 && byte <= 0xdf) {
    num_missing_ = 1;
  } else if (byte >= 0xe0 && byte <= 0xef) {
    num_missing_ = 2;
    if (byte == 0xe0) lowest_ = 0xa0;   // shorter forms exist below
    if (byte == 0xed) highest_ = 0x9f;  // surrogates above
  } else if (byte >= 0xf0 && byte <= 0xf4) {
    num_missing_ = 3;
    if (byte == 0xf0) lowest_ = 0x90;   // shorter forms exist below
    if (byte == 0xf4) highest_ = 0x8f;  // U+10FFFF is the last
  } else {
    out += kReplacement;
    return;
  }
  held_.push_back(static_cast<char>(byte));
}

std::string Utf8Carry::push(std::string_view bytes) {
  std::string out;
  out.reserve(held_.size() + bytes.size());
  for (const char byte : bytes) push_byte(static_cast<uint8_t>(byte), out);
  return out;
}

std::string Utf8Carry::finish() {
  const bool was_unfinished = num_missing_ > 0;
  *this = Utf8Carry();
  return std::string(was_unfinished ? kReplacement : std::string_view());
}

std::string to_valid_utf8(std::string_view bytes) {
  Utf8Carry carry;
  std::string text = carry.push(bytes);
  return text + carry.finish();
}

bool is_valid_utf8(std::string_view bytes) { return to_valid_utf8(bytes) == bytes; }

Result<std::string> Detokenizer::push(int32_t id) {
  CHORUS_ASSIGN_OR_RETURN(const std::string_view bytes, tokenizer_.piece(id));
  if (options_.skip_special && tokenizer_.is_special(id)) return std::string();
  return carry_.push(bytes);
}

}  // namespace chorus::text
