// Vocabularies with scores ("llama"), against models that are too slow to be wrong.
#include <ctime>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <random>

#include "text/testing/small_vocabulary.h"

namespace chorus::text {
namespace {

using testing::create_or_die;
using testing::Pieces;
using testing::pieces;

constexpr std::string_view kMark = "\xe2\x96\x81";

std::string byte_name(int byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<',
          '0',
          'x',
          kDigits[static_cast<size_t>(byte) / 16],
          kDigits[static_cast<size_t>(byte) % 16],
          '>'};
}

// <unk>, <s>, </s>, <tool> (user-defined), the bytes, then the scored tokens.
Vocabulary scored_vocabulary(const std::vector<std::pair<std::string, float>>& scored) {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<s>", "</s>", "<tool>"};
  vocabulary.token_types = {kUnknownToken, kControlToken, kControlToken, kUserDefinedToken};
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.push_back(byte_name(byte));
  vocabulary.token_types.resize(vocabulary.tokens.size(), kByteToken);
  vocabulary.scores.resize(vocabulary.tokens.size(), 0.0f);
  for (const auto& [token, score] : scored) {
    vocabulary.tokens.push_back(token);
    vocabulary.scores.push_back(score);
  }
  vocabulary.token_types.resize(vocabulary.tokens.size(), kNormalToken);
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 2;
  vocabulary.unknown_id = 0;
  return vocabulary;
}

TEST(ScoredTokenizer, MergesTheBestScoreFirst) {
  const auto tokenizer = create_or_die(scored_vocabulary(
      {{"a", -9}, {"b", -9}, {"c", -9}, {"ab", -2}, {"bc", -1}, {"abc", -5}, {"aa", -3}}));
  EXPECT_EQ(pieces(*tokenizer, "abc"), (Pieces{"abc"}));
  EXPECT_EQ(pieces(*tokenizer, "aabc"), (Pieces{"aa", "bc"}));
  // Of equal scores the leftmost.
  EXPECT_EQ(pieces(*tokenizer, "aaa"), (Pieces{"aa", "a"}));
}

TEST(ScoredTokenizer, WritesCharactersWithoutTokenAsBytes) {
  const auto tokenizer = create_or_die(scored_vocabulary({{"a", -1}}));
  const auto ids = tokenizer->encode("a\xc3\xa9\n");
  EXPECT_EQ(*ids, (std::vector<int32_t>{260, 4 + 0xc3, 4 + 0xa9, 4 + '\n'}));
  EXPECT_EQ(*tokenizer->decode(*ids), "a\xc3\xa9\n");
}

TEST(ScoredTokenizer, PutsASpaceInFrontWhereTheVocabularySaysSo) {
  Vocabulary vocabulary =
      scored_vocabulary({{std::string(kMark), -3}, {"a", -3}, {std::string(kMark) + "a", -1}});
  EXPECT_EQ(pieces(*create_or_die(vocabulary), "a a"), (Pieces{"a", " a"}));
  vocabulary.add_space_prefix = true;
  const auto tokenizer = create_or_die(vocabulary);
  EXPECT_EQ(pieces(*tokenizer, "a"), (Pieces{" a"}));
  EXPECT_EQ(pieces(*tokenizer, "a<tool>a"), (Pieces{" a", "<tool>", " a"}));
  EXPECT_EQ(pieces(*tokenizer, ""), Pieces{});
  const auto ids = *tokenizer->encode("a<tool> a");
  EXPECT_EQ(*tokenizer->decode(ids), " a<tool>  a");
  EXPECT_EQ(*tokenizer->decode(ids, {.whole_text = true}), "a<tool> a");
}

TEST(ScoredTokenizer, NeverMakesControlTokensOfText) {
  // Merges that lead there, and the best score at their end.
  Vocabulary vocabulary = scored_vocabulary({{"<", -1}, {"s", -1}, {">", -1}, {"<s", -1}});
  const auto tokenizer = create_or_die(vocabulary);
  EXPECT_EQ(pieces(*tokenizer, "<s>"), (Pieces{"<s", ">"}));
  EXPECT_EQ(*tokenizer->encode("<s>", {.parse_special = true}), std::vector<int32_t>{1});
  vocabulary.add_bos = true;
  EXPECT_EQ(*create_or_die(vocabulary)->encode("<s>", {.parse_special = true}),
            std::vector<int32_t>{1});
  EXPECT_EQ(*create_or_die(vocabulary)->encode("<s><s>", {.parse_special = true}),
            (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(create_or_die(vocabulary)->encode("<s>")->size(), 3u);
}

TEST(ScoredTokenizer, WritesUnknownOrRefusesWhatIsLost) {
  Vocabulary vocabulary = scored_vocabulary({{"a", -1}});
  vocabulary.tokens[4 + 0xa9] = "[free]";
  vocabulary.token_types[4 + 0xa9] = kNormalToken;
  const auto tokenizer = create_or_die(vocabulary);
  EXPECT_EQ(pieces(*tokenizer, "a\xc3\xa9"), (Pieces{"a", "<unk>"}));
  const auto refused = tokenizer->encode("a\xc3\xa9", {.refuse_lossy = true});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().field(), "prompt");
  EXPECT_EQ(tokenizer->encode("aa" + std::string(kMark), {.refuse_lossy = true}).status(),
            invalid_argument("prompt", "U+2581 at 2 stands for a space in this vocabulary"));
  vocabulary.unknown_id = -1;
  EXPECT_EQ(pieces(*create_or_die(vocabulary), "a\xc3\xa9"), (Pieces{"a"}));
}

// ---- Naive models
// --------------------------------------------------------------------------------

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> list;
  for (size_t at = 0; at < text.size();) {
    const auto first = static_cast<uint8_t>(text[at]);
    size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    length = std::min(length, text.size() - at);
    list.push_back(text.substr(at, length));
    at += length;
  }
  return list;
}

// Looks at all neighbours after every merge.
std::vector<int32_t> naive_encode(const Vocabulary& vocabulary, const std::string& text) {
  std::map<std::string, int32_t> ids;
  for (size_t i = 260; i < vocabulary.tokens.size(); ++i) {
    ids[vocabulary.tokens[i]] = static_cast<int32_t>(i);
  }
  ids["<tool>"] = 3;
  std::string marked;
  for (const char c : text) marked += c == ' ' ? std::string(kMark) : std::string(1, c);
  std::vector<std::string> symbols = characters(marked);
  while (true) {
    size_t best = symbols.size();
    float best_score = 0.0f;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ids.find(symbols[i] + symbols[i + 1]);
      if (found == ids.end()) continue;
      const float score = vocabulary.scores[static_cast<size_t>(found->second)];
      if (best == symbols.size() || score > best_score) {
        best = i;
        best_score = score;
      }
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> result;
  for (const std::string& symbol : symbols) {
    if (ids.count(symbol) > 0) {
      result.push_back(ids[symbol]);
    } else {
      for (const char byte : symbol) result.push_back(4 + static_cast<uint8_t>(byte));
    }
  }
  return result;
}

TEST(ScoredTokenizer, EqualsTheNaiveModelOnRandomVocabularies) {
  std::mt19937 random(5);
  const std::vector<std::string> units = {"a", "b", "c", std::string(kMark), "\xc3\xa9", "<", ">"};
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("seed 5, round " + std::to_string(round));
    std::map<std::string, float> scored;
    for (int i = 0; i < 30; ++i) {
      std::string token;
      for (size_t length = 1 + random() % 4; length > 0; --length) token += units[random() % 7];
      // Few scores, so that many are equal; both zeros are.
      const float scores[] = {0.0f, -0.0f, -1.0f, -2.5f, 3.0f, -1e30f};
      scored[token] = scores[random() % 6];
    }
    const Vocabulary vocabulary = scored_vocabulary({scored.begin(), scored.end()});
    const auto tokenizer = create_or_die(vocabulary);
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (size_t length = random() % 30; length > 0; --length) {
        const size_t pick = random() % 9;
        text += pick < 7    ? units[pick]
                : pick == 7 ? " "
                            : std::string(1, static_cast<char>(random()));
      }
      if (text.find("<tool>") != std::string::npos) continue;
      ASSERT_EQ(*tokenizer->encode(text), naive_encode(vocabulary, text));
    }
  }
}

