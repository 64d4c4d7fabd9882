#include "tests/simulation/world.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tests/simulation/expect.h"

namespace chorus::simulation {

World::World(uint64_t seed, Journal& log, Tally& tally)
    : random_(~seed),
      scenario_(make_scenario(seed)),
      log_(log),
      tally_(tally),
      oracle_(scenario_.model) {
  for (size_t i = 0; i < scenario_.engines.size(); ++i)
    engines_.push_back(std::make_unique<EngineUnderTest>(scenario_, i, clock_, random_.next()));
}

World::~World() = default;

void World::run(int64_t num_events) {
  const int64_t last = log_.num_events() + num_events;
  while (log_.num_events() < last) event();
  finish_world();
}

// ---- Turns ----

void World::turn(size_t engine) {
  log_.add("turn", static_cast<int64_t>(engine));
  tally_.add(Count::kTurn);
  const int64_t turn_ns = clock_.now_ns();
  const bool had_work = engines_[engine]->runner().turn();
  observe(engine, turn_ns);
  if (had_work) return;
  tally_.add(Count::kIdleTurn);
  expect_all_wait_for_readers(engine);
}

// After a turn of an engine that began at turn_ns and handled every command.
void World::observe(size_t engine, int64_t turn_ns) {
  std::vector<GenerationPtr> still_live;
  for (const GenerationPtr& generation : std::exchange(live_, {})) {
    const bool is_here = generation->request().engine == engine;
    if (is_here) generation->was_started = true;
    if (is_here && generation->handle().done()) {
      end(generation, turn_ns);
      continue;
    }
    if (is_here) expect_live(*generation, turn_ns);
    still_live.push_back(generation);
  }
  live_ = std::move(still_live);
  observe_clients(engine);
  engines_[engine]->num_live = std::count_if(
      live_.begin(), live_.end(),
      [&](const GenerationPtr& generation) { return generation->request().engine == engine; });
  engines_[engine]->check(random_.below(16) == 0);
}

void World::expect_live(const Generation& generation, int64_t turn_ns) const {
  SIM_EXPECT(!generation.cancel_posted, generation.name() + ": cancelled a turn ago");
  SIM_EXPECT(!generation.close_posted, generation.name() + ": closed a turn ago");
  SIM_EXPECT(generation.request().deadline_at_ns.value_or(turn_ns + 1) > turn_ns,
             generation.name() + ": overdue");
}

void World::end(const GenerationPtr& generation, int64_t turn_ns) {
  EngineUnderTest& engine = *engines_[generation->request().engine];
  const EndKind kind = generation->check_end(turn_ns);
  tally_.add(static_cast<Count>(static_cast<size_t>(Count::kEndStop) + static_cast<size_t>(kind)));
  ++engine.num_ended;
  engine.num_injected += kind == EndKind::kInjected ? 1 : 0;
  engine.num_generated += generation->num_delivered();
  for (const auto& client : clients_) {
    if (client->live != generation) continue;
    client->live = nullptr;
    client->last = generation;
    if (client->is_broken) continue;
    note_sampling(*client, *generation);
    const Position position = client->session.position();
    generation->check_position(position);
    client->context = generation->history(position);
  }
  if (generation->request().options.score_from.has_value()) {
    generation->check_scores();
    tally_.add(Count::kScore);
  }
  if (chance(50)) {
    unread_.push_back(generation);
  } else {
    read_to_end(*generation);
  }
}

// A generation that has ended was admitted at least if it has changed its session.
void World::note_sampling(Client& client, const Generation& generation) const {
  if (generation.request().has_bad_sampling) return;
  if (client.session.position() > generation.prompt_begin()) client.sampling.clear();
  client.sampling.push_back(
      {generation.request().options.sampling, generation.handle().metrics().seed});
}

void World::read_to_end(Generation& generation) {
  while (generation.read()) {
  }
  SIM_EXPECT(generation.end_was_read(), generation.name() + ": ended, and its reader does not see");
  mix(generation.digest());
}

void World::observe_clients(size_t engine) {
  for (const auto& client : clients_) {
    if (client->engine != engine || client->is_broken) continue;
    const Position position = client->session.position();
    if (client->live == nullptr) {
      SIM_EXPECT(position == static_cast<Position>(client->context.size()),
                 "session " + std::to_string(client->id) + " stands at " +
                     std::to_string(position) + ", not " + std::to_string(client->context.size()));
      continue;
    }
    Generation& live = *client->live;
    live.check_position(position);
    if (live.cut.has_value())
      SIM_EXPECT(position < live.prompt_end() + *live.cut, live.name() + ": was to be cut");
    const int32_t most_unread = engines_[engine]->options().max_unread_tokens;
    SIM_EXPECT(num_unread(*client) <= most_unread, live.name() + " does not wait for its reader");
    if (num_unread(*client) == most_unread) {
      live.may_be_preempted = true;  // whoever waits for its reader is, before others
      tally_.add(Count::kPause);
    }
  }
}

int32_t World::num_unread(const Client& client) const {
  const Generation& live = *client.live;
  return std::max(0, client.session.position() - live.prompt_end()) - live.num_read();
}

std::string World::describe_live(size_t engine) const {
  std::string text;
  for (const auto& client : clients_) {
    if (client->engine != engine || client->live == nullptr) continue;
    text += "\n  " + client->live->name() + " of session " + std::to_string(client->id) +
            ": prompt " + std::to_string(client->live->prompt_begin()) + " to " +
            std::to_string(client->live->prompt_end()) + ", stands at " +
            std::to_string(client->session.position()) + ", " +
            std::to_string(num_unread(*client)) + " unread";
  }
  return text;
}

// An engine that had nothing to run.
void World::expect_all_wait_for_readers(size_t engine) const {
  for (const auto& client : clients_) {
    if (client->engine != engine || client->live == nullptr || client->is_suspended) continue;
    SIM_EXPECT(num_unread(*client) >= engines_[engine]->options().max_unread_tokens,
               client->live->name() + " is forgotten;" + describe_live(engine));
  }
}

// ---- The end ----

// Every reader reads until everything has ended.
void World::drain() {
  log_.add("drain");
  tally_.add(Count::kDrain);
  constexpr int kMostTurns = 100'000;
  for (int i = 0; !live_.empty(); ++i) {
    SIM_EXPECT(i < kMostTurns, live_.front()->name() + " does not end");
    if (chance(70)) {
      for (const GenerationPtr& generation : live_) generation->read();
    } else {
      live_.front()->read();
    }
    for (size_t engine = 0; engine < engines_.size(); ++engine) turn(engine);
  }
}

void World::close_all() {
  while (!clients_.empty()) close(random_.below(clients_.size()));
  for (size_t engine = 0; engine < engines_.size(); ++engine) {
    turn(engine);
    engines_[engine]->check_all_given_back();
    // Every place of a session can be taken again.
    std::vector<Session> sessions;
    for (int32_t i = 0; i < engines_[engine]->options().executor.max_sessions; ++i) {
      auto session = engines_[engine]->runner().open();
      SIM_EXPECT(session.ok(), session.status().to_string());
      sessions.push_back(std::move(session).value());
    }
    SIM_EXPECT(!engines_[engine]->runner().open().ok(), "one more than max_sessions is open");
  }
}

void World::shut_down() {
  for (size_t engine = 0; engine < engines_.size(); ++engine) {
    log_.add("shutdown", static_cast<int64_t>(engine));
    for (const GenerationPtr& generation : live_) {
      if (generation->request().engine != engine) continue;
      generation->close_posted = true;
      tally_.add(Count::kShutdownLive);
    }
    const int64_t turn_ns = clock_.now_ns();
    engines_[engine]->runner().shutdown();
    engines_[engine]->num_open = 0;
    observe(engine, turn_ns);
    engines_[engine]->check_all_given_back();
  }
  for (const auto& client : clients_)
    SIM_EXPECT(client->session.rewind(0).code() == Code::kUnavailable, "after the shutdown");
  clients_.clear();
}

void World::finish_world() {
  if (chance(50)) drain();
  if (chance(60)) {
    close_all();
  } else {
    shut_down();
  }
  SIM_EXPECT(live_.empty(), "something is live after the end");
  for (const GenerationPtr& generation : unread_) read_to_end(*generation);
  for (const auto& engine : engines_) {
    engine->add_to(tally_);
    const RunnerMetrics metrics = engine->runner().metrics();
    for (const int64_t value : {metrics.steps, metrics.preemptions, metrics.recomputed_tokens})
      mix(static_cast<uint64_t>(value));
  }
}

}  // namespace chorus::simulation
