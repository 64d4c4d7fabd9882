#include "batching/session_table.h"

#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace chorus {
namespace {

using Tokens = std::vector<TokenId>;

BatchInput make_input(SessionId session, Tokens tokens, Position position, bool output = false) {
  BatchInput input;
  input.session = session;
  input.size = static_cast<int32_t>(tokens.size());
  input.tokens = std::make_shared<Tokens>(std::move(tokens));
  input.position = position;
  input.produce_output = output;
  return input;
}

class SessionTableTest : public testing::Test {
 protected:
  SessionTableTest() {
    SessionTableOptions options{4, 40, {16, 50, {{{}, 8}, {{}, 9}}}};
    table_ = std::move(SessionTable::create(options)).value();
    for (SessionId& session : sessions_) {
      session = *table_->open({});
      EXPECT_TRUE(table_->set_sampling(session, {}).ok());
    }
    // 20 tokens in the first, 3 in the second, none in the third.
    run({make_input(sessions_[0], Tokens(20, 1), 0), make_input(sessions_[1], {1, 2, 3}, 0)});
  }

  // Packs and finishes as if every row had been run and were finite.
  BatchOutput run(const std::vector<BatchInput>& batch) {
    EXPECT_TRUE(table_->pack(batch, packed_).ok());
    BatchOutput output;
    table_->finish(packed_, output);
    table_->check_invariants();
    return output;
  }
  // Packs one batch, gives the status of its last input, and aborts.
  Status refusal(const std::vector<BatchInput>& batch) {
    EXPECT_TRUE(table_->pack(batch, packed_).ok());
    const Status status = packed_.inputs.back().status;
    table_->abort(packed_);
    EXPECT_EQ(*table_->length(sessions_[0]), 20);
    EXPECT_EQ(*table_->length(sessions_[1]), 3);
    EXPECT_EQ(*table_->length(sessions_[2]), 0);
    return status;
  }
  std::string refused_field(const std::vector<BatchInput>& batch) {
    const Status status = refusal(batch);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.field();
  }

