// Logprobs in the shapes of OpenAI's chat and of its completions.
#pragma once

#include <span>
#include <string>

#include "exec/types.h"
#include "json/value.h"
#include "text/tokenizer.h"

namespace chorus::api {

// How tokens are shown.
struct TokenNames {
  const text::Tokenizer* tokenizer = nullptr;  // null: ids only
  bool as_ids = false;                         // "token_id:17"
};

// In chats bytes that are no text show as U+FFFD, since `bytes` has them; elsewhere a token that is
// part of a character is "bytes:\xe2\x82".
std::string chat_token_name(const TokenNames& names, TokenId token);
std::string token_name(const TokenNames& names, TokenId token);

// A logprob as JSON can say it: -9999 is impossible.
json::Value logprob_json(float logprob);

// {token, logprob, bytes, top_logprobs}. `likeliest` is what the score counts into; `count` of them
// at most are shown.
json::Value chat_logprob(const TokenNames& names, const TokenScore& score,
                         std::span<const TokenLogprob> likeliest, int32_t count);

// {tokens, token_logprobs, top_logprobs, text_offset} of completions.
class CompletionLogprobs {
 public:
  CompletionLogprobs(TokenNames names, int32_t count) : names_(names), count_(count) {}

  // `offset`: characters before the token.
  void add(const TokenScore& score, std::span<const TokenLogprob> likeliest, size_t offset);
  // A token without anything before it.
  void add_first(TokenId token, size_t offset);
  bool is_empty() const { return tokens_.empty(); }
  // What was added since the last time.
  json::Value take();

 private:
  TokenNames names_;
  int32_t count_;
  json::Array tokens_, logprobs_, top_, offsets_;
};

// One element of vLLM's prompt_logprobs: {"17": {logprob, rank, decoded_token}, ...}.
json::Value prompt_logprob(const TokenNames& names, const TokenScore& score,
                           std::span<const TokenLogprob> likeliest, int32_t count);

}  // namespace chorus::api
