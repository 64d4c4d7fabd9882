#include "text/tokenizer.h"

#include <array>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <thread>

#include "text/rust_border.h"
#include "text/testing/small_vocabulary.h"

namespace chorus::text {
namespace {

using testing::create_or_die;
using testing::in_symbols;
using testing::kFirstByte;
using testing::Pieces;
using testing::pieces;
using testing::small_vocabulary;

TEST(Tokenizer, MergesByRankWithinWords) {
  const auto tokenizer = create_or_die(small_vocabulary());
  EXPECT_EQ(pieces(*tokenizer, "hello world"), (Pieces{"hello", " wor", "l", "d"}));
  EXPECT_EQ(pieces(*tokenizer, "it's"), (Pieces{"i", "t", "'s"}));
  EXPECT_EQ(pieces(*tokenizer, ""), Pieces{});
}

TEST(Tokenizer, LeavesTheLastSpaceToTheWordAfterIt) {
  const auto tokenizer = create_or_die(small_vocabulary());
  EXPECT_EQ(pieces(*tokenizer, "a   wor"), (Pieces{"a", "  ", " wor"}));
  EXPECT_EQ(pieces(*tokenizer, "a   "), (Pieces{"a", "  ", " "}));
  EXPECT_EQ(pieces(*tokenizer, "\r\na"), (Pieces{"\r", "\n", "a"}));
  EXPECT_EQ(pieces(*tokenizer, "\r\n"), (Pieces{"\r\n"}));
}

TEST(Tokenizer, SmollmGivesEachDigitItsOwnWord) {
  Vocabulary vocabulary = small_vocabulary();
  EXPECT_EQ(pieces(*create_or_die(vocabulary), "12 12"), (Pieces{"1", "2", " ", "1", "2"}));
  vocabulary.pre_tokenizer = "gpt-2";
  EXPECT_EQ(pieces(*create_or_die(vocabulary), "12 12"), (Pieces{"12", " ", "12"}));
}

TEST(Tokenizer, FindsControlTokensOnlyWhenAsked) {
  const auto tokenizer = create_or_die(small_vocabulary());
  const auto ids = tokenizer->encode("hello<|end|>he", {.parse_special = true});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->size(), 3u);
  EXPECT_EQ((*ids)[1], 0);
  const auto plain = tokenizer->encode("hello<|end|>he");
  for (const int32_t id : *plain) EXPECT_GE(id, kFirstByte);
  EXPECT_EQ(*tokenizer->decode(*plain), "hello<|end|>he");
}

TEST(Tokenizer, AlwaysFindsUserDefinedTokens) {
  const auto tokenizer = create_or_die(small_vocabulary());
  EXPECT_EQ(pieces(*tokenizer, "he<tool>he"), (Pieces{"he", "<tool>", "he"}));
}

TEST(Tokenizer, AddsBosAndEosAsTheVocabularySays) {
  Vocabulary vocabulary = small_vocabulary();
  vocabulary.add_bos = true;
  EXPECT_EQ(*create_or_die(vocabulary)->encode(""), std::vector<int32_t>{1});
  vocabulary.add_eos = true;
  EXPECT_EQ(*create_or_die(vocabulary)->encode(""), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(*create_or_die(vocabulary)->encode("", {.add_special = false}), std::vector<int32_t>{});
}

TEST(Tokenizer, GivesBackAllBytes) {
  const auto tokenizer = create_or_die(small_vocabulary());
  std::mt19937 random(7);
  const std::string common = "he llo\xc3\xa9\xf0\x9f\x98\x80 12\r\n'";
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE("seed 7, round " + std::to_string(round));
    std::string text;
    for (size_t length = random() % 40; length > 0; --length) {
      text.push_back(random() % 2 ? static_cast<char>(random() % 256)
                                  : common[random() % common.size()]);
    }
    const auto ids = tokenizer->encode(text, {.refuse_lossy = true});
    ASSERT_TRUE(ids.ok()) << ids.status().to_string();
    ASSERT_EQ(*tokenizer->decode(*ids), text);
  }
}

TEST(Tokenizer, EncodesInvalidUtf8AsItsBytes) {
  const auto tokenizer = create_or_die(small_vocabulary());
  const std::string text("a\xff\0b\xc3", 5);
  std::vector<int32_t> expected;
  for (const char byte : text) expected.push_back(kFirstByte + static_cast<uint8_t>(byte));
  EXPECT_EQ(*tokenizer->encode(text), expected);
}

TEST(Tokenizer, DropsOrRefusesBytesWithoutToken) {
  Vocabulary vocabulary = small_vocabulary();
  vocabulary.tokens[kFirstByte + 4] = "[free]";
  const auto tokenizer = create_or_die(vocabulary);
  // Nothing merges across the place of the byte.
  EXPECT_EQ(pieces(*tokenizer, "l\x04ll"), (Pieces{"l", "ll"}));
  const auto refused = tokenizer->encode("<tool>l\x04ll", {.refuse_lossy = true});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status(),
            invalid_argument("prompt", "byte 0x04 at 7 has no token in this vocabulary"));
}

