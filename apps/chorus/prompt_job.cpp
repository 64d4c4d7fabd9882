#include "prompt_job.h"

#include <algorithm>

namespace chorus::cli {

PromptJob::PromptJob(const JobContext& context, int index, Prompt prompt,
                     std::optional<int64_t> submitted_ns)
    : context_(context), submitted_ns_(submitted_ns) {
  shared_.index = index;
  shared_.prompt = std::move(prompt);
  const auto num_choices = static_cast<size_t>(context.options.num_choices);
  for (size_t choice = 0; choice < num_choices; ++choice) {
    choices_.push_back(std::make_unique<GenerationJob>(context_, shared_, choice));
  }
}

// Leaves the run with nothing started.
Status PromptJob::begin() {
  const Prompt& prompt = shared_.prompt;
  CHORUS_RETURN_IF_ERROR(prompt.status);
  const int64_t submitted_ns = submitted_ns_.value_or(context_.clock.now_ns());
  const LoadedSession* base = context_.base;
  if (base != nullptr && !prompt.settings.cache_salt.empty())
    return invalid_argument("cache_salt", "expected none: the prompt forks the loaded session");
  CHORUS_RETURN_IF_ERROR(read_tokens());
  truncate();
  if (base != nullptr && !base->tokens.empty()) CHORUS_RETURN_IF_ERROR(follow(*base));
  CHORUS_ASSIGN_OR_RETURN(Session session, open_session());
  ChoicesPlan planned = plan();
  planned.options.arrived_ns = submitted_ns;
  if (const auto& deadline_ms = prompt.settings.deadline_ms) {
    planned.options.deadline_ns = *deadline_ms * 1'000'000;
  }
  shared_.run = std::make_unique<PromptChoices>(context_.runner, context_.text, std::move(planned),
                                                std::move(session));
  return Status();
}

// The tokens of the prompt, and its text where there is one.
Status PromptJob::read_tokens() {
  const Prompt& prompt = shared_.prompt;
  const TextModel* text = context_.text.get();
  if (prompt.tokens) {
    shared_.tokens = *prompt.tokens;
    if (context_.options.echo && text != nullptr) {
      CHORUS_ASSIGN_OR_RETURN(shared_.text, text->tokenizer().decode(shared_.tokens));
    }
    return Status();
  }
  text::EncodeOptions encode{.parse_special = true, .add_special = true};
  if (prompt.text) {
    shared_.text = *prompt.text;
    // Only a context begins with BOS.
    encode.add_special = context_.base == nullptr || context_.base->tokens.empty();
  } else if (context_.base != nullptr) {
    return invalid_argument("messages",
                            "expected a prompt: a loaded session is continued by text or tokens");
  } else {
    CHORUS_ASSIGN_OR_RETURN(shared_.text, text->render_chat(prompt.messages));
    encode.add_special = false;  // the template writes what the model expects
  }
  CHORUS_ASSIGN_OR_RETURN(shared_.tokens, text->tokenizer().encode(shared_.text, encode));
  return Status();
}

// Leaves as much as the settings say, or as there is room for beside what is to be generated.
void PromptJob::truncate() {
  constexpr int64_t kDefaultMaxTokens = 256;
  const int64_t limit = context_.runner.effective().executor.max_session_tokens;
  const int64_t held = context_.base == nullptr ? 0 : std::ssize(context_.base->tokens);
  const int64_t to_generate =
      shared_.prompt.settings.max_tokens.value_or(std::min(kDefaultMaxTokens, limit / 2));
  shared_.num_truncated =
      truncate_prompt(shared_.prompt.settings, limit - held - to_generate, shared_.tokens);
}

// Puts the prompt behind a session that is not empty. Without a prompt, its last token runs again.
Status PromptJob::follow(const LoadedSession& base) {
  shared_.base = static_cast<Position>(base.tokens.size());
  if (!shared_.tokens.empty()) return Status();
  const TokenId last = base.tokens.back();
  const std::vector<TokenId>& ends = context_.end_tokens;
  if (!shared_.prompt.settings.ignore_eos &&
      std::find(ends.begin(), ends.end(), last) != ends.end()) {
    return invalid_argument("prompt",
                            "expected one: the session ended with the model's end token "
                            "(--ignore-eos goes on)");
  }
  shared_.base -= 1;
  shared_.tokens = {last};
  shared_.goes_on = true;
  return Status();
}

Result<Session> PromptJob::open_session() {
  if (context_.base != nullptr) return context_.base->session.clone(shared_.base);
  SessionOptions options;
  options.salt = shared_.prompt.settings.cache_salt;
  return context_.runner.open(options);
}

GenerationOptions PromptJob::generation_options() const {
  const GenerationFields& settings = shared_.prompt.settings;
  const JobOptions& wanted = context_.options;
  GenerationOptions options = chorus::generation_options(settings, context_.end_tokens);
  if (!settings.max_tokens) {
    const int64_t room = int64_t{context_.runner.effective().executor.max_session_tokens} -
                         shared_.base - static_cast<int64_t>(shared_.tokens.size());
    options.max_new_tokens =
        static_cast<int32_t>(std::clamp<int64_t>(room, 1, options.max_new_tokens));
  }
  options.sampling.logprobs = wanted.logprobs.has_value() || wanted.num_best > 0;
  options.sampling.num_likeliest = wanted.logprobs.value_or(0);
  // Nothing comes before a session's first token.
  if (wanted.echo && wanted.logprobs) options.score_from = std::max(shared_.base, Position{1});
  options.signal = context_.signal;
  return options;
}

// All of it but the deadline.
ChoicesPlan PromptJob::plan() const {
  ChoicesPlan plan;
  plan.tokens = shared_.tokens;
  plan.options = generation_options();
  plan.stops = shared_.prompt.settings.stop;
  plan.text = text_options(shared_.prompt.settings);
  plan.num_choices = context_.options.num_choices;
  return plan;
}

void PromptJob::start(size_t places) {
  if (!has_begun()) {
    if (places == 0) return;
    if (Status status = begin(); !status.ok()) {
      shared_.without_run.finish = FinishReason::kError;
      shared_.without_run.error = std::move(status);
      return;
    }
    --places;  // for the session that the run was given
  }
  if (finished()) return;
  shared_.run->start(places);
  take_session();
}

// Only who keeps it has a use for it; else its blocks are back when this returns.
void PromptJob::take_session() {
  if (!shared_.run->finished()) return;
  kept_ = shared_.run->take_session();
  if (!context_.options.keeps_session) kept_.close();
}

size_t PromptJob::num_sessions() const {
  return finished() || !has_begun() ? 0 : 1 + shared_.run->num_sessions();
}

bool PromptJob::poll() {
  if (finished() || !shared_.run->poll()) return false;
  for (const auto& job : choices_) job->follow();
  take_session();
  return true;
}

void PromptJob::cancel() {
  if (shared_.run) shared_.run->cancel();
}

bool PromptJob::finished() const {
  return shared_.run ? shared_.run->finished() : shared_.without_run.finish.has_value();
}

bool PromptJob::is_running() const {
  return std::any_of(choices_.begin(), choices_.end(),
                     [](const auto& job) { return job->started() && !job->finished(); });
}

}  // namespace chorus::cli
