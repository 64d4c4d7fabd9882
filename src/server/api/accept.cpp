#include "server/api/accept.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "server/api/messages.h"
#include "server/api/random_id.h"
#include "text/detokenizer.h"

namespace chorus::api {

namespace {

constexpr int32_t kDefaultCompletionTokens = 16;  // OpenAI's
constexpr Position kFirstScored = 1;              // nothing comes before a context's first token

ChoiceFormat format_of(const Core& core, const GenerateRequest& request, bool is_chat) {
  const ModelFacts& model = core.model;
  const GenerationFields& fields = request.fields;
  ChoiceFormat format;
  format.is_chat = is_chat;
  format.names.tokenizer = model.text == nullptr ? nullptr : &model.text->tokenizer();
  format.shows_special = !fields.skip_special_tokens;
  format.names.as_ids = request.tokens_as_ids;
  format.logprobs = fields.logprobs;
  format.prompt_logprobs = fields.prompt_logprobs;
  format.token_ids = request.return_token_ids;
  format.named_ends = fields.stop_token_ids;
  format.stops = fields.stop;
  if (!fields.include_stop_str_in_output) {
    format.end_tokens = generation_options(fields, model.end_tokens).stop_tokens;
    for (const std::string& stop : fields.stop) {
      if (model.text == nullptr) break;
      const auto token = model.text->tokenizer().special_named(stop);
      if (token) format.end_tokens.push_back(*token);
    }
  }
  return format;
}

Result<AcceptedRequest> accept_common(const Core& core, const Call& call,
                                      const GenerateRequest& request, bool is_chat) {
  const GenerationFields& fields = request.fields;
  AcceptedRequest accepted;
  CHORUS_ASSIGN_OR_RETURN(accepted.head.model, model_name(core, request.model));
  accepted.exchange = call.exchange;
  accepted.ticket = call.ticket;
  accepted.head.is_chat = is_chat;
  accepted.head.id = (is_chat ? "chatcmpl-" : "cmpl-") + random_id();
  accepted.head.created = std::time(nullptr);
  accepted.head.fingerprint = core.fingerprint;
  accepted.format = format_of(core, request, is_chat);
  accepted.num_choices = fields.n;
  accepted.stream = request.stream;
  accepted.include_usage = request.include_usage;
  accepted.priority = fields.priority;
  accepted.arrived_ns = call.arrived_ns;
  if (fields.deadline_ms) accepted.deadline_ns = call.arrived_ns + *fields.deadline_ms * 1'000'000;
  return accepted;
}

// The plan but for its tokens and options.
ChoicesPlan plan_of(const Core& core, const Call& call, const GenerateRequest& request) {
  ChoicesPlan plan;
  plan.stops = request.fields.stop;
  plan.text = text_options(request.fields);
  plan.num_choices = request.num_tried;
  plan.session.salt = salt_of(core, call.owner, request.fields.cache_salt);
  return plan;
}

// What ties a plan's generations to the request.
void bind(const Core& core, const Call& call, const AcceptedRequest& accepted,
          GenerationOptions& options) {
  options.signal = core.signal;
  options.arrived_ns = call.arrived_ns;
  if (accepted.deadline_ns) options.deadline_ns = *accepted.deadline_ns - call.arrived_ns;
}

// A chat's echo is what its answer continues.
Echo echo_of(const GenerateRequest& request, const PromptTokens& prompt) {
  if (!request.echo) return {};
  if (!request.chat) return {text::to_valid_utf8(prompt.text), true};
  const json::Value& last = request.chat->messages.back();
  return {role_of(last) == "assistant" ? std::string(content_of(last)) : "", false};
}

// Takes off the front what truncate_prompt_tokens says, or what there is no room for beside the
// answer. How many tokens that were.
Result<int64_t> truncate(const Core& core, const GenerateRequest& request, PromptTokens& prompt) {
  const int64_t longest = core.model.longest;
  const int64_t to_generate = request.fields.max_tokens.value_or(
      request.chat ? static_cast<int32_t>(longest / 2) : kDefaultCompletionTokens);
  const int32_t truncated = truncate_prompt(request.fields, longest - to_generate, prompt.tokens);
  if (truncated > 0 && core.model.text != nullptr) {
    CHORUS_ASSIGN_OR_RETURN(prompt.text, core.model.text->tokenizer().decode(prompt.tokens));
  }
  return int64_t{truncated};
}

Result<PlannedPrompt> plan_prompt(const Core& core, const Call& call,
                                  const GenerateRequest& request, const AcceptedRequest& accepted,
                                  PromptTokens prompt, const std::string& name) {
  PlannedPrompt planned;
  planned.echo = echo_of(request, prompt);
  ChoicesPlan& plan = planned.plan;
  plan = plan_of(core, call, request);
  CHORUS_ASSIGN_OR_RETURN(plan.options,
                          options_of(core.model, request.fields, 0, prompt.tokens.size(),
                                     request.chat ? 0 : kDefaultCompletionTokens, name));
  const bool scores_echo = planned.echo.shows_prompt && request.fields.logprobs;
  if (scores_echo || request.fields.prompt_logprobs) plan.options.score_from = kFirstScored;
  if (plan.num_choices > request.fields.n) plan.options.sampling.logprobs = true;
  if (plan.options.max_new_tokens == 0 && plan.num_choices > 1) {
    return invalid_argument(
        "n", "expected 1 choice where max_tokens is 0, found " + std::to_string(plan.num_choices));
  }
  bind(core, call, accepted, plan.options);
  plan.tokens = std::move(prompt.tokens);
  return planned;
}

// What a turn comes to once nothing runs any more.
json::Value end_turn(TakenSession& taken, const Turn& turn, PromptChoices& choices) {
  HeldSession& held = taken.held();
  const PromptChoices::Choice& choice = choices.choices()[0];
  held.session = choices.take_session();
  finish_turn(held, turn, choice.token_ids(), std::string(choice.text()));
  json::Value value;
  value.set("id", taken.id());
  value.set("object", "session");
  const json::Value facts = session_facts(held);
  for (const auto& [name, member] : facts.as_object()) value.set(name, member);
  value.set("kept_tokens", turn.kept);
  value.set("cached_tokens", choice.metrics.cached_tokens);
  value.set("recomputed_tokens", choice.metrics.recomputed_tokens);
  return value;
}

// The session moves from `taken` into the request, and back.
void hand_over(std::shared_ptr<TakenSession> taken, Turn turn, AcceptedRequest& accepted) {
  accepted.session = std::move(taken->held().session);
  accepted.num_held = turn.kept;
  accepted.give_back = [taken = std::move(taken), turn = std::move(turn)](PromptChoices& choices) {
    return end_turn(*taken, turn, choices);
  };
}

}  // namespace

Result<AcceptedRequest> accept(const Core& core, const Call& call, const GenerateRequest& request) {
  CHORUS_ASSIGN_OR_RETURN(AcceptedRequest accepted,
                          accept_common(core, call, request, request.chat.has_value()));
  const bool truncates = request.fields.truncate_prompt_tokens.has_value();
  const auto add = [&](Result<PromptTokens> prompt, const std::string& name) -> Status {
    if (!prompt.ok()) return prompt.status();
    if (truncates) {
      CHORUS_ASSIGN_OR_RETURN(const int64_t truncated, truncate(core, request, *prompt));
      accepted.num_truncated = accepted.num_truncated.value_or(0) + truncated;
    }
    CHORUS_ASSIGN_OR_RETURN(PlannedPrompt planned, plan_prompt(core, call, request, accepted,
                                                               std::move(prompt).value(), name));
    accepted.prompts.push_back(std::move(planned));
    return {};
  };
  if (request.chat) {
    CHORUS_RETURN_IF_ERROR(add(tokens_of(core.model, *request.chat, truncates), "messages"));
  }
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    if (call.exchange->client_left()) break;  // nobody wants the rest
    const std::string name =
        request.prompts.size() == 1 ? "prompt" : "prompt[" + std::to_string(i) + "]";
    CHORUS_RETURN_IF_ERROR(
        add(tokens_of(core.model, request.prompts[i], request.add_special_tokens, truncates, name),
            name));
  }
  if (accepted.prompts.empty()) return Status(Code::kCancelled, "", "the client has left");
  return accepted;
}

