// The prefix index inside KvBooks.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/testing/prefix_simulation.h"

namespace chorus {
namespace {

using kv_testing::PrefixGroup;
using kv_testing::Tokens;
using Books = kv_testing::PrefixSimulation;

Tokens numbers(int32_t first, int32_t count) {
  Tokens tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

// ---- What is found -----------------------------------------------------------------------------

TEST(KvPrefix, AClosedSequenceIsFoundAgain) {
  Books books(4, {{0, 20}}, 100);
  const SequenceId first = books.open("a");
  ASSERT_TRUE(books.append(first, numbers(0, 22)));
  books.close(first);
  EXPECT_EQ(books->usage(0).blocks_free, 15);
  EXPECT_EQ(books->usage(0).blocks_cached, 5);
  EXPECT_EQ(books->num_sequences(), 0);
  const Tokens longer = numbers(0, 30);
  EXPECT_EQ(books->longest_prefix("a", longer, 29), 20);
  const SequenceId second = books.open_prefix("a", longer, 29);
  EXPECT_EQ(books.length(second), 20);
  EXPECT_EQ(books->usage(0).blocks_cached, 0);
  ASSERT_TRUE(books.append(second, numbers(20, 10)));
  EXPECT_EQ(books->copied_blocks(), 0);
}

// One token is left to run also where every token is known: the last block is shared in part, and
// the first write copies that part.
TEST(KvPrefix, TheCapMayLieInsideABlock) {
  Books books(4, {{0, 20}}, 100);
  ASSERT_TRUE(books.append(books.open("a"), numbers(0, 20)));
  const SequenceId second = books.open_prefix("a", numbers(0, 20), 19);
  EXPECT_EQ(books.length(second), 19);
  EXPECT_EQ(books->usage(0).blocks_free, 15);
  ASSERT_TRUE(books.append(second, {19}));
  EXPECT_EQ(books->copied_blocks(), 1);
  EXPECT_EQ(books->usage(0).blocks_free, 15)
      << "the block computed again gave way to the known one";
}

TEST(KvPrefix, KeysKeepPrefixesApart) {
  Books books(4, {{0, 20}}, 100);
  ASSERT_TRUE(books.append(books.open("a"), numbers(0, 8)));
  EXPECT_EQ(books->longest_prefix("b", numbers(0, 8), 8), 0);
  EXPECT_EQ(books->longest_prefix("", numbers(0, 8), 8), 0);
  ASSERT_TRUE(books.append(books.open("b"), numbers(0, 8)));
  EXPECT_EQ(books->usage(0).blocks_free, 16) << "nothing is shared between keys";
}

TEST(KvPrefix, AnUnindexedSequenceIsNotFound) {
  Books books(4, {{0, 20}}, 100);
  const SequenceId plain = books.open("");
  ASSERT_TRUE(books.append(plain, numbers(0, 8)));
  EXPECT_EQ(books->prefix_index().num_nodes(), 0);
  books.close(plain);
  EXPECT_EQ(books->usage(0).blocks_free, 20);
}

// Requests that arrive together compute the same prompt in the same steps, and hold it once.
TEST(KvPrefix, EqualPromptsOfOneStepAreHeldOnce) {
  Books books(4, {{0, 40}, {6, 40}}, 100);
  std::vector<Books::Step> steps;
  for (int i = 0; i < 4; ++i) steps.push_back({books.open("a"), 0, numbers(0, 18)});
  ASSERT_TRUE(books.step(steps, Books::End::kCommit, [](size_t) { return 18; }));
  EXPECT_EQ(books->usage(0).blocks_total - books->usage(0).blocks_free, 4 + 4);
  // The token at 18 sees from 13 on; the index also has what the one at 15 would see.
  EXPECT_EQ(books->usage(1).blocks_total - books->usage(1).blocks_free, 1 + 1 + 4);
}

TEST(KvPrefix, ARewoundSequenceSharesWhatItHadWhenItComesBack) {
  Books books(4, {{0, 20}}, 100);
  const SequenceId id = books.open("a");
  ASSERT_TRUE(books.append(id, numbers(0, 20)));
  ASSERT_TRUE(
      books.step({{id, 6, numbers(50, 10)}}, Books::End::kCommit, [](size_t) { return 16; }));
  EXPECT_EQ(books->usage(0).blocks_cached, 4);
  ASSERT_TRUE(
      books.step({{id, 6, numbers(6, 14)}}, Books::End::kCommit, [](size_t) { return 20; }));
  EXPECT_EQ(books->usage(0).blocks_total - books->usage(0).blocks_free, 5 + 3);
  EXPECT_EQ(books->usage(0).blocks_cached, 3);
}

// ---- What is given back ------------------------------------------------------------------------

TEST(KvPrefix, TheLeastRecentlyUsedGoesFirstAndChildrenBeforeTheirParents) {
  Books books(4, {{0, 12}}, 100);
  for (const int32_t first : {0, 100, 200}) {
    const SequenceId id = books.open("a");
    ASSERT_TRUE(books.append(id, numbers(first, 16)));
    books.close(id);
  }
  books.close(books.open_prefix("a", numbers(0, 16), 16));  // used again
  const SequenceId other = books.open("b");
  const auto found = [&](int32_t first) {
    return books->longest_prefix("a", numbers(first, 16), 16);
  };
  for (const Position left : {12, 8, 4, 0}) {
    ASSERT_TRUE(books.append(other, numbers(500 + left, 4)));
    EXPECT_EQ(found(100), left);
    EXPECT_EQ(found(200), 16);
    EXPECT_EQ(found(0), 16);
  }
  ASSERT_TRUE(books.append(other, numbers(600, 4)));
  EXPECT_EQ(found(200), 12);
  EXPECT_EQ(found(0), 16);
}

TEST(KvPrefix, NobodyIsRefusedForWhatIsOnlyCached) {
  Books books(4, {{0, 10}, {6, 10}}, 40);
  const SequenceId first = books.open("a");
  ASSERT_TRUE(books.append(first, numbers(0, 40)));
  EXPECT_FALSE(books->can_admit(std::vector<KvDemand>{{books.open("b"), 0, 1}}));
  books.close(first);
  EXPECT_EQ(books->usage(0).blocks_free, 0);
  ASSERT_TRUE(books.append(books.open("b"), numbers(7, 40)));
  EXPECT_EQ(books->usage(0).blocks_cached, 0);
}

// In a pool that just holds the longest sequence, one that is truncated into a block that the index
// knows must be able to grow again.
TEST(KvPrefix, ATruncatedSequenceAloneInThePoolGoesOn) {
  Books books(4, {{0, 5}}, 20);
  const SequenceId id = books.open("a");
  ASSERT_TRUE(books.append(id, numbers(0, 20)));
  books.truncate(id, 10);
  ASSERT_TRUE(books.append(id, numbers(30, 10)));
  EXPECT_EQ(books->copied_blocks(), 0);
}

TEST(KvPrefix, NothingRemainsOfAnIndexThatIsPushedOut) {
  Books books(4, {{0, 10}, {3, 10}}, 40);
  for (int32_t round = 0; round < 5; ++round) {
    const SequenceId id = books.open("a");
    ASSERT_TRUE(books.append(id, numbers(100 * round, 30)));
    books.close(id);
  }
  const SequenceId id = books.open("");
  for (int32_t i = 0; i < 40; i += 4) ASSERT_TRUE(books.append(id, numbers(i, 4)));
  EXPECT_EQ(books->prefix_index().num_nodes(), 0);
  EXPECT_EQ(books->usage(1).blocks_cached, 0)
      << "a window's blocks go with the others of their node";
}

// ---- Windows -----------------------------------------------------------------------------------

// A window leaves blocks behind in the index, too; those before a place that was marked stay.
TEST(KvPrefix, MarkedWindowsStayCached) {
  for (const bool mark : {false, true}) {
    Books books(4, {{0, 64}, {8, 64}}, 100);
    const SequenceId id = books.open("a");
    ASSERT_TRUE(books.append(id, numbers(0, 20), mark));
    for (int32_t i = 20; i < 40; ++i) ASSERT_TRUE(books.append(id, {i}));
    // The token at 40 sees from 33 on: blocks 8 and 9; those at 19 and 20 see from block 3 on.
    EXPECT_EQ(books.held_by_sequences(1), 2);
    EXPECT_EQ(books->usage(1).blocks_cached, mark ? 2 : 0);
    const Tokens tokens = numbers(0, 40);
    EXPECT_EQ(books->longest_prefix("a", tokens, 40), 40);
    EXPECT_EQ(books->longest_prefix("a", tokens, 39), 39);
    for (const Position cap : {36, 30, 24, 20}) {
      EXPECT_EQ(books->longest_prefix("a", tokens, cap), mark ? 20 : 0) << cap;
    }
    EXPECT_EQ(books->longest_prefix("a", tokens, 19), mark ? 19 : 0);
    const SequenceId again = books.open_prefix("a", tokens, 20);
    EXPECT_EQ(books.length(again), mark ? 20 : 0);
    ASSERT_TRUE(books.append(again, numbers(77, 20)));
  }
}

// The token before a mark sees one key more, which may lie in one more block.
TEST(KvPrefix, AMarkAlsoServesThePlaceBeforeIt) {
  Books books(4, {{0, 64}, {5, 64}}, 100);
  const SequenceId id = books.open("a");
  ASSERT_TRUE(books.append(id, numbers(0, 20), true));
  ASSERT_TRUE(books.append(id, numbers(20, 20)));
  EXPECT_EQ(books->longest_prefix("a", numbers(0, 20), 20), 20);
  EXPECT_EQ(books->longest_prefix("a", numbers(0, 20), 19), 19);
}

// A prompt that ends inside a block, in a short last step, when the window has left the block that
// the prefix before needs: the index has kept it until then.
TEST(KvPrefix, AMarkFindsTheWindowOfTheLastFullBlock) {
  Books books(16, {{16, 20}}, 200);
  const SequenceId id = books.open("a");
  ASSERT_TRUE(books.append(id, numbers(0, 46)));
  ASSERT_TRUE(books.append(id, {46}, true));
  EXPECT_EQ(books->table(id, 0).first_position, 32);
  ASSERT_TRUE(books.append(id, numbers(47, 60)));
  EXPECT_EQ(books->longest_prefix("a", numbers(0, 100), 46), 32);
}

// ---- Restored sequences ------------------------------------------------------------------------

// Nor are its clones, nor what they append.
TEST(KvPrefix, ARestoredSequenceIsNotIndexed) {
  Books books(4, {{0, 20}, {8, 20}}, 100);
  const Tokens tokens = numbers(0, 22);
  const SequenceId id = books.restore(tokens, {0, 14});
  ASSERT_TRUE(books.append(id, numbers(22, 4)));
  const SequenceId fork = books.clone(id, 26);
  ASSERT_TRUE(books.append(fork, numbers(26, 6)));
  EXPECT_EQ(books->longest_prefix("", numbers(0, 32), 32), 0);
  const SequenceId other = books.open("a");
  ASSERT_TRUE(books.append(other, tokens));
  EXPECT_NE(books->table(other, 0).blocks[0], books->table(id, 0).blocks[0]);
}

TEST(KvPrefix, RestoringTakesCachedBlocks) {
  Books books(4, {{0, 10}}, 40);
  const SequenceId id = books.open("a");
  ASSERT_TRUE(books.append(id, numbers(0, 32)));
  books.close(id);
  books.restore(numbers(7, 24), {0});
  EXPECT_EQ(books->usage(0).blocks_free, 0);
  EXPECT_EQ(books->usage(0).blocks_cached, 4);
  EXPECT_EQ(books->longest_prefix("a", numbers(0, 32), 32), 16);
}

// ---- Random schedules --------------------------------------------------------------------------

class RandomPrefixes {
 public:
  RandomPrefixes(Books& books, int32_t max_tokens, uint64_t seed)
      : books_(books), max_tokens_(max_tokens), random_(seed) {}

  void event() {
    const uint64_t kind = random_.below(14);
    const bool has_room = books_.sequences().size() < 5;
    if (books_.sequences().empty() || (kind == 0 && has_room)) {
      books_.open(key(true));
    } else if (kind <= 2 && has_room) {
      open_prefix();
    } else if (kind <= 4) {
      const SequenceId id = any();
      past_.push_back(books_.sequences().at(id));
      books_.close(id);
    } else if (kind == 5 && has_room) {
      const SequenceId source = any();
      const Position upto = rewound(source);
      if (books_->can_rewind(source, upto)) books_.clone(source, upto);
    } else if (kind == 6) {
      const SequenceId id = any();
      const Position to = rewound(id);
      if (books_->can_rewind(id, to)) books_.truncate(id, to);
    } else {
      step();
    }
  }

  int found() const { return found_; }
  int admitted() const { return admitted_; }
  int refused() const { return refused_; }

 private:
  std::string key(bool or_none) {
    const uint64_t kind = random_.below(or_none ? 5 : 4);
    return kind == 4 ? "" : kind == 3 ? "b" : "a";
  }
  SequenceId any() {
    auto it = books_.sequences().begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random_.below(books_.sequences().size())));
    return it->first;
  }
  int32_t up_to(int32_t bound) {
    return static_cast<int32_t>(random_.below(static_cast<uint64_t>(bound) + 1));
  }
  Position rewound(SequenceId id) {
    const Position held = books_.length(id);
    return random_.below(2) == 0 ? up_to(held) : held - up_to(std::min(held, 6));
  }
  // Few different ones, and runs of one, so that histories coincide.
  void add_tokens(int32_t count, Tokens& tokens) {
    for (int32_t i = 0; i < count; ++i) {
      tokens.push_back(random_.below(8) == 0 ? 1 : 0);
    }
  }

