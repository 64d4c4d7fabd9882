// The events of the simulation but turns and transfers.
#include <algorithm>
#include <string>
#include <utility>

#include "tests/simulation/expect.h"
#include "tests/simulation/world.h"

namespace chorus::simulation {

void World::event() {
  if (chance(static_cast<uint64_t>(scenario_.turns_per_hundred))) {
    turn(random_.below(engines_.size()));
  } else if (random_.below(1000) < static_cast<uint64_t>(scenario_.faults_per_thousand)) {
    break_something();
  } else if (random_.below(2000) == 0) {
    drain();
  } else {
    client_event();
  }
}

void World::client_event() {
  const uint64_t kind = random_.below(100);
  if (clients_.empty() || kind < 7) {
    arrive();
  } else if (kind < 32) {
    if (Client* client = client_where(false)) submit(*client, draft(*client));
  } else if (kind < 56) {
    read_some();
  } else if (kind < 60) {
    cancel();
  } else if (kind < 65) {
    finish_at();
  } else if (kind < 72) {
    clone();
  } else if (kind == 74 && scenario_.has_suspends) {
    suspend(random_.below(clients_.size()));
  } else if (kind < 75) {
    fan_out();
  } else if (kind < 80) {
    rewind();
  } else if (kind < 90) {
    close(random_.below(clients_.size()));
  } else if (kind < 92) {
    save();
  } else if (kind < 95) {
    load();
  } else if (kind < 98) {
    log_.add("time");
    clock_.advance_ns(random_.between(0, 20'000'000));
  } else {
    misuse();
  }
}

// ---- Sessions ----

World::Client* World::any_client() {
  return clients_.empty() ? nullptr : clients_[random_.below(clients_.size())].get();
}

// One that the model knows to be live, or not to be; null when a few tries find none.
World::Client* World::client_where(bool is_live) {
  for (int i = 0; i < 4; ++i) {
    Client* client = any_client();
    if (client != nullptr && (client->live != nullptr) == is_live) return client;
  }
  return nullptr;
}

World::Client* World::add_client(size_t engine, Session session, Tokens context, bool is_broken) {
  auto client = std::make_unique<Client>();
  client->id = next_id_++;
  client->engine = engine;
  client->session = std::move(session);
  client->context = std::move(context);
  client->is_broken = is_broken;
  ++engines_[engine]->num_open;
  if (is_broken) tally_.add(Count::kBrokenSession);
  clients_.push_back(std::move(client));
  return clients_.back().get();
}

World::Client* World::open(size_t engine) {
  SessionOptions options;
  if (chance(30)) options.salt = "salted";
  options.indexed = chance(85);
  EngineUnderTest& target = *engines_[engine];
  auto session = target.runner().open(options);
  const bool is_full = target.is_full();
  SIM_EXPECT(session.ok() != is_full, session.status().to_string());
  if (is_full) {
    SIM_EXPECT(session.status().field() == "max_sessions", session.status().to_string());
    tally_.add(Count::kRefusedSession);
    return nullptr;
  }
  return add_client(engine, std::move(session).value(), {}, false);
}

// A burst of new sessions that want something at once.
void World::arrive() {
  const size_t engine = random_.below(engines_.size());
  const int32_t count = chance(20) ? between(2, 6) : 1;
  log_.add("arrive", static_cast<int64_t>(engine), count);
  for (int32_t i = 0; i < count; ++i) {
    if (Client* client = open(engine)) submit(*client, draft(*client));
  }
}

void World::close(size_t index) {
  const std::unique_ptr<Client> client = std::move(clients_[index]);
  clients_[index] = std::move(clients_.back());
  clients_.pop_back();
  const bool waits = chance(40);
  log_.add("close", client->id, waits);
  if (client->live != nullptr) {
    client->live->close_posted = true;
    tally_.add(Count::kCloseLive);
  }
  --engines_[client->engine]->num_open;
  if (client->is_suspended) --engines_[client->engine]->num_suspended;
  if (!waits) return;
  const int64_t turn_ns = clock_.now_ns();
  client->session.close();
  observe(client->engine, turn_ns);
}

// A session gives its place up for some turns, in which another one may take it for good.
void World::suspend(size_t index) {
  Client& client = *clients_[index];
  EngineUnderTest& engine = *engines_[client.engine];
  log_.add("suspend", client.id);
  tally_.add(client.live != nullptr ? Count::kSuspendLive : Count::kSuspendIdle);
  SIM_EXPECT(client.session.suspend().ok(), "session " + std::to_string(client.id));
  client.is_suspended = true;
  ++engine.num_suspended;
  if (client.live != nullptr) client.live->may_be_preempted = true;
  SIM_EXPECT(client.session.clone(0).status().field() == "session", "a suspended one was forked");
  for (int32_t i = between(0, 2); i > 0; --i) turn(client.engine);
  Client* const other = chance(50) ? open(client.engine) : nullptr;
  if (other != nullptr) submit(*other, draft(*other));
  for (int32_t i = between(0, 4); i > 0; --i) turn(client.engine);
  if (chance(10)) return close(index);
  const bool is_full = engine.is_full();
  const Status status = client.session.resume();
  SIM_EXPECT(status.ok() != is_full, status.to_string());
  if (is_full) {
    SIM_EXPECT(status.field() == "max_sessions", status.to_string());
    tally_.add(Count::kRefusedSession);
    return close(index);
  }
  client.is_suspended = false;
  --engine.num_suspended;
}

// ---- Generations ----

void World::submit(Client& client, Draft draft) {
  EngineUnderTest& engine = *engines_[client.engine];
  const bool is_append = draft.options.max_new_tokens == 0;
  log_.add(is_append ? "append" : "generate", client.id, static_cast<int64_t>(draft.prompt.size()),
           draft.options.max_new_tokens, draft.options.priority);
  if (draft.constraint.has_value())
    draft.options.sampling.constraint = std::make_shared<SimulatedConstraint>(*draft.constraint);
  auto handle = is_append ? client.session.append(draft.prompt, draft.options)
                          : client.session.generate(draft.prompt, draft.options);
  if (!handle.ok()) return expect_refused(client, draft, handle.status());
  SIM_EXPECT(client.live == nullptr, "a second generation is live");
  Request request;
  request.id = next_id_++;
  request.engine = client.engine;
  request.context = client.context;
  request.prompt = std::move(draft.prompt);
  request.constraint = draft.constraint;
  request.submitted_ns = clock_.now_ns();
  request.session_is_broken = client.is_broken;
  request.has_bad_sampling = draft.has_bad_sampling;
  if (draft.options.deadline_ns.has_value())
    request.deadline_at_ns = clock_.now_ns() + *draft.options.deadline_ns;
  request.options = std::move(draft.options);
  client.last = nullptr;
  client.live =
      std::make_shared<Generation>(std::move(request), std::move(handle).value(), oracle_);
  // When it would have come to be first among equals.
  const auto due_ns = [&](const Request& each) {
    constexpr int64_t kMs = 1'000'000;
    const int64_t tokens = static_cast<int64_t>(each.prompt.size()) + each.options.max_new_tokens;
    return each.submitted_ns + tokens * engine.options().shortest_first_ms * kMs -
           int64_t{each.options.priority} * engine.options().priority_age_ms * kMs;
  };
  const int64_t own_ns = due_ns(client.live->request());
  for (const GenerationPtr& other : live_) {
    if (other->request().engine != client.engine) continue;
    const bool is_behind = due_ns(other->request()) > own_ns;
    (is_behind ? other : client.live)->may_be_preempted = true;
  }
  live_.push_back(client.live);
  ++engine.num_live;
  tally_.add(is_append ? Count::kAppend : Count::kGeneration);
}

void World::expect_refused(const Client& client, const Draft& draft, const Status& status) {
  EngineUnderTest& engine = *engines_[client.engine];
  const auto what = [&] {
    return "session " + std::to_string(client.id) + ": " + status.to_string();
  };
  if (client.live != nullptr) {
    SIM_EXPECT(status.field() == "session", what());
    return;
  }
  const int64_t needed = client.session.position() + static_cast<int64_t>(draft.prompt.size()) +
                         draft.options.max_new_tokens;
  if (!engine.can_hold(needed)) {
    SIM_EXPECT(status.field() == "prompt" || status.field() == "max_tokens", what());
    tally_.add(Count::kRefusedLength);
    return;
  }
  SIM_EXPECT(status.code() == Code::kResourceExhausted && status.field() == "queue", what());
  SIM_EXPECT(engine.num_live >= engine.options().max_queued_generations,
             what() + ": " + std::to_string(engine.num_live) + " are live");
  tally_.add(Count::kRefusedQueue);
}

void World::read_some() {
  log_.add("read");
  if (!unread_.empty() && chance(30)) {
    const size_t index = random_.below(unread_.size());
    if (chance(20)) {  // too late for its session
      const GenerationPtr& generation = unread_[index];
      const bool is_last = std::any_of(clients_.begin(), clients_.end(), [&](const auto& client) {
        return client->last == generation;
      });
      if (!is_last && generation->num_delivered() > 0) {
        const int32_t n = between(1, generation->num_delivered());
        SIM_EXPECT(generation->handle().finish_at(n).ok(), generation->name());
        generation->cut = std::min(generation->cut.value_or(n), n);
        generation->cut_after_end(n);
      }
    }
    read_to_end(*unread_[index]);
    unread_[index] = std::move(unread_.back());
    unread_.pop_back();
    return;
  }
  for (int32_t i = between(1, 4); i > 0 && !live_.empty(); --i)
    live_[random_.below(live_.size())]->read();
}

void World::cancel() {
  if (live_.empty()) return;
  const GenerationPtr& generation = live_[random_.below(live_.size())];
  log_.add("cancel", generation->request().id);
  generation->handle().cancel();
  generation->cancel_posted = true;
}

void World::finish_at() {
  Client* client = any_client();
  GenerationPtr generation = client->live != nullptr ? client->live : client->last;
  if (generation == nullptr) return;
  const int32_t n = between(1, 12);
  log_.add("finish_at", generation->request().id, n);
  SIM_EXPECT(generation->handle().finish_at(n).ok(), generation->name());
  generation->cut = std::min(generation->cut.value_or(n), n);
  tally_.add(Count::kCut);
  if (!client->is_broken) {
    SIM_EXPECT(client->session.position() <= generation->prompt_end() + n,
               generation->name() + " stands at " + std::to_string(client->session.position()) +
                   ", and was cut to " + std::to_string(n));
  }
  if (!generation->ended() || n >= generation->num_delivered()) return;
  tally_.add(Count::kCutAfterEnd);
  engines_[client->engine]->num_generated -= generation->num_delivered() - n;
  generation->cut_after_end(n);
  client->context.resize(static_cast<size_t>(generation->prompt_end() + n));
}

// ---- Forks and rewinds ----

void World::clone() {
  Client& source = *any_client();
  Position most = source.session.position();
  if (source.live != nullptr && !source.live->can_tell())
    most = std::min(most, source.live->prompt_end());
  const Position upto = chance(30) ? most : between(0, most);
  tally_.add(source.live != nullptr ? Count::kCloneLive : Count::kCloneIdle);
  Client* const made = clone(source, upto);
  if (made != nullptr && chance(70)) submit(*made, draft(*made));
}

World::Client* World::clone(Client& source, Position upto) {
  EngineUnderTest& engine = *engines_[source.engine];
  log_.add("clone", source.id, upto, next_id_);
  auto session = source.session.clone(upto);
  const bool is_full = engine.is_full();
  SIM_EXPECT(session.ok() != is_full, session.status().to_string());
  if (is_full) {
    SIM_EXPECT(session.status().field() == "max_sessions", session.status().to_string());
    tally_.add(Count::kRefusedSession);
    return nullptr;
  }
  const bool is_broken = source.is_broken;
  Tokens context;
  if (!is_broken && source.live != nullptr) context = source.live->history(upto);
  if (!is_broken && source.live == nullptr)
    context.assign(source.context.begin(), source.context.begin() + upto);
  Client* const made =
      add_client(source.engine, std::move(session).value(), std::move(context), is_broken);
  made->sampling = source.sampling;
  if (source.live != nullptr && !source.live->request().has_bad_sampling) {
    const GenerationOptions& options = source.live->request().options;
    made->sampling.push_back({options.sampling, options.seed});
  }
  return made;
}

// Several continuations of one prompt: forks that share all of it but its last token.
void World::fan_out() {
  Client* const source = client_where(true);
  if (source == nullptr || source->is_broken) return;
  const Generation& live = *source->live;
  if (source->session.position() < live.prompt_end() || live.request().has_bad_sampling) return;
  const Position shared = live.prompt_end() - 1;
  for (int32_t choice = between(1, 3); choice > 0; --choice) {
    Client* const fork = clone(*source, shared);
    if (fork == nullptr) return;
    Draft draft;
    draft.prompt = {live.request().prompt.back()};
    draft.options = live.request().options;
    draft.options.sampling.choice += static_cast<uint32_t>(choice);
    draft.constraint = live.request().constraint;
    submit(*fork, std::move(draft));
  }
}

void World::rewind() {
  Client& client = *any_client();
  const Position length = between(0, client.session.position());
  log_.add("rewind", client.id, length);
  const Status status = client.session.rewind(length);
  if (client.live != nullptr) {
    SIM_EXPECT(status.field() == "session", status.to_string());
    return;
  }
  SIM_EXPECT(status.ok(), status.to_string());
  tally_.add(Count::kRewind);
  client.last = nullptr;
  if (std::ssize(client.context) > length) client.context.resize(static_cast<size_t>(length));
}

// ---- What goes wrong ----

void World::break_something() {
  EngineUnderTest& engine = *engines_[random_.below(engines_.size())];
  const uint64_t kind = random_.below(5);
  log_.add("fault", static_cast<int64_t>(kind));
  if (kind <= 1) {
    engine.module().set_faults({between(0, 3), between(0, 4), between(0, 4)});
  } else if (kind == 2) {
    engine.executor().fail(FaultyExecutor::kExecute, between(1, 3));
  } else if (kind == 3) {
    engine.executor().fail(FaultyExecutor::kSetSampling, between(1, 2));
  } else {
    open_broken();
  }
}

// A session that the executor cannot open, or fork.
void World::open_broken() {
  const size_t index = random_.below(engines_.size());
  turn(index);
  EngineUnderTest& engine = *engines_[index];
  Client* made = nullptr;
  Client* const source = any_client();
  if (source != nullptr && source->engine == index && chance(50)) {
    engine.executor().fail(FaultyExecutor::kClone, 1);
    made = clone(*source, 0);
  } else {
    engine.executor().fail(FaultyExecutor::kOpen, 1);
    made = open(index);
  }
  if (made != nullptr && !made->is_broken) {
    made->is_broken = true;
    tally_.add(Count::kBrokenSession);
  }
  turn(index);
  engine.executor().fail(FaultyExecutor::kOpen, 0);
  engine.executor().fail(FaultyExecutor::kClone, 0);
}

// Calls that are refused at once, with nothing changed.
void World::misuse() {
  Client& client = *any_client();
  log_.add("misuse", client.id);
  const Position beyond = client.session.position() + 1;
  SIM_EXPECT(client.session.clone(beyond).status().field() == "upto", "");
  SIM_EXPECT(client.session.clone(-1).status().field() == "upto", "");
  SIM_EXPECT(client.session.generate({}, {}).status().field() == "prompt", "");
  SIM_EXPECT(client.session.append({scenario_.model.vocabulary}).status().field() == "prompt", "");
  SIM_EXPECT(client.session.generate({0}, {.max_new_tokens = 0}).status().field() == "max_tokens",
             "");
  const Status status = client.session.rewind(beyond);
  SIM_EXPECT(status.field() == (client.live != nullptr ? "session" : "length"), status.to_string());
}

}  // namespace chorus::simulation
