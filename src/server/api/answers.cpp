#include "server/api/answers.h"

namespace chorus::api {

namespace {

json::Value head_json(const AnswerHead& head, bool is_chunk) {
  json::Value value;
  value.set("id", head.id);
  const char* chat = is_chunk ? "chat.completion.chunk" : "chat.completion";
  value.set("object", head.is_chat ? chat : "text_completion");
  value.set("created", head.created);
  value.set("model", head.model);
  value.set("system_fingerprint", head.fingerprint);
  return value;
}

}  // namespace

json::Value usage_json(const TokenCounts& counts) {
  json::Value prompt;
  prompt.set("cached_tokens", counts.cached);
  json::Value completion;
  completion.set("reasoning_tokens", 0);
  json::Value usage;
  usage.set("prompt_tokens", counts.prompt);
  usage.set("completion_tokens", counts.generated);
  usage.set("total_tokens", counts.prompt + counts.generated);
  usage.set("prompt_tokens_details", std::move(prompt));
  usage.set("completion_tokens_details", std::move(completion));
  return usage;
}

json::Value answer_json(const AnswerHead& head, json::Array choices, const TokenCounts& counts) {
  json::Value value = head_json(head, false);
  value.set("choices", std::move(choices));
  value.set("usage", usage_json(counts));
  return value;
}

json::Value chunk_json(const AnswerHead& head, json::Value choice, bool has_usage) {
  json::Value value = head_json(head, true);
  value.set("choices", json::Array{std::move(choice)});
  if (has_usage) value.set("usage", json::Value());
  return value;
}

json::Value usage_chunk_json(const AnswerHead& head, const TokenCounts& counts) {
  json::Value value = head_json(head, true);
  value.set("choices", json::Array());
  value.set("usage", usage_json(counts));
  return value;
}

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

}  // namespace chorus::api
