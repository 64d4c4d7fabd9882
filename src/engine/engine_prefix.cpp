// Prefix reuse: what the index has, and what others are about to compute.
#include <algorithm>
#include <span>
#include <utility>

#include "engine/engine_loop.h"

namespace chorus {
namespace {

size_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const size_t size = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(size), b.begin()).first -
      a.begin());
}

// The tokens of the prompt that are not context yet.
std::span<const TokenId> rest_of_prompt(const SessionRecord& record) {
  const LiveGeneration& live = *record.live;
  if (record.position() >= live.prompt_end) return {};
  return std::span(live.prompt).subspan(static_cast<size_t>(record.position() - live.prompt_begin));
}

}  // namespace

// Puts into history_ the tokens of which all but the last may be taken from elsewhere: context and
// prompt, but not those whose rows are needed for scores.
void EngineLoop::make_history(const SessionRecord& record) {
  history_.assign(record.context.begin(), record.context.end());
  const auto rest = rest_of_prompt(record);
  history_.insert(history_.end(), rest.begin(), rest.end());
  const auto usable = static_cast<size_t>(std::max(1, score_start(record)));
  if (usable < history_.size()) history_.resize(usable);
}

// Takes for a session that holds nothing, or nothing but what was taken so before, the longest
// prefix that the index has.
void EngineLoop::attach(SessionRecord& record) {
  if (!record.options.indexed || record.executor_length != record.attached) return;
  if (record.attached > 0) give_up_blocks(record);  // they are cached, and found again
  LiveGeneration& live = *record.live;
  if (!std::exchange(live.was_queried, true)) {
    const auto count = static_cast<int32_t>(rest_of_prompt(record).size());
    metrics_.queried_tokens += count;
    log(EngineEvent::Kind::kQueried, record, count);
  }
  make_history(record);
  const auto taken = executor_.attach_prefix(record.id, history_);
  if (!taken.ok() || *taken == 0) return;
  set_executor_length(record, *taken);
  record.attached = *taken;
}

// What was taken of the prompt becomes context.
void EngineLoop::consume_attached(SessionRecord& record) {
  if (record.attached <= record.position()) return;
  const int32_t count = record.attached - record.position();
  const auto taken = rest_of_prompt(record).first(static_cast<size_t>(count));
  record.context.insert(record.context.end(), taken.begin(), taken.end());
  record.live->cached_tokens += count;
  metrics_.cached_tokens += count;
  metrics_.prompt_tokens += count;
  log(EngineEvent::Kind::kConsumed, record, count);
  log(EngineEvent::Kind::kCached, record, count);
  publish_position(record);
}

// ---- Leaders and followers ----

// Whether `other` computes tokens whose KV `record` may take.
bool EngineLoop::can_lead(const SessionRecord& other, const SessionRecord& record) const {
  return &other != &record && other.live->leader.session == 0 &&
         other.executor_length < other.live->tokens_end() &&
         other.executor_length >= record.executor_length && other.options.indexed &&
         !other.was_loaded && other.options.adapter == record.options.adapter &&
         other.options.salt == record.options.salt;
}

// Chooses whoever computes most of what `record` needs next, or nobody. Costs a comparison of
// tokens for each running generation that has some to compute, up to the first difference.
void EngineLoop::find_leader(SessionRecord& record) {
  LiveGeneration::Leader& leader = record.live->leader;
  leader = {};
  if (!record.options.indexed || record.executor_length != record.attached) return;
  std::span<const TokenId> history;
  const auto block_size = static_cast<size_t>(port_.options.capacity.block_size);
  for (const SessionRecord* other : running_) {
    if (!can_lead(*other, record)) continue;
    if (history.empty()) {
      make_history(record);
      history = history_;
    }
    const auto known = static_cast<size_t>(other->position());
    size_t common = common_prefix(history, other->context);
    if (common == known && common < history.size())
      common += common_prefix(history.subspan(known), rest_of_prompt(*other));
    const auto end = static_cast<Position>(common / block_size * block_size);
    const Position taken = std::min(end, static_cast<Position>(history.size()) - 1);
    if (end <= std::max(other->executor_length, leader.end) || taken <= record.executor_length)
      continue;
    leader = {other->shared->key, other->live->state->number(), end};
  }
}

// The leader that a generation still has a reason to wait for, or null.
SessionRecord* EngineLoop::leader_of(const SessionRecord& record) {
  const LiveGeneration::Leader& leader = record.live->leader;
  if (leader.session == 0) return nullptr;
  SessionRecord* other = find_live(leader.session, leader.generation);
  const bool is_ahead = other != nullptr && other->live->is_running &&
                        other->live->leader.session == 0 && other->executor_length < leader.end &&
                        leader.end <= other->live->tokens_end();
  return is_ahead ? other : nullptr;
}

// Lets a leader stop at `end` for a follower.
void EngineLoop::let_wait_for(SessionRecord& leader, Position end) {
  if (end >= leader.live->fed_end) return;
  (void)scheduler_->cancel(leader.id);
  leader.live->fed_end = leader.executor_length;
  submit_prefill(leader);
}

// Feeds followers whose leader has got to where they part, or is gone; then leaders that stopped.
void EngineLoop::resume_followers() {
  for (SessionRecord* record : running_) {
    LiveGeneration& live = *record->live;
    if (live.leader.session == 0 || leader_of(*record) != nullptr) continue;
    live.leader = {};
    attach(*record);
    feed(*record);
  }
  for (SessionRecord* record : running_) {
    const LiveGeneration& live = *record->live;
    if (live.leader.session == 0 && record->executor_length == live.fed_end &&
        live.fed_end < live.tokens_end())
      submit_prefill(*record);
  }
}

}  // namespace chorus