Result<AcceptedRequest> accept_turn(Core& core, const Call& call, const GenerateRequest& request,
                                    std::shared_ptr<TakenSession> taken, Turn turn) {
  CHORUS_ASSIGN_OR_RETURN(AcceptedRequest accepted,
                          accept_common(core, call, request, turn.is_chat));
  PlannedPrompt& planned = accepted.prompts.emplace_back();
  planned.plan = plan_of(core, call, request);
  CHORUS_ASSIGN_OR_RETURN(planned.plan.options,
                          options_of(core.model, request.fields, turn.kept, turn.tokens.size(),
                                     turn.is_chat ? 0 : kDefaultCompletionTokens,
                                     turn.is_chat ? "messages" : "prompt"));
  bind(core, call, accepted, planned.plan.options);
  planned.plan.tokens = turn.tokens;
  HeldSession& held = taken->held();
  CHORUS_RETURN_IF_ERROR(held.session.rewind(turn.kept));
  hand_over(std::move(taken), std::move(turn), accepted);
  return accepted;
}

AcceptedRequest accept_append(Core& core, const Call& call, std::shared_ptr<TakenSession> taken,
                              Turn turn) {
  AcceptedRequest accepted;
  accepted.exchange = call.exchange;
  accepted.ticket = call.ticket;
  accepted.head.model = core.options.models[0];
  accepted.answers_with_session = true;
  accepted.arrived_ns = call.arrived_ns;
  PlannedPrompt& planned = accepted.prompts.emplace_back();
  planned.plan.tokens = turn.tokens;
  planned.plan.options.max_new_tokens = 0;
  bind(core, call, accepted, planned.plan.options);
  accepted.session = std::move(taken->held().session);
  accepted.give_back = [taken = std::move(taken), turn = std::move(turn)](PromptChoices& choices) {
    // One that was not filled is of no use to anybody, and its client does not know of it.
    const auto& finish = choices.choices()[0].finish;
    if (!finish || *finish != FinishReason::kLength) taken->remove();
    return end_turn(*taken, turn, choices);
  };
  return accepted;
}

}  // namespace chorus::api