TEST(Tokenizer, DecodesAndSkipsSpecialTokens) {
  const auto tokenizer = create_or_die(small_vocabulary());
  const std::vector<int32_t> ids = {1, kFirstByte + 'h', 2, 3, 0};
  EXPECT_EQ(*tokenizer->decode(ids), "<|start|>h<unk><tool><|end|>");
  EXPECT_EQ(*tokenizer->decode(ids, {.skip_special = true}), "h<tool>");
  EXPECT_TRUE(tokenizer->is_special(1));
  EXPECT_FALSE(tokenizer->is_special(3));
  EXPECT_FALSE(tokenizer->is_special(-1));
  EXPECT_EQ(tokenizer->special_named("<|start|>"), 1);
  for (const char* other : {"", "<tool>", "h", "<|start", "<|start|>h", "<|start|><|start|>"}) {
    EXPECT_EQ(tokenizer->special_named(other), std::nullopt) << other;
  }
}

TEST(Tokenizer, NamesIdsOutOfTheVocabulary) {
  const auto tokenizer = create_or_die(small_vocabulary());
  const int32_t size = tokenizer->vocabulary_size();
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0, size}).status().field(), "tokens[1]");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{-1}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(tokenizer->piece(size).status().field(), "token");
}

TEST(Tokenizer, EncodesOnSeveralThreads) {
  const auto tokenizer = create_or_die(small_vocabulary());
  std::string text;
  for (int i = 0; i < 200; ++i) text += "hello wor" + std::to_string(i) + " \xc3\xa9";
  const auto expected = *tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::array<bool, 4> same = {};
  for (size_t t = 0; t < same.size(); ++t) {
    threads.emplace_back([&, t] {
      same[t] = true;
      for (int i = 0; i < 20; ++i) same[t] = same[t] && *tokenizer->encode(text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, (std::array<bool, 4>{true, true, true, true}));
}

TEST(Tokenizer, EncodesVeryLongWords) {
  const auto tokenizer = create_or_die(small_vocabulary());
  for (const std::string& unit : {std::string("l"), std::string(" "), std::string("."),
                                  std::string("1"), std::string("\xc3\xa9"), std::string("\xff")}) {
    std::string text;
    while (text.size() < 100'000) text += unit;
    text += "x";
    const auto ids = tokenizer->encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status().to_string();
    EXPECT_EQ(*tokenizer->decode(*ids), text);
  }
}

struct BadVocabulary {
  const char* field;
  Code code;
  void (*spoil)(Vocabulary&);
};

TEST(Tokenizer, RefusesMalformedVocabularies) {
  const std::vector<BadVocabulary> cases = {
      {"tokenizer.model", Code::kUnimplemented, [](Vocabulary& v) { v.model = "bert"; }},
      {"tokenizer.pre", Code::kUnimplemented, [](Vocabulary& v) { v.pre_tokenizer = "kimi-k2"; }},
      {"tokenizer.add_space_prefix", Code::kUnimplemented,
       [](Vocabulary& v) { v.add_space_prefix = true; }},
      {"tokenizer.tokens", Code::kDataLoss,
       [](Vocabulary& v) { v = {.model = "gpt2", .pre_tokenizer = "smollm"}; }},
      {"tokenizer.tokens[9]", Code::kDataLoss, [](Vocabulary& v) { v.tokens[9] = v.tokens[5]; }},
      {"tokenizer.tokens[6]", Code::kDataLoss, [](Vocabulary& v) { v.tokens[6] = "\xff"; }},
      {"tokenizer.tokens[6]", Code::kDataLoss,
       [](Vocabulary& v) {
         v.tokens[6] = "<0x-1>";
         v.token_types[6] = kByteToken;
       }},
      {"tokenizer.token_type", Code::kDataLoss, [](Vocabulary& v) { v.token_types.pop_back(); }},
      {"tokenizer.token_type[3]", Code::kDataLoss, [](Vocabulary& v) { v.token_types[3] = 9; }},
      {"tokenizer.merges[2]", Code::kDataLoss, [](Vocabulary& v) { v.merges[2] = "x? y"; }},
      {"tokenizer.merges[2]", Code::kDataLoss, [](Vocabulary& v) { v.merges[2] = "x y"; }},
      {"tokenizer.merges[0]", Code::kDataLoss, [](Vocabulary& v) { v.merges[0] = "he"; }},
      {"tokenizer.merges[0]", Code::kDataLoss, [](Vocabulary& v) { v.merges[0] = "h e l"; }},
      {"tokenizer.merges[0]", Code::kDataLoss, [](Vocabulary& v) { v.merges[0] = " he"; }},
      {"tokenizer.bos_token_id", Code::kDataLoss, [](Vocabulary& v) { v.bos_id = 1'000'000; }},
      {"tokenizer.eos_token_id", Code::kDataLoss, [](Vocabulary& v) { v.eos_id = -2; }},
      {"tokenizer.unknown_token_id", Code::kDataLoss, [](Vocabulary& v) { v.unknown_id = 9999; }},
      {"tokenizer.padding_token_id", Code::kDataLoss, [](Vocabulary& v) { v.padding_id = 9999; }},
      {"tokenizer.bos_token_id", Code::kDataLoss,
       [](Vocabulary& v) {
         v.bos_id = -1;
         v.add_bos = true;
       }},
  };
  for (const BadVocabulary& bad : cases) {
    SCOPED_TRACE(bad.field);
    Vocabulary vocabulary = small_vocabulary();
    bad.spoil(vocabulary);
    const auto created = Tokenizer::create(vocabulary);
    ASSERT_FALSE(created.ok());
    EXPECT_EQ(created.status().field(), bad.field) << created.status().to_string();
    EXPECT_EQ(created.status().code(), bad.code);
  }
}

TEST(Tokenizer, SurvivesRandomDamage) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("seed 11, round " + std::to_string(round));
    Vocabulary vocabulary = small_vocabulary();
    for (int spot = 0; spot < 3; ++spot) {
      auto& list = random() % 2 ? vocabulary.tokens : vocabulary.merges;
      std::string& text = list[random() % list.size()];
      const size_t at = random() % (text.size() + 1);
      text.insert(at, 1, static_cast<char>(random() % 256));
      vocabulary.token_types[random() % vocabulary.token_types.size()] =
          static_cast<int32_t>(random() % 9) - 1;
    }
    const auto created = Tokenizer::create(vocabulary);
    if (created.ok()) {
      const auto ids = (*created)->encode("hello <tool> wor\xff 12");
      ASSERT_TRUE(ids.ok()) << ids.status().to_string();
      ASSERT_TRUE((*created)->decode(*ids).ok());
    } else {
      EXPECT_EQ(created.status().code(), Code::kDataLoss) << created.status().to_string();
    }
  }
}

TEST(RustBorder, TurnsAPanicIntoAnError) {
  EXPECT_EQ(call_rust(chorus_text_provoke_panic), internal_error("text", "panic: provoked"));
}

}  // namespace
}  // namespace chorus::text
