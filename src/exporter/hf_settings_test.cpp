#include "exporter/hf_settings.h"

#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

namespace chorus {
namespace {

HfSettings parse(const HfTexts& texts) {
  auto settings = parse_hf_settings(texts);
  EXPECT_TRUE(settings.ok()) << settings.status().to_string();
  return settings.ok() ? std::move(settings).value() : HfSettings();
}

TEST(HfSettings, ConfigAloneIsEnough) {
  const HfSettings s = parse({.config = R"({"model_type": "llama", "eos_token_id": 2})"});
  EXPECT_EQ(s.config.find("model_type")->as_string(), "llama");
  EXPECT_TRUE(s.generation_config.is_null());
  EXPECT_TRUE(s.tokenizer_config.is_null());
  EXPECT_EQ(s.eos.id, 2);
  EXPECT_EQ(s.eos_ids, std::vector<int32_t>{2});
  EXPECT_FALSE(s.bos.is_known());
  EXPECT_TRUE(s.chat_templates.empty());
  EXPECT_EQ(s.chat_template(), nullptr);
}

TEST(HfSettings, IdsComeFromTheGenerationFirst) {
  HfTexts texts;
  texts.config = R"({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": null})";
  texts.generation_config = R"({"eos_token_id": [7, 5, 7], "pad_token_id": 0})";
  HfSettings s = parse(texts);
  EXPECT_EQ(s.bos.id, 1);
  EXPECT_EQ(s.eos.id, 7);
  EXPECT_EQ(s.eos_ids, (std::vector<int32_t>{7, 5}));
  EXPECT_EQ(s.pad.id, 0);
  // A model in a model.
  s = parse({.config = R"({"text_config": {"eos_token_id": [1, 106], "bos_token_id": 2},
                           "bos_token_id": -1})"});
  EXPECT_EQ(s.eos_ids, (std::vector<int32_t>{1, 106}));
  EXPECT_EQ(s.bos.id, 2);
}

TEST(HfSettings, TokensAreTextsOrObjects) {
  HfTexts texts;
  texts.config = "{}";
  texts.tokenizer_config = R"({
      "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": false},
      "eos_token": "</s>", "unk_token": null, "add_bos_token": true, "add_eos_token": false,
      "added_tokens_decoder": {"0": {"content": "<unk>"}, "4": {"content": "</s>"}}})";
  texts.special_tokens_map = R"({"bos_token": "wrong", "pad_token": {"content": "<pad>"},
                                 "unk_token": "<unk>"})";
  HfSettings s = parse(texts);
  EXPECT_EQ(s.bos.text, "<s>");
  EXPECT_FALSE(s.bos.id.has_value());
  EXPECT_EQ(s.eos.text, "</s>");
  EXPECT_EQ(s.eos.id, 4);
  EXPECT_EQ(s.eos_ids, std::vector<int32_t>{4});
  EXPECT_EQ(s.pad.text, "<pad>");
  EXPECT_EQ(s.unk.id, 0);
  EXPECT_EQ(s.add_bos, true);
  EXPECT_EQ(s.add_eos, false);
  // The tokenizer's own end is added to the configured ones.
  texts.generation_config = R"({"eos_token_id": 9})";
  s = parse(texts);
  EXPECT_EQ(s.eos.id, 9);
  EXPECT_EQ(s.eos_ids, (std::vector<int32_t>{9, 4}));
}

TEST(HfSettings, TheTemplateIsFoundInEitherPlace) {
  HfTexts texts;
  texts.config = "{}";
  texts.chat_template_json = R"({"chat_template": "of its own json"})";
  EXPECT_EQ(*parse(texts).chat_template(), "of its own json");
  texts.tokenizer_config = R"({"chat_template": "of the tokenizer"})";
  EXPECT_EQ(*parse(texts).chat_template(), "of the tokenizer");
  texts.chat_template_jinja = "its own file";
  EXPECT_EQ(*parse(texts).chat_template(), "its own file");
  texts.chat_template_jinja.reset();
  texts.tokenizer_config = R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                                 {"name": "default", "template": "d"}]})";
  const HfSettings several = parse(texts);
  EXPECT_EQ(several.chat_templates.size(), 2u);
  EXPECT_EQ(*several.chat_template(), "d");
  texts.tokenizer_config = R"({"chat_template": [{"name": "tool_use", "template": "t"}]})";
  EXPECT_EQ(parse(texts).chat_template(), nullptr);
}

