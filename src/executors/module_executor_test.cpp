#include "executors/module_executor.h"

#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "exec/fake_module.h"

namespace chorus {
namespace {

// A module that is nothing but its facts, and counts what a step is told to read.
class FactsModule final : public Module {
 public:
  FactsModule() {
    facts.methods = {{"forward", 1, 32, 0}};
    facts.groups = {{{0}, {0, 2}, 10, 64}, {{8}, {1}, 10, 32}};
    facts.vocabulary = 10;
    facts.context = 100;
  }
  ModuleInfo facts;
  size_t num_sequences = 0;  // of the last step
  size_t num_blocks = 0;     // in all of its tables

  const ModuleInfo& info() const override { return facts; }
  Status begin(const Step& step) override {
    num_sequences = step.sequences.size();
    num_blocks = 0;
    for (const BlockTable& table : step.tables) num_blocks += table.blocks.size();
    return {};
  }
  Status run(int32_t, const Slice&, std::span<uint8_t>) override { return {}; }
  Status reduce_rows(std::span<const RowSpec>, std::span<RowResult>,
                     std::vector<TokenLogprob>&) override {
    return {};
  }
  Status copy_cells(const CellCopy&) override { return {}; }
  Status read_cells(int32_t, std::span<const CellId>, std::span<std::byte>) const override {
    return {};
  }
  Status write_cells(int32_t, std::span<const CellId>, std::span<const std::byte>) override {
    return {};
  }
};

template <typename Change>
std::string refused_field(Change change) {
  FactsModule module;
  SessionExecutorOptions options{4, 100};
  change(module.facts, options);
  const auto executor = ModuleExecutor::create(module, options);
  return executor.ok() ? "ok" : executor.status().field();
}

TEST(ModuleExecutor, CreateNamesTheFieldThatItCannotServe) {
  using Info = ModuleInfo;
  using Options = SessionExecutorOptions;
  EXPECT_EQ(refused_field([](Info&, Options&) {}), "ok");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.methods.clear(); }), "methods");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.methods.push_back({"prefill", 1, 8, 0}); }),
            "methods");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.methods[0].name = "decode"; }), "methods");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.methods[0].min_tokens = 5; }),
            "methods.forward.min_tokens");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.vocabulary = 0; }), "vocabulary");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.context = 0; }), "context");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.block_size = 17; }), "block_size");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.groups.clear(); }), "groups");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.groups[1].num_blocks = 0; }),
            "groups[1].num_blocks");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.groups[0].policy.window = -2; }),
            "groups[0].window");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.groups[0].bytes_per_cell = 0; }),
            "groups[0].bytes_per_cell");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.groups[1].layers = {2}; }), "groups[1].layers");
  EXPECT_EQ(refused_field([](Info& i, Options&) { i.groups[1].layers.clear(); }),
            "groups[1].layers");
  EXPECT_EQ(refused_field([](Info&, Options& o) { o.max_sessions = 0; }), "max_sessions");
  EXPECT_EQ(refused_field([](Info&, Options& o) { o.max_session_tokens = 0; }),
            "max_session_tokens");
  EXPECT_EQ(refused_field([](Info&, Options& o) { o.max_session_tokens = 101; }),
            "max_session_tokens");
}

// D2: a step of the widest kind finds room for itself and the window before it.
TEST(ModuleExecutor, PoolsTooSmallForTheirWindowAreRefused) {
  const auto with = [](int32_t num_blocks, int32_t max_step_tokens) {
    return refused_field([=](ModuleInfo& info, SessionExecutorOptions& options) {
      info.context = 1000;
      info.groups[1].policy.window = 16;
      info.groups[1].num_blocks = num_blocks;
      options = {4, 1000, max_step_tokens};
    });
  };
  // 16 + 32 - 1 positions touch at most 4 blocks of 16; one more for a copy.
  EXPECT_EQ(with(5, 32), "ok");
  EXPECT_EQ(with(4, 32), "groups[1].num_blocks");
  EXPECT_EQ(with(4, 0), "ok");
  EXPECT_EQ(with(5, -1), "max_step_tokens");
  // No step touches more than the longest session has.
  EXPECT_EQ(with(64, 5000), "ok");
  EXPECT_EQ(with(63, 5000), "groups[1].num_blocks");
}

