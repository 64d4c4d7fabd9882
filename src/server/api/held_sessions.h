// Sessions that clients hold over HTTP.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/session.h"
#include "json/value.h"

namespace chorus::api {

struct HeldMessage {
  json::Value message;  // as read_messages returns it
  Position end = 0;     // tokens of the context up to and with it
};

// A session with what is known of its context.
struct HeldSession {
  Session session;
  std::vector<TokenId> tokens;        // of the context
  std::vector<TokenId> pending;       // behind them, to be consumed with the next generation
  std::vector<HeldMessage> messages;  // of a chat, in order
  std::string cache_salt;             // as its client gave it
};

// What everybody may see of one, but not who owns it.
json::Value session_facts(const HeldSession& held);

class HeldSessions;

// A session in the hands of one request. Thread: one at a time.
class TakenSession {
 public:
  TakenSession(HeldSessions& all, std::string id, std::shared_ptr<HeldSession> held)
      : all_(all), id_(std::move(id)), held_(std::move(held)) {}
  ~TakenSession();  // gives it back
  TakenSession(const TakenSession&) = delete;
  TakenSession& operator=(const TakenSession&) = delete;

  const std::string& id() const { return id_; }
  HeldSession& held() { return *held_; }
  // It is closed in place of given back.
  void remove() { is_removed_ = true; }

 private:
  HeldSessions& all_;
  const std::string id_;
  const std::shared_ptr<HeldSession> held_;  // owners: this and the entry
  bool is_removed_ = false;
};

// Sessions by ids that cannot be guessed. Each is seen by its owner alone, and is in one pair of
// hands at a time. Thread: any.
class HeldSessions {
 public:
  // `clock` outlives it.
  HeldSessions(size_t max_sessions, int64_t idle_ns, const Clock& clock)
      : max_sessions_(max_sessions), idle_ns_(idle_ns), clock_(clock) {}

  // kResourceExhausted (field sessions) where there are as many as there may be. The place is
  // taken before `held` has a session.
  Result<std::shared_ptr<TakenSession>> add(const std::string& owner);
  // kNotFound (session) where there is none of this owner, kInvalidArgument (session) while another
  // request has it.
  Result<std::shared_ptr<TakenSession>> take(const std::string& id, const std::string& owner);

  // {id, object, created, is_busy, idle_s, ...session_facts}. kNotFound (session).
  Result<json::Value> facts(const std::string& id, const std::string& owner) const;
  // Of each the same, but for the messages, of which there is the number alone.
  json::Array list(const std::string& owner) const;

  // Closes those that nobody has used for so long.
  void close_idle();
  void close_all();
  size_t size() const;

 private:
  friend class TakenSession;
  struct Entry {
    std::string owner;
    int64_t created = 0;  // seconds since 1970
    int64_t used_ns = 0;
    bool is_busy = true;
    std::shared_ptr<HeldSession> held;  // owners: this and whoever has taken it
    json::Value facts;                  // as it was given back
  };

  void give_back(const std::string& id, const HeldSession& held, bool is_removed);
  json::Value state_of(const std::string& id, const Entry& entry) const CHORUS_REQUIRES(mutex_);

  const size_t max_sessions_;
  const int64_t idle_ns_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ CHORUS_GUARDED_BY(mutex_);
  bool is_closed_ CHORUS_GUARDED_BY(mutex_) = false;
};

}  // namespace chorus::api
