#include "server/api/live_request.h"

#include <algorithm>
#include <utility>

#include "chorus/best_of.h"
#include "server/api/sse.h"

namespace chorus::api {

namespace {

Standing standing_of(const AcceptedRequest& request, uint64_t number) {
  Standing standing{
      .priority = request.priority, .arrived_ns = request.arrived_ns, .number = number};
  for (const PlannedPrompt& prompt : request.prompts) {
    const ChoicesPlan& plan = prompt.plan;
    standing.tokens += static_cast<int64_t>(plan.tokens.size()) +
                       int64_t{plan.num_choices} * plan.options.max_new_tokens;
  }
  return standing;
}

}  // namespace

LiveRequest::LiveRequest(const LiveContext& context, AcceptedRequest accepted, uint64_t number)
    : context_(context),
      accepted_(std::move(accepted)),
      standing_(standing_of(accepted_, number)),
      last_write_ns_(context.clock.now_ns()) {
  const bool has_session = accepted_.session.valid();
  for (size_t i = 0; i < accepted_.prompts.size(); ++i) {
    PlannedPrompt& prompt = accepted_.prompts[i];
    auto choices = has_session ? std::make_unique<PromptChoices>(context_.runner, context_.text,
                                                                 std::move(prompt.plan),
                                                                 std::move(accepted_.session))
                               : std::make_unique<PromptChoices>(context_.runner, context_.text,
                                                                 std::move(prompt.plan));
    prompts_.push_back(std::move(choices));
    outputs_.emplace_back();
    for (int32_t choice = 0; choice < accepted_.num_choices; ++choice) {
      outputs_.back().emplace_back(accepted_.format, prompt.echo,
                                   index_of(i, static_cast<size_t>(choice)));
    }
  }
}

// A client's session goes back also where the server stops meanwhile.
LiveRequest::~LiveRequest() {
  if (accepted_.give_back) accepted_.give_back(*prompts_[0]);
}

int32_t LiveRequest::index_of(size_t prompt, size_t choice) const {
  return static_cast<int32_t>(prompt) * accepted_.num_choices + static_cast<int32_t>(choice);
}

size_t LiveRequest::num_sessions() const {
  size_t count = 0;
  for (const auto& prompt : prompts_) count += prompt->num_sessions();
  return count;
}

size_t LiveRequest::num_needed() const {
  return is_suspended_ ? num_sessions() : size_t{needs_place()};
}

void LiveRequest::suspend() {
  is_suspended_ = true;
  for (const auto& prompt : prompts_) prompt->suspend();
}

void LiveRequest::resume(size_t& places) {
  if (!std::exchange(is_suspended_, false)) return;
  places -= std::min(places, num_sessions());
  Status status;
  for (const auto& prompt : prompts_) {
    if (status.ok()) status = prompt->resume();
  }
  if (!status.ok()) fail(error_of(status));
}

bool LiveRequest::all_finished() const {
  return std::all_of(prompts_.begin(), prompts_.end(),
                     [](const auto& prompt) { return prompt->finished(); });
}

// Choices of prompts that are computed come before new prompts.
void LiveRequest::start(size_t places) {
  resume(places);
  if (phase_ != Phase::kLive) return;
  size_t held = num_sessions();
  size_t limit = std::min(held + places, std::max(held, context_.max_sessions));
  for (const bool begun : {true, false}) {
    for (const auto& prompt : prompts_) {
      if (prompt->finished() || prompt->has_begun() != begun) continue;
      const size_t before = prompt->num_sessions();
      if (!begun && held >= limit && needs_place()) break;
      prompt->start(limit - held);
      held += prompt->num_sessions() - before;
      has_begun_ = true;
      accepted_.ticket->begin();
    }
  }
  check_failure();
}

// One choice that fails ends the request.
void LiveRequest::check_failure() {
  for (const auto& prompt : prompts_) {
    for (const PromptChoices::Choice& choice : prompt->choices()) {
      if (!choice.finish) continue;
      if (!choice.error.ok()) return fail(error_of(choice.error));
      if (*choice.finish == FinishReason::kCancelled) return fail(draining());
    }
  }
}

void LiveRequest::poll() {
  if (phase_ == Phase::kDone) return;
  http::Exchange& exchange = *accepted_.exchange;
  if (phase_ == Phase::kLive && exchange.client_left()) leave();
  const bool is_slow = phase_ == Phase::kLive && stream_has_begun_ &&
                       exchange.unsent_bytes() > context_.max_unsent_bytes;
  if (is_slow || phase_ == Phase::kDone) return;
  bool changed = false;
  for (const auto& prompt : prompts_) changed = prompt->poll() || changed;
  if (phase_ == Phase::kEnding) return let_go();
  if (changed) check_failure();
  if (phase_ != Phase::kLive || !changed) return;
  if (accepted_.stream) {
    begin_stream();  // not before: what the engine refuses has a status of its own
    write_news();
  }
  if (all_finished()) complete();
}

void LiveRequest::begin_stream() {
  if (std::exchange(stream_has_begun_, true)) return;
  accepted_.exchange->begin_stream(200, stream_headers());
  last_write_ns_ = context_.clock.now_ns();
}

void LiveRequest::write(std::string bytes) {
  accepted_.exchange->write(std::move(bytes));
  last_write_ns_ = context_.clock.now_ns();
}

void LiveRequest::write_news() {
  std::string events;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    for (size_t j = 0; j < outputs_[i].size(); ++j) {
      for (json::Value& part : outputs_[i][j].next(*prompts_[i], j)) {
        events += sse_event(chunk_json(accepted_.head, std::move(part), accepted_.include_usage));
      }
    }
  }
  if (!events.empty()) write(std::move(events));
}

