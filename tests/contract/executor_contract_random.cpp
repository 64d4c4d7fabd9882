// Random schedules over an executor: what comes out is, bit for bit, what each history gives alone.
#include <algorithm>
#include <string>

#include "base/random.h"
#include "tests/contract/executor_contract.h"

namespace chorus::contract {
namespace {

struct Setting {
  int32_t block_size = 16;
  int32_t chunk = 7;  // longest input
};

// Sessions with their histories beside an executor that runs them in company.
class Schedule {
 public:
  Schedule(const ContractSubject& subject, const Setting& setting, uint64_t seed)
      : shape_{setting.block_size, 3 * kMaxTokens / setting.block_size + 2, 6, kMaxTokens},
        setting_(setting),
        rig_(subject, shape_),
        solo_(subject),
        random_(seed) {}

  void event() {
    const uint64_t kind = random_.below(15);
    if (sessions_.empty() || kind == 0) {
      open();
    } else if (kind == 1) {
      close();
    } else if (kind == 2) {
      clone();
    } else if (kind == 3) {
      truncate();
    } else if (kind == 4) {
      attach(sessions_[any()]);
    } else {
      step();
    }
    rig_.sessions().check_invariants();
    for (const Session& session : sessions_) {
      ASSERT_EQ(*rig_->length(session.id), session.length());
    }
    rig_.poison_free_blocks();
  }

  void close_all() {
    while (!sessions_.empty()) close();
    EXPECT_EQ(rig_.blocks_held(), 0);
  }

  int compared() const { return compared_; }
  int aborted() const { return aborted_; }
  int refused() const { return refused_; }
  int refused_rewinds() const { return refused_rewinds_; }
  int attached() const { return attached_; }

 private:
  static constexpr int32_t kMaxTokens = 100;

  struct Session {
    SessionId id{};
    Tokens history;
    Position longest = 0;  // since it was last empty
    SamplingParams policy;
    Position length() const { return static_cast<Position>(history.size()); }
  };
  // What one input should give.
  struct Expectation {
    size_t session = 0;
    Position start = 0;
    Position end = 0;
    Position score_from = BatchInput::kNoScores;
    bool samples = false;
    bool bad = false;
  };

  int32_t up_to(int32_t bound) {
    return static_cast<int32_t>(random_.below(static_cast<uint64_t>(bound) + 1));
  }
  size_t any() { return static_cast<size_t>(random_.below(sessions_.size())); }
  TokenId token() {
    return static_cast<TokenId>(random_.below(static_cast<uint64_t>(rig_->info().vocabulary)));
  }

  SamplingParams policy() {
    SamplingParams params;
    params.temperature = random_.below(2) == 0 ? 0.0f : 0.8f;
    if (random_.below(2) == 0) params.top_k = up_to(20);
    if (random_.below(2) == 0) params.top_p = 0.9f;
    if (random_.below(2) == 0) params.min_p = 0.02f;
    params.seed = random_.below(3);
    params.choice = static_cast<uint32_t>(random_.below(2));
    params.logprobs = true;
    params.num_likeliest = up_to(3);
    return params;
  }

  void add(SessionId id, Tokens history, Position longest) {
    sessions_.push_back({id, std::move(history), longest, policy()});
    ASSERT_TRUE(rig_->set_sampling(id, sessions_.back().policy).ok());
  }

  void open() {
    const Result<SessionId> id = rig_->open({});
    ASSERT_EQ(id.ok(), static_cast<int32_t>(sessions_.size()) < shape_.max_sessions);
    if (!id.ok()) return;
    add(*id, {}, 0);
    if (random_.below(2) == 0) attach(sessions_.back());
  }

