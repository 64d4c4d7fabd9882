// From what clients send to the tokens that the engine is given.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chorus/engine.h"
#include "chorus/model.h"
#include "server/api/requests.h"

namespace chorus::api {

// What requests are checked against. Thread: immutable.
struct ModelFacts {
  std::shared_ptr<const TextModel> text;  // null: the model has no tokenizer,
  Status text_status;                     // and this says so
  std::vector<TokenId> end_tokens;
  int32_t vocabulary = 0;
  int64_t longest = 0;        // tokens of one session
  int64_t longest_bytes = 0;  // more than any text that has so few tokens
};

ModelFacts facts_of(Engine& engine);

// Long texts are refused before they are tokenised, which takes its time. kInvalidArgument (`name`)
// for one that is longer than any that fits a context,
Status check_fits(const ModelFacts& model, std::string_view text, const std::string& name);
// or, where it need not fit, longer than those and than 1 MiB.
Status check_size(const ModelFacts& model, std::string_view text, const std::string& name);

struct PromptTokens {
  std::string text;  // as it was tokenised; of tokens what they say, or nothing without tokenizer
  std::vector<TokenId> tokens;
};

// The chat as the model's template writes it. Errors: those of the template.
Result<std::string> render(const ModelFacts& model, const ChatInput& chat);
// Errors of both: kInvalidArgument for ids that the vocabulary lacks, for a prompt without tokens,
// and for a text that is too long; kUnimplemented (tokenizer).
Result<PromptTokens> tokens_of(const ModelFacts& model, const ChatInput& chat, bool truncates);
// `name`: of the prompt, for errors.
Result<PromptTokens> tokens_of(const ModelFacts& model, const PromptSource& prompt,
                               bool add_special, bool truncates, const std::string& name);

// The options of a generation behind `held` tokens of a session and `num_tokens` of a prompt.
// max_tokens that were not given are `default_tokens`, or as many as there is room for where those
// are more, or 0. kInvalidArgument (`name`, or max_tokens) where it does not fit.
Result<GenerationOptions> options_of(const ModelFacts& model, const GenerationFields& fields,
                                     int64_t held, size_t num_tokens, int32_t default_tokens,
                                     const std::string& name);

}  // namespace chorus::api