void LiveRequest::complete() {
  add_log_fields(finish_name(*prompts_[0]->choices()[0].finish));
  if (!stream_has_begun_) return respond_whole();
  json::Value session;
  if (accepted_.give_back) session = std::exchange(accepted_.give_back, nullptr)(*prompts_[0]);
  std::string events;
  if (accepted_.include_usage || accepted_.num_truncated || !session.is_null()) {
    json::Value last = usage_chunk_json(accepted_.head, counts());
    if (accepted_.num_truncated) last.set("truncated_tokens", *accepted_.num_truncated);
    if (!session.is_null()) last.set("session", std::move(session));
    events = sse_event(last);
  }
  write(events + kSseDone);
  accepted_.exchange->end_stream();
  phase_ = Phase::kDone;
}

// The choices of one prompt that are answered with: all, or the best.
std::vector<size_t> LiveRequest::answered_choices(const PromptChoices& prompt) const {
  const std::vector<PromptChoices::Choice>& choices = prompt.choices();
  std::vector<double> scores(choices.size());  // all alike: then the first ones are the best
  if (choices.size() > static_cast<size_t>(accepted_.num_choices)) {
    std::transform(choices.begin(), choices.end(), scores.begin(),
                   [](const auto& choice) { return mean_logprob(choice.tokens()); });
  }
  return best_choices(scores, accepted_.num_choices);
}

json::Array LiveRequest::whole_choices() {
  json::Array choices;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const std::vector<size_t> best = answered_choices(*prompts_[i]);
    for (size_t j = 0; j < best.size(); ++j) {
      choices.push_back(outputs_[i][j].whole(*prompts_[i], best[j]));
    }
  }
  return choices;
}