  void close() {
    const size_t i = any();
    past_.push_back(sessions_[i].history);
    rig_->close(sessions_[i].id);
    sessions_.erase(sessions_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void clone() {
    const Session& source = sessions_[any()];
    const Position upto = rewound(source);
    const Result<SessionId> id = rig_->clone(source.id, upto);
    const bool legal = rig_.may_rewind(source.longest, upto);
    ASSERT_EQ(id.ok(), legal && static_cast<int32_t>(sessions_.size()) < shape_.max_sessions);
    if (!legal) {
      ++refused_rewinds_;
      ASSERT_EQ(id.status().field(), "upto");
    }
    if (id.ok()) {
      add(*id, Tokens(source.history.begin(), source.history.begin() + upto),
          upto == 0 ? 0 : source.longest);
    }
  }

  void truncate() {
    Session& session = sessions_[any()];
    const Position length = rewound(session);
    const Status status = rig_->truncate(session.id, length);
    ASSERT_EQ(status.ok(), rig_.may_rewind(session.longest, length)) << status.to_string();
    if (!status.ok()) {
      ++refused_rewinds_;
      ASSERT_EQ(status.field(), "length");
      return;
    }
    session.history.resize(static_cast<size_t>(length));
    if (length == 0) session.longest = 0;
  }

  // What an empty session finds of the past of another one.
  void attach(Session& session) {
    Tokens wanted = sessions_[any()].history;
    if (!past_.empty() && random_.below(2) == 0) wanted = past_[random_.below(past_.size())];
    if (wanted.empty() || session.length() > 0) return;
    if (random_.below(2) == 0) wanted.back() = token();
    const Result<Position> taken = rig_->attach_prefix(session.id, wanted);
    ASSERT_TRUE(taken.ok());
    ASSERT_LT(*taken, static_cast<Position>(wanted.size()));
    session.history.assign(wanted.begin(), wanted.begin() + *taken);
    session.longest = *taken;
    if (*taken > 0) ++attached_;
  }

  // Anywhere, or not far back, where windows may allow it.
  Position rewound(const Session& session) {
    const Position length = session.length();
    return random_.below(2) == 0 ? up_to(length) : length - up_to(std::min(length, 8));
  }

  // The inputs of one session: chunks of what it becomes; the last may ask for output.
  void add_inputs(size_t index, std::vector<std::vector<BatchInput>>& inputs,
                  std::vector<std::vector<Expectation>>& expected, std::vector<Tokens>& futures) {
    const Session& session = sessions_[index];
    const Position start = random_.below(4) == 0 ? rewound(session) : session.length();
    const int32_t room = kMaxTokens - start;
    if (room == 0) return;
    auto future =
        std::make_shared<Tokens>(session.history.begin(), session.history.begin() + start);
    const int32_t count = 1 + up_to(std::min(room, random_.below(2) == 0 ? 1 : 50) - 1);
    for (int32_t i = 0; i < count; ++i) future->push_back(token());
    futures[index] = *future;
    const bool with_output = random_.below(2) == 0;
    const Position score_from =
        random_.below(3) == 0 ? up_to(start + count) : BatchInput::kNoScores;
    for (Position position = start; position < start + count;) {
      const int32_t size = 1 + up_to(std::min(setting_.chunk, start + count - position) - 1);
      const bool samples = with_output && position + size == start + count;
      BatchInput input = make_slice(session.id, future, position, size, samples);
      input.score_from = score_from;
      inputs[index].push_back(input);
      expected[index].push_back({index, position, position + size, score_from, samples, false});
      position += size;
    }
    if (!rig_.may_rewind(session.longest, start)) {
      ++refused_rewinds_;
      for (Expectation& each : expected[index]) each.bad = true;
    } else if (random_.below(12) == 0) {
      spoil(inputs[index], expected[index]);
    }
  }

  // Makes one input of a session unacceptable; then none of the session's may count.
  void spoil(std::vector<BatchInput>& inputs, std::vector<Expectation>& expected) {
    BatchInput& input = inputs[static_cast<size_t>(random_.below(inputs.size()))];
    switch (random_.below(4)) {
      case 0:
        input.position += 1 + 2 * kMaxTokens;
        break;
      case 1:
        input.size = 0;
        break;
      case 2:
        input.offset = static_cast<int32_t>(input.tokens->size());
        break;
      default: {
        auto tokens = std::make_shared<Tokens>(*input.tokens);
        (*tokens)[static_cast<size_t>(input.offset)] = rig_->info().vocabulary;
        input.tokens = tokens;
      }
    }
    for (Expectation& each : expected) each.bad = true;
  }

  void step() {
    std::vector<std::vector<BatchInput>> inputs(sessions_.size());
    std::vector<std::vector<Expectation>> expected(sessions_.size());
    std::vector<Tokens> futures(sessions_.size());
    for (size_t i = 0; i < sessions_.size(); ++i) {
      if (random_.below(3) != 0) add_inputs(i, inputs, expected, futures);
    }
    // Interleave: each session's inputs stay in order.
    std::vector<BatchInput> batch;
    std::vector<Expectation> batch_expected;
    std::vector<size_t> next(sessions_.size(), 0);
    std::vector<SessionDemand> demands;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].empty() && !expected[i][0].bad) {
        demands.push_back({sessions_[i].id, expected[i].front().start,
                           expected[i].back().end - expected[i].front().start});
      }
    }
    for (size_t left = total(inputs); left > 0;) {
      const size_t i = any();
      if (next[i] == inputs[i].size()) continue;
      batch.push_back(inputs[i][next[i]]);
      batch_expected.push_back(expected[i][next[i]++]);
      --left;
    }
    run(batch, batch_expected, demands, futures);
  }

