#include "generation_job.h"

#include <algorithm>

#include "console.h"
#include "latencies.h"
#include "text/detokenizer.h"

namespace chorus::cli {

namespace {

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

// [[id, logprob], ...] of one token.
json::Value likeliest_json(const TokenScore& score, std::span<const TokenLogprob> likeliest) {
  json::Array entries;
  for (int32_t i = 0; i < score.likeliest_count; ++i) {
    const TokenLogprob& entry = likeliest[static_cast<size_t>(score.likeliest_begin + i)];
    entries.emplace_back(json::Array{json::Value(entry.id), json::Value(entry.logprob)});
  }
  return json::Value(std::move(entries));
}

}  // namespace

void GenerationJob::follow() {
  if (generated_tokens() == num_followed_) return;
  last_token_ns_ = context_.clock.now_ns();
  if (num_followed_ == 0) first_token_ns_ = last_token_ns_;
  num_followed_ = generated_tokens();
}

const PromptChoices::Choice& GenerationJob::state() const {
  return prompt_.run ? prompt_.run->choices()[choice_] : prompt_.without_run;
}

double GenerationJob::tokens_per_s() const {
  const double seconds = static_cast<double>(last_token_ns_ - first_token_ns_) * 1e-9;
  const size_t count = generated_tokens();
  return count > 1 && seconds > 0 ? static_cast<double>(count - 1) / seconds : 0;
}

size_t GenerationJob::consumed_tokens() const {
  return prompt_.run ? std::min(prompt_.run->num_consumed(choice_), prompt_.num_given()) : 0;
}

Status GenerationJob::error() const {
  const Status& error = state().error;
  if (error.code() != Code::kDeadlineExceeded) return error;
  return deadline_exceeded(error.field(), "expected to end within " +
                                              std::to_string(*prompt_.prompt.settings.deadline_ms) +
                                              " ms, found " + std::to_string(generated_tokens()) +
                                              " tokens by then");
}

void GenerationJob::add_logprobs(json::Value& value) const {
  json::Array logprobs;
  json::Array top;
  for (const TokenScore& score : scores()) {
    logprobs.emplace_back(score.logprob);
    top.push_back(likeliest_json(score, state().generation->likeliest()));
  }
  value.set("logprobs", std::move(logprobs));
  value.set("top_logprobs", std::move(top));
  if (!context_.options.echo) return;
  // One entry per prompt token; the first has nothing before it and is null.
  json::Array prompt_logprobs(prompt_.num_given());
  json::Array prompt_top(prompt_.num_given());
  const PromptScores none;
  const PromptScores& scored = prompt_.run ? prompt_.run->prompt_scores() : none;
  for (size_t i = 0; i < scored.tokens.size(); ++i) {
    const size_t place = static_cast<size_t>(scored.first - prompt_.base) + i;
    if (place >= prompt_.num_given()) break;
    prompt_logprobs[place] = json::Value(scored.tokens[i].logprob);
    prompt_top[place] = likeliest_json(scored.tokens[i], scored.likeliest);
  }
  value.set("prompt_logprobs", std::move(prompt_logprobs));
  value.set("prompt_top_logprobs", std::move(prompt_top));
}

json::Value GenerationJob::metrics_json() const {
  const GenerationMetrics& metrics = state().metrics;
  json::Value value;
  value.set("queue_ms", metrics.queue_ms);
  value.set("ttft_ms", metrics.ttft_ms);
  value.set("tpot_ms", metrics.tpot_ms);
  value.set("total_ms", metrics.total_ms);
  value.set("itl_ms", latency_json(metrics.itl));
  value.set("cached_tokens", state().num_held + metrics.cached_tokens);
  value.set("preemptions", metrics.preemptions);
  return value;
}

json::Value GenerationJob::result() const {
  const std::optional<std::string>& typed = prompt_.prompt.text;
  json::Value value;
  value.set("type", "result");
  value.set("index", prompt_.index);
  value.set("id", prompt_.prompt.id);
  value.set("choice", choice());
  const bool has_text = typed.has_value() || !prompt_.text.empty();
  value.set("prompt",
            has_text ? json::Value(prompt_.text.empty() ? *typed : prompt_.text) : json::Value());
  const auto given = prompt_.tokens.begin() + static_cast<int64_t>(prompt_.num_given());
  value.set("context_tokens", prompt_.base + (prompt_.goes_on ? 1 : 0));
  value.set("prompt_tokens", json::Array(prompt_.tokens.begin(), given));
  if (prompt_.prompt.settings.truncate_prompt_tokens)
    value.set("truncated_tokens", prompt_.num_truncated);
  value.set("tokens", ids());
  value.set("text", context_.text == nullptr ? json::Value() : json::Value(echo().append(text())));
  value.set("finish_reason", name_of(finish()));
  value.set("error", error().ok() ? json::Value() : error_json(error()));
  if (context_.options.num_best > 0) value.set("mean_logprob", mean_logprob());
  if (context_.options.logprobs) add_logprobs(value);
  value.set("metrics", metrics_json());
  return value;
}

json::Array GenerationJob::ids() const {
  json::Array ids;
  for (const TokenScore& score : scores()) ids.emplace_back(score.id);
  return ids;
}

std::string GenerationJob::echo() const {
  return context_.options.echo ? text::to_valid_utf8(prompt_.text) : std::string();
}

}  // namespace chorus::cli
