#include "batching/session_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "batching/sampling_policy.h"

namespace chorus {
namespace {

Status unknown_session(SessionId session) {
  return not_found("session", "expected an open session, found " +
                                  std::to_string(static_cast<uint64_t>(session)));
}

}  // namespace

Result<std::unique_ptr<SessionTable>> SessionTable::create(const SessionTableOptions& options) {
  if (options.max_sessions < 1) {
    return invalid_argument("max_sessions",
                            "expected at least 1, found " + std::to_string(options.max_sessions));
  }
  if (options.vocabulary < 1) {
    return invalid_argument("vocabulary",
                            "expected at least 1, found " + std::to_string(options.vocabulary));
  }
  if (!is_block_size(options.kv.block_size)) {
    return invalid_argument("block_size", "expected 1 cell or a multiple of 16, found " +
                                              std::to_string(options.kv.block_size));
  }
  CHORUS_ASSIGN_OR_RETURN(std::unique_ptr<KvBooks> books, KvBooks::create(options.kv));
  return std::unique_ptr<SessionTable>(new SessionTable(options, std::move(books)));
}

SessionTable::SessionTable(const SessionTableOptions& options, std::unique_ptr<KvBooks> books)
    : options_(options), books_(std::move(books)) {
  slots_.resize(static_cast<size_t>(options.max_sessions));
  for (int32_t slot = options.max_sessions - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

int32_t SessionTable::find(SessionId session) const {
  const auto found = slot_of_.find(session);
  return found == slot_of_.end() ? -1 : found->second;
}

Status SessionTable::check_capacity() const {
  if (!free_slots_.empty()) return {};
  return resource_exhausted("max_sessions",
                            "all " + std::to_string(options_.max_sessions) + " are open");
}

// Two that differ in a part differ as a whole: lengths come first, the salt is the rest.
std::string SessionTable::key_of(const SessionOptions& options) const {
  return std::to_string(options_.kv_identity.size()) + ":" + options_.kv_identity +
         std::to_string(options.adapter) + ":" + options.salt;
}

SessionId SessionTable::insert(SequenceId sequence, const SessionOptions& options,
                               bool is_indexed) {
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  const SessionId id{next_session_++};
  at(slot) = {id, sequence, options, key_of(options), is_indexed, std::nullopt};
  slot_of_.emplace(id, slot);
  return id;
}

Status SessionTable::check_new(const SessionOptions& options) const {
  if (options.adapter != -1) {
    return invalid_argument("adapter",
                            "expected -1 (none), found " + std::to_string(options.adapter));
  }
  return check_capacity();
}

Result<SessionId> SessionTable::open(const SessionOptions& options) {
  CHORUS_RETURN_IF_ERROR(check_new(options));
  const SequenceId sequence = options.indexed ? books_->open(key_of(options)) : books_->open();
  return insert(sequence, options, options.indexed);
}

void SessionTable::close(SessionId session) {
  const int32_t slot = find(session);
  if (slot < 0) return;
  books_->close(at(slot).sequence);
  at(slot) = {};
  slot_of_.erase(session);
  free_slots_.push_back(slot);
}

Result<SessionId> SessionTable::clone(SessionId source, Position upto) {
  const int32_t slot = find(source);
  if (slot < 0) return unknown_session(source);
  CHORUS_RETURN_IF_ERROR(check_rewind(at(slot), upto, "upto"));
  CHORUS_RETURN_IF_ERROR(check_capacity());
  return insert(books_->clone(at(slot).sequence, upto), at(slot).options, at(slot).is_indexed);
}

Status SessionTable::set_sampling(SessionId session, const SamplingParams& params) {
  const int32_t slot = find(session);
  if (slot < 0) return unknown_session(session);
  CHORUS_RETURN_IF_ERROR(check_sampling(params, options_.vocabulary));
  SamplingParams bounded = params;
  bounded.max_tokens = std::min(params.max_tokens, options_.kv.max_sequence_tokens);
  at(slot).policy.emplace(std::move(bounded), options_.vocabulary);
  at(slot).is_starting = true;
  return {};
}

Result<Position> SessionTable::length(SessionId session) const {
  const int32_t slot = find(session);
  if (slot < 0) return unknown_session(session);
  return books_->length(at(slot).sequence);
}

// Nothing is allocated where nothing is found.
Result<Position> SessionTable::attach_prefix(SessionId session, std::span<const TokenId> tokens) {
  const int32_t slot = find(session);
  if (slot < 0) return unknown_session(session);
  Session& state = at(slot);
  if (const Position held = books_->length(state.sequence); held > 0) {
    return invalid_argument("session",
                            "expected an empty one, found " + std::to_string(held) + " tokens");
  }
  if (!state.options.indexed) return 0;
  const auto cap =
      static_cast<Position>(std::min(std::max<size_t>(tokens.size(), 1) - 1,
                                     static_cast<size_t>(options_.kv.max_sequence_tokens)));
  if (state.is_indexed && books_->longest_prefix(state.key, tokens, cap) == 0) return 0;
  const SequenceId attached = books_->open_prefix(state.key, tokens, cap);
  books_->close(state.sequence);
  state.sequence = attached;
  state.is_indexed = true;
  const Position length = books_->length(attached);
  if (state.policy) state.policy->take(0, tokens.first(static_cast<size_t>(length)));
  return length;
}

Status SessionTable::truncate(SessionId session, Position length) {
  const int32_t slot = find(session);
  if (slot < 0) return unknown_session(session);
  CHORUS_RETURN_IF_ERROR(check_rewind(at(slot), length, "length"));
  books_->truncate(at(slot).sequence, length);
  return {};
}

int64_t SessionTable::releasable_blocks(SessionId session) const {
  const int32_t slot = find(session);
  if (slot < 0) return 0;
  int64_t blocks = 0;
  for (int32_t group = 0; group < books_->num_groups(); ++group)
    blocks += books_->exclusive_blocks(at(slot).sequence, group);
  return blocks;
}

int64_t SessionTable::releasable_blocks(std::span<const SessionId> sessions, int32_t group) const {
  std::vector<SequenceId> sequences;
  for (const SessionId session : sessions) {
    if (const int32_t slot = find(session); slot >= 0) sequences.push_back(at(slot).sequence);
  }
  return books_->exclusive_blocks(sequences, group);
}

bool SessionTable::shares_last_block(SessionId session) const {
  const int32_t slot = find(session);
  return slot >= 0 && books_->shares_last_block(at(slot).sequence);
}

Result<SequenceId> SessionTable::sequence_of(SessionId session) const {
  const int32_t slot = find(session);
  if (slot < 0) return unknown_session(session);
  return at(slot).sequence;
}

Result<SessionId> SessionTable::restore(const SessionOptions& options, Position length,
                                        std::span<const Position> first_positions) {
  CHORUS_RETURN_IF_ERROR(check_new(options));
  SequenceId sequence{};
  if (const auto shortage = books_->restore(length, first_positions, sequence)) {
    return resource_exhausted("kv_blocks", "expected " + std::to_string(shortage->needed_blocks) +
                                               " free blocks in layer group " +
                                               std::to_string(shortage->group) + ", found " +
                                               std::to_string(shortage->free_blocks));
  }
  return insert(sequence, options, false);
}

bool SessionTable::can_rewind(SessionId session, Position length) const {
  const int32_t slot = find(session);
  return slot >= 0 && books_->can_rewind(at(slot).sequence, length);
}

Status SessionTable::check_rewind(const Session& session, Position length,
                                  std::string_view field) const {
  if (books_->can_rewind(session.sequence, length)) return {};
  const Position held = books_->length(session.sequence);
  const Position first = books_->first_rewind(session.sequence);
  const std::string bounds =
      first == 0 ? "expected 0 to " + std::to_string(held)
                 : "expected 0, or " + std::to_string(first) + " to " + std::to_string(held) +
                       " (a window has left behind what shorter histories need)";
  return invalid_argument(std::string(field), bounds + ", found " + std::to_string(length));
}

bool SessionTable::can_admit(std::span<const SessionDemand> demands) const {
  demands_.clear();
  for (const SessionDemand& demand : demands) {
    const int32_t slot = find(demand.session);
    if (slot < 0 || demand.start < 0 || demand.start > books_->length(at(slot).sequence)) {
      return false;
    }
    if (demand.count < 0 || demand.count > options_.kv.max_sequence_tokens - demand.start) {
      return false;
    }
    // One that the window forbids fails alone and takes nothing.
    if (!books_->can_rewind(at(slot).sequence, demand.start)) continue;
    if (demand.count > 0) demands_.push_back({at(slot).sequence, demand.start, demand.count});
  }
  return books_->can_admit(demands_);
}

void SessionTable::check_invariants() const {
  books_->check_invariants();
  CHORUS_CHECK_EQ(slot_of_.size() + free_slots_.size(), slots_.size());
  CHORUS_CHECK_EQ(static_cast<size_t>(books_->num_sequences()), slot_of_.size());
  for (const auto& [id, slot] : slot_of_) {
    CHORUS_CHECK(at(slot).id == id);
    books_->length(at(slot).sequence);  // fails a CHECK when there is no such sequence
  }
}

}  // namespace chorus
