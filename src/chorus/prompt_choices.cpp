#include "chorus/prompt_choices.h"

#include <algorithm>

#include "chorus/text_generation.h"

namespace chorus {

std::vector<TokenId> PromptChoices::Choice::token_ids() const {
  std::vector<TokenId> ids;
  for (const TokenScore& score : tokens()) ids.push_back(score.id);
  return ids;
}

PromptChoices::PromptChoices(Runner& runner, std::shared_ptr<const TextModel> text,
                             ChoicesPlan plan)
    : PromptChoices(runner, std::move(text), std::move(plan), Session()) {}

PromptChoices::PromptChoices(Runner& runner, std::shared_ptr<const TextModel> text,
                             ChoicesPlan plan, Session session)
    : runner_(runner),
      text_(std::move(text)),
      plan_(std::move(plan)),
      has_given_(session.valid()),
      base_(has_given_ ? session.position() : 0),
      given_(std::move(session)) {
  CHORUS_CHECK(plan_.num_choices == 1 || plan_.options.max_new_tokens > 0);
  choices_.resize(static_cast<size_t>(plan_.num_choices));
  runs_.resize(choices_.size());
}

GenerationOptions PromptChoices::options_of(size_t choice) const {
  GenerationOptions options = plan_.options;
  options.sampling.choice += static_cast<uint32_t>(choice);
  if (choice > 0) options.score_from.reset();
  return options;
}

// Whether a session can be forked from the first choice's.
bool PromptChoices::is_computed() const {
  return num_started_ > 0 && !choices_[0].tokens().empty();
}

// Requires: is_computed(), or nothing has started.
Result<Session> PromptChoices::session_for_next() {
  if (num_started_ == 0 && has_given_) return std::move(given_);
  if (num_started_ == 0) return runner_.open(plan_.session);
  // One token is left to run, for its logits.
  const Position held = base_ + static_cast<Position>(plan_.tokens.size()) - 1;
  if (!idle_.empty()) {
    Session session = std::move(idle_.back());
    idle_.pop_back();
    CHORUS_RETURN_IF_ERROR(session.rewind(held));
    return session;
  }
  for (const Run& run : runs_) {
    if (run.session.valid()) return run.session.clone(held);
  }
  return internal_error("session", "expected a session that holds the prompt, found none");
}

void PromptChoices::start_choice(size_t index, Session session) {
  const Position held = session.position() - base_;
  choices_[index].num_held = held;
  runs_[index].session = std::move(session);
  std::vector<TokenId> tokens(plan_.tokens.begin() + held, plan_.tokens.end());
  const GenerationOptions options = options_of(index);
  auto generation = options.max_new_tokens == 0
                        ? start_append(runs_[index].session, std::move(tokens), options)
                        : start_generation(runs_[index].session, std::move(tokens), options, text_,
                                           plan_.stops, plan_.text);
  if (!generation.ok()) return end(index, FinishReason::kError, generation.status());
  choices_[index].generation = std::move(generation).value();
}

void PromptChoices::start(size_t places) {
  while (num_started_ < choices_.size()) {
    if (num_started_ > 0 && !is_computed()) return;
    const bool needs_place = idle_.empty() && !given_.valid();
    if (needs_place && places == 0) return;
    auto session = session_for_next();
    // Somebody else has the last one; another will be free when a choice has ended.
    if (num_started_ > 0 && session.status().code() == Code::kResourceExhausted) return;
    const size_t index = num_started_++;
    if (session.ok()) {
      places -= needs_place ? 1 : 0;
      start_choice(index, std::move(session).value());
    } else {
      end(index, FinishReason::kError, session.status());
    }
    take_finished();
  }
}

void PromptChoices::end(size_t index, FinishReason reason, Status error) {
  Choice& choice = choices_[index];
  choice.finish = reason;
  choice.error = std::move(error);
  if (!choice.generation) return;
  choice.metrics = choice.generation->metrics();
  if (index == 0) take_scores();
}

void PromptChoices::take_scores() {
  if (has_scores_) return;
  has_scores_ = true;
  scores_ = choices_[0].generation->take_prompt_scores();
}

// Whether no choice has a session.
bool PromptChoices::has_none_open() const {
  return std::none_of(runs_.begin(), runs_.end(),
                      [](const Run& run) { return run.session.valid(); });
}

// Keeps the sessions of choices that have ended while others may need them, and ends all when the
// prompt itself failed.
void PromptChoices::take_finished() {
  for (size_t i = 0; i < num_started_; ++i) {
    if (runs_[i].was_taken || !choices_[i].finish) continue;
    runs_[i].was_taken = true;
    ++num_finished_;
    Session session = std::move(runs_[i].session);
    if (i == 0 && !is_computed()) {
      for (; num_started_ < choices_.size(); ++num_started_) {
        end(num_started_, *choices_[0].finish, choices_[0].error);
      }
    }
    if (!session.valid()) continue;
    if (num_started_ < choices_.size()) {
      idle_.push_back(std::move(session));
    } else if (has_given_ && has_none_open()) {
      given_ = std::move(session);
    }
  }
  if (num_started_ == choices_.size()) idle_.clear();
}

size_t PromptChoices::num_sessions() const {
  const size_t open = idle_.size() + (num_started_ - num_finished_);
  return has_given_ ? open - std::min<size_t>(open, 1) : open;
}

size_t PromptChoices::num_consumed(size_t choice) const {
  const Session& session = runs_[choice].session;
  if (!session.valid()) return 0;
  return std::min(static_cast<size_t>(session.position() - base_), plan_.tokens.size());
}

bool PromptChoices::poll_choice(size_t index) {
  Choice& choice = choices_[index];
  if (choice.finish || !choice.generation || !choice.generation->poll()) return false;
  if (index == 0 && !choice.tokens().empty()) take_scores();
  if (choice.generation->finished()) {
    end(index, choice.generation->finish_reason(), choice.generation->error());
  }
  return true;
}

bool PromptChoices::poll() {
  bool changed = false;
  for (size_t i = 0; i < num_started_; ++i) {
    while (poll_choice(i)) changed = true;
  }
  if (changed) take_finished();
  return changed;
}

std::vector<Session*> PromptChoices::open_sessions() {
  std::vector<Session*> sessions;
  for (Run& run : runs_) {
    if (run.session.valid()) sessions.push_back(&run.session);
  }
  for (Session& session : idle_) sessions.push_back(&session);
  if (given_.valid()) sessions.push_back(&given_);
  return sessions;
}

// One that cannot, because the engine is stopping, has ended all the same.
void PromptChoices::suspend() {
  for (Session* session : open_sessions()) (void)session->suspend();
}

Status PromptChoices::resume() {
  Status status;
  for (Session* session : open_sessions()) {
    Status resumed = session->resume();
    if (status.ok()) status = std::move(resumed);
  }
  return status;
}

// Nobody else can have its place but where the engine is stopping; then it is refused when used.
Session PromptChoices::take_session() {
  if (given_.valid()) (void)given_.resume();
  return std::move(given_);
}

void PromptChoices::cancel() {
  for (const Choice& choice : choices_) {
    if (!choice.finish && choice.generation) choice.generation->cancel();
  }
}

}  // namespace chorus
