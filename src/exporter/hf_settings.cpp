#include "exporter/hf_settings.h"

#include <algorithm>

#include "program/names.h"

namespace chorus {

namespace {

constexpr char kConfig[] = "config.json";
constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr char kSpecialTokensMap[] = "special_tokens_map.json";
constexpr char kChatTemplateJson[] = "chat_template.json";

// Bounds that keep a damaged file from costing time; real files are far below.
constexpr size_t kMaxEosIds = 256;
constexpr size_t kMaxChatTemplates = 256;

Result<json::Value> parse_object(std::string_view text, std::string file) {
  auto value = json::parse(text, file);
  if (!value.ok()) return data_loss(std::move(file), value.status().message());
  if (!value->is_object()) {
    return data_loss(std::move(file),
                     "expected an object, found " + std::string(value->type_name()));
  }
  return value;
}

// Null where the folder has no such file.
Result<json::Value> parse_optional(const std::optional<std::string>& text, const char* file) {
  if (!text) return json::Value();
  return parse_object(*text, file);
}

// The member, or nullptr when it is absent or null.
const json::Value* member(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<int32_t> to_id(const json::Value& value, const std::string& field) {
  const auto id = value.to_integer(field, 0, INT32_MAX);
  if (!id.ok()) return data_loss(field, id.status().message());
  return static_cast<int32_t>(*id);
}

// An id or a list of ids. -1 is how some files write that there is none.
Result<std::vector<int32_t>> to_ids(const json::Value& value, const std::string& field,
                                    size_t most) {
  std::vector<int32_t> ids;
  if (!value.is_array()) {
    if (const auto none = value.to_integer(field, -1, -1); none.ok()) return ids;
    CHORUS_ASSIGN_OR_RETURN(const int32_t id, to_id(value, field));
    ids.push_back(id);
    return ids;
  }
  const size_t count = value.as_array().size();
  if (count > most) {
    return data_loss(
        field, "expected at most " + std::to_string(most) + " ids, found " + std::to_string(count));
  }
  for (size_t i = 0; i < count; ++i) {
    CHORUS_ASSIGN_OR_RETURN(const int32_t id,
                            to_id(value.as_array()[i], field + "[" + std::to_string(i) + "]"));
    ids.push_back(id);
  }
  return ids;
}

// One token: its text, an object with the text as "content", or its id.
Result<HfSpecialToken> to_token(const json::Value& value, const std::string& field) {
  HfSpecialToken token;
  const json::Value* content = value.is_object() ? value.find("content") : &value;
  if (content != nullptr && content->is_string()) {
    token.text = content->as_string();
    return token;
  }
  if (value.is_number()) {
    CHORUS_ASSIGN_OR_RETURN(token.id, to_id(value, field));
    return token;
  }
  return data_loss(field, "expected a text, an object with a content, or an id, found " +
                              std::string(value.type_name()));
}

Result<std::optional<bool>> to_flag(const json::Value& object, const char* key) {
  const json::Value* value = member(object, key);
  if (value == nullptr) return std::optional<bool>();
  if (value->is_bool()) return std::optional(value->as_bool());
  return data_loss(std::string(kTokenizerConfig) + "." + key,
                   "expected true or false, found " + std::string(value->type_name()));
}

// The list of templates with names, or the one template.
Result<std::vector<HfChatTemplate>> to_templates(const json::Value& value,
                                                 const std::string& field) {
  std::vector<HfChatTemplate> templates;
  if (value.is_string()) {
    templates.push_back({"default", value.as_string()});
    return templates;
  }
  if (!value.is_array() || value.as_array().size() > kMaxChatTemplates) {
    return data_loss(field, "expected a text or a list of at most " +
                                std::to_string(kMaxChatTemplates) + " named templates");
  }
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    const json::Value* name = value.as_array()[i].find("name");
    const json::Value* text = value.as_array()[i].find("template");
    const std::string entry = field + "[" + std::to_string(i) + "]";
    if (name == nullptr || text == nullptr || !name->is_string() || !text->is_string()) {
      return data_loss(entry, "expected an object with the texts name and template");
    }
    const bool repeated =
        std::any_of(templates.begin(), templates.end(),
                    [&](const HfChatTemplate& each) { return each.name == name->as_string(); });
    if (repeated) {
      return data_loss(entry,
                       "expected each name once, found " + quoted(name->as_string()) + " twice");
    }
    templates.push_back({name->as_string(), text->as_string()});
  }
  return templates;
}

class Reader {
 public:
  Reader(const HfTexts& texts, HfSettings& settings) : texts_(texts), settings_(settings) {}

  Status read() {
    CHORUS_ASSIGN_OR_RETURN(settings_.config, parse_object(texts_.config, kConfig));
    CHORUS_ASSIGN_OR_RETURN(settings_.generation_config,
                            parse_optional(texts_.generation_config, kGenerationConfig));
    CHORUS_ASSIGN_OR_RETURN(settings_.tokenizer_config,
                            parse_optional(texts_.tokenizer_config, kTokenizerConfig));
    CHORUS_ASSIGN_OR_RETURN(special_tokens_map_,
                            parse_optional(texts_.special_tokens_map, kSpecialTokensMap));
    CHORUS_RETURN_IF_ERROR(read_special_token("bos", settings_.bos, nullptr));
    CHORUS_RETURN_IF_ERROR(read_special_token("eos", settings_.eos, &settings_.eos_ids));
    CHORUS_RETURN_IF_ERROR(read_special_token("pad", settings_.pad, nullptr));
    CHORUS_RETURN_IF_ERROR(read_special_token("unk", settings_.unk, nullptr));
    CHORUS_ASSIGN_OR_RETURN(settings_.add_bos,
                            to_flag(settings_.tokenizer_config, "add_bos_token"));
    CHORUS_ASSIGN_OR_RETURN(settings_.add_eos,
                            to_flag(settings_.tokenizer_config, "add_eos_token"));
    return read_chat_templates();
  }

