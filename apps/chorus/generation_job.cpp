#include "generation_job.h"

#include <algorithm>

#include "chorus/text_generation.h"
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

GenerationOptions GenerationJob::generation_options() const {
  const GenerationFields& settings = prompt_.prompt.settings;
  const JobOptions& wanted = context_.options;
  GenerationOptions options = chorus::generation_options(settings, context_.end_tokens);
  if (!settings.max_tokens) {
    const int64_t room = int64_t{context_.runner.effective().executor.max_session_tokens} -
                         prompt_.base - static_cast<int64_t>(prompt_.tokens.size());
    options.max_new_tokens =
        static_cast<int32_t>(std::clamp<int64_t>(room, 1, options.max_new_tokens));
  }
  options.sampling.choice += static_cast<uint32_t>(choice_);
  options.sampling.logprobs = wanted.logprobs.has_value() || wanted.num_best > 0;
  options.sampling.num_likeliest = wanted.logprobs.value_or(0);
  // The prompt is scored where it is computed. Nothing comes before a session's first token.
  if (choice_ == 0 && wanted.echo && wanted.logprobs) {
    options.score_from = std::max(prompt_.base, Position{1});
  }
  if (prompt_.deadline_ns) {
    options.deadline_ns = std::max<int64_t>(0, *prompt_.deadline_ns - context_.clock.now_ns());
  }
  options.signal = context_.signal;
  return options;
}

void GenerationJob::start(Session session) {
  started_ = true;
  session_ = std::move(session);
  held_ = session_.position() - prompt_.base;
  auto generation = start_generation(
      session_, {prompt_.tokens.begin() + held_, prompt_.tokens.end()}, generation_options(),
      context_.text, prompt_.prompt.settings.stop, text_options(prompt_.prompt.settings));
  if (!generation.ok()) return end(FinishReason::kError, generation.status());
  generation_ = std::move(generation).value();
}

void GenerationJob::fail(FinishReason reason, Status error) {
  started_ = true;
  end(reason, std::move(error));
}

bool GenerationJob::poll() {
  if (finished() || !generation_ || !generation_->poll()) return false;
  if (!generation_->new_tokens().empty()) {
    last_token_ns_ = context_.clock.now_ns();
    if (generation_->new_tokens().size() == scores().size()) first_token_ns_ = last_token_ns_;
  }
  if (generation_->finished()) end(generation_->finish_reason(), generation_->error());
  return true;
}

const std::string& GenerationJob::text() const {
  static const std::string none;
  return generation_ ? generation_->text() : none;
}

std::span<const TokenScore> GenerationJob::scores() const {
  return generation_ ? generation_->tokens() : std::span<const TokenScore>();
}

double GenerationJob::tokens_per_s() const {
  const double seconds = static_cast<double>(last_token_ns_ - first_token_ns_) * 1e-9;
  const size_t count = generated_tokens();
  return count > 1 && seconds > 0 ? static_cast<double>(count - 1) / seconds : 0;
}

size_t GenerationJob::consumed_tokens() const {
  const auto held =
      session_.valid() ? static_cast<size_t>(session_.position() - prompt_.base) : size_t{0};
  return std::min(held, prompt_.num_given());
}

void GenerationJob::end(FinishReason reason, Status error) {
  finish_ = reason;
  error_ = std::move(error);
  if (error_.code() == Code::kDeadlineExceeded) {
    error_ = deadline_exceeded(
        error_.field(), "expected to end within " +
                            std::to_string(*prompt_.prompt.settings.deadline_ms) + " ms, found " +
                            std::to_string(generated_tokens()) + " tokens by then");
  }
  if (!generation_) return;
  metrics_ = generation_->metrics();
  if (choice_ == 0) prompt_.scores = generation_->take_prompt_scores();
}

void GenerationJob::cancel() {
  if (!finished() && generation_) generation_->cancel();
}

void GenerationJob::add_logprobs(json::Value& value) const {
  json::Array logprobs;
  json::Array top;
  for (const TokenScore& score : scores()) {
    logprobs.emplace_back(score.logprob);
    top.push_back(likeliest_json(score, generation_->likeliest()));
  }
  value.set("logprobs", std::move(logprobs));
  value.set("top_logprobs", std::move(top));
  if (!context_.options.echo) return;
  // One entry per prompt token; the first has nothing before it and is null.
  json::Array prompt_logprobs(prompt_.num_given());
  json::Array prompt_top(prompt_.num_given());
  for (size_t i = 0; i < prompt_.scores.tokens.size(); ++i) {
    const size_t place = static_cast<size_t>(prompt_.scores.first - prompt_.base) + i;
    if (place >= prompt_.num_given()) break;
    prompt_logprobs[place] = json::Value(prompt_.scores.tokens[i].logprob);
    prompt_top[place] = likeliest_json(prompt_.scores.tokens[i], prompt_.scores.likeliest);
  }
  value.set("prompt_logprobs", std::move(prompt_logprobs));
  value.set("prompt_top_logprobs", std::move(prompt_top));
}

json::Value GenerationJob::metrics_json() const {
  json::Value metrics;
  metrics.set("queue_ms", metrics_.queue_ms);
  metrics.set("ttft_ms", metrics_.ttft_ms);
  metrics.set("tpot_ms", metrics_.tpot_ms);
  metrics.set("total_ms", metrics_.total_ms);
  metrics.set("itl_ms", latency_json(metrics_.itl));
  metrics.set("cached_tokens", held_ + metrics_.cached_tokens);
  metrics.set("preemptions", metrics_.preemptions);
  return metrics;
}

json::Value GenerationJob::result() const {
  const std::optional<std::string>& typed = prompt_.prompt.text;
  json::Value value;
  value.set("type", "result");
  value.set("index", prompt_.index);
  value.set("id", prompt_.prompt.id);
  value.set("choice", choice_);
  const bool has_text = typed.has_value() || !prompt_.text.empty();
  value.set("prompt",
            has_text ? json::Value(prompt_.text.empty() ? *typed : prompt_.text) : json::Value());
  const auto given = prompt_.tokens.begin() + static_cast<int64_t>(prompt_.num_given());
  value.set("context_tokens", prompt_.base + (prompt_.goes_on ? 1 : 0));
  value.set("prompt_tokens", json::Array(prompt_.tokens.begin(), given));
  if (prompt_.prompt.settings.truncate_prompt_tokens)
    value.set("truncated_tokens", prompt_.num_truncated);
  value.set("tokens", ids());
  value.set("text", context_.text == nullptr ? json::Value() : json::Value(echo() + text()));
  value.set("finish_reason", name_of(*finish_));
  value.set("error", error_.ok() ? json::Value() : error_json(error_));
  if (context_.options.num_best > 0) value.set("mean_logprob", mean_logprob());
  if (context_.options.logprobs) add_logprobs(value);
  value.set("metrics", metrics_json());
  return value;
}

std::vector<TokenId> GenerationJob::tokens() const {
  std::vector<TokenId> tokens;
  for (const TokenScore& score : scores()) tokens.push_back(score.id);
  return tokens;
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