  static size_t total(const std::vector<std::vector<BatchInput>>& inputs) {
    size_t count = 0;
    for (const auto& each : inputs) count += each.size();
    return count;
  }

  void run(const std::vector<BatchInput>& batch, const std::vector<Expectation>& expected,
           const std::vector<SessionDemand>& demands, const std::vector<Tokens>& futures) {
    const bool admitted = rig_->can_admit(demands);
    int32_t num_rows = 0;
    for (const SessionDemand& demand : demands) num_rows += demand.count;
    const bool faulty = admitted && num_rows > 0 && random_.below(5) == 0;
    if (faulty) {
      Faults faults;
      const uint64_t stage = random_.below(4);
      if (stage == 0) faults.begin = 1;
      if (stage == 1) faults.reduce = 1;
      if (stage >= 2) faults.run = 1 + up_to((num_rows + 31) / 32 - 1);
      rig_.module().set_faults(faults);
    }
    const Status status = rig_->execute(batch, output_);
    ASSERT_EQ(status.ok(), admitted && !faulty) << status.to_string();
    if (!status.ok()) {
      ++(faulty ? aborted_ : refused_);
      ASSERT_EQ(status.code(), faulty ? Code::kInternal : Code::kResourceExhausted);
      return;
    }
    ASSERT_EQ(output_.inputs.size(), batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      ASSERT_EQ(output_.inputs[i].status.ok(), !expected[i].bad)
          << output_.inputs[i].status.to_string();
      if (!expected[i].bad) compare(expected[i], output_.inputs[i], futures[expected[i].session]);
    }
    for (const Expectation& each : expected) {
      if (each.bad) continue;
      Session& session = sessions_[each.session];
      // The session's first input is the one that tells where it began.
      if (each.start == 0) session.longest = 0;
      session.history = futures[each.session];
      session.longest = std::max(session.longest, session.length());
    }
  }

  void compare(const Expectation& expected, const InputOutput& result, const Tokens& future) {
    const SamplingParams& params = sessions_[expected.session].policy;
    const auto last = static_cast<Position>(future.size()) - 1;
    const Position first = std::max(expected.score_from, expected.start + 1);
    const Position end = std::min(expected.end, last);
    ASSERT_EQ(result.scored_count, std::max(0, end - first + 1));
    if (result.scored_count > 0) {
      ASSERT_EQ(result.first_scored, first);
      const auto bits = solo_.scores(future, first, end + 1, params.num_likeliest);
      for (size_t i = 0; i < bits.size(); ++i) {
        ASSERT_EQ(bits_of(output_, output_.scored(result)[i]), bits[i]);
      }
      compared_ += result.scored_count;
    }
    ASSERT_EQ(result.sampled_count, expected.samples ? 1 : 0);
    if (expected.samples) {
      ASSERT_EQ(bits_of(output_, output_.sampled(result)[0]), solo_.sample(future, params));
      ++compared_;
    }
  }

