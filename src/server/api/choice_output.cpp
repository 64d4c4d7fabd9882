#include "server/api/choice_output.h"

#include <algorithm>
#include <utility>

#include "server/api/answers.h"

namespace chorus::api {

namespace {

// How much of `text` a token of it shows: nothing, where an encoder has added it; and without the
// space that some encoders put in front of a text.
size_t shown_size(std::string_view text, std::string_view piece) {
  if (text.starts_with(piece)) return piece.size();
  if (!piece.starts_with(' ')) return 0;
  piece.remove_prefix(1);
  return text.starts_with(piece) ? piece.size() : 0;
}

}  // namespace

void ChoiceOutput::follow_tokens(const PromptChoices::Choice& choice) {
  if (!tokens_) {
    if (format_.names.tokenizer == nullptr) return;
    tokens_.emplace(*format_.names.tokenizer, format_.shows_special, format_.end_tokens);
  }
  for (const TokenScore& score : choice.tokens().subspan(tokens_->size())) tokens_->push(score.id);
}

// The prompt's own tokens, of which the first has nothing before it.
void ChoiceOutput::add_prompt(const PromptChoices& prompt, CompletionLogprobs& logprobs) const {
  const PromptScores& scores = prompt.prompt_scores();
  const std::vector<TokenId>& given = prompt.plan().tokens;
  const std::string_view text = echo_.text;
  size_t at = 0;      // bytes of the text before the token,
  size_t offset = 0;  // and characters
  for (size_t i = 0; i < given.size(); ++i) {
    const size_t scored = i - static_cast<size_t>(scores.first);
    if (i < static_cast<size_t>(scores.first) || scored >= scores.tokens.size()) {
      logprobs.add_first(given[i], offset);
    } else {
      logprobs.add(scores.tokens[scored], scores.likeliest, offset);
    }
    if (format_.names.tokenizer == nullptr) continue;
    const auto piece = format_.names.tokenizer->piece(given[i]);
    const size_t size = piece.ok() ? shown_size(text.substr(at), *piece) : 0;
    offset += num_characters(text.substr(at, size));
    at += size;
  }
}

// Of the tokens whose text was shown, and of all of the text once it has ended. Null for none.
json::Value ChoiceOutput::take_logprobs(const PromptChoices& prompt,
                                        const PromptChoices::Choice& choice, bool is_first) {
  if (!format_.logprobs) return {};
  follow_tokens(choice);
  const std::string_view text = choice.text();
  size_t behind = choice.tokens().size();
  if (tokens_) {
    behind = choice.finish ? tokens_->num_begun(num_shown_) : tokens_->num_within(num_shown_);
  }
  json::Array content;
  CompletionLogprobs completion(format_.names, *format_.logprobs);
  if (is_first) {
    num_characters_ = num_characters(echo_.text);
    if (echo_.shows_prompt) add_prompt(prompt, completion);
  }
  for (; num_scored_ < behind; ++num_scored_) {
    const TokenScore& score = choice.tokens()[num_scored_];
    if (tokens_) {
      const size_t begin = std::min(tokens_->begin(num_scored_), text.size());
      num_characters_ += num_characters(text.substr(num_counted_, begin - num_counted_));
      num_counted_ = begin;
      if (tokens_->is_hidden(num_scored_)) continue;
    }
    if (format_.is_chat) {
      content.push_back(
          chat_logprob(format_.names, score, choice.generation->likeliest(), *format_.logprobs));
    } else {
      completion.add(score, choice.generation->likeliest(), num_characters_);
    }
  }
  if (!format_.is_chat) return completion.is_empty() ? json::Value() : completion.take();
  if (content.empty()) return {};
  json::Value value;
  value.set("content", std::move(content));
  value.set("refusal", json::Value());
  return value;
}

// Of a text without tokens that are shown.
json::Value ChoiceOutput::no_logprobs() const {
  if (!format_.is_chat) return CompletionLogprobs(format_.names, *format_.logprobs).take();
  json::Value value;
  value.set("content", json::Array());
  value.set("refusal", json::Value());
  return value;
}

ChoiceOutput::Piece ChoiceOutput::take(const PromptChoices& prompt,
                                       const PromptChoices::Choice& choice) {
  Piece piece;
  const bool is_first = !std::exchange(has_begun_, true);
  if (is_first) piece.text = echo_.text;
  if (choice.generation) {
    const std::string& text = choice.generation->text();
    piece.text.append(text, num_shown_);
    num_shown_ = text.size();
  }
  piece.logprobs = take_logprobs(prompt, choice, is_first);
  if (format_.token_ids) {
    for (; num_ids_ < choice.tokens().size(); ++num_ids_) {
      piece.token_ids.emplace_back(choice.tokens()[num_ids_].id);
    }
  }
  return piece;
}

json::Value ChoiceOutput::part(Piece piece, bool is_whole) const {
  json::Value value;
  value.set("index", index_);
  if (format_.is_chat) {
    json::Value message;
    if (is_whole) message.set("role", "assistant");
    message.set("content", std::move(piece.text));
    if (is_whole) message.set("refusal", json::Value());
    value.set(is_whole ? "message" : "delta", std::move(message));
  } else {
    value.set("text", std::move(piece.text));
  }
  value.set("logprobs", std::move(piece.logprobs));
  if (format_.token_ids) value.set("token_ids", std::move(piece.token_ids));
  return value;
}

// What ended the text: the stop text, or the token that the request named. Null for the model's
// own end, and for none.
json::Value ChoiceOutput::stop_reason(const PromptChoices::Choice& choice) const {
  if (!choice.generation || *choice.finish != FinishReason::kStop) return {};
  if (const auto stop = choice.generation->stop_index()) return format_.stops[*stop];
  if (choice.tokens().empty()) return {};
  const TokenId last = choice.tokens().back().id;
  const auto& named = format_.named_ends;
  return std::find(named.begin(), named.end(), last) != named.end() ? json::Value(last)
                                                                    : json::Value();
}

void ChoiceOutput::set_end(const PromptChoices::Choice& choice, json::Value& part) const {
  part.set("finish_reason", finish_name(*choice.finish));
  part.set("stop_reason", stop_reason(choice));
}

std::vector<json::Value> ChoiceOutput::next(const PromptChoices& prompt, size_t number) {
  const PromptChoices::Choice& choice = prompt.choices()[number];
  std::vector<json::Value> parts;
  const bool has_news = choice.finish || !choice.tokens().empty();
  if (has_ended_ || !has_news) return parts;
  if (!has_begun_ && format_.is_chat) {
    json::Value delta;
    delta.set("role", "assistant");
    delta.set("content", "");
    json::Value first;
    first.set("index", index_);
    first.set("delta", std::move(delta));
    first.set("logprobs", json::Value());
    first.set("finish_reason", json::Value());
    parts.push_back(std::move(first));
  }
  if (Piece piece = take(prompt, choice); !piece.is_empty()) {
    parts.push_back(part(std::move(piece), false));
    parts.back().set("finish_reason", json::Value());
  }
  if (!choice.finish) return parts;
  has_ended_ = true;
  json::Value last;
  last.set("index", index_);
  if (format_.is_chat) {
    last.set("delta", json::Value(json::Object()));
  } else {
    last.set("text", "");
  }
  last.set("logprobs", json::Value());
  set_end(choice, last);
  parts.push_back(std::move(last));
  return parts;
}

json::Value ChoiceOutput::whole(const PromptChoices& prompt, size_t number) {
  const PromptChoices::Choice& choice = prompt.choices()[number];
  Piece piece = take(prompt, choice);
  if (format_.logprobs && piece.logprobs.is_null()) piece.logprobs = no_logprobs();
  json::Value value = part(std::move(piece), true);
  set_end(choice, value);
  if (format_.prompt_logprobs) {
    const PromptScores& scores = prompt.prompt_scores();
    json::Array list(prompt.plan().tokens.size());
    for (size_t i = 0; i < scores.tokens.size(); ++i) {
      const size_t place = static_cast<size_t>(scores.first) + i;
      if (place >= list.size()) break;
      list[place] = prompt_logprob(format_.names, scores.tokens[i], scores.likeliest,
                                   *format_.prompt_logprobs);
    }
    value.set("prompt_logprobs", std::move(list));
  }
  if (format_.token_ids) {
    const std::vector<TokenId>& given = prompt.plan().tokens;
    value.set("prompt_token_ids", json::Array(given.begin(), given.end()));
  }
  return value;
}

}  // namespace chorus::api
