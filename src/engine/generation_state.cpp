#include "engine/generation_state.h"

#include <algorithm>
#include <utility>

#include "engine/port.h"

namespace chorus {
namespace {

// Appends scores whose likeliest tokens lie in `source`, and those tokens.
void append_scores(std::span<const TokenScore> scores, std::span<const TokenLogprob> source,
                   std::vector<TokenScore>& tokens, std::vector<TokenLogprob>& likeliest) {
  for (TokenScore score : scores) {
    const auto entries = source.subspan(static_cast<size_t>(score.likeliest_begin),
                                        static_cast<size_t>(score.likeliest_count));
    score.likeliest_begin = static_cast<int32_t>(likeliest.size());
    likeliest.insert(likeliest.end(), entries.begin(), entries.end());
    tokens.push_back(score);
  }
}

}  // namespace

GenerationState::GenerationState(std::shared_ptr<EnginePort> port,
                                 std::shared_ptr<SessionShared> session, uint64_t number,
                                 Position prompt_end, GenerationOptions options,
                                 int64_t submitted_ns)
    : port_(std::move(port)),
      session_(std::move(session)),
      number_(number),
      prompt_end_(prompt_end),
      options_(std::move(options)),
      submitted_ns_(submitted_ns) {}

uint64_t GenerationState::session() const { return session_->key; }

bool GenerationState::deliver(std::span<const TokenScore> tokens,
                              std::span<const TokenLogprob> likeliest, const Progress& progress,
                              const std::optional<Ending>& ending, int32_t max_unread) {
  const MutexLock lock(mutex_);
  CHORUS_CHECK(!ending_.has_value());
  append_scores(tokens, likeliest, outbox_.tokens, outbox_.likeliest);
  metrics_ = progress.metrics;
  if (progress.itl.has_value()) itl_.push_back(*progress.itl);
  ending_ = ending;
  apply_cut();
  is_paused_ = !ending.has_value() && !limit_is_lifted_ &&
               outbox_.tokens.size() >= static_cast<size_t>(max_unread);
  changed_.notify_all();
  return is_paused_;
}

void GenerationState::add_scores(Position first, std::span<const TokenScore> tokens,
                                 std::span<const TokenLogprob> likeliest) {
  const MutexLock lock(mutex_);
  if (scores_.tokens.empty()) scores_.first = first;
  append_scores(tokens, likeliest, scores_.tokens, scores_.likeliest);
}

void GenerationState::finish_at(int32_t n) {
  const MutexLock lock(session_->mutex);
  if (cut(n) && session_->cut(number_, int64_t{prompt_end_} + n))
    (void)port_->post(FinishAtCommand{session_->key, number_, n});
}

// Whether that is earlier than what was asked for before.
bool GenerationState::cut(int32_t n) {
  const MutexLock lock(mutex_);
  if (n >= cut_) return false;
  cut_ = n;
  apply_cut();
  return true;
}

// Of a generation that ended after more tokens the end is the one asked for, not the deadline or
// the cancel that came later; an error is not made good by it.
void GenerationState::apply_cut() {
  if (!ending_.has_value() || cut_ >= metrics_.generated_tokens) return;
  metrics_.generated_tokens = cut_;
  if (ending_->reason != FinishReason::kError) ending_ = Ending{FinishReason::kStop, {}};
}

void GenerationState::cancel() {
  if (cancel_requested_.exchange(true, std::memory_order_acq_rel)) return;
  (void)port_->inbox.post_at_once(CancelCommand{session_->key, number_});
}

bool GenerationState::read(Update& update, bool blocking) {
  update.clear();
  while (blocking && port_->turn && !has_news()) port_->turn();
  bool was_paused = false;
  {
    const MutexLock lock(mutex_);
    while (blocking && outbox_.tokens.empty() && !ending_.has_value()) changed_.wait(mutex_);
    const bool is_end = ending_.has_value() && !end_was_read_;
    if (outbox_.tokens.empty() && !is_end) return false;
    std::swap(update.tokens, outbox_.tokens);
    std::swap(update.likeliest, outbox_.likeliest);
    if (is_end) {
      update.finish = ending_->reason;
      update.error = ending_->error;
      end_was_read_ = true;
    }
    was_paused = std::exchange(is_paused_, false);
  }
  if (was_paused) post_resume();
  return true;
}

void GenerationState::wait() {
  bool was_paused = false;
  {
    const MutexLock lock(mutex_);
    limit_is_lifted_ = true;
    was_paused = std::exchange(is_paused_, false);
  }
  if (was_paused) post_resume();
  while (port_->turn && !done()) port_->turn();
  const MutexLock lock(mutex_);
  while (!ending_.has_value()) changed_.wait(mutex_);
}

void GenerationState::post_resume() {
  (void)port_->inbox.post_at_once(ResumeCommand{session_->key, number_});
}

bool GenerationState::has_news() const {
  const MutexLock lock(mutex_);
  return !outbox_.tokens.empty() || ending_.has_value();
}

bool GenerationState::done() const {
  const MutexLock lock(mutex_);
  return ending_.has_value();
}

std::optional<FinishReason> GenerationState::finish_reason() const {
  const MutexLock lock(mutex_);
  if (!ending_.has_value()) return std::nullopt;
  return ending_->reason;
}

Status GenerationState::error() const {
  const MutexLock lock(mutex_);
  return ending_.has_value() ? ending_->error : Status();
}

GenerationMetrics GenerationState::metrics() const {
  GenerationMetrics metrics;
  std::vector<int64_t> itl;
  {
    const MutexLock lock(mutex_);
    metrics = metrics_;
    itl = itl_;
  }
  metrics.itl = summarize(itl);
  return metrics;
}

PromptScores GenerationState::take_prompt_scores() {
  const MutexLock lock(mutex_);
  return std::exchange(scores_, {});
}

// ---- The public face ----

void Update::clear() {
  tokens.clear();
  likeliest.clear();
  finish.reset();
  error = Status();
}

uint64_t UpdateSignal::count() const {
  const MutexLock lock(mutex_);
  return count_;
}

uint64_t UpdateSignal::wait(uint64_t seen) const {
  const MutexLock lock(mutex_);
  while (count_ == seen) changed_.wait(mutex_);
  return count_;
}

uint64_t UpdateSignal::wait_for(uint64_t seen, int64_t timeout_ns) const {
  const MutexLock lock(mutex_);
  if (count_ == seen) changed_.wait_for_ns(mutex_, timeout_ns);
  return count_;
}

void UpdateSignal::notify() {
  const MutexLock lock(mutex_);
  ++count_;
  changed_.notify_all();
}

void GenerationHandle::cancel() const { state_->cancel(); }

Status GenerationHandle::finish_at(int32_t n) const {
  if (n < 1) return invalid_argument("n", "expected at least 1, found " + std::to_string(n));
  state_->finish_at(n);
  return {};
}

bool GenerationHandle::read(Update& update) const { return state_->read(update, true); }
bool GenerationHandle::try_read(Update& update) const { return state_->read(update, false); }
void GenerationHandle::wait() const { state_->wait(); }
bool GenerationHandle::done() const { return state_->done(); }
std::optional<FinishReason> GenerationHandle::finish_reason() const {
  return state_->finish_reason();
}
Status GenerationHandle::error() const { return state_->error(); }
GenerationMetrics GenerationHandle::metrics() const { return state_->metrics(); }
PromptScores GenerationHandle::take_prompt_scores() const { return state_->take_prompt_scores(); }

}  // namespace chorus
