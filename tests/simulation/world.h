// A simulation: clients that do random things to real engines, and a model that knows what must
// come of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "engine/session.h"
#include "tests/simulation/engine_under_test.h"
#include "tests/simulation/generation.h"
#include "tests/simulation/journal.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/tally.h"

namespace chorus::simulation {

// One seed decides everything: the scenario and every event. All runs on the calling thread; an
// engine moves only in an event that is a turn of it, or in a call that waits for it. What the
// model says of a call that posts a command is what the engine will have made of it, and of all
// that was posted before, after its next turn: which is when it is compared.
//
// What must be true, always: every generation ends once, in a way that something has asked for;
// what it delivers and scores is, bit for bit, what the oracle says of the same tokens alone; it
// ends within one turn of a cancel, a close or its deadline; an engine with nothing to run has only
// generations that wait for their readers; refusals come exactly when limits are reached; counters
// agree with the model's; every structure keeps its invariants; when all is closed, every block,
// place and session is free. A failure aborts the process.
class World {
 public:
  // Both outlive it.
  World(uint64_t seed, Journal& log, Tally& tally);
  ~World();

  const Scenario& scenario() const { return scenario_; }
  // So many events, and then the end of everything, in one of several ways.
  void run(int64_t num_events);
  // Of everything that was delivered: the same for the same seed and number of events.
  uint64_t digest() const { return digest_; }

 private:
  using GenerationPtr = std::shared_ptr<Generation>;  // owners: its client, and the lists below
  struct SavedSampling {
    SamplingParams params;         // but for the seed
    std::optional<uint64_t> seed;  // unset: not known
  };
  struct Client {  // a session and who uses it
    int64_t id = 0;
    size_t engine = 0;
    Session session;
    Tokens context;  // what the engine holds while none is live, once it has handled all commands
    bool is_broken = false;  // the executor refused it
    bool is_suspended = false;
    GenerationPtr live;  // not known to have ended
    GenerationPtr last;  // the one before, while finish_at still cuts the context
    // What it may be saved with while none is live: of the last generation that was admitted, which
    // not every end tells. Never empty.
    std::vector<SavedSampling> sampling = {{{}, 0}};
  };
  struct Draft {  // of a request
    Tokens prompt;
    GenerationOptions options;
    std::optional<ConstraintRules> constraint;
    bool has_bad_sampling = false;
  };

  // world.cpp: turns, and what is compared after them.
  void turn(size_t engine);
  void observe(size_t engine, int64_t turn_ns);
  void end(const GenerationPtr& generation, int64_t turn_ns);
  void expect_live(const Generation& generation, int64_t turn_ns) const;
  void observe_clients(size_t engine);
  void expect_all_wait_for_readers(size_t engine) const;
  int32_t num_unread(const Client& client) const;
  std::string describe_live(size_t engine) const;
  void read_to_end(Generation& generation);
  void drain();
  void close_all();
  void shut_down();
  void finish_world();

  // client_events.cpp: events.
  void event();
  void client_event();
  Client* any_client();
  Client* client_where(bool is_live);
  Client* add_client(size_t engine, Session session, Tokens context, bool is_broken);
  void note_sampling(Client& client, const Generation& generation) const;
  Client* open(size_t engine);
  void arrive();
  void submit(Client& client, Draft draft);
  void expect_refused(const Client& client, const Draft& draft, const Status& status);
  void read_some();
  void cancel();
  void finish_at();
  void clone();
  Client* clone(Client& source, Position upto);
  void fan_out();
  void rewind();
  void close(size_t index);
  void suspend(size_t index);
  void break_something();
  void open_broken();
  void misuse();

  // saving_events.cpp
  void save();
  void check_file(const SavedSession& saved);
  void load();
  bool damage(SavedSession& saved);
  void arm_transfer(EngineUnderTest& engine, FaultyExecutor::Call call);
  int64_t disarm_transfer(EngineUnderTest& engine);

  // requests.cpp: what a client asks for.
  Draft draft(const Client& client);
  Tokens draft_prompt(const Client& client, int32_t most);
  void draft_sampling(Draft& draft);
  void draft_adjustments(Draft& draft);
  void draft_rest(const Client& client, Draft& draft);

  bool chance(uint64_t percent) { return random_.below(100) < percent; }
  int32_t between(int64_t low, int64_t high) {
    return static_cast<int32_t>(random_.between(low, high));
  }
  void mix(uint64_t value) { digest_ = random_bits(digest_, 0, value); }

  RandomStream random_;
  const Scenario scenario_;
  Journal& log_;
  Tally& tally_;
  ManualClock clock_;
  Oracle oracle_;
  std::vector<std::unique_ptr<EngineUnderTest>> engines_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<GenerationPtr> live_;    // not known to have ended, in order of submission
  std::vector<GenerationPtr> unread_;  // ended, and not read to the end
  std::vector<SavedSession> saved_;
  int64_t next_id_ = 1;
  uint64_t digest_ = 0;
};

}  // namespace chorus::simulation
