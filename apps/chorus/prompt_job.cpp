#include "prompt_job.h"

#include <algorithm>

namespace chorus::cli {

PromptJob::PromptJob(const JobContext& context, int index, Prompt prompt,
                     std::optional<int64_t> submitted_ns)
    : context_(context), submitted_ns_(submitted_ns) {
  shared_.index = index;
  shared_.prompt = std::move(prompt);
  for (int choice = 0; choice < context.options.num_choices; ++choice) {
    choices_.push_back(std::make_unique<GenerationJob>(context_, shared_, choice));
  }
  was_taken_.resize(choices_.size());
}

Status PromptJob::prepare() {
  const Prompt& prompt = shared_.prompt;
  CHORUS_RETURN_IF_ERROR(prompt.status);
  if (const auto& deadline_ms = prompt.settings.deadline_ms) {
    shared_.deadline_ns = submitted_ns_.value_or(context_.clock.now_ns()) + *deadline_ms * 1000000;
  }
  const LoadedSession* base = context_.base;
  if (base != nullptr && !prompt.settings.cache_salt.empty())
    return invalid_argument("cache_salt", "expected none: the prompt forks the loaded session");
  CHORUS_RETURN_IF_ERROR(read_tokens());
  truncate();
  return base != nullptr && !base->tokens.empty() ? follow(*base) : Status();
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

// Whether a session can be forked from the first choice's.
bool PromptJob::is_computed() const {
  return num_started_ > 0 && choices_[0]->generated_tokens() > 0;
}

// Requires: is_computed(), or nothing has started.
Result<Session> PromptJob::session_for_next() {
  if (num_started_ == 0) {
    if (context_.base != nullptr) return context_.base->session.clone(shared_.base);
    SessionOptions options;
    options.salt = shared_.prompt.settings.cache_salt;
    return context_.runner.open(options);
  }
  // One token is left to run, for its logits.
  const Position held = shared_.base + static_cast<Position>(shared_.tokens.size()) - 1;
  if (!idle_.empty()) {
    Session session = std::move(idle_.back());
    idle_.pop_back();
    CHORUS_RETURN_IF_ERROR(session.rewind(held));
    return session;
  }
  for (const auto& job : choices_) {
    if (job->session().valid()) return job->session().clone(held);
  }
  return internal_error("session", "expected a session that holds the prompt, found none");
}

void PromptJob::start(size_t places) {
  while (num_started_ < choices_.size()) {
    if (num_started_ > 0 && !is_computed()) return;
    const bool needs_place = idle_.empty();
    if (needs_place && places == 0) return;
    const Status prepared = num_started_ == 0 ? prepare() : Status();
    auto session = prepared.ok() ? session_for_next() : Result<Session>(prepared);
    GenerationJob& job = *choices_[num_started_++];
    if (session.ok()) {
      places -= needs_place ? 1 : 0;
      job.start(std::move(session).value());
    } else {
      job.fail(FinishReason::kError, session.status());
    }
    take_finished();
  }
}

// Keeps the sessions of choices that have ended while others may need them, and ends all when the
// prompt itself failed.
void PromptJob::take_finished() {
  for (size_t i = 0; i < num_started_; ++i) {
    if (was_taken_[i] || !choices_[i]->finished()) continue;
    was_taken_[i] = true;
    ++num_finished_;
    Session session = std::move(choices_[i]->session());
    if (i == 0 && !is_computed()) {
      const GenerationJob& first = *choices_[0];
      for (; num_started_ < choices_.size(); ++num_started_) {
        choices_[num_started_]->fail(first.finish(), first.error());
      }
    }
    if (num_started_ < choices_.size() && session.valid()) {
      idle_.push_back(std::move(session));
    } else if (context_.options.keeps_session) {
      kept_ = std::move(session);
    } else {
      session.close();
    }
  }
  if (num_started_ == choices_.size()) idle_.clear();
}

size_t PromptJob::num_sessions() const { return idle_.size() + (num_started_ - num_finished_); }

bool PromptJob::poll() {
  bool changed = false;
  for (size_t i = 0; i < num_started_; ++i) {
    while (choices_[i]->poll()) changed = true;
  }
  if (changed) take_finished();
  return changed;
}

void PromptJob::cancel() {
  for (const auto& job : choices_) job->cancel();
}

}  // namespace chorus::cli
