#include "kv/shared_blocks.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/books.h"

namespace chorus {
namespace {

// The block that holds a position, kNoBlock where the table does not hold it.
BlockId block_at(const BlockTable& table, Position position, int32_t block_size) {
  const int32_t index = position / block_size - table.first_block;
  if (position < table.first_position || index >= std::ssize(table.blocks)) return kNoBlock;
  return table.blocks[static_cast<size_t>(index)];
}

bool same_at(const BlockTable& a, const BlockTable& b, Position position, int32_t block_size) {
  const BlockId block = block_at(a, position, block_size);
  return block != kNoBlock && block == block_at(b, position, block_size);
}

TEST(SharedBlocks, NamesWhatForksShare) {
  const std::vector<BlockId> a{5, 6, 7}, b{5, 6, 8, 9}, c{1, 2}, d{5, 3};
  const std::vector<BlockTable> tables{{0, 0, a}, {0, 0, c}, {0, 0, b}, {0, 0, d}};
  const WindowPolicy policies[] = {{}};
  SharedBlocks shared;
  find_shared_blocks(tables, policies, 16, shared);
  EXPECT_EQ(shared.order, (std::vector<int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(shared.ranges, (std::vector<SharedRange>{{}, {}, {0, 16}, {0, 32}}));
}

TEST(SharedBlocks, IsEmptyWhereNothingIsShared) {
  const std::vector<BlockId> a{5, 6}, b{7, 8};
  const std::vector<BlockTable> tables{{0, 0, a}, {0, 0, b}};
  const WindowPolicy policies[] = {{}};
  SharedBlocks shared{{1, 0}, {{}, {0, 16}}};
  find_shared_blocks(tables, policies, 16, shared);
  EXPECT_TRUE(shared.order.empty());
  EXPECT_TRUE(shared.ranges.empty());
}

TEST(SharedBlocks, BeginsWhereBothTablesDo) {
  const std::vector<BlockId> full{1, 2, 3}, tail{2, 3};
  const std::vector<BlockTable> tables{{0, 0, full}, {21, 1, tail}};
  const WindowPolicy policies[] = {{20}};
  SharedBlocks shared;
  find_shared_blocks(tables, policies, 16, shared);
  EXPECT_EQ(shared.order, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(shared.ranges, (std::vector<SharedRange>{{}, {21, 48}}));
}

// Of every step of random forks, appends and rewinds, compared position by position.
class Schedule {
 public:
  Schedule(uint64_t seed, int32_t block_size, std::vector<WindowPolicy> policies)
      : random_(seed), block_size_(block_size), policies_(std::move(policies)) {
    KvOptions options;
    options.block_size = block_size;
    options.max_sequence_tokens = kMostTokens;
    for (const WindowPolicy& policy : policies_) {
      options.groups.push_back({policy, 16 * (kMostTokens / block_size + 2)});
    }
    books_ = std::move(KvBooks::create(options)).value();
    sequences_.push_back(books_->open());
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      change();
      step();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  int64_t shared_positions() const { return shared_positions_; }

 private:
  static constexpr int32_t kMostTokens = 200;

  void change() {
    const size_t one = random_.below(sequences_.size());
    if (sequences_.size() < 8 && random_.below(3) != 0) {
      const Position length = books_->length(sequences_[one]);
      const Position first = books_->first_rewind(sequences_[one]);
      sequences_.push_back(
          books_->clone(sequences_[one], static_cast<Position>(random_.between(first, length))));
    } else if (sequences_.size() > 1 && random_.below(3) == 0) {
      books_->close(sequences_[one]);
      sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(one));
    }
  }

  void step() {
    std::vector<KvDemand> demands;
    std::vector<Position> accepted;
    for (const SequenceId sequence : sequences_) {
      if (random_.below(4) == 0) continue;
      const Position length = books_->length(sequence);
      Position start = length;
      if (random_.below(6) == 0) {
        start = static_cast<Position>(random_.between(books_->first_rewind(sequence), length));
      }
      const auto count = static_cast<int32_t>(random_.between(1, random_.below(3) == 0 ? 60 : 2));
      if (start + count > kMostTokens) start = 0;
      demands.push_back({sequence, start, count});
      accepted.push_back(static_cast<Position>(random_.between(start, start + count)));
    }
    if (demands.empty()) return;
    if (!books_->plan(demands, plan_)) return;
    ASSERT_NO_FATAL_FAILURE(check());
    if (random_.below(5) == 0) return books_->abort(plan_);
    books_->commit(plan_, accepted);
  }

  void check() {
    const SharedBlocks& shared = plan_.shared();
    const auto count = static_cast<size_t>(plan_.num_demands());
    std::vector<int32_t> order = shared.order;
    if (order.empty()) {
      for (size_t i = 0; i < count; ++i) order.push_back(static_cast<int32_t>(i));
    } else {
      ASSERT_EQ(shared.ranges.size(), count * policies_.size());
    }
    std::vector<int32_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(sorted[i], static_cast<int32_t>(i));
    for (size_t group = 0; group < policies_.size(); ++group) {
      const auto range = [&](size_t i) {
        return shared.order.empty() ? SharedRange{} : shared.ranges[i * policies_.size() + group];
      };
      for (size_t i = 0; i < count; ++i) {
        SharedRange all{0, kMostTokens + block_size_};
        for (size_t j = i + 1; j < count; ++j) {
          all = {std::max(all.begin, range(j).begin), std::min(all.end, range(j).end)};
          ASSERT_NO_FATAL_FAILURE(
              check_pair(group, order[i], order[j], all, !shared.order.empty() && j == i + 1));
        }
      }
    }
  }

  // `range` says what the ranges between the two leave of what they share.
  void check_pair(size_t group, int32_t a, int32_t b, const SharedRange& range, bool neighbours) {
    const BlockTable& first = plan_.table(a, static_cast<int32_t>(group));
    const BlockTable& second = plan_.table(b, static_cast<int32_t>(group));
    const Position start = std::min(plan_.demand(a).start, plan_.demand(b).start);
    for (Position p = 0; p < kMostTokens; ++p) {
      const bool said = range.begin <= p && p < range.end;
      const bool same = same_at(first, second, p, block_size_);
      if (said) {
        ASSERT_TRUE(same) << "group " << group << " position " << p;
        ASSERT_LT(p, start) << "group " << group;
        ++shared_positions_;
      } else if (policies_[group].window == 0 || neighbours) {
        // Nothing is missed between neighbours, nor in full history between any two.
        ASSERT_FALSE(same) << "group " << group << " position " << p;
      }
    }
  }

  RandomStream random_;
  int32_t block_size_;
  std::vector<WindowPolicy> policies_;
  std::unique_ptr<KvBooks> books_;
  std::vector<SequenceId> sequences_;
  KvPlan plan_;
  int64_t shared_positions_ = 0;
};

TEST(SharedBlocks, AreTrueAndCompleteUnderRandomSchedules) {
  const std::vector<std::vector<WindowPolicy>> policies{{{0}}, {{7}, {0}}, {{0}, {40}}, {{25}}};
  int64_t shared_positions = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const int32_t block_size = std::vector<int32_t>{1, 3, 16, 32}[seed % 4];
    SCOPED_TRACE("seed " + std::to_string(seed) + " block size " + std::to_string(block_size));
    Schedule schedule(seed, block_size, policies[seed / 4 % 4]);
    schedule.run(60);
    if (testing::Test::HasFatalFailure()) return;
    shared_positions += schedule.shared_positions();
  }
  EXPECT_GT(shared_positions, 100000);
}

}  // namespace
}  // namespace chorus
