// Runs KvBooks beside the naive model of testing/simulation.h under random schedules, and through
// the named regressions of windowed groups.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/testing/simulation.h"

namespace chorus {
namespace {

using kv_testing::ModelDemand;
using kv_testing::ModelGroup;
using kv_testing::ModelSequence;
using kv_testing::Simulation;

class RandomSchedule {
 public:
  RandomSchedule(Simulation& simulation, uint64_t seed) : simulation_(simulation), random_(seed) {}

  void event() {
    const uint64_t kind = random_.below(12);
    if (simulation_.sequences().empty() || (kind == 0 && simulation_.sequences().size() < 7)) {
      simulation_.open();
    } else if (kind == 1) {
      simulation_.close(any());
    } else if (kind == 2 && simulation_.sequences().size() < 7) {
      const SequenceId source = any();
      const Position upto = rewound(source);
      if (may_rewind(source, upto)) simulation_.clone(source, upto);
    } else if (kind == 3) {
      const SequenceId id = any();
      const Position to = rewound(id);
      if (may_rewind(id, to)) simulation_.truncate(id, to);
    } else {
      step();
    }
  }

  int admitted() const { return admitted_; }
  int refused() const { return refused_; }
  int rewinds() const { return rewinds_; }
  int refused_rewinds() const { return refused_rewinds_; }

 private:
  // Anywhere, or not far back, where windows may allow it.
  Position rewound(SequenceId id) {
    const Position held = length(id);
    return random_.below(2) == 0 ? up_to(held) : held - up_to(std::min(held, 20));
  }
  bool may_rewind(SequenceId id, Position to) {
    const bool may = simulation_.can_rewind(id, to);
    ++(may ? rewinds_ : refused_rewinds_);
    return may;
  }

  SequenceId any() {
    auto it = simulation_.sequences().begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random_.below(simulation_.sequences().size())));
    return it->first;
  }
  Position length(SequenceId id) const {
    return static_cast<Position>(simulation_.sequences().at(id).history.size());
  }
  Position up_to(Position bound) {
    return static_cast<Position>(random_.below(static_cast<uint64_t>(bound) + 1));
  }

  void step() {
    std::vector<ModelDemand> demands;
    for (const auto& [id, sequence] : simulation_.sequences()) {
      if (random_.below(2) == 0) continue;
      const auto held = static_cast<Position>(sequence.history.size());
      // Rewinds to anywhere, 0 included; decodes; chunks.
      Position start = random_.below(3) == 0 ? rewound(id) : held;
      if (start < held && !may_rewind(id, start)) start = held;
      const int32_t room = simulation_.max_tokens() - start;
      if (room == 0) continue;
      const int32_t most = random_.below(2) == 0 ? 1 : std::min(room, 40);
      demands.push_back({id, start, 1 + up_to(most - 1)});
    }
    const bool aborted = random_.below(5) == 0;
    const double share = random_.unit();
    const bool admitted = simulation_.step(demands, aborted, share, [&](size_t i) {
      const uint64_t kind = random_.below(4);
      if (kind == 0) return kRejected;
      if (kind == 1) return demands[i].start + up_to(demands[i].count);
      return demands[i].start + demands[i].count;
    });
    ++(admitted ? admitted_ : refused_);
  }

  Simulation& simulation_;
  RandomStream random_;
  int admitted_ = 0;
  int refused_ = 0;
  int rewinds_ = 0;
  int refused_rewinds_ = 0;
};

TEST(KvBooksModel, RandomSchedules) {
  int admitted = 0;
  int refused = 0;
  int rewinds = 0;
  int refused_rewinds = 0;
  for (const int32_t block_size : {1, 2, 16, 32, 64}) {
    for (const std::vector<int32_t>& windows : std::vector<std::vector<int32_t>>{
             {0}, {0, 0}, {5}, {0, 20}, {3, 0, 33}, {64, 1, 17}, {2, 130, 200}}) {
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        SCOPED_TRACE("block size " + std::to_string(block_size) + ", groups " +
                     std::to_string(windows.size()) + ", first window " +
                     std::to_string(windows[0]) + ", seed " + std::to_string(seed));
        // About two sequences of the longest kind fit, so that some steps are refused.
        const int32_t max_tokens = 130;
        std::vector<ModelGroup> groups;
        for (const int32_t window : windows) {
          const auto least =
              static_cast<int32_t>(smallest_pool({window}, block_size, max_tokens, 40));
          groups.push_back({window, 2 * least + static_cast<int32_t>(groups.size())});
        }
        Simulation simulation(block_size, groups, max_tokens);
        RandomSchedule schedule(simulation, seed);
        for (int event = 0; event < 120; ++event) {
          schedule.event();
          ASSERT_FALSE(testing::Test::HasFailure()) << "event " << event;
        }
        admitted += schedule.admitted();
        refused += schedule.refused();
        rewinds += schedule.rewinds();
        refused_rewinds += schedule.refused_rewinds();
      }
    }
  }
  // The schedules reach both outcomes.
  EXPECT_GT(admitted, 2000);
  EXPECT_GT(refused, 300);
  EXPECT_GT(rewinds, 1500);
  EXPECT_GT(refused_rewinds, 500);
}

