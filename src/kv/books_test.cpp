#include "kv/books.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

namespace chorus {
namespace {

std::unique_ptr<KvBooks> make_books(int32_t block_size, int32_t num_blocks, int32_t num_groups = 1,
                                    int32_t max_tokens = 1024) {
  KvOptions options{block_size, max_tokens, {}};
  options.groups.resize(static_cast<size_t>(num_groups), KvGroupOptions{{}, num_blocks});
  return std::move(KvBooks::create(options)).value();
}

void append(KvBooks& books, SequenceId sequence, Position start, int32_t count) {
  KvPlan plan;
  const std::vector<KvDemand> demands{{sequence, start, count}};
  ASSERT_TRUE(books.plan(demands, plan));
  books.commit(plan, std::vector<Position>{start + count});
  books.check_invariants();
}

int32_t free_blocks(const KvBooks& books, int32_t group = 0) {
  return books.usage(group).blocks_free;
}

TEST(KvBooks, CreateNamesTheField) {
  const auto field_of = [](const KvOptions& options) {
    const auto books = KvBooks::create(options);
    return books.ok() ? std::string("ok") : books.status().field();
  };
  EXPECT_EQ(field_of({16, 10, {{{}, 1}}}), "ok");
  EXPECT_EQ(field_of({0, 10, {{{}, 1}}}), "block_size");
  EXPECT_EQ(field_of({16, 0, {{{}, 1}}}), "max_sequence_tokens");
  EXPECT_EQ(field_of({16, 10, {}}), "groups");
  EXPECT_EQ(field_of({16, 10, {{{}, 1}, {{}, 0}}}), "groups[1].num_blocks");
  EXPECT_EQ(field_of({64, 10, {{{}, 1 << 25}}}), "groups[0].num_blocks");
  EXPECT_EQ(field_of({16, 10, {{{-1}, 1}}}), "groups[0].window");
}

TEST(KvBooks, APlanChangesNothing) {
  const auto books = make_books(16, 8);
  const SequenceId sequence = books->open();
  append(*books, sequence, 0, 20);
  const std::vector<BlockId> before(books->table(sequence, 0).blocks.begin(),
                                    books->table(sequence, 0).blocks.end());
  KvPlan plan;
  ASSERT_TRUE(books->plan(std::vector<KvDemand>{{sequence, 5, 40}}, plan));
  EXPECT_EQ(free_blocks(*books), 6);
  EXPECT_EQ(books->length(sequence), 20);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), books->table(sequence, 0).blocks.begin()));
  books->abort(plan);
  EXPECT_EQ(free_blocks(*books), 6);
  EXPECT_EQ(books->length(sequence), 20);
}

TEST(KvBooks, AppendFillsTheTailInPlace) {
  const auto books = make_books(16, 8);
  const SequenceId sequence = books->open();
  append(*books, sequence, 0, 20);
  const BlockId tail = books->table(sequence, 0).blocks[1];
  KvPlan plan;
  ASSERT_TRUE(books->plan(std::vector<KvDemand>{{sequence, 20, 12}}, plan));
  EXPECT_TRUE(plan.copies().empty());
  EXPECT_EQ(plan.cell(0, 0, 20), tail * 16 + 4);
  EXPECT_EQ(plan.cell(0, 0, 31), tail * 16 + 15);
  books->commit(plan, std::vector<Position>{32});
  EXPECT_EQ(free_blocks(*books), 6);
}

TEST(KvBooks, RewindContinuesInFreshBlocksAndFreesTheOldOnesAtCommit) {
  const auto books = make_books(16, 6);
  const SequenceId sequence = books->open();
  append(*books, sequence, 0, 48);
  const std::vector<BlockId> old(books->table(sequence, 0).blocks.begin(),
                                 books->table(sequence, 0).blocks.end());
  KvPlan plan;
  ASSERT_TRUE(books->plan(std::vector<KvDemand>{{sequence, 20, 20}}, plan));
  ASSERT_EQ(plan.copies().size(), 1u);
  EXPECT_EQ(plan.copies()[0].from, old[1]);
  EXPECT_EQ(plan.copies()[0].num_cells, 4);
  EXPECT_EQ(plan.table(0, 0).blocks[0], old[0]);
  for (const BlockId block : plan.table(0, 0).blocks.subspan(1)) {
    EXPECT_EQ(std::count(old.begin(), old.end(), block), 0);
  }
  books->commit(plan, std::vector<Position>{40});
  EXPECT_EQ(free_blocks(*books), 3);
  EXPECT_EQ(books->copied_blocks(), 1);
  EXPECT_EQ(books->usage(0).blocks_peak, 5);
}

