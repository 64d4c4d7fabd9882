// Answers in OpenAI's shapes, without their choices.
#pragma once

#include <cstdint>
#include <string>

#include "engine/generation.h"
#include "json/value.h"

namespace chorus::api {

// What is the same in all parts of an answer.
struct AnswerHead {
  bool is_chat = true;  // else text_completion
  std::string id;       // "chatcmpl-...", "cmpl-..."
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;
};

// With several choices prompt tokens count once, generated ones all.
struct TokenCounts {
  int64_t prompt = 0;
  int64_t cached = 0;  // of the prompt, not computed for this request
  int64_t generated = 0;
};

json::Value usage_json(const TokenCounts& counts);

// A whole answer.
json::Value answer_json(const AnswerHead& head, json::Array choices, const TokenCounts& counts);

// One event of a stream. With `has_usage` clients expect usage in each of them, null but in the
// last.
json::Value chunk_json(const AnswerHead& head, json::Value choice, bool has_usage);
// That last one, which has no choices.
json::Value usage_chunk_json(const AnswerHead& head, const TokenCounts& counts);

// "stop", "length"; what ended otherwise is told as an error.
std::string_view finish_name(FinishReason reason);

}  // namespace chorus::api
