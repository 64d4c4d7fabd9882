// Vocabularies that a test can read.
#pragma once

#include <array>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace chorus::text::testing {

// GPT-2's table of byte symbols, as UTF-8.
inline std::array<std::string, 256> byte_symbols() {
  std::array<std::string, 256> symbols;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const uint32_t c = printable ? byte : next++;
    std::string& symbol = symbols[byte];
    if (c < 0x80) {
      symbol = {static_cast<char>(c)};
    } else {
      symbol = {static_cast<char>(0xc0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3f))};
    }
  }
  return symbols;
}

inline std::string in_symbols(std::string_view bytes) {
  static const std::array<std::string, 256> kSymbols = byte_symbols();
  std::string text;
  for (const char byte : bytes) text += kSymbols[static_cast<uint8_t>(byte)];
  return text;
}

inline constexpr int32_t kFirstByte = 4;  // id of the token of byte 0

// Control tokens 0 to 2, a user-defined one, the 256 bytes, then one token per merge.
inline Vocabulary small_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = "smollm";
  vocabulary.tokens = {"<|end|>", "<|start|>", "<unk>", "<tool>"};
  vocabulary.token_types = {kControlToken, kControlToken, kUnknownToken, kUserDefinedToken};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(in_symbols(std::string(1, static_cast<char>(byte))));
  }
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"h", "e"},   {"l", "l"}, {"he", "ll"}, {"hell", "o"},    {" ", "w"},   {"o", "r"},
      {" w", "or"}, {" ", " "}, {"1", "2"},   {"\xc3", "\xa9"}, {"\r", "\n"}, {"'", "s"}};
  for (const auto& [left, right] : merges) {
    vocabulary.merges.push_back(in_symbols(left) + " " + in_symbols(right));
    vocabulary.tokens.push_back(in_symbols(left + right));
  }
  vocabulary.token_types.resize(vocabulary.tokens.size(), kNormalToken);
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 0;
  vocabulary.unknown_id = 2;
  return vocabulary;
}

inline std::unique_ptr<Tokenizer> create_or_die(const Vocabulary& vocabulary) {
  auto created = Tokenizer::create(vocabulary);
  EXPECT_TRUE(created.ok()) << created.status().to_string();
  return std::move(created).value();
}

// The pieces of the encoded text, to read a failure easily.
inline std::vector<std::string> pieces(const Tokenizer& tokenizer, std::string_view text,
                                       const EncodeOptions& options = {}) {
  auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().to_string();
  std::vector<std::string> result;
  for (const int32_t id : *ids) result.emplace_back(*tokenizer.piece(id));
  return result;
}

using Pieces = std::vector<std::string>;

}  // namespace chorus::text::testing