  void open_prefix() {
    std::string of_key = key(false);
    Tokens tokens;
    if (!past_.empty() && random_.below(8) != 0) {
      const auto& past = past_[static_cast<size_t>(random_.below(past_.size()))];
      tokens = past.tokens;
      if (!past.key.empty()) of_key = past.key;
      if (random_.below(3) == 0) tokens.resize(random_.below(tokens.size() + 1));
    }
    add_tokens(1 + up_to(5), tokens);
    const auto size = static_cast<Position>(tokens.size());
    const SequenceId id =
        books_.open_prefix(of_key, tokens, random_.below(3) == 0 ? up_to(size) : size - 1);
    if (books_.length(id) > 0) ++found_;
    if (random_.below(2) == 0) past_.push_back(books_.sequences().at(any()));
  }

  void step() {
    std::vector<Books::Step> steps;
    for (const auto& [id, sequence] : books_.sequences()) {
      if (random_.below(2) == 0) continue;
      Position start = random_.below(4) == 0 ? rewound(id) : sequence.length();
      if (!books_->can_rewind(id, start)) start = sequence.length();
      if (start == max_tokens_) continue;
      Tokens tokens;
      const int32_t most = random_.below(2) == 0 ? 1 : std::min(max_tokens_ - start, 17);
      add_tokens(1 + up_to(most - 1), tokens);
      steps.push_back({id, start, tokens, random_.below(4) == 0});
    }
    const auto end = random_.below(6) == 0 ? Books::End::kAbort : Books::End::kCommit;
    const bool admitted = books_.step(steps, end, [&](size_t i) {
      const auto count = static_cast<int32_t>(steps[i].tokens.size());
      const uint64_t kind = random_.below(6);
      return kind == 0 ? kRejected : steps[i].start + (kind == 1 ? up_to(count) : count);
    });
    ++(admitted ? admitted_ : refused_);
  }