 private:
  // `all` takes every id, where several are allowed.
  Status read_special_token(const std::string& name, HfSpecialToken& token,
                            std::vector<int32_t>* all) {
    CHORUS_ASSIGN_OR_RETURN(const auto ids,
                            configured_ids(name + "_token_id", all == nullptr ? 1 : kMaxEosIds));
    CHORUS_ASSIGN_OR_RETURN(const HfSpecialToken own, tokenizer_token(name + "_token"));
    token.text = own.text;
    token.id = ids.empty() ? own.id : std::optional(ids[0]);
    if (all == nullptr) return Status();
    for (const int32_t id : ids) add_once(id, *all);
    if (own.id) add_once(*own.id, *all);
    return Status();
  }

  static void add_once(int32_t id, std::vector<int32_t>& ids) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }

  // Of the first configuration that has any.
  Result<std::vector<int32_t>> configured_ids(const std::string& key, size_t most) const {
    const json::Value* text_config = member(settings_.config, "text_config");
    const std::pair<const json::Value*, std::string> sources[] = {
        {&settings_.generation_config, kGenerationConfig},
        {&settings_.config, kConfig},
        {text_config, std::string(kConfig) + ".text_config"}};
    for (const auto& [object, file] : sources) {
      const json::Value* value = object == nullptr ? nullptr : member(*object, key);
      if (value == nullptr) continue;
      CHORUS_ASSIGN_OR_RETURN(auto ids, to_ids(*value, file + "." + key, most));
      if (!ids.empty()) return ids;
    }
    return std::vector<int32_t>();
  }

  // The token as the tokenizer's files name it, with its id where they say it.
  Result<HfSpecialToken> tokenizer_token(const std::string& key) const {
    HfSpecialToken token;
    if (const json::Value* value = member(settings_.tokenizer_config, key); value != nullptr) {
      CHORUS_ASSIGN_OR_RETURN(token, to_token(*value, std::string(kTokenizerConfig) + "." + key));
    } else if (value = member(special_tokens_map_, key); value != nullptr) {
      CHORUS_ASSIGN_OR_RETURN(token, to_token(*value, std::string(kSpecialTokensMap) + "." + key));
    }
    if (!token.id && !token.text.empty()) {
      CHORUS_ASSIGN_OR_RETURN(token.id, added_token_id(token.text));
    }
    return token;
  }

  // {"added_tokens_decoder": {"2": {"content": "</s>", ...}, ...}}.
  Result<std::optional<int32_t>> added_token_id(const std::string& text) const {
    static constexpr char kField[] = "tokenizer_config.json.added_tokens_decoder";
    const json::Value* tokens = member(settings_.tokenizer_config, "added_tokens_decoder");
    if (tokens == nullptr) return std::optional<int32_t>();
    if (!tokens->is_object()) {
      return data_loss(kField, "expected an object, found " + std::string(tokens->type_name()));
    }
    for (const auto& [key, token] : tokens->as_object()) {
      const json::Value* content = token.find("content");
      if (content == nullptr || !content->is_string() || content->as_string() != text) continue;
      const auto number = json::parse(key, kField);
      const auto id = number.ok() ? to_id(*number, kField) : Result<int32_t>(number.status());
      if (!id.ok()) return data_loss(kField, "expected ids as names, found " + quoted(key));
      return std::optional(*id);
    }
    return std::optional<int32_t>();
  }

  Status read_chat_templates() {
    static constexpr char kKey[] = "chat_template";
    if (texts_.chat_template_jinja) {
      settings_.chat_templates.push_back({"default", *texts_.chat_template_jinja});
      return Status();
    }
    const json::Value* value = member(settings_.tokenizer_config, kKey);
    std::string field = std::string(kTokenizerConfig) + "." + kKey;
    json::Value own_file;
    if (value == nullptr && texts_.chat_template_json) {
      CHORUS_ASSIGN_OR_RETURN(own_file,
                              parse_object(*texts_.chat_template_json, kChatTemplateJson));
      value = member(own_file, kKey);
      field = std::string(kChatTemplateJson) + "." + kKey;
      if (value == nullptr) return data_loss(field, "expected this member, found none");
    }
    if (value == nullptr) return Status();
    CHORUS_ASSIGN_OR_RETURN(settings_.chat_templates, to_templates(*value, field));
    return Status();
  }

  const HfTexts& texts_;
  HfSettings& settings_;
  json::Value special_tokens_map_;
};

}  // namespace

const std::string* HfSettings::chat_template() const {
  for (const HfChatTemplate& each : chat_templates) {
    if (each.name == "default") return &each.text;
  }
  return nullptr;
}

Result<HfSettings> parse_hf_settings(const HfTexts& texts) {
  HfSettings settings;
  CHORUS_RETURN_IF_ERROR(Reader(texts, settings).read());
  return settings;
}

}  // namespace chorus