// ---- Named regressions ----

class Windows : public testing::Test {
 protected:
  void start(int32_t block_size, int32_t window, int32_t num_blocks, int32_t max_tokens = 9000) {
    simulation_ = std::make_unique<Simulation>(
        block_size, std::vector<ModelGroup>{{window, num_blocks}}, max_tokens);
    sequence_ = simulation_->open();
  }
  // Everything that a step reads, and the bytes behind it, are checked by the simulation.
  bool append(int32_t count) {
    const auto length = static_cast<Position>(simulation_->history(sequence_).size());
    return rewind(length, count);
  }
  bool rewind(Position start, int32_t count) {
    return simulation_->step({{sequence_, start, count}}, false, 1.0,
                             [&](size_t) { return start + count; });
  }
  // Grows the sequence in steps of `step`, then rewinds it to each length that is legal, with a
  // token more each time. Returns which were.
  std::vector<bool> rewinds(Position length, int32_t step, const std::vector<Position>& to) {
    for (Position at = 0; at < length; at += step) append(std::min(step, length - at));
    std::vector<bool> legal;
    for (const Position each : to) {
      legal.push_back(simulation_->books().can_rewind(sequence_, each));
      EXPECT_EQ(legal.back(), simulation_->can_rewind(sequence_, each));
      if (legal.back()) {
        EXPECT_TRUE(rewind(each, 1));
      }
    }
    return legal;
  }

  std::unique_ptr<Simulation> simulation_;
  SequenceId sequence_{};
};

// D1: a bound of length - window let rewinds read rows that were gone. Its four cases, (window,
// widest write, length): with one cell to a block all must be refused; with larger blocks those are
// right whose keys are all still held.
TEST_F(Windows, D1RewindsReadOnlyWhatIsHeld) {
  const std::vector<bool> refused{false};
  for (const int32_t block_size : {1, 2}) {
    start(block_size, 4, 40);
    EXPECT_EQ(rewinds(10, 4, {6, 2}), (std::vector<bool>{false, false}));
    start(block_size, 4, 40);
    EXPECT_EQ(rewinds(10, 2, {6}), refused);
  }
  for (const int32_t block_size : {16, 64}) {
    start(block_size, 4, 40);
    EXPECT_EQ(rewinds(10, 4, {6, 2}), (std::vector<bool>{true, true}));
    start(block_size, 4, 40);
    EXPECT_EQ(rewinds(10, 2, {6}), (std::vector<bool>{true}));
  }
  start(1, 2048, 2600);
  EXPECT_EQ(rewinds(8000, 512, {5952, 7999, 8000}), (std::vector<bool>{false, false, true}));
  start(64, 2048, 50);
  EXPECT_EQ(rewinds(8000, 512, {5952, 7998, 7999}), (std::vector<bool>{false, false, true}));
}

// A rewind does not lower the mark of what has been written: two in a row are judged by what is
// held.
TEST_F(Windows, D1TwoRewindsInARow) {
  start(2, 4, 40);
  EXPECT_EQ(rewinds(11, 4, {11, 10, 9, 6}), (std::vector<bool>{true, false, false, false}));
  start(16, 20, 40);
  // 50 - 19 = 31 lies in the second block, so the first one is gone: 16 + 19 = 35 is the shortest.
  EXPECT_EQ(rewinds(50, 4, {40, 35, 34}), (std::vector<bool>{true, true, false}));
}

// As long as no block has been left behind, every rewind is accepted.
TEST_F(Windows, NothingIsRefusedWhileEverythingIsHeld) {
  start(16, 20, 40);
  ASSERT_TRUE(append(34));
  for (Position to = 34; to >= 0; --to) {
    EXPECT_TRUE(simulation_->books().can_rewind(sequence_, to));
  }
  ASSERT_TRUE(append(1));
  EXPECT_EQ(simulation_->books().first_rewind(sequence_), 35);
}

