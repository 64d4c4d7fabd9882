// Tokenizers of a tokenizer.json.
#include <gtest/gtest.h>
#include <random>
#include <thread>

#include "text/testing/small_vocabulary.h"

namespace chorus::text {
namespace {

using testing::create_or_die;
using testing::Pieces;
using testing::pieces;

constexpr int32_t kNumIds = 300;

void replace(std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

// SentencePiece-style BPE as llama's folders have it: <unk>, <s>, </s>, <tool> (not special), the
// bytes, then what the merges make.
std::string bpe_json() {
  std::string vocab = R"("<unk>": 0, "<s>": 1, "</s>": 2, "<tool>": 3)";
  const char digits[] = "0123456789ABCDEF";
  for (size_t byte = 0; byte < 256; ++byte) {
    vocab += std::string(", \"<0x") + digits[byte / 16] + digits[byte % 16] +
             ">\": " + std::to_string(byte + 4);
  }
  int id = 260;
  for (const char* token : {"\xe2\x96\x81", "a", "b", "ab",
                            "\xe2\x96\x81"
                            "ab",
                            "<", "s", ">", "<s"}) {
    vocab += std::string(", \"") + token + "\": " + std::to_string(id++);
  }
  return R"({"version": "1.0", "truncation": {"max_length": 4, "strategy": "LongestFirst",
    "stride": 0, "direction": "Right"}, "padding": null,
    "added_tokens": [
      {"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 2, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 3, "content": "<tool>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": false}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
      "vocab": {)" +
         vocab + R"(},
      "merges": [["a", "b"], ["▁", "ab"], ["<", "s"], ["<s", ">"]]}})";
}

Vocabulary bpe_vocabulary() {
  return {.model = "huggingface",
          .definition = bpe_json(),
          .num_ids = kNumIds,
          .bos_id = 1,
          .eos_id = 2,
          .add_bos = true};
}

std::string unigram_json() {
  return R"({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 1, "content": "<s>", "single_word": false, "lstrip": false,
      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
      "split": true},
    "post_processor": null,
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
    "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
      "vocab": [["<unk>", 0.0], ["<s>", 0.0], ["▁", -2.0], ["a", -2.0], ["▁a", -1.0],
                ["<", -3.0], ["s", -3.0], [">", -3.0]]}})";
}

TEST(HuggingFace, EncodesAndDecodesAsTheDefinitionSays) {
  const auto tokenizer = create_or_die(bpe_vocabulary());
  EXPECT_EQ(tokenizer->vocabulary_size(), kNumIds);
  EXPECT_EQ(*tokenizer->encode("ab"), (std::vector<int32_t>{1, 264}));
  EXPECT_EQ(pieces(*tokenizer, "ab ab", {.add_special = false}), (Pieces{" ab", " ab"}));
  // Longer than the definition's truncation.
  EXPECT_EQ(tokenizer->encode("abababab")->size(), 5u);
  const auto ids = *tokenizer->encode("ab\xc3\xa9", {.add_special = false});
  EXPECT_EQ(ids, (std::vector<int32_t>{264, 4 + 0xc3, 4 + 0xa9}));
  EXPECT_EQ(*tokenizer->decode(ids), " ab\xc3\xa9");
  EXPECT_EQ(*tokenizer->decode(ids, {.whole_text = true}), "ab\xc3\xa9");
}

TEST(HuggingFace, FindsSpecialTokensOnlyWhenAsked) {
  const auto tokenizer = create_or_die(bpe_vocabulary());
  const EncodeOptions asked{.parse_special = true, .add_special = false};
  EXPECT_EQ(*tokenizer->encode("</s>", asked), std::vector<int32_t>{2});
  for (const char* text : {"<s>", "</s>", "ab<s>ab", "<unk>"}) {
    // The merges of this model build <s>, too.
    const auto ids = tokenizer->encode(text, {.add_special = false});
    ASSERT_TRUE(ids.ok()) << ids.status().to_string();
    for (const int32_t id : *ids) EXPECT_FALSE(tokenizer->is_special(id)) << text;
    EXPECT_EQ(*tokenizer->decode(*ids, {.whole_text = true}), text);
  }
  const auto ids = *tokenizer->encode("<tool>", {.add_special = false});
  EXPECT_EQ(ids, std::vector<int32_t>{3});
  EXPECT_TRUE(tokenizer->is_special(0));
  EXPECT_FALSE(tokenizer->is_special(3));
}

TEST(HuggingFace, SpecialTokensOfAUnigramModelAreNotMadeOfText) {
  const auto tokenizer =
      create_or_die({.model = "huggingface", .definition = unigram_json(), .num_ids = 10});
  EXPECT_EQ(*tokenizer->encode("a<s>"), (std::vector<int32_t>{4, 5, 6, 7}));
  EXPECT_EQ((*tokenizer->encode("a<s>", {.parse_special = true}))[1], 1);
  EXPECT_EQ(*tokenizer->decode(std::vector<int32_t>{4, 4}, {.whole_text = true}), "a a");
}

TEST(HuggingFace, AddsBosAndEosAsItIsTold) {
  Vocabulary vocabulary = bpe_vocabulary();
  const EncodeOptions asked{.parse_special = true};
  EXPECT_EQ(*create_or_die(vocabulary)->encode("<s>ab", asked), (std::vector<int32_t>{1, 264}));
  vocabulary.add_eos = true;
  EXPECT_EQ(*create_or_die(vocabulary)->encode("ab"), (std::vector<int32_t>{1, 264, 2}));
  vocabulary.add_bos = false;  // against the post-processor
  EXPECT_EQ(*create_or_die(vocabulary)->encode("ab"), (std::vector<int32_t>{264, 2}));
  vocabulary.bos_id = -1;  // it is not known to be BOS
  EXPECT_EQ(*create_or_die(vocabulary)->encode("ab"), (std::vector<int32_t>{1, 264, 2}));
}

