// The texts of a Hugging Face folder beside its weights: config.json, generation_config.json,
// tokenizer_config.json and the chat template, parsed without the file system.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "json/value.h"

namespace chorus {

// The files' contents; nullopt where the folder has none.
struct HfTexts {
  std::string config;
  std::optional<std::string> generation_config = {};
  std::optional<std::string> tokenizer_config = {};
  std::optional<std::string> special_tokens_map = {};   // older folders
  std::optional<std::string> chat_template_jinja = {};  // the template itself
  std::optional<std::string> chat_template_json = {};   // {"chat_template": "..."}
};

struct HfSpecialToken {
  std::optional<int32_t> id;
  std::string text;  // empty where the folder does not say

  bool is_known() const { return id.has_value() || !text.empty(); }
};

struct HfChatTemplate {
  std::string name;  // "default" for the one and only
  std::string text;
};

struct HfSettings {
  json::Value config;             // an object
  json::Value generation_config;  // an object, or null
  json::Value tokenizer_config;   // an object, or null

  // Texts are the tokenizer's. Ids: of generation_config.json, else of config.json, else of its
  // text_config, else the id that tokenizer_config.json gives to the text.
  HfSpecialToken bos;
  HfSpecialToken eos;  // the first one, where a configuration lists several
  HfSpecialToken pad;
  HfSpecialToken unk;
  // Every id that ends a generation, each once: those of the first configuration in the same order
  // that has any, then the tokenizer's own.
  std::vector<int32_t> eos_ids;
  // As tokenizer_config.json says.
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;

  // From chat_template.jinja, else tokenizer_config.json, else chat_template.json. Several with
  // names are possible in the latter two.
  std::vector<HfChatTemplate> chat_templates;

  // The one for plain chats: named "default". nullptr when there is none.
  const std::string* chat_template() const;
};

// Errors: kDataLoss; the field is the file and the member, "tokenizer_config.json.eos_token".
Result<HfSettings> parse_hf_settings(const HfTexts& texts);

}  // namespace chorus
