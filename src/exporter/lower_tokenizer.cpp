// The tokenizer's part of a GGUF file. Defaults of flags and ids, and the texts that end a turn:
// llama.cpp (src/llama-vocab.cpp).
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "exporter/end_tokens.h"
#include "exporter/lowering.h"
#include "program/limits.h"
#include "program/names.h"

namespace chorus {

namespace {

constexpr uint8_t kControl = 3;
constexpr int64_t kLastTokenType = 6;

// Texts of tokens that are control tokens whatever type the file gives them: what ends a turn or
// takes part in filling a gap.
constexpr std::array<std::string_view, 47> kControlTexts = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\xef\xbd\x9c"
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
    "[e~[",
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<PRE>",
    "\xe2\x96\x81<PRE>",
    "<|code_prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<SUF>",
    "\xe2\x96\x81<SUF>",
    "<|code_suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<MID>",
    "\xe2\x96\x81<MID>",
    "<|code_middle|>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|file_sep|>"};

// Those of models that begin every text with BOS.
constexpr std::array<std::string_view, 9> kBosPreTokenizers = {"llama3",  "llama-v3",  "llama-bpe",
                                                               "falcon3", "falcon-h1", "midm-2.0",
                                                               "lfm2",    "pixtral",   "tekken"};

template <size_t N>
bool is_one_of(const std::array<std::string_view, N>& texts, std::string_view text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

std::string key(std::string_view name) { return "tokenizer.ggml." + std::string(name); }

// A text that the program carries for people: absent is empty.
Result<std::string_view> read_text(const GgufFile& file, const std::string& name,
                                   uint64_t max_bytes) {
  CHORUS_ASSIGN_OR_RETURN(const auto text, file.find_string(name));
  if (!text) return std::string_view();
  if (text->size() > max_bytes || !is_printable_utf8(*text)) {
    return data_loss(name, "expected at most " + std::to_string(max_bytes) +
                               " bytes of UTF-8 without control characters");
  }
  return *text;
}

Status read_tokens(const GgufFile& file, ProgramFacts& facts, TokenizerStorage& storage) {
  CHORUS_ASSIGN_OR_RETURN(auto tokens, file.find_strings(key("tokens")));
  if (!tokens) return data_loss(key("tokens"), "expected this key, found none");
  const size_t count = static_cast<size_t>(facts.vocabulary);
  const auto check_count = [count](std::string field, size_t found) {
    if (found == count) return Status();
    return data_loss(std::move(field), "expected " + std::to_string(count) +
                                           " entries, one per row of the embedding, found " +
                                           std::to_string(found));
  };
  CHORUS_RETURN_IF_ERROR(check_count(key("tokens"), tokens->size()));
  uint64_t total_bytes = 0;
  for (const std::string_view token : *tokens) total_bytes += token.size();
  if (total_bytes > kMaxTokenBytes) return data_loss(key("tokens"), "the tokens are too long");
  facts.tokens.strings = std::move(*tokens);

  CHORUS_ASSIGN_OR_RETURN(const auto types, file.find_ints(key("token_type")));
  if (types) {
    CHORUS_RETURN_IF_ERROR(check_count(key("token_type"), types->size()));
    for (const int64_t type : *types) {
      if (type < 0 || type > kLastTokenType) {
        return data_loss(key("token_type"), "expected 0 to 6, found " + std::to_string(type));
      }
      storage.types.push_back(static_cast<uint8_t>(type));
    }
    facts.tokens.types = storage.types;
  }
  CHORUS_ASSIGN_OR_RETURN(auto scores, file.find_floats(key("scores")));
  if (!scores && facts.tokenizer.model == "llama") {
    return data_loss(key("scores"), "expected this key, found none");
  }
  if (scores) {
    CHORUS_RETURN_IF_ERROR(check_count(key("scores"), scores->size()));
    const auto is_nan = [](float score) { return std::isnan(score); };
    if (std::any_of(scores->begin(), scores->end(), is_nan)) {
      return data_loss(key("scores"), "expected numbers, found NaN");
    }
    storage.scores = std::move(*scores);
    facts.tokens.scores = storage.scores;
  }
  return Status();
}

Status read_merges(const GgufFile& file, ProgramFacts& facts) {
  CHORUS_ASSIGN_OR_RETURN(auto merges, file.find_strings(key("merges")));
  if (!merges) return Status();
  uint64_t total_bytes = 0;
  for (const std::string_view merge : *merges) total_bytes += merge.size();
  if (merges->size() > kMaxMerges || total_bytes > kMaxTokenBytes) {
    return data_loss(key("merges"), "there are too many merges");
  }
  facts.merges.strings = std::move(*merges);
  return Status();
}

Status read_ids(const GgufFile& file, ProgramFacts& facts) {
  TokenizerFacts& t = facts.tokenizer;
  const int64_t last = facts.vocabulary - 1;
  if (t.model == "llama") {
    // What such files mean when they do not say.
    t.bos = last >= 1 ? 1 : -1;
    t.eos = last >= 2 ? 2 : -1;
    t.unk = 0;
  }
  const std::pair<const char*, int32_t*> ids[] = {{"bos_token_id", &t.bos},
                                                  {"eos_token_id", &t.eos},
                                                  {"eot_token_id", &t.eot},
                                                  {"padding_token_id", &t.pad},
                                                  {"unknown_token_id", &t.unk}};
  for (const auto& [name, id] : ids) {
    CHORUS_ASSIGN_OR_RETURN(const auto found, file.find_int(key(name), 0, last));
    if (found) *id = static_cast<int32_t>(*found);
  }
  CHORUS_ASSIGN_OR_RETURN(const auto end_of_message, file.find_int(key("eom_token_id"), 0, last));
  if (end_of_message) add_end_id(t, static_cast<int32_t>(*end_of_message));
  for (size_t id = 0; id < facts.tokens.types.size(); ++id) {
    const std::string_view text = facts.tokens.strings[id];
    if (!ends_a_turn(text)) continue;
    // Vocabularies with HTML's tags have this one as a plain token.
    if (text == "</s>" && facts.tokens.types[id] != kControl) continue;
    add_end_id(t, static_cast<int32_t>(id));
  }
  return Status();
}

// Requires: facts.tokens.types are those of `storage`.
void mark_control_tokens(const ProgramFacts& facts, TokenizerStorage& storage) {
  for (size_t id = 0; id < storage.types.size(); ++id) {
    if (is_one_of(kControlTexts, facts.tokens.strings[id])) storage.types[id] = kControl;
  }
}

Status read_flags(const GgufFile& file, TokenizerFacts& t) {
  const bool scored = t.model == "llama";
  t.add_bos = scored || is_one_of(kBosPreTokenizers, t.pre);
  t.add_space_prefix = scored;
  const std::pair<const char*, bool*> flags[] = {{"add_bos_token", &t.add_bos},
                                                 {"add_eos_token", &t.add_eos},
                                                 {"add_space_prefix", &t.add_space_prefix}};
  for (const auto& [name, flag] : flags) {
    CHORUS_ASSIGN_OR_RETURN(const auto found, file.find_bool(key(name)));
    if (found) *flag = *found;
  }
  t.add_bos = t.add_bos && t.bos >= 0;
  t.add_eos = t.add_eos && t.eos >= 0;
  return Status();
}

}  // namespace

Status lower_tokenizer(const GgufFile& file, ProgramFacts& facts, TokenizerStorage& storage) {
  CHORUS_ASSIGN_OR_RETURN(facts.name, read_text(file, "general.name", kMaxNameBytes));
  CHORUS_ASSIGN_OR_RETURN(facts.chat_template,
                          read_text(file, "tokenizer.chat_template", kMaxTemplateBytes));
  CHORUS_ASSIGN_OR_RETURN(const auto model, read_text(file, key("model"), kMaxNameBytes));
  if (model.empty() || model == "none" || model == "no_vocab") return Status();
  facts.tokenizer.model = model;
  CHORUS_ASSIGN_OR_RETURN(facts.tokenizer.pre, read_text(file, key("pre"), kMaxNameBytes));
  CHORUS_RETURN_IF_ERROR(read_tokens(file, facts, storage));
  CHORUS_RETURN_IF_ERROR(read_merges(file, facts));
  CHORUS_RETURN_IF_ERROR(read_ids(file, facts));
  mark_control_tokens(facts, storage);
  return read_flags(file, facts.tokenizer);
}

}  // namespace chorus
