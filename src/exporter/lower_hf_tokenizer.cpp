#include "exporter/lower_hf_tokenizer.h"

#include <optional>
#include <string>
#include <string_view>

#include "exporter/end_tokens.h"
#include "json/value.h"
#include "program/limits.h"
#include "program/names.h"

namespace chorus {

namespace {

constexpr char kFile[] = "tokenizer.json";
constexpr int kMaxDepth = 64;

std::string_view text_of(const json::Value& object, std::string_view name) {
  const json::Value* value = object.find(name);
  return value != nullptr && value->is_string() ? value->as_string() : std::string_view();
}

// An id below `count`, or nullopt: of a number, where there is one.
std::optional<int32_t> id_of(const json::Value* value, int32_t count) {
  if (value == nullptr || !value->is_number()) return std::nullopt;
  const auto id = value->to_integer("id", 0, count - 1);
  if (!id.ok()) return std::nullopt;
  return static_cast<int32_t>(*id);
}

class Definition {
 public:
  Definition(const json::Value& root, int32_t num_ids) : root_(root), num_ids_(num_ids) {}

  // The id of a token's text; nullopt when it has none that the model knows.
  std::optional<int32_t> find(std::string_view text) const;
  // Makes the special tokens that end a turn end a generation.
  void add_end_ids(TokenizerFacts& facts) const;
  // The token that the post-processor puts at an end of a text; nullopt when there is none.
  std::optional<int32_t> added_end(bool at_front) const { return added_end(processor(), at_front); }

 private:
  const json::Value* processor() const { return root_.find("post_processor"); }
  std::optional<int32_t> added_end(const json::Value* processor, bool at_front) const;
  std::optional<int32_t> template_end(const json::Value& processor, bool at_front) const;

