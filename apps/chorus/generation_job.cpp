#include "generation_job.h"

#include <algorithm>

#include "console.h"

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
json::Value likeliest_json(const TokenScore& score, const std::vector<TokenLogprob>& likeliest) {
  json::Array entries;
  for (int32_t i = 0; i < score.likeliest_count; ++i) {
    const TokenLogprob& entry = likeliest[static_cast<size_t>(score.likeliest_begin + i)];
    entries.emplace_back(json::Array{json::Value(entry.id), json::Value(entry.logprob)});
  }
  return json::Value(std::move(entries));
}

}  // namespace

Status GenerationJob::prepare() {
  CHORUS_RETURN_IF_ERROR(prompt_.status);
  if (prompt_.tokens) {
    prompt_tokens_ = *prompt_.tokens;
    if (options_.echo && text_ != nullptr) {
      CHORUS_ASSIGN_OR_RETURN(prompt_text_, text_->tokenizer().decode(prompt_tokens_));
    }
  } else {
    text::EncodeOptions encode{.parse_special = true, .add_special = true};
    if (prompt_.text) {
      prompt_text_ = *prompt_.text;
    } else {
      CHORUS_ASSIGN_OR_RETURN(prompt_text_, text_->render_chat(prompt_.messages));
      encode.add_special = false;  // the template writes what the model expects
    }
    CHORUS_ASSIGN_OR_RETURN(prompt_tokens_, text_->tokenizer().encode(prompt_text_, encode));
  }
  if (text_ != nullptr) {
    detokenizer_ = std::make_unique<text::Detokenizer>(text_->tokenizer(),
                                                       text::DecodeOptions{.skip_special = true});
    CHORUS_ASSIGN_OR_RETURN(auto stops, text::StopMatcher::create(prompt_.settings.stop));
    stops_ = std::make_unique<text::StopMatcher>(std::move(stops));
  } else if (!prompt_.settings.stop.empty()) {
    return invalid_argument("stop", "expected no stop text: the model has no tokenizer");
  }
  return Status();
}

Status GenerationJob::begin(Runner& runner, const std::vector<TokenId>& end_tokens,
                            std::shared_ptr<UpdateSignal> signal) {
  CHORUS_RETURN_IF_ERROR(prepare());
  const GenerationSettings& settings = prompt_.settings;
  GenerationOptions options;
  constexpr int64_t kDefaultMaxTokens = 256;
  const int64_t room = int64_t{runner.effective().executor.max_session_tokens} -
                       static_cast<int64_t>(prompt_tokens_.size());
  options.max_new_tokens = settings.max_tokens.value_or(
      static_cast<int32_t>(std::clamp(room, int64_t{1}, kDefaultMaxTokens)));
  options.sampling.temperature = static_cast<float>(settings.temperature);
  options.sampling.logprobs = options_.logprobs.has_value();
  options.sampling.num_likeliest = options_.logprobs.value_or(0);
  options.seed = settings.seed;
  options.stop_tokens = end_tokens;
  options.ignore_stop_tokens = settings.ignore_eos;
  if (options_.echo && options_.logprobs) options.score_from = 1;
  options.signal = std::move(signal);
  CHORUS_ASSIGN_OR_RETURN(session_, runner.open(SessionOptions()));
  CHORUS_ASSIGN_OR_RETURN(handle_, session_.generate(prompt_tokens_, options));
  return Status();
}

void GenerationJob::start(Runner& runner, const std::vector<TokenId>& end_tokens,
                          std::shared_ptr<UpdateSignal> signal) {
  started_ = true;
  const Status status = begin(runner, end_tokens, std::move(signal));
  if (!status.ok()) end(FinishReason::kError, status);
}

bool GenerationJob::poll() {
  if (finished() || !handle_.valid() || !handle_.try_read(update_)) return false;
  take(update_);
  return true;
}

void GenerationJob::take(const Update& update) {
  for (const TokenScore& score : update.tokens) {
    if (stopped_by_text_) break;
    TokenScore kept = score;
    kept.likeliest_begin = static_cast<int32_t>(likeliest_.size());
    for (int32_t i = 0; i < score.likeliest_count; ++i) {
      likeliest_.push_back(update.likeliest[static_cast<size_t>(score.likeliest_begin + i)]);
    }
    tokens_.push_back(kept);
    take_text(score.id);
  }
  if (!update.finish) return;
  // After a stop text the engine may have cancelled or run on; what it reports as an error stays
  // one.
  const bool stopped = stopped_by_text_ && *update.finish != FinishReason::kError;
  end(stopped ? FinishReason::kStop : *update.finish, update.error);
}

