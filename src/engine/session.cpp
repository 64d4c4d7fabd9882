#include "engine/session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "batching/sampling_policy.h"
#include "engine/generation_state.h"
#include "engine/port.h"

namespace chorus {

namespace {

Status take_session_place(EnginePort& port) {
  const int32_t max_sessions = port.options.executor.max_sessions;
  if (port.sessions.try_take(max_sessions)) return {};
  return resource_exhausted(
      "max_sessions", "expected fewer than " + std::to_string(max_sessions) + " open sessions");
}

}  // namespace

Result<std::shared_ptr<SessionShared>> take_place(EnginePort& port) {
  CHORUS_RETURN_IF_ERROR(take_session_place(port));
  return std::make_shared<SessionShared>(port.next_key.fetch_add(1, std::memory_order_relaxed));
}

Session::Session(std::shared_ptr<EnginePort> port, std::shared_ptr<SessionShared> shared)
    : port_(std::move(port)), shared_(std::move(shared)) {}

Session::~Session() { post_close(false); }

Session& Session::operator=(Session&& other) noexcept {
  if (this != &other) {
    post_close(false);
    port_ = std::move(other.port_);
    shared_ = std::move(other.shared_);
  }
  return *this;
}

void Session::close() { post_close(true); }

void Session::post_close(bool wait) {
  if (shared_ == nullptr) return;
  auto closed = wait ? std::make_shared<Event>() : nullptr;
  const bool posted = port_->post(CloseCommand{shared_->key, closed});
  // After the command, so that whoever takes the place is opened behind it.
  if (!shared_->is_suspended) port_->sessions.give_back();
  shared_ = nullptr;
  if (posted && wait) port_->await(*closed);
}

Position Session::position() const {
  CHORUS_CHECK(valid());
  return shared_->length();
}

Status Session::check_usable() const {
  if (!valid()) return invalid_argument("session", "expected an open session, found a closed one");
  if (!shared_->is_suspended) return {};
  return invalid_argument("session", "expected one that has its place, found a suspended one");
}

Status Session::suspend() {
  if (!valid()) return invalid_argument("session", "expected an open session, found a closed one");
  if (shared_->is_suspended) return {};
  if (!port_->post(SuspendCommand{shared_->key}))
    return unavailable("engine", "the engine is stopping");
  shared_->is_suspended = true;
  port_->sessions.give_back();  // after the command, as for a close
  return {};
}

Status Session::resume() {
  if (!valid()) return invalid_argument("session", "expected an open session, found a closed one");
  if (!shared_->is_suspended) return {};
  CHORUS_RETURN_IF_ERROR(take_session_place(*port_));
  if (!port_->post(ReturnCommand{shared_->key})) {
    port_->sessions.give_back();
    return unavailable("engine", "the engine is stopping");
  }
  shared_->is_suspended = false;
  return {};
}

Result<Session> Session::clone(Position upto) const {
  CHORUS_RETURN_IF_ERROR(check_usable());
  const MutexLock lock(shared_->mutex);
  if (upto < 0 || upto > position())
    return invalid_argument(
        "upto", "expected 0 to " + std::to_string(position()) + ", found " + std::to_string(upto));
  CHORUS_ASSIGN_OR_RETURN(auto shared, take_place(*port_));
  shared->position.store(upto, std::memory_order_release);
  if (!port_->post(CloneCommand{shared, shared_->key, upto})) {
    port_->sessions.give_back();
    return unavailable("engine", "the engine is stopping");
  }
  return Session(port_, std::move(shared));
}

Result<SavedSession> Session::save() const {
  CHORUS_RETURN_IF_ERROR(check_usable());
  if (shared_->is_live.load(std::memory_order_acquire))
    return invalid_argument("session", "expected no live generation, found one");
  auto reply = std::make_shared<Reply<SavedSession>>();
  if (!port_->post(SaveCommand{shared_->key, reply}))
    return unavailable("engine", "the engine is stopping");
  port_->await(reply->ready());
  return reply->take();
}

Status Session::rewind(Position length) {
  if (!valid()) return invalid_argument("session", "expected an open session, found a closed one");
  if (shared_->is_live.load(std::memory_order_acquire))
    return invalid_argument("session", "expected no live generation, found one");
  const MutexLock lock(shared_->mutex);
  if (length < 0 || length > position())
    return invalid_argument("length", "expected 0 to " + std::to_string(position()) + ", found " +
                                          std::to_string(length));
  shared_->begin_use(0);
  shared_->lower_position(length);
  if (!port_->post(RewindCommand{shared_->key, length}))
    return unavailable("engine", "the engine is stopping");
  return {};
}

Result<GenerationHandle> Session::generate(std::vector<TokenId> prompt,
                                           const GenerationOptions& options) {
  if (options.max_new_tokens < 1)
    return invalid_argument("max_tokens",
                            "expected at least 1, found " + std::to_string(options.max_new_tokens));
  if (valid()) CHORUS_RETURN_IF_ERROR(check_sampled(options));
  return start(std::move(prompt), options);
}

Result<GenerationHandle> Session::append(std::vector<TokenId> tokens,
                                         const GenerationOptions& options) {
  GenerationOptions without_output = options;
  without_output.max_new_tokens = 0;
  return start(std::move(tokens), std::move(without_output));
}

Status Session::check_prompt(const std::vector<TokenId>& prompt,
                             const GenerationOptions& options) const {
  if (prompt.empty()) return invalid_argument("prompt", "expected at least one token, found none");
  const int32_t vocabulary = port_->options.executor.vocabulary;
  const auto unknown = std::find_if(prompt.begin(), prompt.end(), [&](TokenId token) {
    return token < 0 || token >= vocabulary;
  });
  if (unknown != prompt.end())
    return invalid_argument("prompt", "expected ids from 0 to " + std::to_string(vocabulary - 1) +
                                          ", found " + std::to_string(*unknown) + " at index " +
                                          std::to_string(unknown - prompt.begin()));
  if (options.deadline_ns.has_value() && *options.deadline_ns < 0)
    return invalid_argument("deadline_ms", "expected at least 0, found " +
                                               std::to_string(*options.deadline_ns) + " ns");
  if (options.score_from.has_value() && *options.score_from < 0)
    return invalid_argument("score_from",
                            "expected at least 0, found " + std::to_string(*options.score_from));
  return {};
}

// Ids, and how many tokens there are to be.
Status Session::check_sampled(const GenerationOptions& options) const {
  const int32_t vocabulary = port_->options.executor.vocabulary;
  CHORUS_RETURN_IF_ERROR(check_sampled_ids(options.sampling, vocabulary));
  for (size_t i = 0; i < options.stop_tokens.size(); ++i) {
    const TokenId id = options.stop_tokens[i];
    if (id >= 0 && id < vocabulary) continue;
    return invalid_argument("stop_token_ids[" + std::to_string(i) + "]",
                            "expected an id from 0 to " + std::to_string(vocabulary - 1) +
                                ", found " + std::to_string(id));
  }
  if (options.sampling.min_tokens <= options.max_new_tokens) return {};
  return invalid_argument("min_tokens", "expected at most max_tokens, " +
                                            std::to_string(options.max_new_tokens) + ", found " +
                                            std::to_string(options.sampling.min_tokens));
}

Status Session::check_length(size_t num_prompt, int32_t max_new_tokens) const {
  const EffectiveOptions& options = port_->options;
  const int64_t prompt_end = position() + static_cast<int64_t>(num_prompt);
  const int64_t needed = prompt_end + max_new_tokens;
  const auto check = [&](int64_t limit, const std::string& what) -> Status {
    if (needed <= limit) return {};
    const bool prompt_alone = prompt_end + std::min(max_new_tokens, 1) > limit;
    return invalid_argument(prompt_alone ? "prompt" : "max_tokens",
                            "expected at most " + std::to_string(limit) + " tokens in " + what +
                                ", found " + std::to_string(needed) + " (" +
                                std::to_string(prompt_end) + " given and " +
                                std::to_string(max_new_tokens) + " to generate)");
  };
  CHORUS_RETURN_IF_ERROR(check(options.executor.max_session_tokens, "a session"));
  if (options.capacity.can_hold(needed)) return {};
  return check(options.capacity.longest(options.executor.max_session_tokens), "the pool");
}

Result<GenerationHandle> Session::start(std::vector<TokenId> prompt, GenerationOptions options) {
  CHORUS_RETURN_IF_ERROR(check_usable());
  CHORUS_RETURN_IF_ERROR(check_prompt(prompt, options));
  if (shared_->is_live.load(std::memory_order_acquire))
    return invalid_argument("session", "expected no live generation, found one");
  const MutexLock lock(shared_->mutex);
  CHORUS_RETURN_IF_ERROR(check_length(prompt.size(), options.max_new_tokens));
  const int32_t max_queued = port_->options.max_queued_generations;
  if (!port_->queue.try_take(max_queued))
    return resource_exhausted(
        "queue", "expected fewer than " + std::to_string(max_queued) + " waiting generations");
  std::sort(options.stop_tokens.begin(), options.stop_tokens.end());
  const uint64_t number = port_->next_key.fetch_add(1, std::memory_order_relaxed);
  shared_->begin_use(number);
  const Position prompt_end = position() + static_cast<Position>(prompt.size());
  const int64_t now = port_->clock.now_ns();
  const int64_t submitted = std::min(options.arrived_ns.value_or(now), now);
  auto generation = std::make_shared<GenerationState>(port_, shared_, number, prompt_end,
                                                      std::move(options), submitted);
  shared_->is_live.store(true, std::memory_order_release);
  if (!port_->post(StartCommand{generation, std::move(prompt)})) {
    shared_->is_live.store(false, std::memory_order_release);
    port_->queue.give_back();
    return unavailable("engine", "the engine is stopping");
  }
  return GenerationHandle(std::move(generation));
}

}  // namespace chorus
