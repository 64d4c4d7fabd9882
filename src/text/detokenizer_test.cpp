#include "text/detokenizer.h"

#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace chorus::text {
namespace {

const std::string kFffd = "\xef\xbf\xbd";

// Well-formed UTF-8, table 3-7 of the Unicode standard: the ranges of the bytes of each form.
struct Range {
  uint8_t first, last;
};
const std::vector<std::vector<Range>> kForms = {
    {{0x00, 0x7f}},
    {{0xc2, 0xdf}, {0x80, 0xbf}},
    {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}},
    {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}},
    {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
    {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}},
};

// The rule by its definition: at each place take the longest prefix of a form; a whole form is
// kept, anything shorter (or one byte that begins none) becomes U+FFFD.
std::string repair_naively(std::string_view bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    size_t longest = 0;
    bool is_whole = false;
    for (const auto& form : kForms) {
      size_t length = 0;
      while (length < form.size() && at + length < bytes.size()) {
        const auto byte = static_cast<uint8_t>(bytes[at + length]);
        if (byte < form[length].first || byte > form[length].last) break;
        ++length;
      }
      if (length > longest) {
        longest = length;
        is_whole = length == form.size();
      }
    }
    const size_t num_taken = std::max<size_t>(longest, 1);
    out += is_whole ? bytes.substr(at, num_taken) : std::string_view(kFffd);
    at += num_taken;
  }
  return out;
}

std::string random_bytes(std::mt19937& random, size_t longest) {
  // Bytes at the borders of the forms are the interesting ones.
  constexpr std::string_view kBytes(
      "\x00\x41\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf3"
      "\xf4\xf5\xff",
      25);
  std::string bytes;
  for (size_t length = random() % (longest + 1); length > 0; --length) {
    bytes.push_back(random() % 4 ? kBytes[random() % kBytes.size()]
                                 : static_cast<char>(random() % 256));
  }
  return bytes;
}

TEST(ToValidUtf8, FollowsTheExamplesOfTheStandard) {
  // Table 3-8 of the Unicode standard.
  EXPECT_EQ(to_valid_utf8("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"),
            kFffd + kFffd + kFffd + kFffd + kFffd + kFffd + kFffd + kFffd + "A");
  EXPECT_EQ(to_valid_utf8("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"),
            kFffd + kFffd + kFffd + kFffd + "A");
  EXPECT_EQ(to_valid_utf8("\xed\xa0\x80\xf4\x91\x41"), kFffd + kFffd + kFffd + kFffd + kFffd + "A");
  EXPECT_TRUE(is_valid_utf8("h\xc3\xa9 \xf0\x9f\x98\x80"));
  EXPECT_FALSE(is_valid_utf8("\xc3"));
}

TEST(Utf8Carry, AgreesWithTheDefinitionForAllCuts) {
  std::mt19937 random(5);
  for (int round = 0; round < 50000; ++round) {
    SCOPED_TRACE("seed 5, round " + std::to_string(round));
    const std::string bytes = random_bytes(random, 12);
    const std::string expected = repair_naively(bytes);
    ASSERT_EQ(to_valid_utf8(bytes), expected);
    Utf8Carry carry;
    std::string text;
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = std::min<size_t>(random() % 4, bytes.size() - at);
      const std::string part = carry.push(std::string_view(bytes).substr(at, length));
      ASSERT_EQ(repair_naively(part), part) << "a part is invalid";
      text += part;
      at += length;
    }
    text += carry.finish();
    ASSERT_EQ(text, expected);
    ASSERT_TRUE(carry.is_empty());
  }
}

TEST(Utf8Carry, ReleasesACharacterWithItsLastByte) {
  Utf8Carry carry;
  EXPECT_EQ(carry.push("a\xf0\x9f"), "a");
  EXPECT_EQ(carry.push("\x98"), "");
  EXPECT_EQ(carry.push("\x80"), "\xf0\x9f\x98\x80");
  EXPECT_EQ(carry.push("\xe2\x82"), "");
  EXPECT_EQ(carry.push("b"), kFffd + "b");
  EXPECT_EQ(carry.finish(), "");
}

// Tokens of raw bytes: a normal token with a character that is no byte symbol stands for itself, so
// the vocabulary is made of byte tokens.
std::unique_ptr<Tokenizer> byte_tokenizer() {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", byte);
    vocabulary.tokens.emplace_back(text);
    vocabulary.token_types.push_back(kByteToken);
  }
  vocabulary.tokens.emplace_back("<|end|>");
  vocabulary.token_types.push_back(kControlToken);
  auto created = Tokenizer::create(vocabulary);
  EXPECT_TRUE(created.ok()) << created.status().to_string();
  return std::move(created).value();
}

TEST(Detokenizer, GivesTheTextOfDecode) {
  const auto tokenizer = byte_tokenizer();
  std::mt19937 random(9);
  for (int round = 0; round < 5000; ++round) {
    SCOPED_TRACE("seed 9, round " + std::to_string(round));
    std::vector<int32_t> ids;
    for (const char byte : random_bytes(random, 20)) ids.push_back(static_cast<uint8_t>(byte));
    if (random() % 2) ids.insert(ids.begin() + static_cast<int>(random() % (ids.size() + 1)), 256);
    const DecodeOptions options{.skip_special = random() % 2 == 0};
    Detokenizer detokenizer(*tokenizer, options);
    std::string text;
    for (const int32_t id : ids) {
      const auto part = detokenizer.push(id);
      ASSERT_TRUE(part.ok());
      ASSERT_TRUE(is_valid_utf8(*part));
      text += *part;
    }
    text += detokenizer.finish();
    ASSERT_EQ(text, to_valid_utf8(*tokenizer->decode(ids, options)));
  }
}

TEST(Detokenizer, NamesAnIdOutOfTheVocabulary) {
  const auto tokenizer = byte_tokenizer();
  Detokenizer detokenizer(*tokenizer);
  ASSERT_TRUE(detokenizer.push(0xc3).ok());
  EXPECT_EQ(detokenizer.push(257).status().field(), "token");
  EXPECT_EQ(*detokenizer.push(0xa9), "\xc3\xa9");
}

}  // namespace
}  // namespace chorus::text
