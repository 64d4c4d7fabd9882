// How text is cut into words, by the names of tokenizer.ggml.pre.
#include <gtest/gtest.h>
#include <map>
#include <random>

#include "text/testing/small_vocabulary.h"

namespace chorus::text {
namespace {

using testing::create_or_die;
using testing::in_symbols;
using testing::Pieces;
using testing::pieces;

// Merges that build each of the words from its left end, so that a word shows as one piece where it
// is not cut.
Vocabulary vocabulary_of(const std::vector<std::string>& words, std::string pre) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = std::move(pre);
  std::map<std::string, size_t> known;
  const auto add = [&](const std::string& bytes) {
    if (known.emplace(bytes, known.size()).second) vocabulary.tokens.push_back(in_symbols(bytes));
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const std::string& word : words) {
    for (size_t length = 2; length <= word.size(); ++length) {
      if (known.count(word.substr(0, length)) == 0) {
        vocabulary.merges.push_back(in_symbols(word.substr(0, length - 1)) + " " +
                                    in_symbols(word.substr(length - 1, 1)));
      }
      add(word.substr(0, length));
    }
  }
  return vocabulary;
}

struct Case {
  const char* pre;
  const char* text;
  Pieces words;
};

TEST(PreTokenizers, CutAsTheirNamesSay) {
  const std::vector<Case> cases = {
      {"default", "abc: 12345 x", {"abc", ":", " ", "123", "45", " x"}},
      {"", "a1+b", {"a", "1", "+", "b"}},
      {"gpt-2", "it's 12345", {"it", "'s", " 12345"}},
      {"gpt-2", "a   b\n\n", {"a", "  ", " b", "\n\n"}},
      {"smollm", "it'S 123", {"it", "'", "S", " ", "1", "2", "3"}},
      {"refact", "x42", {"x", "4", "2"}},
      {"llama-bpe", "it'S 12345", {"it", "'S", " ", "123", "45"}},
      {"llama-bpe", "(a) \n\nb", {"(a", ")", " \n\n", "b"}},
      {"llama-bpe", "a.\n\n b", {"a", ".\n\n", " b"}},
      {"qwen2", "it'S 123", {"it", "'S", " ", "1", "2", "3"}},
      {"qwen2", "a\xcc\x81z", {"a", "\xcc\x81z"}},
      {"qwen35", "a\xcc\x81z", {"a\xcc\x81z"}},
      {"llama4", "helloWorld ABCd 1234", {"hello", "World", " ABCd", " ", "123", "4"}},
      {"llama4", "it's/\n", {"it's", "/\n"}},
      {"tekken", "it's 12", {"it", "'s", " ", "1", "2"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.pre) + ": " + c.text);
    // The whole text is a token too, which only a word that is not cut can become.
    std::vector<std::string> words = c.words;
    words.emplace_back(c.text);
    EXPECT_EQ(pieces(*create_or_die(vocabulary_of(words, c.pre)), c.text), c.words);
  }
}

TEST(PreTokenizers, NameWhatTheyOffer) {
  Vocabulary vocabulary = vocabulary_of({}, "no-such");
  const auto created = Tokenizer::create(vocabulary);
  ASSERT_FALSE(created.ok());
  EXPECT_EQ(created.status().code(), Code::kUnimplemented);
  EXPECT_EQ(created.status().field(), "tokenizer.pre");
  EXPECT_NE(created.status().message().find("llama-bpe"), std::string::npos);
  EXPECT_NE(created.status().message().find("\"no-such\""), std::string::npos);
}

TEST(PreTokenizers, SomeTakeAWordThatIsATokenAsItIs) {
  // Merging would give "a" and "bc": ("b", "c") comes first.
  for (const bool whole : {true, false}) {
    Vocabulary vocabulary = vocabulary_of({"bc", "abc"}, whole ? "llama-bpe" : "qwen2");
    const Pieces expected = whole ? Pieces{"abc"} : Pieces{"a", "bc"};
    EXPECT_EQ(pieces(*create_or_die(vocabulary), "abc"), expected);
    // A control token is never made of text.
    vocabulary.token_types.assign(vocabulary.tokens.size(), kNormalToken);
    vocabulary.token_types.back() = kControlToken;
    EXPECT_EQ(pieces(*create_or_die(vocabulary), "abc"), (Pieces{"a", "bc"}));
  }
}

TEST(PreTokenizers, KeepAllBytesAndStayFast) {
  std::mt19937 random(3);
  const std::vector<std::string> units = {"a",  "A",  " ", "\n",   "\r",       "1",        ".",
                                          "'s", "\t", "/", "\xff", "\xc3\xa9", "\xcc\x81", "_"};
  for (const char* pre :
       {"default", "gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "llama4", "tekken"}) {
    const auto tokenizer = create_or_die(vocabulary_of({"aA", "  "}, pre));
    for (const std::string& unit : units) {
      std::string text;
      while (text.size() < 20'000) text += unit;
      const auto ids = tokenizer->encode(text);
      ASSERT_TRUE(ids.ok()) << pre << ": " << ids.status().to_string();
      EXPECT_EQ(*tokenizer->decode(*ids), text) << pre;
    }
    for (int round = 0; round < 50; ++round) {
      std::string text;
      for (size_t length = random() % 60; length > 0; --length) text += units[random() % 14];
      const auto ids = tokenizer->encode(text);
      ASSERT_TRUE(ids.ok()) << ids.status().to_string();
      EXPECT_EQ(*tokenizer->decode(*ids), text) << pre << ", seed 3, round " << round;
    }
  }
}

}  // namespace
}  // namespace chorus::text