// A rewind needs its new blocks before the old ones are given back; a truncation first does not.
TEST(KvBooks, ARewindThatDoesNotFitFitsAfterTruncate) {
  const auto books = make_books(16, 3);
  const SequenceId sequence = books->open();
  append(*books, sequence, 0, 48);
  const std::vector<KvDemand> demands{{sequence, 0, 16}};
  const auto shortage = books->shortage(demands);
  ASSERT_TRUE(shortage.has_value());
  EXPECT_EQ(shortage->needed_blocks, 1);
  EXPECT_EQ(shortage->free_blocks, 0);
  KvPlan plan;
  EXPECT_FALSE(books->plan(demands, plan));
  EXPECT_EQ(books->length(sequence), 48);
  books->truncate(sequence, 0);
  append(*books, sequence, 0, 16);
}

TEST(KvBooks, RewindToZeroKeepsTheSequence) {
  const auto books = make_books(16, 4, 2);
  const SequenceId sequence = books->open();
  append(*books, sequence, 0, 30);
  append(*books, sequence, 0, 3);
  EXPECT_EQ(books->length(sequence), 3);
  EXPECT_EQ(free_blocks(*books, 0), 3);
  EXPECT_EQ(free_blocks(*books, 1), 3);
}

TEST(KvBooks, SurplusOfAPartlyAcceptedStepIsGivenBack) {
  const auto books = make_books(16, 8);
  const SequenceId sequence = books->open();
  append(*books, sequence, 0, 10);
  KvPlan plan;
  ASSERT_TRUE(books->plan(std::vector<KvDemand>{{sequence, 10, 60}}, plan));
  books->commit(plan, std::vector<Position>{17});
  EXPECT_EQ(books->length(sequence), 17);
  EXPECT_EQ(free_blocks(*books), 6);
  books->check_invariants();
}

TEST(KvBooks, CloneTouchesNoBlockAndTheFirstWriteCopiesThePartialOne) {
  const auto books = make_books(16, 8, 2);
  const SequenceId source = books->open();
  append(*books, source, 0, 40);
  const int32_t free_before = free_blocks(*books);
  const SequenceId clone = books->clone(source, 20);
  EXPECT_EQ(free_blocks(*books), free_before);
  EXPECT_EQ(books->exclusive_blocks(source, 0), 1);
  EXPECT_EQ(books->exclusive_blocks(clone, 0), 0);
  EXPECT_EQ(books->exclusive_blocks(std::vector{clone}, 0), 0);
  EXPECT_EQ(books->exclusive_blocks(std::vector{source, clone}, 0), 3);
  EXPECT_TRUE(books->shares_last_block(clone));
  EXPECT_FALSE(books->shares_last_block(source)) << "it is not the last of the source";
  KvPlan plan;
  ASSERT_TRUE(books->plan(std::vector<KvDemand>{{clone, 20, 1}, {source, 40, 1}}, plan));
  ASSERT_EQ(plan.copies().size(), 2u);  // one for each group, both of the clone
  EXPECT_EQ(plan.copies()[0].num_cells, 4);
  EXPECT_EQ(plan.copies()[0].from, books->table(source, 0).blocks[1]);
  EXPECT_EQ(plan.copies()[1].group, 1);
  books->commit(plan, std::vector<Position>{21, 41});
  EXPECT_EQ(free_blocks(*books), free_before - 1);
  EXPECT_FALSE(books->shares_last_block(clone));
  books->truncate(source, 32);
  const SequenceId whole = books->clone(source, 32);
  EXPECT_FALSE(books->shares_last_block(whole)) << "it is full";
  books->close(whole);
  books->check_invariants();
  books->close(source);
  EXPECT_EQ(free_blocks(*books), 6);
  books->close(clone);
  EXPECT_EQ(free_blocks(*books), 8);
}