TEST(HuggingFace, IdsWithoutTokenMeanNothing) {
  const auto tokenizer = create_or_die(bpe_vocabulary());
  EXPECT_EQ(*tokenizer->decode(std::vector<int32_t>{kNumIds - 1, 261}), "a");
  EXPECT_FALSE(tokenizer->decode(std::vector<int32_t>{kNumIds}).ok());
  // A model with fewer ids than the tokenizer.
  Vocabulary vocabulary = bpe_vocabulary();
  vocabulary.num_ids = 263;
  const auto smaller = create_or_die(vocabulary);
  EXPECT_TRUE(smaller->encode("a").ok());
  EXPECT_EQ(smaller->encode("ab").status(),
            invalid_argument("prompt", "the text needs token 264, and the model has 263 tokens"));
}

TEST(HuggingFace, RefusesWhatWouldBeLost) {
  const auto tokenizer = create_or_die(bpe_vocabulary());
  EXPECT_TRUE(tokenizer->encode("ab \xc3\xa9", {.refuse_lossy = true}).ok());
  EXPECT_EQ(tokenizer->encode("ab\xff", {.refuse_lossy = true}).status(),
            invalid_argument("prompt", "the tokenizer changes or drops what begins at byte 2"));
  const auto ids = *tokenizer->encode("ab\xff", {.add_special = false});
  EXPECT_EQ(*tokenizer->decode(ids, {.whole_text = true}), "ab\xef\xbf\xbd");
}

TEST(HuggingFace, EncodesOnSeveralThreads) {
  const auto tokenizer = create_or_die(bpe_vocabulary());
  const std::string text = "ab <s> a b <tool>";
  std::vector<std::thread> threads;
  std::array<bool, 4> same = {};
  const auto expected = *create_or_die(bpe_vocabulary())->encode(text);
  for (size_t t = 0; t < same.size(); ++t) {
    threads.emplace_back([&, t] { same[t] = *tokenizer->encode(text) == expected; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, (std::array<bool, 4>{true, true, true, true}));
}

TEST(HuggingFace, RefusesMalformedDefinitions) {
  struct Bad {
    const char* field;
    Code code;
    const char* from;
    const char* to;
  };
  const std::vector<Bad> cases = {
      {"tokenizer.json", Code::kDataLoss, "\"version\"", "version"},
      {"tokenizer.json", Code::kDataLoss, "\"BPE\"", "\"XYZ\""},
      {"tokenizer.json", Code::kDataLoss, "\"a\", \"b\"]", "\"a\", \"nowhere\"]"},
      {"tokenizer.json", Code::kDataLoss, "\"<unk>\": 0", "\"<unk>\": 1e300"},
      {"tokenizer.json", Code::kDataLoss, "\"<unk>\": 0", "\"<unk>\": -1"},
      {"tokenizer.json", Code::kDataLoss, "\"<unk>\": 0", "\"<unk>\": \"0\""},
      {"tokenizer.json", Code::kDataLoss, "\"id\": 3, ", "\"id\": 99999999999, "},
      {"tokenizer.json.decoder", Code::kUnimplemented, "{\"type\": \"ByteFallback\"}",
       "{\"type\": \"WordPiece\", \"prefix\": \"#\", \"cleanup\": true}"},
      {"tokenizer.json.decoder", Code::kUnimplemented, "\"start\": 1", "\"start\": 2"},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.to);
    Vocabulary vocabulary = bpe_vocabulary();
    replace(vocabulary.definition, bad.from, bad.to);
    const auto created = Tokenizer::create(vocabulary);
    ASSERT_FALSE(created.ok());
    EXPECT_EQ(created.status().field(), bad.field) << created.status().to_string();
    EXPECT_EQ(created.status().code(), bad.code) << created.status().to_string();
  }
  Vocabulary vocabulary = bpe_vocabulary();
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{}"), std::string("\xff"),
        std::string("null"), std::string(100'000, '['),
        "{\"model\":" + std::string(100'000, '{')}) {
    vocabulary.definition = text;
    const auto created = Tokenizer::create(vocabulary);
    ASSERT_FALSE(created.ok());
    EXPECT_EQ(created.status().field(), "tokenizer.json");
    EXPECT_EQ(created.status().code(), Code::kDataLoss);
  }
  vocabulary = bpe_vocabulary();
  vocabulary.bos_id = kNumIds;
  EXPECT_EQ(Tokenizer::create(vocabulary).status().field(), "tokenizer.bos_token_id");
}

TEST(HuggingFace, SurvivesRandomDamage) {
  std::mt19937 random(13);
  const std::string whole[] = {bpe_json(), unigram_json()};
  int usable = 0;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("seed 13, round " + std::to_string(round));
    Vocabulary vocabulary = bpe_vocabulary();
    vocabulary.definition = whole[round % 2];
    for (int spot = 0; spot < 2; ++spot) {
      const size_t at = random() % vocabulary.definition.size();
      vocabulary.definition[at] = static_cast<char>(' ' + random() % 95);
    }
    const auto created = Tokenizer::create(vocabulary);
    if (!created.ok()) continue;
    ++usable;
    for (const bool parse : {false, true}) {
      const auto ids = (*created)->encode("ab <s> \xff 12", {.parse_special = parse});
      if (ids.ok()) {
        ASSERT_TRUE((*created)->decode(*ids, {.whole_text = true}).ok());
      }
    }
  }
  EXPECT_GT(usable, 10);
}

}  // namespace
}  // namespace chorus::text
