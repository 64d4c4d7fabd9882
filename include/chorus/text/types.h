// The plain values that text takes.
#pragma once

#include <string>

namespace chorus::text {

struct ChatMessage {
  std::string role;     // "system", "user", "assistant", ...
  std::string content;  // UTF-8
};

struct EncodeOptions {
  // Recognise control and unknown tokens ("<|im_start|>") in the text. User-defined ones always
  // are. Leave it off for text that a user wrote.
  bool parse_special = false;
  // Add BOS and EOS where the vocabulary says so (add_bos, add_eos).
  bool add_special = true;
  // Refuse text of which a byte would be lost (see Tokenizer::encode), in place of dropping it.
  bool refuse_lossy = false;
};

}  // namespace chorus::text
