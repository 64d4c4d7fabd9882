// What clients ask for, read from JSON and checked as far as that needs no model.
//
// Unknown members are ignored, null is the same as not given. A member that is known and asks for
// what is not offered is refused by its name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "chorus/generation_fields.h"
#include "exec/types.h"
#include "json/value.h"

namespace chorus::api {

inline constexpr int32_t kMaxHttpChoices = 128;  // OpenAI's limit
inline constexpr size_t kMaxPrompts = 2048;
inline constexpr size_t kMaxAnswers = 4096;  // choices of all prompts of a request

// What OpenAI's clients count on where nothing is given.
GenerationFields default_fields();

// What is continued. Text or tokens.
struct PromptSource {
  std::optional<std::string> text;
  std::vector<TokenId> tokens;
};

// How messages become a prompt.
struct ChatInput {
  json::Array messages;  // as read_messages returns them
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;
  std::string variables_json;  // chat_template_kwargs, or nothing
};

// A request that generates.
struct GenerateRequest {
  std::string model;                  // empty: not given
  std::optional<ChatInput> chat;      // in a session it may have no messages; or else:
  std::vector<PromptSource> prompts;  // in a session none may be given, or one
  bool add_special_tokens = true;     // to prompts of text, in a session where it is empty

  GenerationFields fields;  // its n is the number of choices that are answered with
  int32_t num_tried = 1;    // choices from which they are chosen, its best_of
  bool echo = false;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // in logprobs, "token_id:17" in place of text

  bool stream = false;
  bool include_usage = false;
};

// POST /v1/chat/completions
Result<GenerateRequest> read_chat_request(const json::Value& value);
// POST /v1/completions
Result<GenerateRequest> read_completion_request(const json::Value& value);
// POST /v1/sessions/{id}/generate: the members of a chat request, with messages, prompt (a text, or
// ids), or neither.
Result<GenerateRequest> read_session_request(const json::Value& value);

// POST /tokenize, of vLLM and of llama.cpp
struct TokenizeRequest {
  std::string model;
  std::string text;
  std::string text_name;          // of the member that has it
  std::optional<ChatInput> chat;  // in place of text
  bool add_special = true;
  bool parse_special = true;
  bool with_pieces = false;        // llama.cpp: tokens are {id, piece}
  bool return_token_strs = false;  // vLLM
};
Result<TokenizeRequest> read_tokenize_request(const json::Value& value);

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};
Result<DetokenizeRequest> read_detokenize_request(const json::Value& value);

// POST /apply-template: the members of a chat request that make its prompt.
struct TemplateRequest {
  std::string model;
  ChatInput chat;
};
Result<TemplateRequest> read_template_request(const json::Value& value);

// POST /v1/sessions and its routes below a session
struct OpenRequest {
  std::string model;
  std::optional<ChatInput> chat;
  std::optional<PromptSource> prompt;
  bool add_special_tokens = true;  // to a prompt of text
  std::string cache_salt;
  bool lazy = false;  // what is given is consumed with the first generation
};
Result<OpenRequest> read_open_request(const json::Value& value);

}  // namespace chorus::api