  ContractShape shape_;
  Setting setting_;
  Rig rig_;
  Solo solo_;
  RandomStream random_;
  std::vector<Session> sessions_;
  BatchOutput output_;
  int compared_ = 0;
  int aborted_ = 0;
  int refused_ = 0;
  int refused_rewinds_ = 0;
  int attached_ = 0;
  std::vector<Tokens> past_;  // of closed sessions
};

TEST_P(ExecutorContract, SoloEqualsBatchedUnderRandomSchedules) {
  int compared = 0;
  int aborted = 0;
  int refused = 0;
  int refused_rewinds = 0;
  int attached = 0;
  // 112 cells hold the longest session: the layout kind `sequence`.
  for (const int32_t block_size : {1, 16, 32, 64, 112}) {
    for (const int32_t chunk : {1, 7, 64, 512}) {
      for (int seed = 1; seed <= GetParam().num_schedules; ++seed) {
        SCOPED_TRACE("block size " + std::to_string(block_size) + ", chunk " +
                     std::to_string(chunk) + ", seed " + std::to_string(seed));
        Schedule schedule(GetParam(), {block_size, chunk}, static_cast<uint64_t>(seed));
        for (int event = 0; event < 60; ++event) {
          schedule.event();
          ASSERT_FALSE(HasFailure()) << "event " << event;
        }
        schedule.close_all();
        compared += schedule.compared();
        aborted += schedule.aborted();
        refused += schedule.refused();
        refused_rewinds += schedule.refused_rewinds();
        attached += schedule.attached();
      }
    }
  }
  // The schedules reach what they are meant to.
  EXPECT_GT(compared, 500 * GetParam().num_schedules);
  EXPECT_GT(aborted, 10 * GetParam().num_schedules);
  EXPECT_GT(refused, GetParam().num_schedules);
  EXPECT_GT(attached, GetParam().num_schedules);
  const bool has_window = GetParam().has_window;
  EXPECT_EQ(refused_rewinds > (has_window ? 10 * GetParam().num_schedules : 0), has_window);
}

TEST_P(ExecutorContract, AThousandRandomOpenCloneExecuteCloseLeaveNothing) {
  start({.num_blocks = 80, .max_sessions = 12});
  RandomStream random(11);
  std::vector<SessionId> sessions;
  int executed = 0;
  for (int event = 0; event < 1000; ++event) {
    const uint64_t kind = random.below(4);
    const size_t i = sessions.empty() ? 0 : static_cast<size_t>(random.below(sessions.size()));
    if (kind == 0 || sessions.empty()) {
      if (const auto id = executor().open({}); id.ok()) sessions.push_back(*id);
    } else if (kind == 1) {
      const auto upto =
          static_cast<Position>(random.below(static_cast<uint64_t>(length(sessions[i])) + 1));
      if (const auto id = executor().clone(sessions[i], upto); id.ok()) sessions.push_back(*id);
    } else if (kind == 2) {
      executor().close(sessions[i]);
      sessions.erase(sessions.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      const Position held = length(sessions[i]);
      const Tokens tokens = text(static_cast<uint64_t>(event), 1 + random.below(20));
      if (random.below(8) == 0) rig_->module().set_faults({0, 1, 0});
      BatchOutput output;
      const BatchInput input =
          make_input(sessions[i], tokens, random.below(4) == 0 ? held / 2 : held);
      if (executor().execute(std::span(&input, 1), output).ok()) ++executed;
      rig_->module().set_faults({});
    }
  }
  EXPECT_GT(executed, 100);
  for (const SessionId session : sessions) executor().close(session);
  EXPECT_EQ(rig_->blocks_held(), 0);
  rig_->sessions().check_invariants();
}

}  // namespace
}  // namespace chorus::contract