  Books& books_;
  int32_t max_tokens_;
  RandomStream random_;
  std::vector<Books::Sequence> past_;
  int found_ = 0;
  int admitted_ = 0;
  int refused_ = 0;
};

TEST(KvPrefix, RandomSchedules) {
  int found = 0;
  int admitted = 0;
  int refused = 0;
  for (const int32_t block_size : {1, 4, 16}) {
    for (const std::vector<int32_t>& windows :
         std::vector<std::vector<int32_t>>{{0}, {5}, {0, 6}, {0, 0}, {9, 3}, {12, 0, 2}, {1, 0}}) {
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        SCOPED_TRACE("block size " + std::to_string(block_size) + ", groups " +
                     std::to_string(windows.size()) + ", first window " +
                     std::to_string(windows[0]) + ", seed " + std::to_string(seed));
        const int32_t max_tokens = 40;
        std::vector<PrefixGroup> groups;
        for (const int32_t window : windows) {
          const auto least =
              static_cast<int32_t>(smallest_pool({window}, block_size, max_tokens, 17));
          groups.push_back({window, 2 * least});
        }
        Books books(block_size, groups, max_tokens);
        RandomPrefixes schedule(books, max_tokens, seed);
        for (int event = 0; event < 100; ++event) {
          schedule.event();
          ASSERT_FALSE(testing::Test::HasFailure()) << "event " << event;
        }
        found += schedule.found();
        admitted += schedule.admitted();
        refused += schedule.refused();
        while (!books.sequences().empty()) books.close(books.sequences().begin()->first);
      }
    }
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(admitted, 1000);
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace chorus