TEST(ModuleExecutor, InfoAndUsageAreTheProgramsOwn) {
  FactsModule module;
  const auto executor = std::move(ModuleExecutor::create(module, {4, 90})).value();
  const ExecutorInfo info = executor->info();
  EXPECT_EQ(info.vocabulary, 10);
  EXPECT_EQ(info.max_sessions, 4);
  EXPECT_EQ(info.max_session_tokens, 90);
  EXPECT_EQ(info.preferred_batch_tokens, 32);
  EXPECT_EQ(info.block_size, 16);
  const Usage usage = executor->usage();
  ASSERT_EQ(usage.groups.size(), 2u);
  EXPECT_EQ(usage.groups[0].num_layers, 2);
  EXPECT_EQ(usage.groups[0].bytes_per_block, 1024);
  EXPECT_EQ(usage.groups[1].window, 8);
  EXPECT_EQ(usage.groups[1].blocks_free, 10);
  ASSERT_EQ(usage.methods.size(), 1u);
  EXPECT_EQ(usage.methods[0].name, "forward");
}

BatchInput make_input(SessionId session, std::vector<TokenId> tokens, Position position,
                      bool output) {
  BatchInput input;
  input.session = session;
  input.size = static_cast<int32_t>(tokens.size());
  input.tokens = std::make_shared<std::vector<TokenId>>(std::move(tokens));
  input.position = position;
  input.produce_output = output;
  return input;
}

// So that no session is slower for what others hold (llama.cpp#7802 and others).
TEST(ModuleExecutor, AStepIsOfTheSessionsOfItsInputsAlone) {
  FactsModule module;
  module.facts.groups = {{{0}, {0}, 64, 64}};
  module.facts.context = 200;
  const auto executor = std::move(ModuleExecutor::create(module, {8, 200})).value();
  BatchOutput output;
  const SessionId own = *executor->open({});
  const std::vector<BatchInput> prompt{make_input(own, std::vector<TokenId>(20, 1), 0, false)};
  ASSERT_TRUE(executor->execute(prompt, output).ok());
  for (int i = 0; i < 7; ++i) {
    const SessionId idle = *executor->open({});
    for (Position at = 0; at < 120; at += 24) {
      const std::vector<BatchInput> more{
          make_input(idle, std::vector<TokenId>(24, static_cast<TokenId>(i)), at, false)};
      ASSERT_TRUE(executor->execute(more, output).ok());
    }
  }
  EXPECT_GE(executor->usage().groups[0].blocks_total - executor->usage().groups[0].blocks_free, 50);
  const std::vector<BatchInput> next{make_input(own, {2}, 20, false)};
  ASSERT_TRUE(executor->execute(next, output).ok());
  EXPECT_EQ(module.num_sequences, 1u);
  EXPECT_EQ(module.num_blocks, 2u);
}