void GenerationJob::take_text(TokenId token) {
  if (detokenizer_ == nullptr) return;
  const auto text = detokenizer_->push(token);
  if (!text.ok())
    return;  // the engine delivers ids of the vocabulary only; a tokenizer may be smaller
  const auto output = stops_->feed(*text);
  output_ += output.text;
  if (!output.match) return;
  stopped_by_text_ = true;
  // The surplus is rewound by the engine. There is a token, so this cannot fail.
  CHORUS_CHECK(handle_.finish_at(static_cast<int32_t>(tokens_.size())).ok());
}

void GenerationJob::end(FinishReason reason, Status error) {
  if (detokenizer_ != nullptr && !stopped_by_text_) {
    const std::string rest = detokenizer_->finish();
    const auto output = rest.empty() ? text::StopMatcher::Output() : stops_->feed(rest);
    output_ += output.text;
    if (!output.match) output_ += stops_->finish();
    if (output.match && reason == FinishReason::kLength) reason = FinishReason::kStop;
  }
  finish_ = reason;
  error_ = std::move(error);
  if (handle_.valid()) {
    handle_.wait();
    metrics_ = handle_.metrics();
    prompt_scores_ = handle_.take_prompt_scores();
  }
  session_.close();
}

void GenerationJob::cancel() {
  if (!finished() && handle_.valid()) handle_.cancel();
}

void GenerationJob::add_logprobs(json::Value& value) const {
  json::Array logprobs;
  json::Array top;
  for (const TokenScore& score : tokens_) {
    logprobs.emplace_back(score.logprob);
    top.push_back(likeliest_json(score, likeliest_));
  }
  value.set("logprobs", std::move(logprobs));
  value.set("top_logprobs", std::move(top));
  if (!options_.echo) return;
  // One entry per prompt token; the first has nothing before it and is null.
  json::Array prompt_logprobs(prompt_tokens_.size());
  json::Array prompt_top(prompt_tokens_.size());
  for (size_t i = 0; i < prompt_scores_.tokens.size(); ++i) {
    const size_t place = static_cast<size_t>(prompt_scores_.first) + i;
    if (place >= prompt_tokens_.size()) break;
    prompt_logprobs[place] = json::Value(prompt_scores_.tokens[i].logprob);
    prompt_top[place] = likeliest_json(prompt_scores_.tokens[i], prompt_scores_.likeliest);
  }
  value.set("prompt_logprobs", std::move(prompt_logprobs));
  value.set("prompt_top_logprobs", std::move(prompt_top));
}

json::Value GenerationJob::result() const {
  json::Value value;
  value.set("type", "result");
  value.set("index", index_);
  value.set("id", prompt_.id);
  value.set("choice", 0);
  const bool has_text = prompt_.text.has_value() || !prompt_text_.empty();
  value.set("prompt", has_text ? json::Value(prompt_text_.empty() ? *prompt_.text : prompt_text_)
                               : json::Value());
  value.set("prompt_tokens", json::Array(prompt_tokens_.begin(), prompt_tokens_.end()));
  value.set("tokens", ids());
  value.set("text", text_ == nullptr ? json::Value() : json::Value(echo() + output_));
  value.set("finish_reason", name_of(*finish_));
  value.set("error", error_.ok() ? json::Value() : error_json(error_));
  if (options_.logprobs) add_logprobs(value);
  json::Value metrics;
  metrics.set("queue_ms", metrics_.queue_ms);
  metrics.set("ttft_ms", metrics_.ttft_ms);
  metrics.set("tpot_ms", metrics_.tpot_ms);
  metrics.set("total_ms", metrics_.total_ms);
  metrics.set("cached_tokens", 0);
  metrics.set("preemptions", metrics_.preemptions);
  value.set("metrics", std::move(metrics));
  return value;
}

json::Array GenerationJob::ids() const {
  json::Array ids;
  for (const TokenScore& score : tokens_) ids.emplace_back(score.id);
  return ids;
}

std::string GenerationJob::echo() const {
  return options_.echo ? text::to_valid_utf8(prompt_text_) : std::string();
}

}  // namespace chorus::cli