// llama.cpp's partition: for each token, the longest first, a search through all text that is left.
std::vector<int32_t> naive_partition(const std::vector<std::string>& tokens,
                                     const std::string& text) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < tokens.size(); ++i) order.push_back(static_cast<int32_t>(i));
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return tokens[static_cast<size_t>(a)].size() > tokens[static_cast<size_t>(b)].size();
  });
  std::vector<std::pair<int32_t, std::string>> parts = {{-1, text}};
  for (const int32_t id : order) {
    const std::string& token = tokens[static_cast<size_t>(id)];
    std::vector<std::pair<int32_t, std::string>> next;
    for (const auto& [found_id, part] : parts) {
      size_t start = 0;
      for (size_t at; found_id < 0 && (at = part.find(token, start)) != std::string::npos;) {
        next.push_back({-1, part.substr(start, at - start)});
        next.push_back({id, token});
        start = at + token.size();
      }
      next.push_back({found_id, part.substr(start)});
    }
    parts = next;
  }
  std::vector<int32_t> ids;
  for (const auto& [id, part] : parts) {
    if (id >= 0) ids.push_back(id);
    for (size_t i = 0; id < 0 && i < part.size(); ++i) ids.push_back(-1);
  }
  return ids;
}

TEST(ScoredTokenizer, FindsAddedTokensLongestFirst) {
  std::mt19937 random(9);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("seed 9, round " + std::to_string(round));
    // One token a length: those of equal lengths have no order that could be compared.
    Vocabulary vocabulary = scored_vocabulary({});
    std::vector<std::string> tokens;
    for (size_t length = 1; length <= 5; ++length) {
      std::string token;
      while (token.size() < length) token += static_cast<char>('a' + random() % 2);
      tokens.push_back(token);
      vocabulary.tokens.push_back(token);
      vocabulary.token_types.push_back(kUserDefinedToken);
      vocabulary.scores.push_back(0.0f);
    }
    const auto tokenizer = create_or_die(vocabulary);
    std::string text;
    for (size_t length = random() % 30; length > 0; --length) {
      text += static_cast<char>('a' + random() % 3);
    }
    std::vector<int32_t> expected = naive_partition(tokens, text);
    std::vector<int32_t> found = *tokenizer->encode(text);
    for (int32_t& id : found) id = id >= 260 ? id - 260 : -1;
    ASSERT_EQ(found, expected) << text;
  }
}

