#include "server/api/prompts.h"

#include <algorithm>

#include "server/api/messages.h"

namespace chorus::api {

namespace {

int64_t longest_piece(const text::Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    longest = std::max(longest, tokenizer.piece(id).value().size());
  }
  return static_cast<int64_t>(longest);
}

Status check_tokens(const ModelFacts& model, const std::vector<TokenId>& tokens,
                    const std::string& name) {
  if (tokens.empty()) return invalid_argument(name, "expected at least one token, found none");
  const auto unknown = std::find_if(tokens.begin(), tokens.end(), [&](TokenId token) {
    return token < 0 || token >= model.vocabulary;
  });
  if (unknown == tokens.end()) return {};
  return invalid_argument(name + "[" + std::to_string(unknown - tokens.begin()) + "]",
                          "expected an id from 0 to " + std::to_string(model.vocabulary - 1) +
                              ", found " + std::to_string(*unknown));
}

}  // namespace

Status check_fits(const ModelFacts& model, std::string_view text, const std::string& name) {
  const auto size = static_cast<int64_t>(text.size());
  if (size <= model.longest_bytes) return {};
  return invalid_argument(name, "expected at most " + std::to_string(model.longest) +
                                    " tokens in a context, found " + std::to_string(size) +
                                    " bytes");
}

Status check_size(const ModelFacts& model, std::string_view text, const std::string& name) {
  constexpr int64_t kLeast = int64_t{1} << 20;
  const int64_t most = std::max(kLeast, model.longest_bytes);
  const auto size = static_cast<int64_t>(text.size());
  if (size <= most) return {};
  return invalid_argument(
      name, "expected at most " + std::to_string(most) + " bytes, found " + std::to_string(size));
}

ModelFacts facts_of(Engine& engine) {
  ModelFacts facts;
  auto text = TextModel::create(engine.program());
  if (text.ok()) {
    facts.text = std::move(text).value();
  } else {
    facts.text_status = text.status();
  }
  facts.end_tokens = end_tokens(engine.program());
  const EffectiveOptions& effective = engine.runner().effective();
  facts.vocabulary = effective.executor.vocabulary;
  facts.longest = effective.capacity.longest(effective.executor.max_session_tokens);
  if (facts.text != nullptr) {
    facts.longest_bytes = facts.longest * longest_piece(facts.text->tokenizer());
  }
  return facts;
}

Result<std::string> render(const ModelFacts& model, const ChatInput& chat) {
  if (model.text == nullptr) return model.text_status;
  const std::string messages = json::Value(chat.messages).dump();
  CHORUS_ASSIGN_OR_RETURN(
      std::string rendered,
      model.text->render_chat_json(messages, chat.variables_json, chat.add_generation_prompt));
  if (!chat.continue_final_message) return rendered;
  return cut_behind_content(std::move(rendered), content_of(chat.messages.back()));
}

Result<PromptTokens> tokens_of(const ModelFacts& model, const ChatInput& chat, bool truncates) {
  PromptTokens prompt;
  CHORUS_ASSIGN_OR_RETURN(prompt.text, render(model, chat));
  CHORUS_RETURN_IF_ERROR((truncates ? check_size : check_fits)(model, prompt.text, "messages"));
  // The template writes what the model expects, special tokens included.
  CHORUS_ASSIGN_OR_RETURN(
      prompt.tokens,
      model.text->tokenizer().encode(
          prompt.text, {.parse_special = true, .add_special = chat.add_special_tokens}));
  CHORUS_RETURN_IF_ERROR(check_tokens(model, prompt.tokens, "messages"));
  return prompt;
}

Result<PromptTokens> tokens_of(const ModelFacts& model, const PromptSource& source,
                               bool add_special, bool truncates, const std::string& name) {
  PromptTokens prompt;
  if (source.text && model.text == nullptr) return model.text_status;
  if (source.text) {
    prompt.text = *source.text;
    CHORUS_RETURN_IF_ERROR((truncates ? check_size : check_fits)(model, prompt.text, name));
    CHORUS_ASSIGN_OR_RETURN(prompt.tokens,
                            model.text->tokenizer().encode(
                                prompt.text, {.parse_special = true, .add_special = add_special}));
  } else {
    prompt.tokens = source.tokens;
  }
  CHORUS_RETURN_IF_ERROR(check_tokens(model, prompt.tokens, name));
  if (!source.text && model.text != nullptr) {
    CHORUS_ASSIGN_OR_RETURN(prompt.text, model.text->tokenizer().decode(prompt.tokens));
  }
  return prompt;
}

Result<GenerationOptions> options_of(const ModelFacts& model, const GenerationFields& fields,
                                     int64_t held, size_t num_tokens, int32_t default_tokens,
                                     const std::string& name) {
  const int64_t given = held + static_cast<int64_t>(num_tokens);
  const int64_t room = model.longest - given;
  const int64_t least = fields.max_tokens == 0 ? 0 : 1;
  const auto too_long = [&](const std::string& field, int64_t wanted) {
    return invalid_argument(field, "expected at most " + std::to_string(model.longest) +
                                       " tokens in a context, found " + std::to_string(given) +
                                       " in the prompt and " + std::to_string(wanted) +
                                       " to generate");
  };
  if (room < least) return too_long(name, fields.max_tokens.value_or(1));
  if (fields.max_tokens && *fields.max_tokens > room) {
    return too_long("max_tokens", *fields.max_tokens);
  }
  GenerationOptions options = generation_options(fields, model.end_tokens);
  const int64_t wanted = default_tokens == 0 ? room : std::min<int64_t>(room, default_tokens);
  options.max_new_tokens = fields.max_tokens.value_or(static_cast<int32_t>(wanted));
  return options;
}

}  // namespace chorus::api
