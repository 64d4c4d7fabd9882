#include "executors/cuda_executor.h"

#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "exec/fake_module.h"
#include "executors/make_executor.h"
#include "executors/module_executor.h"

namespace chorus {
namespace {

std::vector<MethodInfo> decode_and_prefill(std::vector<int32_t> widths, int32_t min_prefill,
                                           int32_t max_prefill) {
  const int32_t first = widths.front();
  const int32_t last = widths.back();
  return {{"decode", first, last, 0, std::move(widths)}, {"prefill", min_prefill, max_prefill, 0}};
}

FakeModuleOptions module_options(std::vector<MethodInfo> methods, int32_t num_blocks = 20) {
  FakeModuleOptions options;
  options.methods = std::move(methods);
  options.groups = {{{0}, num_blocks}};
  return options;
}

std::unique_ptr<SessionExecutor> executor_over(Module& module, int32_t max_sessions = 8) {
  auto executor = make_executor(module, {max_sessions, 200});
  CHORUS_CHECK(executor.ok());
  return std::move(executor).value();
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

SessionId open_greedy(Executor& executor) {
  const auto session = executor.open({});
  CHORUS_CHECK(session.ok());
  CHORUS_CHECK(executor.set_sampling(*session, {}).ok());
  return *session;
}

TokenId sampled(const BatchOutput& output, size_t input) {
  CHORUS_CHECK(output.inputs[input].status.ok());
  return output.sampled(output.inputs[input])[0].id;
}

// Forwards and padded rows of decode, then of prefill.
std::vector<int64_t> counts(const Executor& executor) {
  std::vector<int64_t> numbers;
  for (const MethodUsage& method : executor.usage().methods) {
    numbers.push_back(method.forwards);
    numbers.push_back(method.padded_rows);
  }
  return numbers;
}

TEST(CudaExecutor, CreateNamesTheMethodThatItCannotServe) {
  const auto field = [](std::vector<MethodInfo> methods) {
    FakeModule module(module_options(std::move(methods)));
    const auto executor = CudaExecutor::create(module, {8, 200});
    return executor.ok() ? "ok" : executor.status().field();
  };
  EXPECT_EQ(field(decode_and_prefill({1, 2, 4, 8}, 5, 32)), "ok");
  EXPECT_EQ(field({{"forward", 1, 32, 0}}), "methods");
  EXPECT_EQ(field({{"decode", 1, 1, 0, {1}}}), "methods");
  EXPECT_EQ(field(decode_and_prefill({2, 4}, 5, 32)), "methods.decode.widths");
  EXPECT_EQ(field(decode_and_prefill({1, 64}, 5, 32)), "methods.decode.widths");
  EXPECT_EQ(field(decode_and_prefill({1}, 33, 32)), "methods.prefill.min_tokens");
  FakeModule module(module_options(decode_and_prefill({1}, 2, 32)));
  EXPECT_EQ(CudaExecutor::create(module, {8, 0}).status().field(), "max_session_tokens");
  EXPECT_EQ(ModuleExecutor::create(module, {8, 200}).status().field(), "methods");
}

TEST(CudaExecutor, AProgramsMethodsChooseTheExecutor) {
  FakeModule forward(module_options({{"forward", 1, 32, 0}}));
  FakeModule both(module_options(decode_and_prefill({1}, 2, 32)));
  FakeModule other(module_options({{"backward", 1, 32, 0}}));
  const auto of_forward = make_executor(forward, {8, 200});
  const auto of_both = make_executor(both, {8, 200});
  ASSERT_TRUE(of_forward.ok() && of_both.ok());
  EXPECT_NE(dynamic_cast<ModuleExecutor*>(of_forward->get()), nullptr);
  EXPECT_NE(dynamic_cast<CudaExecutor*>(of_both->get()), nullptr);
  EXPECT_EQ(make_executor(other, {8, 200}).status().field(), "methods");
}

TEST(CudaExecutor, FourDecodingSessionsAreOneForward) {
  FakeModule module(module_options(decode_and_prefill({1, 2, 4, 8}, 5, 32)));
  const auto executor = executor_over(module);
  std::vector<BatchInput> batch;
  BatchOutput output;
  for (TokenId i = 0; i < 4; ++i) batch.push_back(make_input(open_greedy(*executor), {i}, 0, true));
  for (Position position = 0; position < 10; ++position) {
    for (BatchInput& input : batch) input.position = position;
    ASSERT_TRUE(executor->execute(batch, output).ok());
  }
  EXPECT_EQ(counts(*executor), (std::vector<int64_t>{10, 0, 0, 0}));
}

// Around the bounds: the same tokens as a program with `forward` alone, and so many forwards.
TEST(CudaExecutor, HonoursTheLowerBoundOfPrefill) {
  struct Case {
    int32_t rows;
    std::vector<int64_t> counts;
  };
  for (const auto& [min_prefill, cases] :
       std::vector<std::pair<int32_t, std::vector<Case>>>{{2,
                                                           {{1, {1, 0, 0, 0}},
                                                            {2, {0, 0, 1, 0}},
                                                            {8, {0, 0, 1, 0}},
                                                            {9, {1, 0, 1, 0}},
                                                            {16, {0, 0, 2, 0}},
                                                            {17, {1, 0, 2, 0}}}},
                                                          {5,
                                                           {{1, {1, 0, 0, 0}},
                                                            {4, {0, 0, 1, 1}},
                                                            {5, {0, 0, 1, 0}},
                                                            {8, {0, 0, 1, 0}},
                                                            {9, {1, 0, 1, 0}},
                                                            {10, {0, 0, 2, 0}},
                                                            {11, {0, 0, 2, 0}}}}}) {
    for (const Case& each : cases) {
      SCOPED_TRACE(std::to_string(min_prefill) + ": " + std::to_string(each.rows));
      std::vector<TokenId> tokens(static_cast<size_t>(each.rows), 3);
      tokens.back() = 4;
      FakeModule forward(module_options({{"forward", 1, 32, 0}}));
      const auto expected = executor_over(forward);
      FakeModule module(module_options(decode_and_prefill({1}, min_prefill, 8)));
      const auto executor = executor_over(module);
      BatchOutput output;
      const std::vector<BatchInput> alone{make_input(open_greedy(*expected), tokens, 0, true)};
      ASSERT_TRUE(expected->execute(alone, output).ok());
      const TokenId chosen = sampled(output, 0);
      const std::vector<BatchInput> batch{make_input(open_greedy(*executor), tokens, 0, true)};
      ASSERT_TRUE(executor->execute(batch, output).ok());
      EXPECT_EQ(sampled(output, 0), chosen);
      EXPECT_EQ(counts(*executor), each.counts);
      EXPECT_EQ(module.bad_reads(), 0);
    }
  }
}

// Every block of the pool is held, most of them to the last cell, and steps are padded.
TEST(CudaExecutor, PaddingTouchesNothingAlsoWithThePoolFull) {
  for (const int32_t block_size : {1, 16}) {
    SCOPED_TRACE(block_size);
    FakeModuleOptions options = module_options(decode_and_prefill({1, 8}, 13, 16), 48 / block_size);
    options.groups.push_back({{7}, 48 / block_size});
    options.block_size = block_size;
    FakeModule module(options);
    const auto executor = executor_over(module, 3);
    FakeModuleOptions plain = options;
    plain.methods = {{"forward", 1, 32, 0}};
    FakeModule forward(plain);
    const auto expected = executor_over(forward, 3);
    std::vector<BatchInput> batch;
    BatchOutput output;
    for (const auto* each : {&executor, &expected}) {
      for (int i = 0; i < 3; ++i) open_greedy(**each);
    }
    for (uint64_t i = 0; i < 3; ++i)
      batch.push_back(make_input(SessionId{i + 1}, {static_cast<TokenId>(i)}, 0, true));
    for (Position position = 0; position < 16; ++position) {
      for (BatchInput& input : batch) input.position = position;
      ASSERT_TRUE(expected->execute(batch, output).ok());
      std::vector<TokenId> chosen;
      for (size_t i = 0; i < 3; ++i) chosen.push_back(sampled(output, i));
      ASSERT_TRUE(executor->execute(batch, output).ok());
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(sampled(output, i), chosen[i]);
    }
    EXPECT_EQ(executor->usage().groups[0].blocks_free, 0);
    EXPECT_EQ(counts(*executor), (std::vector<int64_t>{16, 16 * 5, 0, 0}));
    EXPECT_EQ(module.bad_reads(), 0);
    // The next token finds no room, and changes nothing.
    const std::vector<BatchInput> more{make_input(SessionId{1}, {5}, 16, true)};
    EXPECT_EQ(executor->execute(more, output).field(), "blocks");
    EXPECT_EQ(*executor->length(SessionId{1}), 16);
  }
}

// A failure in the second of two slices, with half of its rows written.
TEST(CudaExecutor, AForwardThatFailsHalfWayIsRolledBack) {
  FakeModule module(module_options(decode_and_prefill({1, 4}, 5, 8)));
  const auto executor = executor_over(module);
  const SessionId session = open_greedy(*executor);
  BatchOutput output;
  const std::vector<BatchInput> prompt{make_input(session, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 0, true)};
  const std::vector<BatchInput> rewind{make_input(session, {9, 8, 7, 6, 5, 4, 3, 2, 1}, 3, true)};
  ASSERT_TRUE(executor->execute(prompt, output).ok());
  ASSERT_TRUE(executor->execute(rewind, output).ok());
  const TokenId chosen = sampled(output, 0);
  ASSERT_TRUE(executor->execute(prompt, output).ok());
  for (const FakeFaults& faults :
       std::vector<FakeFaults>{{1, 0, 0}, {0, 1, 0}, {0, 2, 0}, {0, 0, 1}}) {
    module.set_faults(faults);
    EXPECT_EQ(executor->execute(rewind, output).code(), Code::kInternal);
    EXPECT_EQ(*executor->length(session), 9);
    EXPECT_EQ(executor->usage().groups[0].blocks_free, 19);
  }
  ASSERT_TRUE(executor->execute(rewind, output).ok());
  EXPECT_EQ(sampled(output, 0), chosen);
  EXPECT_EQ(executor->usage().steps, 4);
  EXPECT_EQ(module.bad_reads(), 0);
}

// Methods may ask for rows that nobody wants, up to every row of the smallest slice: padded ones
// too.
TEST(CudaExecutor, AMinimumOfWantedRowsIsMet) {
  std::vector<MethodInfo> methods = decode_and_prefill({1, 8}, 5, 16);
  methods[0].min_wanted = 1;
  methods[1].min_wanted = 5;
  FakeModule module(module_options(methods));
  const auto executor = executor_over(module);
  FakeModule forward(module_options({{"forward", 1, 32, 0}}));
  const auto expected = executor_over(forward);
  RandomStream random(1);
  for (const auto* each : {&executor, &expected}) {
    for (int i = 0; i < 8; ++i) open_greedy(**each);
  }
  std::vector<Position> lengths(8, 0);
  for (int step = 0; step < 60; ++step) {
    std::vector<BatchInput> batch;
    for (uint64_t i = 0; i < 8; ++i) {
      if (random.below(2) == 0) continue;
      std::vector<TokenId> tokens(random.below(4) + 1, static_cast<TokenId>(random.below(60)));
      Position& length = lengths[i];
      if (length > 30) length = 0;
      batch.push_back(make_input(SessionId{i + 1}, tokens, length, random.below(2) == 0));
      length += static_cast<Position>(tokens.size());
    }
    BatchOutput right;
    BatchOutput output;
    ASSERT_TRUE(expected->execute(batch, right).ok());
    ASSERT_TRUE(executor->execute(batch, output).ok());
    ASSERT_EQ(output.tokens.size(), right.tokens.size());
    for (size_t i = 0; i < output.tokens.size(); ++i)
      EXPECT_EQ(output.tokens[i].id, right.tokens[i].id);
  }
  EXPECT_GT(counts(*executor)[1] + counts(*executor)[3], 0) << "nothing was padded";
  EXPECT_EQ(module.bad_reads(), 0);
}

}  // namespace
}  // namespace chorus