// ---- Scale
// ---------------------------------------------------------------------------------------

TEST(ScoredTokenizer, EncodesALongWordInNearlyLinearTime) {
  std::vector<std::pair<std::string, float>> scored = {{"a", -1}, {"b", -1}};
  for (const std::string& c : {std::string("a"), std::string("b"), std::string(kMark)}) {
    std::string run = c;
    while (run.size() < 48) {
      run += c;
      scored.push_back({run, -static_cast<float>(run.size() % 7)});
    }
  }
  const auto tokenizer = create_or_die(scored_vocabulary(scored));
  const auto seconds_for = [&](const std::string& unit, size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += unit;
    const std::clock_t start = std::clock();  // of the processor: other work does not count
    const auto ids = tokenizer->encode(text);
    const std::clock_t end = std::clock();
    EXPECT_EQ(*tokenizer->decode(*ids), text);
    return static_cast<double>(end - start) / CLOCKS_PER_SEC;
  };
  for (const std::string& unit : {std::string("a"), std::string("ab"), std::string(" ")}) {
    const double small = seconds_for(unit, size_t{1} << 14) + 0.01;
    const double large = seconds_for(unit, size_t{1} << 17);
    // Eight times the text; quadratic work would take 64 times as long.
    EXPECT_LT(large, 32.0 * small) << unit;
  }
}

// ---- Malformed data
// ------------------------------------------------------------------------------

TEST(ScoredTokenizer, RefusesMalformedVocabularies) {
  struct Bad {
    const char* field;
    void (*spoil)(Vocabulary&);
  };
  const std::vector<Bad> cases = {
      {"tokenizer.scores", [](Vocabulary& v) { v.scores.clear(); }},
      {"tokenizer.scores", [](Vocabulary& v) { v.scores.pop_back(); }},
      {"tokenizer.scores[7]",
       [](Vocabulary& v) { v.scores[7] = std::numeric_limits<float>::quiet_NaN(); }},
      {"tokenizer.token_type[5]", [](Vocabulary& v) { v.token_types[5] = 7; }},
      {"tokenizer.token_type[5]", [](Vocabulary& v) { v.token_types[5] = -1; }},
      {"tokenizer.tokens[6]", [](Vocabulary& v) { v.tokens[6] = "<0x-1>"; }},
      {"tokenizer.tokens[6]", [](Vocabulary& v) { v.tokens[6] = "<0x123>"; }},
      {"tokenizer.tokens[6]", [](Vocabulary& v) { v.tokens[6] = ""; }},
      {"tokenizer.tokens[261]", [](Vocabulary& v) { v.tokens[261] = "a"; }},
      {"tokenizer.tokens[261]", [](Vocabulary& v) { v.tokens[261] = "\xc3"; }},
      {"tokenizer.bos_token_id", [](Vocabulary& v) { v.bos_id = 262; }},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.field);
    Vocabulary vocabulary = scored_vocabulary({{"a", -1}, {"b", -1}});
    bad.spoil(vocabulary);
    const auto created = Tokenizer::create(vocabulary);
    ASSERT_FALSE(created.ok());
    EXPECT_EQ(created.status().field(), bad.field) << created.status().to_string();
    EXPECT_EQ(created.status().code(), Code::kDataLoss);
  }
}

TEST(ScoredTokenizer, LeavesEmptyTokensOutOfTexts) {
  const Vocabulary vocabulary = scored_vocabulary({{"a", -1}, {"", 5}, {"", 5}});
  const auto tokenizer = create_or_die(vocabulary);
  EXPECT_EQ(pieces(*tokenizer, "aa"), (Pieces{"a", "a"}));
  EXPECT_EQ(*tokenizer->decode(std::vector<int32_t>{261, 260, 262}), "a");
}

}  // namespace
}  // namespace chorus::text
