#include "exporter/lower_hf_tokenizer.h"

#include <gtest/gtest.h>
#include <string>

namespace chorus {
namespace {

constexpr char kDefinition[] = R"({
  "added_tokens": [
    {"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true},
    {"id": 2, "content": "</s>", "special": true}, {"id": 7, "content": "<|im_end|>", "special": true},
    {"id": 8, "content": "<|eot_id|>", "special": false}, {"id": 90, "content": "<pad>", "special": true}],
  "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
     "special_tokens": {"<s>": {"ids": [1]}}}]},
  "model": {"type": "BPE", "vocab": {"plain": 5}}})";

HfSettings settings_of(std::string tokenizer_config, std::string config = "{}",
                       std::string generation_config = "{}") {
  auto settings = parse_hf_settings({.config = std::move(config),
                                     .generation_config = std::move(generation_config),
                                     .tokenizer_config = std::move(tokenizer_config)});
  EXPECT_TRUE(settings.ok()) << settings.status().to_string();
  return std::move(settings).value();
}

Result<TokenizerFacts> lower(std::string_view definition, const HfSettings& settings) {
  ProgramFacts facts;
  facts.vocabulary = 20;
  CHORUS_RETURN_IF_ERROR(lower_hf_tokenizer(std::as_bytes(std::span(definition)), settings, facts));
  EXPECT_EQ(facts.definition, definition);
  return facts.tokenizer;
}

TokenizerFacts facts_of(std::string_view definition, const HfSettings& settings) {
  auto facts = lower(definition, settings);
  EXPECT_TRUE(facts.ok()) << facts.status().to_string();
  return std::move(facts).value();
}

TEST(LowerHfTokenizer, TakesIdsFromTheTokenizersOwnTexts) {
  // The configuration's ids are those of another tokenizer.
  const auto facts = facts_of(
      kDefinition,
      settings_of(R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"})",
                  R"({"bos_token_id": 11, "eos_token_id": 12, "pad_token_id": 3})"));
  EXPECT_EQ(facts.model, "huggingface");
  EXPECT_EQ(facts.pre, "BPE");
  EXPECT_EQ(facts.bos, 1);
  EXPECT_EQ(facts.eos, 2);
  EXPECT_EQ(facts.unk, 0);
  EXPECT_EQ(facts.pad, 3);
  EXPECT_TRUE(facts.add_bos);
  EXPECT_FALSE(facts.add_eos);
  // The configured id ends a generation too, and so does what ends a turn.
  EXPECT_EQ(facts.end_ids, (std::vector<int32_t>{12, 7}));
}

TEST(LowerHfTokenizer, TakesEveryEosIdOfTheGenerationConfig) {
  const auto facts = facts_of(
      kDefinition, settings_of("{}", R"({"eos_token_id": 3})", R"({"eos_token_id": [4, 6, 25]})"));
  EXPECT_EQ(facts.eos, 4);
  EXPECT_EQ(facts.end_ids, (std::vector<int32_t>{6, 2, 7}));
}

TEST(LowerHfTokenizer, LeavesOutIdsWithoutRow) {
  const auto facts = facts_of(
      kDefinition,
      settings_of(R"({"pad_token": "<pad>", "bos_token": "plain"})", R"({"eos_token_id": 20})"));
  EXPECT_EQ(facts.pad, -1);
  EXPECT_EQ(facts.eos, -1);
  EXPECT_EQ(facts.bos, 5);
}

TEST(LowerHfTokenizer, FollowsTheConfigurationBeforeThePostProcessor) {
  const auto facts = facts_of(kDefinition, settings_of(R"({"bos_token": "<s>", "eos_token": "</s>",
      "add_bos_token": false, "add_eos_token": true})"));
  EXPECT_FALSE(facts.add_bos);
  EXPECT_TRUE(facts.add_eos);
  // Nothing to add.
  EXPECT_FALSE(facts_of(kDefinition, settings_of(R"({"add_bos_token": true})")).add_bos);
}

TEST(LowerHfTokenizer, AcceptsFoldersWithoutTokenizer) {
  const auto facts = facts_of("", settings_of("{}", R"({"eos_token_id": [3, 4]})"));
  EXPECT_TRUE(facts.model.empty());
  EXPECT_EQ(facts.eos, 3);
  EXPECT_EQ(facts.end_ids, std::vector<int32_t>{4});
}

TEST(LowerHfTokenizer, NamesWhatIsMalformed) {
  const std::pair<std::string, const char*> cases[] = {
      {"{", "tokenizer.json"},
      {"[]", "tokenizer.json"},
      {"\xff", "tokenizer.json"},
      {std::string(100'000, '['), "tokenizer.json"},
      {R"({"model": 1e999})", "tokenizer.json"},
      {R"({"model": {}, "model": {}})", "tokenizer.json"},
      {"{}", "tokenizer.json.model"},
      {R"({"model": "BPE"})", "tokenizer.json.model"},
      {R"({"model": {"type": "\u0001"}})", "tokenizer.json.model.type"}};
  const HfSettings settings = settings_of("{}");
  for (const auto& [definition, field] : cases) {
    const auto facts = lower(definition, settings);
    ASSERT_FALSE(facts.ok()) << definition.substr(0, 40);
    EXPECT_EQ(facts.status().code(), Code::kDataLoss);
    EXPECT_EQ(facts.status().field(), field);
  }
}

TEST(LowerHfTokenizer, ReadsWhatItCanOfOddMembers) {
  // Hugging Face's own reader checks these; here nothing may go wrong.
  for (const char* definition :
       {R"({"model": {"vocab": [["a", 0], [], 3, [4]]}, "added_tokens": 3, "post_processor": []})",
        R"({"model": {"vocab": 3}, "added_tokens": [3, {}, {"content": "<s>", "id": -1}],
            "post_processor": {"type": "TemplateProcessing", "single": [3]}})",
        R"({"model": {}, "post_processor": {"type": "Sequence", "processors": [
            {"type": "Sequence", "processors": []}, {"type": "BertProcessing", "cls": ["a"]}]}})"}) {
    const auto facts =
        facts_of(definition, settings_of(R"({"bos_token": "<s>", "eos_token": "a"})"));
    EXPECT_EQ(facts.bos, -1);
  }
}

}  // namespace
}  // namespace chorus
