#include "server/api/requests.h"

#include <algorithm>

#include "server/api/fields.h"
#include "server/api/messages.h"
#include "server/api/refused.h"

namespace chorus::api {

namespace {

constexpr RefusedField kNoBestOf = {"best_of", "completions alone have it"};
constexpr RefusedField kRefusedInChats[] = {kNoBestOf};
constexpr FieldRules kChatRules = {.has_negative_seeds = true, .refused = kRefusedInChats};
// With 0 tokens to generate, a prompt is scored alone.
constexpr FieldRules kCompletionRules = {.least_max_tokens = 0, .has_negative_seeds = true};
constexpr RefusedField kRefusedInSessions[] = {
    kNoBestOf,
    {"cache_salt", "the session has one from its beginning"},
    {"prompt_logprobs", "a session's prompt is what it held before"},
    {"truncate_prompt_tokens", "a session is not cut at its front"}};
constexpr FieldRules kSessionRules = {.has_negative_seeds = true, .refused = kRefusedInSessions};

// What is known and not offered, by its name.
void refuse_unoffered(Fields& fields, const json::Value& value) {
  if (!fields.status().ok()) return;
  if (const Status refused = check_refused(value); !refused.ok()) fields.fail(refused);
}

void read_stream(Fields& fields, GenerateRequest& request) {
  fields.read("stream", request.stream);
  const json::Value* options = fields.find("stream_options");
  if (options == nullptr || !fields.status().ok()) return;
  if (!request.stream) {
    return fields.fail(invalid_argument("stream_options", "expected none without stream"));
  }
  Fields inner(*options, "stream_options");
  inner.read("include_usage", request.include_usage);
  bool is_continuous = false;
  inner.read("continuous_usage_stats", is_continuous);
  if (is_continuous) {
    inner.fail(unimplemented("stream_options.continuous_usage_stats", "usage comes at the end"));
  }
  if (!inner.status().ok()) fields.fail(inner.status());
}

// The members of all requests that generate.
void read_common(Fields& fields, const json::Value& value, const FieldRules& rules,
                 GenerateRequest& request) {
  refuse_unoffered(fields, value);
  fields.read("model", request.model);
  read_stream(fields, request);
  fields.read("echo", request.echo);
  fields.read("return_token_ids", request.return_token_ids);
  fields.read("return_tokens_as_token_ids", request.tokens_as_ids);
  if (!fields.status().ok()) return;
  auto parameters = read_generation_fields(value, default_fields(), rules);
  if (!parameters.ok()) return fields.fail(parameters.status());
  request.fields = std::move(parameters).value();
  request.num_tried = request.fields.best_of.value_or(request.fields.n);
  if (request.num_tried > kMaxHttpChoices) {
    fields.fail(invalid_argument(request.fields.best_of ? "best_of" : "n",
                                 "expected a whole number from 1 to " +
                                     std::to_string(kMaxHttpChoices) + ", found " +
                                     std::to_string(request.num_tried)));
  }
  if (request.stream && request.num_tried > request.fields.n) {
    fields.fail(invalid_argument(
        "best_of", "expected n of them in a stream: which are best is known when all are there"));
  }
  if (request.stream && request.fields.prompt_logprobs) {
    fields.fail(invalid_argument("prompt_logprobs", "expected none in a stream"));
  }
}

// Everything of a chat but its messages.
void read_chat_options(Fields& fields, ChatInput& chat) {
  fields.read("add_generation_prompt", chat.add_generation_prompt);
  fields.read("continue_final_message", chat.continue_final_message);
  fields.read("add_special_tokens", chat.add_special_tokens);
  if (chat.continue_final_message) {
    if (fields.find("add_generation_prompt") != nullptr && chat.add_generation_prompt) {
      return fields.fail(invalid_argument("continue_final_message",
                                          "expected no add_generation_prompt beside it"));
    }
    chat.add_generation_prompt = false;
  }
  const json::Value* variables = fields.find("chat_template_kwargs");
  if (variables == nullptr) return;
  const Fields check(*variables, "chat_template_kwargs");
  if (!check.status().ok()) return fields.fail(check.status());
  chat.variables_json = variables->dump();
}

void read_chat(Fields& fields, std::optional<ChatInput>& chat, bool needs_messages = true) {
  chat.emplace();
  read_chat_options(fields, *chat);
  if (!fields.status().ok()) return;
  const json::Value* messages = fields.find("messages");
  if (messages == nullptr && !needs_messages) return;
  if (messages == nullptr) {
    return fields.fail(invalid_argument("messages", "expected an array of messages, found none"));
  }
  auto read = read_messages(*messages, "messages");
  if (!read.ok()) return fields.fail(read.status());
  chat->messages = std::move(read).value();
}

// A session's chat is matched with the template's text, which has all special tokens.
void read_chat_of_session(Fields& fields, std::optional<ChatInput>& chat, bool needs_messages) {
  read_chat(fields, chat, needs_messages);
  if (chat->add_special_tokens) {
    fields.fail(invalid_argument("add_special_tokens", "expected false for a session's messages"));
  }
}

Result<PromptSource> read_prompt(const json::Value& value, const std::string& name) {
  PromptSource prompt;
  if (value.is_string()) {
    prompt.text = value.as_string();
    return prompt;
  }
  CHORUS_ASSIGN_OR_RETURN(prompt.tokens, read_token_ids(value, name));
  if (prompt.tokens.empty()) return invalid_argument(name, "expected a token at least, found none");
  return prompt;
}

// A text, a list of texts, ids, or a list of id lists.
Result<std::vector<PromptSource>> read_prompts(const json::Value* value) {
  if (value == nullptr) return invalid_argument("prompt", "expected a prompt");
  const bool is_list =
      value->is_array() && !value->as_array().empty() && !value->as_array().front().is_number();
  std::vector<PromptSource> prompts;
  if (!is_list) {
    CHORUS_ASSIGN_OR_RETURN(PromptSource prompt, read_prompt(*value, "prompt"));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  const json::Array& list = value->as_array();
  if (list.size() > kMaxPrompts) {
    return invalid_argument("prompt", "expected at most " + std::to_string(kMaxPrompts) +
                                          " prompts, found " + std::to_string(list.size()));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    CHORUS_ASSIGN_OR_RETURN(PromptSource prompt,
                            read_prompt(list[i], "prompt[" + std::to_string(i) + "]"));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace

GenerationFields default_fields() {
  GenerationFields fields;
  fields.sampling.temperature = 1;
  return fields;
}

Result<GenerateRequest> read_chat_request(const json::Value& value) {
  GenerateRequest request;
  Fields fields(value);
  read_common(fields, value, kChatRules, request);
  read_chat(fields, request.chat);
  CHORUS_RETURN_IF_ERROR(fields.status());
  return request;
}

Result<GenerateRequest> read_completion_request(const json::Value& value) {
  GenerateRequest request;
  Fields fields(value);
  read_common(fields, value, kCompletionRules, request);
  fields.read("add_special_tokens", request.add_special_tokens);
  CHORUS_RETURN_IF_ERROR(fields.status());
  CHORUS_ASSIGN_OR_RETURN(request.prompts, read_prompts(fields.find("prompt")));
  const size_t num_answers = request.prompts.size() * static_cast<size_t>(request.num_tried);
  if (num_answers > kMaxAnswers) {
    return invalid_argument("prompt", "expected at most " + std::to_string(kMaxAnswers) +
                                          " choices in all, found " + std::to_string(num_answers));
  }
  return request;
}

Result<GenerateRequest> read_session_request(const json::Value& value) {
  GenerateRequest request;
  Fields fields(value);
  read_common(fields, value, kSessionRules, request);
  if (request.fields.n > 1) {
    fields.fail(invalid_argument("n", "expected 1 in a session: fork it for more"));
  }
  if (request.echo) fields.fail(invalid_argument("echo", "expected none in a session"));
  const json::Value* prompt = fields.find("prompt");
  const json::Value* messages = fields.find("messages");
  if (prompt != nullptr && messages != nullptr) {
    fields.fail(invalid_argument("prompt", "expected no messages beside it"));
  }
  // Without messages its options are those of the answer that a chat waits for.
  if (prompt == nullptr) read_chat_of_session(fields, request.chat, false);
  if (prompt != nullptr) fields.read("add_special_tokens", request.add_special_tokens);
  CHORUS_RETURN_IF_ERROR(fields.status());
  if (prompt != nullptr) {
    CHORUS_ASSIGN_OR_RETURN(PromptSource source, read_prompt(*prompt, "prompt"));
    request.prompts.push_back(std::move(source));
  }
  return request;
}

Result<TokenizeRequest> read_tokenize_request(const json::Value& value) {
  TokenizeRequest request;
  Fields fields(value);
  refuse_unoffered(fields, value);
  const json::Value* content = fields.find("content");
  const json::Value* prompt = fields.find("prompt");
  fields.read("model", request.model);
  if (content != nullptr) {  // llama.cpp, whose default adds nothing
    request.add_special = false;
    request.text_name = "content";
    fields.read("content", request.text);
    fields.read("add_special", request.add_special);
    fields.read("parse_special", request.parse_special);
    fields.read("with_pieces", request.with_pieces);
  } else if (prompt != nullptr) {
    request.text_name = "prompt";
    fields.read("prompt", request.text);
    fields.read("add_special_tokens", request.add_special);
  } else {
    read_chat(fields, request.chat);
  }
  fields.read("return_token_strs", request.return_token_strs);
  CHORUS_RETURN_IF_ERROR(fields.status());
  return request;
}

Result<DetokenizeRequest> read_detokenize_request(const json::Value& value) {
  DetokenizeRequest request;
  Fields fields(value);
  std::optional<std::vector<TokenId>> tokens;
  fields.read("model", request.model);
  fields.read("tokens", tokens);
  CHORUS_RETURN_IF_ERROR(fields.status());
  if (!tokens) return invalid_argument("tokens", "expected an array of ids, found none");
  request.tokens = std::move(*tokens);
  return request;
}

Result<TemplateRequest> read_template_request(const json::Value& value) {
  TemplateRequest request;
  Fields fields(value);
  refuse_unoffered(fields, value);
  std::optional<ChatInput> chat;
  fields.read("model", request.model);
  read_chat(fields, chat);
  CHORUS_RETURN_IF_ERROR(fields.status());
  request.chat = std::move(*chat);
  return request;
}

Result<OpenRequest> read_open_request(const json::Value& value) {
  OpenRequest request;
  Fields fields(value);
  refuse_unoffered(fields, value);
  fields.read("model", request.model);
  fields.read("cache_salt", request.cache_salt);
  if (request.cache_salt.size() > kMaxSaltBytes) {
    fields.fail(invalid_argument("cache_salt",
                                 "expected at most " + std::to_string(kMaxSaltBytes) + " bytes"));
  }
  fields.read("lazy", request.lazy);
  const json::Value* messages = fields.find("messages");
  const json::Value* prompt = fields.find("prompt");
  if (messages != nullptr && prompt != nullptr) {
    fields.fail(invalid_argument("prompt", "expected no messages beside it"));
  }
  if (messages != nullptr) {
    read_chat_of_session(fields, request.chat, true);
  } else {
    fields.read("add_special_tokens", request.add_special_tokens);
  }
  CHORUS_RETURN_IF_ERROR(fields.status());
  if (prompt == nullptr) return request;
  CHORUS_ASSIGN_OR_RETURN(request.prompt, read_prompt(*prompt, "prompt"));
  return request;
}

}  // namespace chorus::api