struct Fault {
  const char* field;
  HfTexts texts;
};

TEST(HfSettings, FaultsAreRefusedByName) {
  const auto tokenizer = [](const char* text) {
    return HfTexts{.config = "{}", .tokenizer_config = text};
  };
  const std::vector<Fault> faults = {
      {"config.json", {.config = ""}},
      {"config.json", {.config = "[]"}},
      {"config.json", {.config = R"({"a": 1, "a": 2})"}},
      {"config.json", {.config = std::string(1000, '[')}},
      {"config.json.eos_token_id", {.config = R"({"eos_token_id": "x"})"}},
      {"config.json.eos_token_id", {.config = R"({"eos_token_id": -2})"}},
      {"config.json.eos_token_id", {.config = R"({"eos_token_id": 4294967296})"}},
      {"config.json.eos_token_id[1]", {.config = R"({"eos_token_id": [1, null]})"}},
      {"config.json.bos_token_id", {.config = R"({"bos_token_id": [1, 2]})"}},
      {"config.json.text_config.bos_token_id",
       {.config = R"({"text_config": {"bos_token_id": 0.5}})"}},
      {"generation_config.json", {.config = "{}", .generation_config = "no"}},
      {"generation_config.json.pad_token_id",
       {.config = "{}", .generation_config = R"({"pad_token_id": {}})"}},
      {"special_tokens_map.json", {.config = "{}", .special_tokens_map = "3"}},
      {"special_tokens_map.json.bos_token",
       {.config = "{}", .special_tokens_map = R"({"bos_token": []})"}},
      {"chat_template.json", {.config = "{}", .chat_template_json = "{{ x }}"}},
      {"chat_template.json.chat_template", {.config = "{}", .chat_template_json = "{}"}},
      {"tokenizer_config.json", tokenizer("{")},
      {"tokenizer_config.json.bos_token", tokenizer(R"({"bos_token": true})")},
      {"tokenizer_config.json.bos_token", tokenizer(R"({"bos_token": {"id": 3}})")},
      {"tokenizer_config.json.add_bos_token", tokenizer(R"({"add_bos_token": "yes"})")},
      {"tokenizer_config.json.chat_template", tokenizer(R"({"chat_template": 3})")},
      {"tokenizer_config.json.chat_template[0]", tokenizer(R"({"chat_template": ["x"]})")},
      {"tokenizer_config.json.chat_template[1]",
       tokenizer(R"({"chat_template": [{"name": "a", "template": ""},
                                       {"name": "a", "template": ""}]})")},
      {"tokenizer_config.json.added_tokens_decoder",
       tokenizer(R"({"bos_token": "<s>", "added_tokens_decoder": []})")},
      {"tokenizer_config.json.added_tokens_decoder",
       tokenizer(R"({"bos_token": "<s>", "added_tokens_decoder": {"x": {"content": "<s>"}}})")},
  };
  for (const Fault& fault : faults) {
    const Status status = parse_hf_settings(fault.texts).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << fault.field << " " << status.to_string();
    EXPECT_EQ(status.field(), fault.field) << status.to_string();
  }
  std::string many = "[0";
  for (int i = 0; i < 300; ++i) many += ",0";
  EXPECT_EQ(parse_hf_settings({.config = "{\"eos_token_id\": " + many + "]}"}).status().field(),
            "config.json.eos_token_id");
}

}  // namespace
}  // namespace chorus