TEST_F(Windows, AnEmptySequenceIsAsANewOne) {
  start(1, 3, 20);
  ASSERT_TRUE(append(12));
  EXPECT_EQ(simulation_->books().usage(0).blocks_free, 18);
  ASSERT_TRUE(rewind(0, 5));
  EXPECT_EQ(simulation_->books().table(sequence_, 0).first_position, 3);
  simulation_->truncate(sequence_, 0);
  EXPECT_EQ(simulation_->books().usage(0).blocks_free, 20);
  ASSERT_TRUE(append(2));
  EXPECT_EQ(simulation_->books().first_rewind(sequence_), 0);
}

// A block that others still see stays until the last of them has left it.
TEST_F(Windows, ABlockIsFreeWhenItsLastOwnerHasLeftIt) {
  start(16, 8, 20);
  ASSERT_TRUE(append(16));
  simulation_->clone(sequence_, 16);
  ASSERT_TRUE(append(8));
  EXPECT_EQ(simulation_->books().table(sequence_, 0).first_position, 16);
  EXPECT_EQ(simulation_->books().usage(0).blocks_free, 18);
  sequence_ = simulation_->sequences().rbegin()->first;
  ASSERT_TRUE(append(6));
  EXPECT_EQ(simulation_->books().usage(0).blocks_free, 17);
  ASSERT_TRUE(append(1));
  EXPECT_EQ(simulation_->books().usage(0).blocks_free, 18);
}

// D2: a step may be wider than the window; every query of it finds its keys, in the smallest pool.
TEST_F(Windows, D2ChunksWiderThanTheWindow) {
  for (const int32_t block_size : {1, 16, 64}) {
    for (const int32_t chunk : {16, 17, 18, 24, 32, 50}) {
      SCOPED_TRACE("block size " + std::to_string(block_size) + ", chunk " + std::to_string(chunk));
      const auto pool = static_cast<int32_t>(smallest_pool({16}, block_size, 128, chunk));
      start(block_size, 16, pool, 128);
      for (Position at = 0; at < 128; at += chunk) {
        ASSERT_TRUE(append(std::min(chunk, 128 - at)));
      }
    }
  }
}

// The smallest pool serves a lone sequence whatever it does; two blocks less do not.
TEST_F(Windows, TheSmallestPoolIsEnoughAndNotMuchMore) {
  RandomStream random(5);
  for (const int32_t block_size : {1, 2, 16}) {
    for (const int32_t window : {1, 2, 7, 16, 33}) {
      for (const int32_t widest : {1, 5, 16, 40}) {
        SCOPED_TRACE("block size " + std::to_string(block_size) + ", window " +
                     std::to_string(window) + ", widest " + std::to_string(widest));
        const auto pool = static_cast<int32_t>(smallest_pool({window}, block_size, 150, widest));
        const auto fits = [&](int32_t num_blocks) {
          start(block_size, window, num_blocks, 150);
          for (int event = 0; event < 120; ++event) {
            const auto length = static_cast<Position>(simulation_->history(sequence_).size());
            const Position to =
                length -
                static_cast<Position>(random.below(1 + static_cast<uint64_t>(std::min(length, 4))));
            if (random.below(8) == 0 && simulation_->can_rewind(sequence_, to)) {
              simulation_->truncate(sequence_, to);
            }
            const int32_t room = 150 - static_cast<int32_t>(simulation_->history(sequence_).size());
            const auto some = 1 + static_cast<int32_t>(random.below(static_cast<uint64_t>(widest)));
            const int32_t count = std::min(random.below(2) == 0 ? widest : some, room);
            if (count == 0) break;
            if (!append(count)) return false;
          }
          return true;
        };
        bool smaller_fits = true;
        for (int round = 0; round < 12; ++round) {
          ASSERT_TRUE(fits(pool));
          smaller_fits = smaller_fits && pool > 2 && fits(pool - 2);
        }
        ASSERT_FALSE(smaller_fits);
      }
    }
  }
}

// D14: nothing is shared between two sets of books.
TEST_F(Windows, D14TwoBooksKnowNothingOfEachOther) {
  start(16, 8, 4);
  Simulation other(1, {{0, 9}, {3, 5}}, 50);
  const SequenceId same = other.open();
  ASSERT_TRUE(append(40));
  EXPECT_TRUE(other.step({{same, 0, 5}}, false, 1.0, [](size_t) { return 5; }));
  EXPECT_EQ(simulation_->books().length(sequence_), 40);
  EXPECT_EQ(other.books().usage(0).blocks_free, 4);
  simulation_->close(sequence_);
  EXPECT_EQ(other.books().length(same), 5);
}

}  // namespace
}  // namespace chorus