  const json::Value& root_;
  int32_t num_ids_;
};

std::optional<int32_t> Definition::find(std::string_view text) const {
  if (text.empty()) return std::nullopt;
  const json::Value* added = root_.find("added_tokens");
  if (added != nullptr && added->is_array()) {
    for (const json::Value& token : added->as_array()) {
      if (text_of(token, "content") == text) return id_of(token.find("id"), num_ids_);
    }
  }
  const json::Value* vocabulary = root_.find("model")->find("vocab");
  if (vocabulary == nullptr) return std::nullopt;
  if (vocabulary->is_object()) return id_of(vocabulary->find(text), num_ids_);
  if (!vocabulary->is_array()) return std::nullopt;
  int64_t id = 0;
  for (const json::Value& entry : vocabulary->as_array()) {
    const bool is_same = entry.is_array() && !entry.as_array().empty() &&
                         entry.as_array()[0].is_string() && entry.as_array()[0].as_string() == text;
    if (is_same && id < num_ids_) return static_cast<int32_t>(id);
    ++id;
  }
  return std::nullopt;
}

void Definition::add_end_ids(TokenizerFacts& facts) const {
  const json::Value* added = root_.find("added_tokens");
  if (added == nullptr || !added->is_array()) return;
  for (const json::Value& token : added->as_array()) {
    const json::Value* special = token.find("special");
    const bool is_special = special != nullptr && special->is_bool() && special->as_bool();
    if (!is_special || !ends_a_turn(text_of(token, "content"))) continue;
    if (const auto id = id_of(token.find("id"), num_ids_)) add_end_id(facts, *id);
  }
}

std::optional<int32_t> Definition::template_end(const json::Value& processor, bool at_front) const {
  const json::Value* single = processor.find("single");
  if (single == nullptr || !single->is_array() || single->as_array().empty()) return std::nullopt;
  const json::Array& parts = single->as_array();
  const json::Value* token = (at_front ? parts.front() : parts.back()).find("SpecialToken");
  const json::Value* known = processor.find("special_tokens");
  if (token == nullptr || known == nullptr) return std::nullopt;
  const json::Value* entry = known->find(text_of(*token, "id"));
  const json::Value* ids = entry == nullptr ? nullptr : entry->find("ids");
  if (ids == nullptr || !ids->is_array() || ids->as_array().empty()) return std::nullopt;
  return id_of(at_front ? &ids->as_array().front() : &ids->as_array().back(), num_ids_);
}

std::optional<int32_t> Definition::added_end(const json::Value* processor, bool at_front) const {
  if (processor == nullptr) return std::nullopt;
  const std::string_view type = text_of(*processor, "type");
  if (type == "TemplateProcessing") return template_end(*processor, at_front);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    const json::Value* pair = processor->find(at_front ? "cls" : "sep");
    if (pair == nullptr || !pair->is_array() || pair->as_array().size() != 2) return std::nullopt;
    return id_of(&pair->as_array()[1], num_ids_);
  }
  const json::Value* inner = processor->find("processors");
  if (inner == nullptr || !inner->is_array()) return std::nullopt;
  for (const json::Value& one : inner->as_array()) {
    // A sequence holds no other.
    if (text_of(one, "type") == "Sequence") continue;
    if (const auto id = added_end(&one, at_front)) return id;
  }
  return std::nullopt;
}

Result<json::Value> parse_definition(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto root = json::parse(text, kFile, {.max_bytes = kMaxDefinitionBytes, .max_depth = kMaxDepth});
  if (!root.ok()) return data_loss(kFile, root.status().message());
  if (!root->is_object()) {
    return data_loss(kFile, "expected an object, found " + std::string(root->type_name()));
  }
  const json::Value* model = root->find("model");
  if (model == nullptr || !model->is_object()) {
    return data_loss(std::string(kFile) + ".model", "expected an object");
  }
  return root;
}

int32_t id_or_none(const HfSpecialToken& token, const Definition* definition, int32_t num_ids) {
  if (definition != nullptr) {
    if (const auto id = definition->find(token.text)) return *id;
  }
  return token.id && *token.id < num_ids ? *token.id : -1;
}

Status read_chat_template(const HfSettings& settings, ProgramFacts& facts) {
  const std::string* text = settings.chat_template();
  if (text == nullptr) return Status();
  if (text->size() > kMaxTemplateBytes || !is_printable_utf8(*text)) {
    return data_loss("chat_template", "expected at most " + std::to_string(kMaxTemplateBytes) +
                                          " bytes of UTF-8 without control characters");
  }
  facts.chat_template = *text;
  return Status();
}

void read_ids(const HfSettings& settings, const Definition* definition, ProgramFacts& facts) {
  TokenizerFacts& t = facts.tokenizer;
  t.bos = id_or_none(settings.bos, definition, facts.vocabulary);
  t.eos = id_or_none(settings.eos, definition, facts.vocabulary);
  t.pad = id_or_none(settings.pad, definition, facts.vocabulary);
  t.unk = id_or_none(settings.unk, definition, facts.vocabulary);
  for (const int32_t id : settings.eos_ids) {
    if (id >= 0 && id < facts.vocabulary) add_end_id(t, id);
  }
  if (definition == nullptr) return;
  definition->add_end_ids(t);
  const bool begins = t.bos >= 0 && definition->added_end(true) == t.bos;
  const bool ends = t.eos >= 0 && definition->added_end(false) == t.eos;
  t.add_bos = settings.add_bos.value_or(begins) && t.bos >= 0;
  t.add_eos = settings.add_eos.value_or(ends) && t.eos >= 0;
}

}  // namespace

Status lower_hf_tokenizer(std::span<const std::byte> tokenizer_json, const HfSettings& settings,
                          ProgramFacts& facts) {
  CHORUS_RETURN_IF_ERROR(read_chat_template(settings, facts));
  if (tokenizer_json.empty()) {
    read_ids(settings, nullptr, facts);
    return Status();
  }
  CHORUS_ASSIGN_OR_RETURN(const json::Value root, parse_definition(tokenizer_json));
  const Definition definition(root, facts.vocabulary);
  facts.tokenizer.model = kDefinedTokenizer;
  facts.tokenizer.pre = text_of(*root.find("model"), "type");
  if (facts.tokenizer.pre.size() > kMaxNameBytes || !is_printable_utf8(facts.tokenizer.pre)) {
    return data_loss(std::string(kFile) + ".model.type", "expected the name of a model");
  }
  facts.definition = {reinterpret_cast<const char*>(tokenizer_json.data()), tokenizer_json.size()};
  read_ids(settings, &definition, facts);
  return Status();
}

}  // namespace chorus
