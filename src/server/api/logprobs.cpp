#include "server/api/logprobs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "text/detokenizer.h"

namespace chorus::api {

namespace {

constexpr float kImpossible = -9999.0f;

std::string_view piece_of(const TokenNames& names, TokenId token) {
  if (names.tokenizer == nullptr) return {};
  const auto piece = names.tokenizer->piece(token);
  return piece.ok() ? *piece : std::string_view();
}

std::string id_name(TokenId token) { return "token_id:" + std::to_string(token); }

std::string bytes_name(std::string_view bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    name += "\\x";
    name += kHex[byte >> 4];
    name += kHex[byte & 15];
  }
  return name;
}

json::Value bytes_json(std::string_view piece) {
  json::Array bytes;
  for (const char c : piece) bytes.emplace_back(int{static_cast<unsigned char>(c)});
  return json::Value(std::move(bytes));
}

std::span<const TokenLogprob> likeliest_of(const TokenScore& score,
                                           std::span<const TokenLogprob> likeliest, int32_t count) {
  return likeliest.subspan(static_cast<size_t>(score.likeliest_begin),
                           static_cast<size_t>(std::min(score.likeliest_count, count)));
}

json::Value entry(const TokenNames& names, TokenId token, float logprob) {
  json::Value value;
  value.set("token", chat_token_name(names, token));
  value.set("logprob", logprob_json(logprob));
  value.set("bytes",
            names.tokenizer == nullptr ? json::Value() : bytes_json(piece_of(names, token)));
  return value;
}

}  // namespace

std::string chat_token_name(const TokenNames& names, TokenId token) {
  if (names.as_ids || names.tokenizer == nullptr) return id_name(token);
  return text::to_valid_utf8(piece_of(names, token));
}

std::string token_name(const TokenNames& names, TokenId token) {
  if (names.as_ids || names.tokenizer == nullptr) return id_name(token);
  const std::string_view piece = piece_of(names, token);
  return text::is_valid_utf8(piece) ? std::string(piece) : bytes_name(piece);
}

json::Value logprob_json(float logprob) {
  return json::Value(std::isfinite(logprob) ? logprob : kImpossible);
}

json::Value chat_logprob(const TokenNames& names, const TokenScore& score,
                         std::span<const TokenLogprob> likeliest, int32_t count) {
  json::Value value = entry(names, score.id, score.logprob);
  json::Array top;
  for (const TokenLogprob& each : likeliest_of(score, likeliest, count)) {
    top.push_back(entry(names, each.id, each.logprob));
  }
  value.set("top_logprobs", std::move(top));
  return value;
}

void CompletionLogprobs::add(const TokenScore& score, std::span<const TokenLogprob> likeliest,
                             size_t offset) {
  const std::string name = token_name(names_, score.id);
  json::Value top{json::Object()};
  // Two tokens may look alike; the likelier one is shown.
  const auto show = [&](const std::string& shown, float logprob) {
    if (top.find(shown) == nullptr) top.set(shown, logprob_json(logprob));
  };
  for (const TokenLogprob& each : likeliest_of(score, likeliest, count_)) {
    show(token_name(names_, each.id), each.logprob);
  }
  show(name, score.logprob);
  tokens_.emplace_back(name);
  logprobs_.push_back(logprob_json(score.logprob));
  top_.push_back(std::move(top));
  offsets_.emplace_back(static_cast<int64_t>(offset));
}

void CompletionLogprobs::add_first(TokenId token, size_t offset) {
  tokens_.emplace_back(token_name(names_, token));
  logprobs_.emplace_back();
  top_.emplace_back();
  offsets_.emplace_back(static_cast<int64_t>(offset));
}

json::Value CompletionLogprobs::take() {
  json::Value value;
  value.set("tokens", std::exchange(tokens_, {}));
  value.set("token_logprobs", std::exchange(logprobs_, {}));
  value.set("top_logprobs", std::exchange(top_, {}));
  value.set("text_offset", std::exchange(offsets_, {}));
  return value;
}

json::Value prompt_logprob(const TokenNames& names, const TokenScore& score,
                           std::span<const TokenLogprob> likeliest, int32_t count) {
  json::Value value{json::Object()};
  const auto show = [&](TokenId token, float logprob, int32_t rank) {
    json::Value one;
    one.set("logprob", logprob_json(logprob));
    one.set("rank", rank);
    one.set("decoded_token", chat_token_name(names, token));
    value.set(std::to_string(token), std::move(one));
  };
  bool is_shown = false;
  int32_t rank = 0;
  for (const TokenLogprob& each : likeliest_of(score, likeliest, count)) {
    show(each.id, each.logprob, ++rank);
    is_shown = is_shown || each.id == score.id;
  }
  if (!is_shown) show(score.id, score.logprob, score.rank);
  return value;
}

}  // namespace chorus::api
