// What every Executor must do, as tests that are run against each of them: SeamContract what can be
// said of any, ExecutorContract what can be said of one over a module and KV books.
//
// To add one: a source file that says
//   INSTANTIATE_TEST_SUITE_P(Name, SeamContract, testing::Values(ContractSubject{...}));
// and the same of ExecutorContract, linked with the sources of this folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "batching/session_executor.h"
#include "exec/executor.h"
#include "exec/module.h"
#include "tests/contract/faulty_module.h"

namespace chorus::contract {

using Tokens = std::vector<TokenId>;

struct ContractShape {
  int32_t block_size = 16;
  int32_t num_blocks = 64;  // in each group
  int32_t max_sessions = 8;
  int32_t max_session_tokens = 120;
};

// A kind of executor over a kind of module. The module's forwards take at most 32 rows, so that
// steps have several slices, and its context is at least 120. Or, for SeamContract, one without.
struct ContractSubject {
  std::string name;
  std::function<std::unique_ptr<Executor>(const ContractShape&)> make_without_module;
  std::function<std::unique_ptr<Module>(const ContractShape&)> make_module;
  std::function<Result<std::unique_ptr<SessionExecutor>>(Module&, const SessionExecutorOptions&)>
      make_executor;
  int num_schedules = 10;  // random schedules for each setting
  bool has_window = false;
};

inline void PrintTo(const ContractSubject& subject, std::ostream* stream) {
  *stream << subject.name;
}

// An executor with its module and the means to disturb it.
class Rig {
 public:
  Rig(const ContractSubject& subject, const ContractShape& shape);

  Executor& operator*() { return *executor_; }
  Executor* operator->() { return executor_.get(); }
  // Requires: a subject with a module.
  FaultyModule& module() { return *faulty_; }
  const SessionTable& sessions() const { return *sessions_; }

  void check_invariants() const {
    if (sessions_ != nullptr) sessions_->check_invariants();
  }
  // Overwrites every cell of every free block, so that stale data cannot be read unnoticed.
  void poison_free_blocks();
  int64_t blocks_held() const;
  // By the tests' own reckoning: whether a session may be made `length` tokens long whose longest
  // history, since it was last empty, was `longest` tokens. At that length the windows left whole
  // blocks behind; the token behind the shorter history must see none of them.
  bool may_rewind(Position longest, Position length) const;

 private:
  std::unique_ptr<Module> module_;
  std::unique_ptr<FaultyModule> faulty_;
  std::unique_ptr<Executor> executor_;
  const SessionTable* sessions_ = nullptr;  // the executor's, if it has one
};

// tokens[offset, offset + size) of a vector that begins at `position`.
BatchInput make_input(SessionId session, const Tokens& tokens, Position position,
                      bool produce_output = false);
BatchInput make_slice(SessionId session, std::shared_ptr<const Tokens> tokens, int32_t offset,
                      int32_t size, bool produce_output = false);

// The bits of what came back for one token, comparable.
struct ScoreBits {
  TokenId id = 0;
  uint32_t logprob = 0;
  int32_t rank = 0;
  std::vector<std::pair<TokenId, uint32_t>> likeliest;
  friend bool operator==(const ScoreBits&, const ScoreBits&) = default;
};
ScoreBits bits_of(const BatchOutput& output, const TokenScore& score);
void PrintTo(const ScoreBits& bits, std::ostream* stream);

// Runs token histories by themselves: the oracle of whatever runs in company.
class Solo {
 public:
  explicit Solo(const ContractSubject& subject);

  // The scores of history[p] for p in [first, last), each as the one step over the whole history
  // gives it. Requires: 1 <= first, last <= history.size().
  std::vector<ScoreBits> scores(const Tokens& history, Position first, Position last,
                                int32_t num_likeliest);
  // The token sampled behind the history.
  ScoreBits sample(const Tokens& history, const SamplingParams& params);

 private:
  Rig rig_;
};

class SeamContract : public testing::TestWithParam<ContractSubject> {
 protected:
  void start(const ContractShape& shape = {}) { rig_ = std::make_unique<Rig>(GetParam(), shape); }

  Executor& executor() { return **rig_; }
  SessionId open() {
    const Result<SessionId> session = executor().open({});
    EXPECT_TRUE(session.ok()) << session.status().to_string();
    return *session;
  }
  SessionId open_greedy() {
    const SessionId session = open();
    EXPECT_TRUE(executor().set_sampling(session, greedy()).ok());
    return session;
  }
  static SamplingParams greedy() {
    SamplingParams params;
    params.logprobs = true;
    params.num_likeliest = 2;
    return params;
  }
  // Requires: the step as a whole succeeds.
  BatchOutput step(const std::vector<BatchInput>& batch) {
    BatchOutput output;
    const Status status = executor().execute(batch, output);
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(output.inputs.size(), batch.size());
    rig_->check_invariants();
    return output;
  }
  Status step_alone(const BatchInput& input) { return step({input}).inputs[0].status; }
  // The blocks of 16 cells that a session of `length` tokens holds of a group.
  int32_t window_blocks(size_t group, Position length) {
    const int32_t window = executor().usage().groups[group].window;
    const Position seen = window == 0 ? 0 : std::max(0, length - window + 1);
    return (length + 15) / 16 - seen / 16;
  }
  Position length(SessionId session) { return *executor().length(session); }
  ScoreBits sampled_bits(const BatchOutput& output, size_t input) {
    EXPECT_EQ(output.inputs[input].sampled_count, 1);
    return bits_of(output, output.sampled(output.inputs[input])[0]);
  }
  // Tokens that are different for different seeds and within the vocabulary.
  Tokens text(uint64_t seed, size_t count);

  std::unique_ptr<Rig> rig_;
};

class ExecutorContract : public SeamContract {};

}  // namespace chorus::contract
