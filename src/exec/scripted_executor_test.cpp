#include "exec/scripted_executor.h"

#include <gtest/gtest.h>
#include <memory>
#include <utility>

namespace chorus {
namespace {

using Tokens = std::vector<TokenId>;

BatchInput input(SessionId id, Tokens tokens, Position position, bool produce_output = false) {
  BatchInput made;
  made.session = id;
  made.size = static_cast<int32_t>(tokens.size());
  made.tokens = std::make_shared<const Tokens>(std::move(tokens));
  made.position = position;
  made.produce_output = produce_output;
  return made;
}

Status run(ScriptedExecutor& executor, std::vector<BatchInput> batch, BatchOutput& output) {
  return executor.execute(batch, output);
}

TEST(ScriptedExecutor, AppendsRewindsAndRefusesGaps) {
  ScriptedExecutor executor({});
  ASSERT_TRUE(executor.initialize().ok());
  const SessionId id = *executor.open({});
  BatchOutput output;
  ASSERT_TRUE(run(executor, {input(id, {1, 2, 3}, 0), input(id, {4}, 3)}, output).ok());
  EXPECT_EQ(*executor.tokens_of(id), (Tokens{1, 2, 3, 4}));
  ASSERT_TRUE(run(executor, {input(id, {9}, 5)}, output).ok());
  EXPECT_EQ(output.inputs[0].status.code(), Code::kInvalidArgument);
  EXPECT_EQ(*executor.length(id), 4);
  ASSERT_TRUE(run(executor, {input(id, {7, 8}, 1)}, output).ok());
  EXPECT_EQ(*executor.tokens_of(id), (Tokens{1, 7, 8}));
  ASSERT_TRUE(executor.truncate(id, 2).ok());
  EXPECT_FALSE(executor.truncate(id, 3).ok());
  EXPECT_EQ(*executor.length(id), 2);
}

TEST(ScriptedExecutor, CommitsAllReturnedTokensButTheLast) {
  ScriptedExecutor executor({.tokens_per_output = 3});
  const SessionId id = *executor.open({});
  BatchOutput output;
  ASSERT_TRUE(run(executor, {input(id, {5}, 0, true)}, output).ok());
  EXPECT_FALSE(output.inputs[0].status.ok()) << "no policy was set";
  ASSERT_TRUE(executor.set_sampling(id, {}).ok());
  ASSERT_TRUE(run(executor, {input(id, {5}, 0, true)}, output).ok());
  const auto sampled = output.sampled(output.inputs[0]);
  ASSERT_EQ(sampled.size(), 3u);
  EXPECT_EQ(sampled[0].id, scripted_next_token(Tokens{5}, {}, 1000));
  EXPECT_EQ(sampled[1].id, scripted_next_token(Tokens{5, sampled[0].id}, {}, 1000));
  EXPECT_EQ(*executor.tokens_of(id), (Tokens{5, sampled[0].id, sampled[1].id}));
}

TEST(ScriptedExecutor, ScoresGivenTokens) {
  ScriptedExecutor executor({});
  const SessionId id = *executor.open({});
  ASSERT_TRUE(executor.set_sampling(id, {.num_likeliest = 2}).ok());
  BatchOutput output;
  BatchInput first = input(id, {5, 6, 7, 8}, 0);
  first.size = 2;
  first.score_from = 0;
  BatchInput second = first;
  second.offset = 2;
  ASSERT_TRUE(run(executor, {first, second}, output).ok());
  ASSERT_EQ(output.inputs[0].scored_count, 2);
  ASSERT_EQ(output.inputs[1].scored_count, 1);
  EXPECT_EQ(output.inputs[0].first_scored, 1);
  EXPECT_EQ(output.inputs[1].first_scored, 3);
  EXPECT_EQ(output.scored(output.inputs[1])[0].id, 8);
  EXPECT_EQ(output.scored(output.inputs[1])[0].logprob, scripted_logprob(Tokens{5, 6, 7}, 8));
  EXPECT_EQ(output.likeliest_of(output.scored(output.inputs[0])[1]).size(), 2u);
}

TEST(ScriptedExecutor, AFailedInputLeavesItsSessionAndNoOther) {
  ScriptedExecutor executor({});
  const SessionId a = *executor.open({});
  const SessionId b = *executor.open({});
  BatchOutput output;
  executor.add_fault({.kind = ScriptedFault::Kind::kFailInput, .session = a});
  ASSERT_TRUE(run(executor, {input(a, {1}, 0), input(b, {2}, 0)}, output).ok());
  EXPECT_FALSE(output.inputs[0].status.ok());
  EXPECT_TRUE(output.inputs[1].status.ok());
  EXPECT_EQ(*executor.length(a), 0);
  EXPECT_EQ(*executor.length(b), 1);
  executor.add_fault({.kind = ScriptedFault::Kind::kFailStep, .first_step = 1});
  EXPECT_FALSE(run(executor, {input(a, {1}, 0), input(b, {2}, 1)}, output).ok());
  EXPECT_TRUE(output.inputs.empty());
  EXPECT_EQ(*executor.length(b), 1);
}

TEST(ScriptedExecutor, CountsBlocksExactly) {
  ScriptedExecutor executor({.max_sessions = 2, .block_size = 16, .num_blocks = 4});
  const SessionId a = *executor.open({});
  const SessionId b = *executor.open({});
  EXPECT_EQ(executor.open({}).status().field(), "max_sessions");
  BatchOutput output;
  ASSERT_TRUE(run(executor, {input(a, Tokens(33, 1), 0)}, output).ok());
  EXPECT_EQ(executor.usage().groups[0].blocks_free, 1);
  const auto admits = [&](SessionId id, Position start, int32_t count) {
    return executor.can_admit(std::vector<SessionDemand>{{id, start, count}});
  };
  EXPECT_TRUE(admits(b, 0, 16));
  EXPECT_FALSE(admits(b, 0, 17));
  EXPECT_TRUE(admits(a, 33, 31));
  EXPECT_TRUE(admits(a, 32, 16)) << "a rewind within the last block needs one fresh block";
  EXPECT_FALSE(admits(a, 31, 2)) << "two fresh ones";
  executor.refuse_admission(1);
  EXPECT_FALSE(admits(b, 0, 1));
  EXPECT_TRUE(admits(b, 0, 1));
  EXPECT_EQ(run(executor, {input(b, Tokens(17, 1), 0)}, output).code(), Code::kResourceExhausted);
  executor.close(a);
  executor.close(a);
  EXPECT_EQ(executor.usage().groups[0].blocks_free, 4);
  EXPECT_EQ(executor.usage().groups[0].blocks_peak, 3);
  const SessionId c = *executor.open({});
  EXPECT_NE(c, a) << "ids are not used again";
}

TEST(ScriptedExecutor, HasNoPrefixIndex) {
  ScriptedExecutor executor({});
  EXPECT_FALSE(executor.info().has_prefix_index);
  const SessionId a = *executor.open({});
  const SessionId b = *executor.open({});
  const Tokens tokens(40, 1);
  BatchOutput output;
  ASSERT_TRUE(run(executor, {input(a, tokens, 0)}, output).ok());
  EXPECT_EQ(executor.attach_prefix(b, tokens).value(), 0);
  EXPECT_EQ(executor.attach_prefix(a, tokens).status().field(), "session");
  EXPECT_EQ(executor.attach_prefix(SessionId{99}, tokens).status().code(), Code::kNotFound);
}

TEST(ScriptedExecutor, ClonesDiverge) {
  ScriptedExecutor executor({});
  const SessionId a = *executor.open({});
  BatchOutput output;
  ASSERT_TRUE(run(executor, {input(a, {1, 2, 3}, 0)}, output).ok());
  EXPECT_EQ(executor.clone(a, 4).status().field(), "upto");
  const SessionId b = *executor.clone(a, 2);
  ASSERT_TRUE(run(executor, {input(b, {9}, 2)}, output).ok());
  EXPECT_EQ(*executor.tokens_of(a), (Tokens{1, 2, 3}));
  EXPECT_EQ(*executor.tokens_of(b), (Tokens{1, 2, 9}));
  EXPECT_EQ(executor.clone(SessionId{99}, 0).status().code(), Code::kNotFound);
}

TEST(ScriptedExecutor, FiltersAreRefusedByName) {
  ScriptedExecutor executor({});
  const SessionId id = *executor.open({});
  for (const auto& [params, field] : {std::pair(SamplingParams{.top_k = 1}, "top_k"),
                                      std::pair(SamplingParams{.top_p = 0.5f}, "top_p"),
                                      std::pair(SamplingParams{.min_p = 0.5f}, "min_p")}) {
    const Status status = executor.set_sampling(id, params);
    EXPECT_EQ(status.code(), Code::kUnimplemented);
    EXPECT_EQ(status.field(), field);
  }
}

}  // namespace
}  // namespace chorus
