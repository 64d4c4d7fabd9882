// One choice on its way into an answer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chorus/prompt_choices.h"
#include "json/value.h"
#include "server/api/logprobs.h"
#include "server/api/token_text.h"

namespace chorus::api {

// What is the same for all choices of a request.
struct ChoiceFormat {
  bool is_chat = true;
  TokenNames names;
  std::optional<int32_t> logprobs;         // with so many of the likeliest
  std::optional<int32_t> prompt_logprobs;  // vLLM's; of whole answers
  bool token_ids = false;
  bool shows_special = false;       // the text has special tokens, too
  std::vector<TokenId> end_tokens;  // that end a text and are not shown in it
  std::vector<TokenId> named_ends;  // that end a text because the request says so
  std::vector<std::string> stops;   // as in the plan
};

// What stands before the generated text.
struct Echo {
  std::string text;           // valid UTF-8; empty: nothing
  bool shows_prompt = false;  // it is the prompt, whose tokens have logprobs, too
};

// Turns what a choice has into the objects of "choices", each time what is new. Text is cut between
// characters only; the logprobs of a token come with the text that ends it. Thread: one at a time.
class ChoiceOutput {
 public:
  // `format` and `echo` outlive it.
  ChoiceOutput(const ChoiceFormat& format, const Echo& echo, int32_t index)
      : format_(format), echo_(echo), index_(index) {}

  // The parts that a stream has not shown, in order: what opens a chat's answer, new text, the end.
  // `choice` is number `number` of `prompt`.
  std::vector<json::Value> next(const PromptChoices& prompt, size_t number);
  // Everything at once. Requires: the choice has finished, and no next().
  json::Value whole(const PromptChoices& prompt, size_t number);

 private:
  struct Piece {
    std::string text;
    json::Value logprobs;  // null: none
    json::Array token_ids;
    bool is_empty() const { return text.empty() && logprobs.is_null() && token_ids.empty(); }
  };

  Piece take(const PromptChoices& prompt, const PromptChoices::Choice& choice);
  json::Value no_logprobs() const;
  json::Value take_logprobs(const PromptChoices& prompt, const PromptChoices::Choice& choice,
                            bool is_first);
  void add_prompt(const PromptChoices& prompt, CompletionLogprobs& logprobs) const;
  void follow_tokens(const PromptChoices::Choice& choice);
  json::Value part(Piece piece, bool is_whole) const;
  void set_end(const PromptChoices::Choice& choice, json::Value& part) const;
  json::Value stop_reason(const PromptChoices::Choice& choice) const;

  const ChoiceFormat& format_;
  const Echo& echo_;
  const int32_t index_;
  bool has_begun_ = false;
  bool has_ended_ = false;
  size_t num_shown_ = 0;             // bytes of the generated text
  size_t num_ids_ = 0;               // tokens whose id was shown
  size_t num_scored_ = 0;            // tokens whose logprob was shown, or is not to be
  std::optional<TokenText> tokens_;  // with logprobs
  size_t num_characters_ = 0;        // of the text before token num_scored_, with the echo
  size_t num_counted_ = 0;           // bytes of the generated text that these cover
};

}  // namespace chorus::api