  std::unique_ptr<SessionTable> table_;
  SessionId sessions_[3];
  PackedStep packed_;
};

TEST_F(SessionTableTest, CreateNamesTheField) {
  const KvOptions kv{16, 50, {{{}, 8}}};
  EXPECT_EQ(SessionTable::create({0, 40, kv}).status().field(), "max_sessions");
  EXPECT_EQ(SessionTable::create({1, 0, kv}).status().field(), "vocabulary");
  EXPECT_EQ(SessionTable::create({1, 1, {5, 50, {{{}, 8}}}}).status().field(), "block_size");
}

TEST_F(SessionTableTest, RowsAreGroupedBySessionAlsoWhenInputsInterleave) {
  const std::vector<BatchInput> batch{
      make_input(sessions_[0], {5, 6}, 20), make_input(sessions_[1], {7}, 3),
      make_input(sessions_[0], {8}, 22, true), make_input(sessions_[1], {9, 10}, 4, true)};
  ASSERT_TRUE(table_->pack(batch, packed_).ok());
  const Step& step = packed_.step;
  EXPECT_EQ(step.tokens, (Tokens{5, 6, 8, 7, 9, 10}));
  EXPECT_EQ(step.positions, (std::vector<Position>{20, 21, 22, 3, 4, 5}));
  EXPECT_EQ(step.row_sequence, (std::vector<int32_t>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(packed_.wanted, (std::vector<int32_t>{2, 5}));
  ASSERT_EQ(step.sequences.size(), 2u);
  EXPECT_EQ(step.sequences[1].row_begin, 3);
  EXPECT_EQ(step.sequences[1].start, 3);
  ASSERT_EQ(step.cells.size(), 12u);
  // Position 22 is in the second block of the first session, in either group.
  EXPECT_EQ(step.cells[4], step.table(0, 0).blocks[1] * 16 + 6);
  EXPECT_EQ(step.cells[5], step.table(0, 1).blocks[1] * 16 + 6);
  packed_.results[0].token.id = 30;
  packed_.results[1].token.id = 31;
  BatchOutput output;
  table_->finish(packed_, output);
  EXPECT_EQ(output.inputs[0].sampled_count, 0);
  EXPECT_EQ(output.sampled(output.inputs[2])[0].id, 30);
  EXPECT_EQ(output.sampled(output.inputs[3])[0].id, 31);
  EXPECT_EQ(*table_->length(sessions_[0]), 23);
  EXPECT_EQ(*table_->length(sessions_[1]), 6);
}

TEST_F(SessionTableTest, AnUnknownSession) {
  EXPECT_EQ(refusal({make_input(SessionId{77}, {1}, 0)}).code(), Code::kNotFound);
}

TEST_F(SessionTableTest, AnEmptySlice) {
  EXPECT_EQ(refused_field({make_input(sessions_[0], {}, 20)}), "size");
  BatchInput input = make_input(sessions_[0], {1}, 20);
  input.size = -1;
  EXPECT_EQ(refused_field({input}), "size");
}

TEST_F(SessionTableTest, ASliceOutsideItsVector) {
  BatchInput input = make_input(sessions_[0], {1, 2}, 20);
  input.tokens = nullptr;
  EXPECT_EQ(refused_field({input}), "tokens");
  input = make_input(sessions_[0], {1, 2}, 20);
  input.size = 3;
  EXPECT_EQ(refused_field({input}), "offset");
  input.size = 1;
  input.offset = -1;
  EXPECT_EQ(refused_field({input}), "offset");
  input.offset = std::numeric_limits<int32_t>::max();
  input.size = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(refused_field({input}), "offset");
}

TEST_F(SessionTableTest, AnIdOutsideTheVocabulary) {
  EXPECT_EQ(refused_field({make_input(sessions_[0], {1, 40}, 20)}), "tokens[1]");
  EXPECT_EQ(refused_field({make_input(sessions_[0], {-1}, 20)}), "tokens[0]");
  // Outside the slice an id does not matter, unless it is scored.
  BatchInput input = make_input(sessions_[0], {1, 40, 99}, 20);
  input.size = 1;
  EXPECT_TRUE(refusal({input}).ok());
  input.score_from = 0;
  EXPECT_EQ(refused_field({input}), "tokens[1]");
}

TEST_F(SessionTableTest, AGap) {
  EXPECT_EQ(refused_field({make_input(sessions_[0], {1}, 21)}), "position");
  EXPECT_EQ(refused_field({make_input(sessions_[0], {1}, 20), make_input(sessions_[0], {1}, 22)}),
            "position");
  EXPECT_EQ(refused_field({make_input(sessions_[0], {1}, -1)}), "position");
}

// An overlap with an input of the same batch, also where a rewind of the session would be legal.
TEST_F(SessionTableTest, AnOverlap) {
  EXPECT_EQ(
      refused_field({make_input(sessions_[0], {1, 2}, 20), make_input(sessions_[0], {1}, 21)}),
      "position");
  EXPECT_EQ(refused_field({make_input(sessions_[0], {1, 2}, 20), make_input(sessions_[0], {1}, 5)}),
            "position");
}

TEST_F(SessionTableTest, ASessionThatGrowsTooLong) {
  EXPECT_EQ(refused_field({make_input(sessions_[0], Tokens(31, 1), 20)}), "max_session_tokens");
  EXPECT_TRUE(refusal({make_input(sessions_[0], Tokens(30, 1), 20)}).ok());
  BatchInput input = make_input(sessions_[0], {1, 2}, std::numeric_limits<Position>::max());
  input.offset = 1;
  input.size = 1;
  EXPECT_EQ(refused_field({input}), "max_session_tokens");
}

TEST_F(SessionTableTest, OutputIsOfTheLastInputOnly) {
  EXPECT_EQ(refused_field(
                {make_input(sessions_[0], {1}, 20, true), make_input(sessions_[0], {1}, 21, true)}),
            "produce_output");
  EXPECT_EQ(
      refused_field({make_input(sessions_[0], {1}, 20, true), make_input(sessions_[0], {1}, 21)}),
      "produce_output");
}

TEST_F(SessionTableTest, OutputNeedsAPolicy) {
  const SessionId clone = *table_->clone(sessions_[0], 20);
  EXPECT_EQ(refused_field({make_input(clone, {1}, 20, true)}), "produce_output");
}

// ---- Windows ----

class WindowedSessions : public testing::Test {
 protected:
  WindowedSessions() {
    SessionTableOptions options{4, 40, {16, 200, {{{}, 20}, {{20}, 20}}}};
    table_ = std::move(SessionTable::create(options)).value();
    session_ = *table_->open({});
    EXPECT_TRUE(run(make_input(session_, Tokens(70, 1), 0)).ok());
  }
  Status run(const BatchInput& input) {
    EXPECT_TRUE(table_->pack(std::span(&input, 1), packed_).ok());
    BatchOutput output;
    table_->finish(packed_, output);
    table_->check_invariants();
    return output.inputs[0].status;
  }

  std::unique_ptr<SessionTable> table_;
  SessionId session_{};
  PackedStep packed_;
};

TEST_F(WindowedSessions, TablesSayWhereTheyBegin) {
  const BatchInput input = make_input(session_, {1, 2, 3}, 70);
  ASSERT_TRUE(table_->pack(std::span(&input, 1), packed_).ok());
  const BlockTable& full = packed_.step.table(0, 0);
  EXPECT_EQ(full.first_position, 0);
  EXPECT_EQ(full.first_block, 0);
  EXPECT_EQ(full.blocks.size(), 5u);
  // The token at 70 sees from 51 on, which lies in the fourth block.
  const BlockTable& windowed = packed_.step.table(0, 1);
  EXPECT_EQ(windowed.first_position, 48);
  EXPECT_EQ(windowed.first_block, 3);
  EXPECT_EQ(windowed.blocks.size(), 2u);
  EXPECT_EQ(packed_.step.cells[1], windowed.blocks[1] * 16 + 6);
  table_->abort(packed_);
}

TEST_F(WindowedSessions, ARewindTheWindowForbidsIsRefusedByName) {
  // 48 + 19 = 67 is the shortest history all of whose next token's keys are held.
  const std::string message =
      "expected 0, or 67 to 70 (a window has left behind what shorter histories need), found 66";
  EXPECT_TRUE(table_->can_rewind(session_, 67));
  EXPECT_FALSE(table_->can_rewind(session_, 66));
  EXPECT_FALSE(table_->can_rewind(SessionId{99}, 0));
  EXPECT_EQ(table_->clone(session_, 66).status(), invalid_argument("upto", message));
  EXPECT_EQ(table_->truncate(session_, 66), invalid_argument("length", message));
  EXPECT_EQ(run(make_input(session_, {1}, 66)), invalid_argument("position", message));
  EXPECT_EQ(*table_->length(session_), 70);
  EXPECT_TRUE(table_->clone(session_, 67).ok());
  EXPECT_TRUE(run(make_input(session_, {1}, 67)).ok());
  EXPECT_EQ(*table_->length(session_), 68);
  EXPECT_TRUE(run(make_input(session_, {1}, 0)).ok());
  EXPECT_EQ(*table_->length(session_), 1);
}

// Such an input fails alone and needs no blocks: what shares its step is admitted and runs.
TEST_F(WindowedSessions, ARefusedRewindTakesNoPartInAdmission) {
  const SessionId other = *table_->open({});
  const std::vector<SessionDemand> demands{{session_, 10, 100}, {other, 0, 200}};
  EXPECT_TRUE(table_->can_admit(demands));
  const std::vector<BatchInput> batch{make_input(session_, Tokens(100, 1), 10),
                                      make_input(other, Tokens(200, 1), 0)};
  ASSERT_TRUE(table_->pack(batch, packed_).ok());
  BatchOutput output;
  table_->finish(packed_, output);
  EXPECT_EQ(output.inputs[0].status.field(), "position");
  EXPECT_TRUE(output.inputs[1].status.ok());
}

// Inputs of one session succeed or fail together; nobody else notices.
TEST_F(SessionTableTest, AFailedInputFailsItsSessionAndNothingElse) {
  const BatchOutput output =
      run({make_input(sessions_[0], {1}, 20), make_input(sessions_[1], {1}, 0),
           make_input(sessions_[0], {1}, 25), make_input(sessions_[0], {1}, 21),
           make_input(sessions_[1], {2}, 1)});
  EXPECT_EQ(output.inputs[0].status.field(), "session");
  EXPECT_TRUE(output.inputs[1].status.ok());
  EXPECT_EQ(output.inputs[2].status.field(), "position");
  EXPECT_EQ(output.inputs[3].status.field(), "session");
  EXPECT_EQ(output.inputs[3].status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(output.inputs[4].status.ok());
  EXPECT_EQ(*table_->length(sessions_[0]), 20);
  EXPECT_EQ(*table_->length(sessions_[1]), 2);
}

TEST_F(SessionTableTest, RowsThatAreNotFiniteFailTheirSession) {
  const std::vector<BatchInput> batch{
      make_input(sessions_[0], {5, 6}, 10), make_input(sessions_[1], {7}, 3, true),
      make_input(sessions_[2], {8}, 0), make_input(sessions_[0], {8}, 12)};
  ASSERT_TRUE(table_->pack(batch, packed_).ok());
  packed_.not_finite[2] = 1;  // position 12 of the first session
  packed_.results[0].finite = false;
  BatchOutput output;
  table_->finish(packed_, output);
  EXPECT_EQ(output.inputs[0].status.field(), "kv");
  EXPECT_NE(output.inputs[0].status.message().find("position 12"), std::string::npos);
  EXPECT_EQ(output.inputs[3].status.field(), "session");
  EXPECT_EQ(output.inputs[1].status.field(), "logits");
  EXPECT_EQ(output.inputs[1].status.code(), Code::kInternal);
  EXPECT_TRUE(output.inputs[2].status.ok());
  EXPECT_EQ(*table_->length(sessions_[0]), 20);
  EXPECT_EQ(*table_->length(sessions_[1]), 3);
  EXPECT_EQ(*table_->length(sessions_[2]), 1);
  table_->check_invariants();
}

TEST_F(SessionTableTest, TooFewBlocksRefuseTheWholeStep) {
  const std::vector<BatchInput> batch{make_input(sessions_[0], Tokens(30, 1), 20),
                                      make_input(sessions_[1], Tokens(47, 1), 3),
                                      make_input(sessions_[2], Tokens(40, 1), 0)};
  const Status status = table_->pack(batch, packed_);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.field(), "blocks");
  EXPECT_EQ(status.message(), "layer group 0 needs 8 blocks, 5 are free, 3 are missing");
  EXPECT_EQ(*table_->length(sessions_[0]), 20);
}

TEST_F(SessionTableTest, CanAdmitRefusesDemandsThatCannotBe) {
  const auto admits = [&](SessionDemand demand) {
    return table_->can_admit(std::span(&demand, 1));
  };
  EXPECT_TRUE(admits({sessions_[0], 20, 30}));
  EXPECT_TRUE(admits({sessions_[0], 0, 50}));
  EXPECT_TRUE(admits({sessions_[0], 20, 0}));
  EXPECT_FALSE(admits({sessions_[0], 20, 31}));
  EXPECT_FALSE(admits({sessions_[0], 21, 1}));
  EXPECT_FALSE(admits({sessions_[0], -1, 1}));
  EXPECT_FALSE(admits({sessions_[0], 20, -1}));
  EXPECT_FALSE(admits({SessionId{99}, 0, 1}));
}

// Allows the tokens in turn, and refuses to accept one of them.
class ListConstraint final : public TokenConstraint {
 public:
  ListConstraint(Tokens allowed, TokenId refused)
      : allowed_(std::move(allowed)), refused_(refused) {}
  Status fill_mask(std::span<uint32_t> mask) override {
    for (const uint32_t word : mask) EXPECT_EQ(word, 0u);
    if (fails) return internal_error("grammar", "failed as asked");
    for (const TokenId id : allowed_) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    return {};
  }
  Status accept(TokenId token) override {
    accepted.push_back(token);
    return token == refused_ ? invalid_argument("grammar", "does not go on") : Status();
  }
  Tokens accepted;
  bool fails = false;

 private:
  Tokens allowed_;
  TokenId refused_;
};

TEST_F(SessionTableTest, AConstraintMasksAndHearsOfWhatWasChosen) {
  const auto constraint = std::make_shared<ListConstraint>(Tokens{3, 39}, 39);
  SamplingParams params;
  params.constraint = constraint;
  ASSERT_TRUE(table_->set_sampling(sessions_[0], params).ok());
  const std::vector<BatchInput> batch{make_input(sessions_[0], {1}, 20, true),
                                      make_input(sessions_[1], {1}, 3, true)};
  ASSERT_TRUE(table_->pack(batch, packed_).ok());
  ASSERT_EQ(packed_.specs.size(), 2u);
  ASSERT_EQ(packed_.specs[0].mask.size(), 2u);
  EXPECT_EQ(packed_.specs[0].mask[0], 1u << 3);
  EXPECT_EQ(packed_.specs[0].mask[1], 1u << 7);
  EXPECT_TRUE(packed_.specs[1].mask.empty());
  table_->abort(packed_);
  EXPECT_TRUE(constraint->accepted.empty());

  ASSERT_TRUE(table_->pack(batch, packed_).ok());
  packed_.results[0].token.id = 3;
  BatchOutput output;
  table_->finish(packed_, output);
  EXPECT_EQ(constraint->accepted, (Tokens{3}));
  EXPECT_EQ(*table_->length(sessions_[0]), 21);

  const std::vector<BatchInput> next{make_input(sessions_[0], {3}, 21, true)};
  ASSERT_TRUE(table_->pack(next, packed_).ok());
  packed_.results[0].token.id = 39;
  table_->finish(packed_, output);
  EXPECT_EQ(output.inputs[0].status.field(), "grammar");
  EXPECT_EQ(*table_->length(sessions_[0]), 21);
}

TEST_F(SessionTableTest, AConstraintThatFailsOrAllowsNothingFailsAlone) {
  const auto nothing = std::make_shared<ListConstraint>(Tokens{}, -1);
  SamplingParams params;
  params.constraint = nothing;
  ASSERT_TRUE(table_->set_sampling(sessions_[0], params).ok());
  const std::vector<BatchInput> batch{make_input(sessions_[0], {1}, 20, true),
                                      make_input(sessions_[1], {1}, 3, true)};
  ASSERT_TRUE(table_->pack(batch, packed_).ok());
  EXPECT_EQ(packed_.inputs[0].status.field(), "constraint");
  EXPECT_TRUE(packed_.inputs[1].status.ok());
  EXPECT_EQ(packed_.step.num_rows(), 1);
  table_->abort(packed_);
  nothing->fails = true;
  ASSERT_TRUE(table_->pack(batch, packed_).ok());
  EXPECT_EQ(packed_.inputs[0].status.field(), "grammar");
  table_->abort(packed_);
}

}  // namespace
}  // namespace chorus