TEST(KvBooks, CloneOfAnEmptyPrefixHoldsNothing) {
  const auto books = make_books(16, 2);
  const SequenceId source = books->open();
  append(*books, source, 0, 5);
  const SequenceId clone = books->clone(source, 0);
  EXPECT_EQ(books->length(clone), 0);
  books->close(source);
  EXPECT_EQ(free_blocks(*books), 2);
  append(*books, clone, 0, 1);
}

// One block may have any number of owners: 62 to 65 are the edges of a 64-bit owner set.
TEST(KvBooks, ManyOwnersOfOneCell) {
  for (const int num_clones : {61, 62, 63, 64, 65, 500}) {
    const auto books = make_books(1, 4);
    const SequenceId source = books->open();
    append(*books, source, 0, 3);
    std::vector<SequenceId> clones;
    for (int i = 0; i < num_clones; ++i) clones.push_back(books->clone(source, 3));
    books->check_invariants();
    books->close(source);
    EXPECT_EQ(free_blocks(*books), 1);
    // With block size 1 nothing is ever copied: the appended cell is a block of its own.
    append(*books, clones[0], 3, 1);
    EXPECT_EQ(books->copied_blocks(), 0);
    for (const SequenceId clone : clones) books->close(clone);
    EXPECT_EQ(free_blocks(*books), 4);
  }
}

TEST(KvBooks, IdsAreNotReused) {
  const auto books = make_books(16, 2);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 10; ++i) {
    ids.push_back(books->open());
    if (i % 2 == 0) books->close(ids.back());
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

class KvBooksDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    books_ = make_books(16, 8);
    sequence_ = books_->open();
  }
  bool plan(const std::vector<KvDemand>& demands) { return books_->plan(demands, plan_); }

  std::unique_ptr<KvBooks> books_;
  SequenceId sequence_{};
  KvPlan plan_;
  const std::vector<Position> accepted_{5};
};

TEST_F(KvBooksDeathTest, ACommitWithoutAPlan) {
  EXPECT_DEATH(books_->commit(plan_, {}), "books_ == this");
  EXPECT_DEATH(books_->abort(plan_), "books_ == this");
}

TEST_F(KvBooksDeathTest, APlanUsedTwice) {
  ASSERT_TRUE(plan({{sequence_, 0, 5}}));
  books_->commit(plan_, accepted_);
  EXPECT_DEATH(books_->commit(plan_, accepted_), "books_ == this");
}

TEST_F(KvBooksDeathTest, AStalePlan) {
  ASSERT_TRUE(plan({{sequence_, 0, 5}}));
  books_->open();
  EXPECT_DEATH(books_->commit(plan_, accepted_), "version");
}

TEST_F(KvBooksDeathTest, APlanOfOtherBooks) {
  const auto other = make_books(16, 8);
  ASSERT_TRUE(plan({{sequence_, 0, 5}}));
  EXPECT_DEATH(other->commit(plan_, accepted_), "books_ == this");
}

TEST_F(KvBooksDeathTest, OutcomesThatDoNotMatch) {
  ASSERT_TRUE(plan({{sequence_, 0, 5}}));
  EXPECT_DEATH(books_->commit(plan_, {}), "accepted.size");
  EXPECT_DEATH(books_->commit(plan_, std::vector<Position>{6}), "demand.count");
  EXPECT_DEATH(books_->commit(plan_, std::vector<Position>{-2}), "demand.start");
}

TEST_F(KvBooksDeathTest, BadDemands) {
  EXPECT_DEATH(plan({{sequence_, 1, 1}}), "can_rewind");
  EXPECT_DEATH(plan({{sequence_, -1, 1}}), "can_rewind");
  EXPECT_DEATH(plan({{sequence_, 0, 0}}), "count");
  EXPECT_DEATH(plan({{sequence_, 0, 1025}}), "max_sequence_tokens");
  EXPECT_DEATH(plan({{sequence_, 0, 1}, {sequence_, 0, 1}}), "adjacent_find");
  EXPECT_DEATH(plan({{SequenceId{99}, 0, 1}}), "found");
}

}  // namespace
}  // namespace chorus
