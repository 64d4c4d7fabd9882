// Counts allocations: a step of a warm executor makes none.
#include <cstdlib>
#include <gtest/gtest.h>
#include <memory>
#include <new>
#include <vector>

#include "batching/session_executor.h"
#include "exec/fake_module.h"

namespace {
long num_allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace chorus {
namespace {

class PlainExecutor final : public SessionExecutor {
 public:
  static std::unique_ptr<PlainExecutor> create(Module& module) {
    auto sessions = make_sessions(module.info(), {16, 1000});
    return std::unique_ptr<PlainExecutor>(new PlainExecutor(module, std::move(sessions).value()));
  }

 private:
  using SessionExecutor::SessionExecutor;
  void plan_forwards(int32_t num_rows, std::vector<Forward>& forwards) const override {
    forwards.assign(1, {0, 0, num_rows});
  }
};

// Decodes of 8 sessions, with a prefill chunk that rewinds beside them, over several blocks.
TEST(Allocation, AWarmStepMakesNone) {
  FakeModuleOptions options;
  options.groups = {{{0}, 200}, {{4}, 200}};
  FakeModule module(options);
  const auto executor = PlainExecutor::create(module);
  std::vector<BatchInput> batch;
  for (int i = 0; i < 9; ++i) {
    BatchInput input;
    input.session = *executor->open({});
    input.tokens = std::make_shared<std::vector<TokenId>>(20, i);
    input.size = i == 8 ? 20 : 1;
    input.score_from = i == 8 ? 0 : BatchInput::kNoScores;
    input.produce_output = true;
    SamplingParams params;
    params.num_likeliest = 2;
    if (i % 2 == 0) {
      params.repetition_penalty = 1.2f;
      params.presence_penalty = 0.5f;
      params.bad_sequences = {{i, i}, {5}};
      params.logit_bias = {{7, 1.0f}};
      params.max_tokens = 100;
    }
    ASSERT_TRUE(executor->set_sampling(input.session, params).ok());
    batch.push_back(input);
  }
  BatchOutput output;
  long before = 0;
  // The second round goes no further than the first: everything has been as large as it gets.
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < 8; ++i) ASSERT_TRUE(executor->truncate(batch[i].session, 0).ok());
    before = num_allocations;
    for (Position position = 0; position < 100; ++position) {
      for (size_t i = 0; i < 8; ++i) batch[i].position = position;
      ASSERT_TRUE(executor->execute(batch, output).ok());
      ASSERT_TRUE(output.inputs[0].status.ok() && output.inputs[8].status.ok());
    }
    if (round == 0) {
      EXPECT_GT(num_allocations, before);
    }
  }
  EXPECT_EQ(num_allocations, before);
}

// Forks of one prefix decode: the step says what they share.
TEST(Allocation, AWarmStepOfForksMakesNone) {
  FakeModuleOptions options;
  options.groups = {{{0}, 200}, {{24}, 200}};
  FakeModule module(options);
  const auto executor = PlainExecutor::create(module);
  const SessionId base = *executor->open({});
  const auto tokens = std::make_shared<std::vector<TokenId>>(120, 3);
  BatchOutput output;
  BatchInput prefix;
  prefix.session = base;
  prefix.tokens = tokens;
  prefix.size = 25;
  for (prefix.offset = 0; prefix.offset < 50; prefix.offset += prefix.size)
    ASSERT_TRUE(executor->execute({&prefix, 1}, output).ok());
  long before = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<BatchInput> batch;
    for (int i = 0; i < 8; ++i) {
      BatchInput input;
      input.session = *executor->clone(base, 50);
      input.tokens = tokens;
      input.size = 1;
      batch.push_back(input);
    }
    before = num_allocations;
    for (Position position = 50; position < 100; ++position) {
      for (BatchInput& input : batch) input.offset = position;
      ASSERT_TRUE(executor->execute(batch, output).ok());
      ASSERT_TRUE(output.inputs[0].status.ok() && output.inputs[7].status.ok());
    }
    if (round == 0) {
      EXPECT_GT(num_allocations, before);
    } else {
      EXPECT_EQ(num_allocations, before);
    }
    for (const BatchInput& input : batch) executor->close(input.session);
  }
}

}  // namespace
}  // namespace chorus
