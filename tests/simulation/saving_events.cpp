// The events that take a session out of an engine, or put one in.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/saved_session.h"
#include "tests/simulation/expect.h"
#include "tests/simulation/world.h"

namespace chorus::simulation {

// Lets a transfer fail in one of its ways; `call` counts what the engine's end of it does.
void World::arm_transfer(EngineUnderTest& engine, FaultyExecutor::Call call) {
  if (chance(50)) {
    engine.executor().fail(call, between(1, 5));
  } else {
    engine.module().fail_transfer(between(1, 3));
  }
}

// How many failed so far.
int64_t World::disarm_transfer(EngineUnderTest& engine) {
  for (const auto call : {FaultyExecutor::kSink, FaultyExecutor::kSource, FaultyExecutor::kOpen})
    engine.executor().fail(call, 0);
  engine.module().fail_transfer(0);
  return engine.module().num_transfer_faults() +
         engine.executor().num_faults(FaultyExecutor::kSink) +
         engine.executor().num_faults(FaultyExecutor::kSource) +
         engine.executor().num_faults(FaultyExecutor::kOpen);
}

void World::save() {
  Client& client = *any_client();
  log_.add("save", client.id);
  EngineUnderTest& engine = *engines_[client.engine];
  const int64_t faults_before = disarm_transfer(engine);
  if (chance(static_cast<uint64_t>(scenario_.faults_per_thousand > 0 ? 25 : 0)))
    arm_transfer(engine, FaultyExecutor::kSink);
  const int64_t turn_ns = clock_.now_ns();
  const bool was_live = client.live != nullptr;
  auto saved = client.session.save();
  const bool failed = disarm_transfer(engine) > faults_before;
  if (was_live) {
    SIM_EXPECT(saved.status().field() == "session", saved.status().to_string());
    return;
  }
  observe(client.engine, turn_ns);
  SIM_EXPECT(saved.ok() == (!failed && !client.is_broken), saved.status().to_string());
  if (failed) tally_.add(Count::kSaveFault);
  if (!saved.ok()) return;
  SIM_EXPECT(saved->tokens == client.context, "session " + std::to_string(client.id));
  const SamplingParams& found = saved->sampling;
  const bool is_known = std::any_of(
      client.sampling.begin(), client.sampling.end(), [&](const SavedSampling& expected) {
        const SamplingParams& params = expected.params;
        return params.temperature == found.temperature && params.top_k == found.top_k &&
               params.top_p == found.top_p && params.min_p == found.min_p &&
               params.choice == found.choice && expected.seed.value_or(found.seed) == found.seed;
      });
  SIM_EXPECT(is_known, "session " + std::to_string(client.id) + " is saved with other sampling");
  tally_.add(Count::kSave);
  check_file(*saved);
  constexpr size_t kMostSaved = 6;
  if (saved_.size() < kMostSaved) {
    saved_.push_back(std::move(saved).value());
  } else {
    saved_[random_.below(kMostSaved)] = std::move(saved).value();
  }
}

// The file holds what the value does, and one changed byte is found.
void World::check_file(const SavedSession& saved) {
  std::vector<std::byte> file = encode_session(saved);
  const auto decoded = decode_session(file);
  SIM_EXPECT(decoded.ok(), decoded.status().to_string());
  SIM_EXPECT(decoded->tokens == saved.tokens && decoded->kv == saved.kv &&
                 decoded->format == saved.format && encode_session(*decoded) == file,
             "a session file");
  file[random_.below(file.size())] ^= std::byte{1} << random_.below(8);
  SIM_EXPECT(!decode_session(file).ok(), "a damaged session file was read");
  tally_.add(Count::kFileRoundTrip);
}

// Whether something was damaged that only the executor can find.
bool World::damage(SavedSession& saved) {
  if (saved.kv.empty()) return false;
  if (chance(50)) {
    saved.kv.resize(random_.below(saved.kv.size()));
  } else {
    saved.kv.resize(saved.kv.size() + 1 + random_.below(40));
  }
  return !saved.kv.empty();
}

void World::load() {
  if (saved_.empty()) return;
  const size_t index = random_.below(engines_.size());
  EngineUnderTest& engine = *engines_[index];
  SavedSession saved = saved_[random_.below(saved_.size())];
  const bool recompute = chance(25);
  const bool is_foreign = chance(5);
  if (is_foreign) saved.format.isa = "other";
  const bool is_damaged = chance(10) && damage(saved);
  log_.add("load", next_id_, static_cast<int64_t>(index), recompute, is_damaged);
  const int64_t faults_before = disarm_transfer(engine);
  if (scenario_.faults_per_thousand > 0 && chance(20)) {
    turn(index);  // sessions that are to be opened are opened first
    if (chance(30)) {
      engine.executor().fail(FaultyExecutor::kOpen, 1);
    } else {
      arm_transfer(engine, FaultyExecutor::kSource);
    }
  }
  const int64_t turn_ns = clock_.now_ns();
  const bool is_full = engine.is_full();
  auto session = engine.runner().load(saved, recompute);
  const bool failed = disarm_transfer(engine) > faults_before;
  if (is_foreign && !recompute) {
    SIM_EXPECT(session.status().field() == "isa", session.status().to_string());
    return;
  }
  if (is_full) {
    SIM_EXPECT(session.status().field() == "max_sessions", session.status().to_string());
    return;
  }
  if (session.ok()) {
    SIM_EXPECT(!failed, "a transfer failed, and the session was loaded");
    Client* const made = add_client(index, std::move(session).value(), saved.tokens, false);
    made->sampling = {{saved.sampling, saved.sampling.seed}};
    tally_.add(recompute || saved.kv.empty() ? Count::kLoadWithoutKv : Count::kLoad);
    observe(index, turn_ns);
    return;
  }
  SIM_EXPECT(failed || (is_damaged && session.status().code() == Code::kDataLoss),
             session.status().to_string());
  tally_.add(failed ? Count::kLoadFault : Count::kLoadDamaged);
  turn(index);  // the place is given back at once, the session that was not loaded is closed
}

}  // namespace chorus::simulation
