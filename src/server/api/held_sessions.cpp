#include "server/api/held_sessions.h"

#include <ctime>

#include "server/api/random_id.h"

namespace chorus::api {

namespace {

Status no_session(const std::string& id) {
  return not_found("session", "there is no session " + id);
}

}  // namespace

json::Value session_facts(const HeldSession& held) {
  json::Value value;
  value.set("tokens", static_cast<int64_t>(held.tokens.size()));
  value.set("pending_tokens", static_cast<int64_t>(held.pending.size()));
  json::Array messages;
  for (const HeldMessage& each : held.messages) {
    json::Value message = each.message;
    message.set("end", each.end);
    messages.push_back(std::move(message));
  }
  value.set("messages", std::move(messages));
  return value;
}

TakenSession::~TakenSession() { all_.give_back(id_, *held_, is_removed_); }

Result<std::shared_ptr<TakenSession>> HeldSessions::add(const std::string& owner) {
  const std::string id = "session-" + random_id();
  auto held = std::make_shared<HeldSession>();
  const MutexLock lock(mutex_);
  if (is_closed_) return unavailable("engine", "the server is shutting down");
  if (entries_.size() >= max_sessions_) {
    return resource_exhausted("sessions", "expected fewer than " + std::to_string(max_sessions_) +
                                              " held sessions: close one");
  }
  Entry& entry = entries_[id];
  entry.owner = owner;
  entry.created = std::time(nullptr);
  entry.used_ns = clock_.now_ns();
  entry.held = held;
  entry.facts = session_facts(*held);
  return std::make_shared<TakenSession>(*this, id, std::move(held));
}

Result<std::shared_ptr<TakenSession>> HeldSessions::take(const std::string& id,
                                                         const std::string& owner) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.owner != owner) return no_session(id);
  Entry& entry = found->second;
  if (entry.is_busy) {
    return unavailable("session", "another request is at work in it: wait for its end");
  }
  entry.is_busy = true;
  return std::make_shared<TakenSession>(*this, id, entry.held);
}

void HeldSessions::give_back(const std::string& id, const HeldSession& held, bool is_removed) {
  std::shared_ptr<HeldSession> closed;  // without the lock
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  if (is_removed || is_closed_ || !held.session.valid()) {
    closed = std::move(found->second.held);
    entries_.erase(found);
    return;
  }
  found->second.is_busy = false;
  found->second.used_ns = clock_.now_ns();
  found->second.facts = session_facts(held);
}

json::Value HeldSessions::state_of(const std::string& id, const Entry& entry) const {
  json::Value value;
  value.set("id", id);
  value.set("object", "session");
  value.set("created", entry.created);
  value.set("is_busy", entry.is_busy);
  const int64_t idle_ns = entry.is_busy ? 0 : clock_.now_ns() - entry.used_ns;
  value.set("idle_s", idle_ns / 1'000'000'000);
  return value;
}

Result<json::Value> HeldSessions::facts(const std::string& id, const std::string& owner) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.owner != owner) return no_session(id);
  json::Value value = state_of(id, found->second);
  for (const auto& [name, member] : found->second.facts.as_object()) value.set(name, member);
  return value;
}

json::Array HeldSessions::list(const std::string& owner) const {
  const MutexLock lock(mutex_);
  json::Array list;
  for (const auto& [id, entry] : entries_) {
    if (entry.owner != owner) continue;
    json::Value value = state_of(id, entry);
    for (const char* name : {"tokens", "pending_tokens"}) value.set(name, *entry.facts.find(name));
    value.set("num_messages",
              static_cast<int64_t>(entry.facts.find("messages")->as_array().size()));
    list.push_back(std::move(value));
  }
  return list;
}

void HeldSessions::close_idle() {
  std::vector<std::shared_ptr<HeldSession>> closed;
  const MutexLock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool is_idle =
        !entry->second.is_busy && clock_.now_ns() - entry->second.used_ns >= idle_ns_;
    if (is_idle) closed.push_back(std::move(entry->second.held));
    entry = is_idle ? entries_.erase(entry) : std::next(entry);
  }
}

void HeldSessions::close_all() {
  std::map<std::string, Entry> closed;
  const MutexLock lock(mutex_);
  is_closed_ = true;
  closed.swap(entries_);
}

size_t HeldSessions::size() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

}  // namespace chorus::api
