// POST /tokenize, /detokenize and /apply-template, in the shapes of vLLM and of llama.cpp at once.
#include "server/api/core.h"
#include "server/api/errors.h"
#include "server/api/logprobs.h"
#include "server/api/sse.h"
#include "text/detokenizer.h"

namespace chorus::api {

namespace {

// A piece as llama.cpp shows it: a text, or bytes where it is none.
json::Value piece_json(const TokenNames& names, TokenId token) {
  const auto piece = names.tokenizer->piece(token);
  const std::string_view bytes = piece.ok() ? *piece : std::string_view();
  if (text::is_valid_utf8(bytes)) return json::Value(bytes);
  json::Array list;
  for (const char c : bytes) list.emplace_back(int{static_cast<unsigned char>(c)});
  return json::Value(std::move(list));
}

Result<std::vector<TokenId>> tokens_of_request(const ModelFacts& model,
                                               const TokenizeRequest& request) {
  if (model.text == nullptr) return model.text_status;
  if (request.chat) {
    CHORUS_ASSIGN_OR_RETURN(PromptTokens prompt, tokens_of(model, *request.chat, false));
    return std::move(prompt.tokens);
  }
  CHORUS_RETURN_IF_ERROR(check_size(model, request.text, request.text_name));
  return model.text->tokenizer().encode(
      request.text, {.parse_special = request.parse_special, .add_special = request.add_special});
}

Result<json::Value> tokenize(const Core& core, const json::Value& body) {
  CHORUS_ASSIGN_OR_RETURN(const TokenizeRequest request, read_tokenize_request(body));
  CHORUS_RETURN_IF_ERROR(model_name(core, request.model).status());
  CHORUS_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                          tokens_of_request(core.model, request));
  const TokenNames names{&core.model.text->tokenizer(), false};
  json::Array list;
  json::Array texts;
  for (const TokenId token : tokens) {
    json::Value entry(token);
    if (request.with_pieces) {
      entry = json::Value();
      entry.set("id", token);
      entry.set("piece", piece_json(names, token));
    }
    list.push_back(std::move(entry));
    if (request.return_token_strs) texts.emplace_back(chat_token_name(names, token));
  }
  json::Value value;
  value.set("count", static_cast<int64_t>(tokens.size()));
  value.set("max_model_len", core.model.longest);
  value.set("tokens", std::move(list));
  value.set("token_strs",
            request.return_token_strs ? json::Value(std::move(texts)) : json::Value());
  return value;
}

Result<json::Value> detokenize(const Core& core, const json::Value& body) {
  CHORUS_ASSIGN_OR_RETURN(const DetokenizeRequest request, read_detokenize_request(body));
  CHORUS_RETURN_IF_ERROR(model_name(core, request.model).status());
  if (core.model.text == nullptr) return core.model.text_status;
  CHORUS_ASSIGN_OR_RETURN(const std::string bytes,
                          core.model.text->tokenizer().decode(request.tokens));
  const std::string text = text::to_valid_utf8(bytes);
  json::Value value;
  value.set("prompt", text);   // vLLM
  value.set("content", text);  // llama.cpp
  return value;
}

Result<json::Value> apply_template(const Core& core, const json::Value& body) {
  CHORUS_ASSIGN_OR_RETURN(const TemplateRequest request, read_template_request(body));
  CHORUS_RETURN_IF_ERROR(model_name(core, request.model).status());
  CHORUS_ASSIGN_OR_RETURN(std::string prompt, render(core.model, request.chat));
  json::Value value;
  value.set("prompt", std::move(prompt));
  return value;
}

void respond(const Call& call, const Result<json::Value>& value) {
  if (!value.ok()) return respond_error(*call.exchange, value.status());
  call.exchange->respond(json_response(*value));
}

}  // namespace

void post_tokenize(Core& core, const Call& call) { respond(call, tokenize(core, call.body)); }

void post_detokenize(Core& core, const Call& call) { respond(call, detokenize(core, call.body)); }

void post_template(Core& core, const Call& call) { respond(call, apply_template(core, call.body)); }

}  // namespace chorus::api