// Rows that are not finite fail their own session; the others get what they would have got.
TEST(ModuleExecutor, NotFiniteRowsFailTheirSessionOnly) {
  FakeModuleOptions options;
  options.groups = {{{0}, 20}};
  options.nan_kv_token = 50;
  options.nan_logits_token = 51;
  FakeModule module(options);
  const auto executor = std::move(ModuleExecutor::create(module, {4, 100})).value();
  std::vector<SessionId> sessions;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(*executor->open({}));
    ASSERT_TRUE(executor->set_sampling(sessions.back(), {}).ok());
  }
  BatchOutput output;
  const std::vector<BatchInput> batch{make_input(sessions[0], {1, 50, 3}, 0, true),
                                      make_input(sessions[1], {1, 2, 51}, 0, true),
                                      make_input(sessions[2], {1, 2, 3}, 0, true)};
  ASSERT_TRUE(executor->execute(batch, output).ok());
  EXPECT_EQ(output.inputs[0].status.field(), "kv");
  EXPECT_EQ(output.inputs[1].status.field(), "logits");
  ASSERT_TRUE(output.inputs[2].status.ok());
  const TokenId chosen = output.sampled(output.inputs[2])[0].id;
  EXPECT_EQ(*executor->length(sessions[0]), 0);
  EXPECT_EQ(*executor->length(sessions[1]), 0);
  // Both sessions go on as if nothing had been.
  for (const SessionId session : {sessions[0], sessions[1]}) {
    const std::vector<BatchInput> retry{make_input(session, {1, 2, 3}, 0, true)};
    ASSERT_TRUE(executor->execute(retry, output).ok());
    EXPECT_EQ(output.sampled(output.inputs[0])[0].id, chosen);
  }
  EXPECT_EQ(module.bad_reads(), 0);
}

// A failure in the midst of a forward, with half of its rows written.
TEST(ModuleExecutor, AForwardThatFailsHalfWayIsRolledBack) {
  FakeModuleOptions options;
  options.groups = {{{0}, 20}};
  options.methods[0].max_tokens = 4;
  FakeModule module(options);
  const auto executor = std::move(ModuleExecutor::create(module, {4, 100})).value();
  const SessionId session = *executor->open({});
  ASSERT_TRUE(executor->set_sampling(session, {}).ok());
  BatchOutput output;
  const std::vector<BatchInput> prompt{make_input(session, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 0, true)};
  const std::vector<BatchInput> rewind{make_input(session, {9, 8, 7, 6, 5, 4}, 3, true)};
  ASSERT_TRUE(executor->execute(prompt, output).ok());
  ASSERT_TRUE(executor->execute(rewind, output).ok());
  const TokenId chosen = output.sampled(output.inputs[0])[0].id;
  ASSERT_TRUE(executor->execute(prompt, output).ok());
  for (const FakeFaults& faults :
       std::vector<FakeFaults>{{1, 0, 0}, {0, 1, 0}, {0, 2, 0}, {0, 0, 1}}) {
    module.set_faults(faults);
    EXPECT_EQ(executor->execute(rewind, output).code(), Code::kInternal);
    EXPECT_EQ(*executor->length(session), 9);
    EXPECT_EQ(executor->usage().groups[0].blocks_free, 19);
  }
  ASSERT_TRUE(executor->execute(rewind, output).ok());
  EXPECT_EQ(output.sampled(output.inputs[0])[0].id, chosen);
  EXPECT_EQ(executor->usage().steps, 4);
  EXPECT_EQ(module.bad_reads(), 0);
}

// Two executors with different options live side by side and share nothing.
TEST(ModuleExecutor, TwoOfThemAreIndependent) {
  FakeModuleOptions small;
  small.groups = {{{0}, 4}};
  small.block_size = 1;
  FakeModuleOptions large;
  large.groups = {{{0}, 20}, {{3}, 20}};
  FakeModule small_module(small);
  FakeModule large_module(large);
  const auto a = std::move(ModuleExecutor::create(small_module, {1, 50})).value();
  const auto b = std::move(ModuleExecutor::create(large_module, {9, 500})).value();
  const SessionId session = *a->open({});
  EXPECT_FALSE(b->length(session).ok());
  ASSERT_TRUE(b->open({}).ok());
  BatchOutput output;
  const std::vector<BatchInput> batch{make_input(session, {1, 2, 3, 4}, 0, false)};
  ASSERT_TRUE(a->execute(batch, output).ok());
  EXPECT_EQ(a->usage().groups[0].blocks_free, 0);
  EXPECT_EQ(b->usage().groups[0].blocks_free, 20);
}

}  // namespace
}  // namespace chorus