void LiveRequest::respond_whole() {
  json::Array choices = accepted_.answers_with_session ? json::Array() : whole_choices();
  json::Value session;
  if (accepted_.give_back) session = std::exchange(accepted_.give_back, nullptr)(*prompts_[0]);
  json::Value answer;
  if (accepted_.answers_with_session) {
    answer = std::move(session);
  } else {
    answer = answer_json(accepted_.head, std::move(choices), counts());
    if (accepted_.num_truncated) answer.set("truncated_tokens", *accepted_.num_truncated);
    if (!session.is_null()) answer.set("session", std::move(session));
  }
  accepted_.exchange->respond(json_response(answer));
  phase_ = Phase::kDone;
}

void LiveRequest::fail(const ApiError& error) {
  if (phase_ != Phase::kLive) return;
  add_log_fields(error.code.value_or("error"));
  if (stream_has_begun_) {
    write(sse_event(error_json(error)) + kSseDone);
    accepted_.exchange->end_stream();
  } else {
    accepted_.exchange->respond(error_response(error));
  }
  let_go();
}

void LiveRequest::leave() {
  add_log_fields("client_left");
  if (stream_has_begun_) {
    accepted_.exchange->end_stream();
  } else {
    accepted_.exchange->respond(
        error_response(ApiError{499, "the client has left", "cancelled_error", {}, "cancelled"}));
  }
  let_go();
}

// After the answer: ends what runs. Own sessions are closed with it, a client's waits for the end
// of its generation.
void LiveRequest::let_go() {
  phase_ = Phase::kEnding;
  if (accepted_.give_back == nullptr) {
    prompts_.clear();
  } else if (!prompts_[0]->has_begun() || prompts_[0]->finished()) {
    std::exchange(accepted_.give_back, nullptr)(*prompts_[0]);
  } else {
    prompts_[0]->cancel();
    return;
  }
  phase_ = Phase::kDone;
}

void LiveRequest::tick() {
  if (phase_ != Phase::kLive) return;
  const int64_t now = context_.clock.now_ns();
  if (!has_begun_ && accepted_.deadline_ns && now >= *accepted_.deadline_ns) {
    return fail(error_of(deadline_exceeded("deadline_ms", "it has passed in the queue")));
  }
  const bool is_silent =
      context_.ping_interval_ns > 0 && now - last_write_ns_ >= context_.ping_interval_ns;
  if (!accepted_.stream || !is_silent || accepted_.exchange->unsent_bytes() > 0) return;
  begin_stream();
  write(kSsePing);
}

TokenCounts LiveRequest::counts() const {
  TokenCounts counts{.prompt = accepted_.num_held, .cached = accepted_.num_held};
  for (const auto& prompt : prompts_) {
    counts.prompt += static_cast<int64_t>(prompt->plan().tokens.size());
    counts.cached += prompt->choices()[0].metrics.cached_tokens;
    for (const PromptChoices::Choice& choice : prompt->choices()) {
      counts.generated += static_cast<int64_t>(choice.tokens().size());
    }
  }
  return counts;
}

void LiveRequest::add_log_fields(std::string_view finish) {
  http::Exchange& exchange = *accepted_.exchange;
  const TokenCounts total = counts();
  exchange.add_log_field({"model", accepted_.head.model});
  exchange.add_log_field({"prompt_tokens", total.prompt});
  exchange.add_log_field({"cached_tokens", total.cached});
  exchange.add_log_field({"completion_tokens", total.generated});
  exchange.add_log_field({"finish_reason", std::string(finish)});
  const GenerationMetrics& first = prompts_[0]->choices()[0].metrics;
  const auto us = [](double ms) { return static_cast<int64_t>(ms * 1000); };
  exchange.add_log_field({"queue_us", us(first.queue_ms)});
  exchange.add_log_field({"ttft_us", us(first.ttft_ms)});
}

json::Value LiveRequest::to_json() const {
  const TokenCounts total = phase_ == Phase::kLive ? counts() : TokenCounts();
  json::Value value;
  value.set("id_task", accepted_.exchange->request().id);
  value.set("n_prompt_tokens", total.prompt);
  value.set("n_decoded", total.generated);
  return value;
}

}  // namespace chorus::api
