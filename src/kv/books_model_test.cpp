// Runs KvBooks beside a naive model under random and exhaustive schedules. The model simulates the
// bytes: cells hold stamps, a step's copies and writes are applied to them, and after every event
// each sequence must read back its own history.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/books.h"

namespace chorus {
namespace {

using Stamp = uint64_t;

// A block as the model sees it: an object that lives as long as somebody owns it.
using ModelBlock = std::shared_ptr<int>;

struct ModelSequence {
  std::vector<Stamp> history;
  std::vector<ModelBlock> blocks;
};

struct ModelDemand {
  SequenceId sequence{};
  Position start = 0;
  int32_t count = 0;
};

class Simulation {
 public:
  Simulation(int32_t block_size, std::vector<int32_t> num_blocks, int32_t max_tokens)
      : block_size_(block_size), max_tokens_(max_tokens) {
    KvOptions options{block_size, max_tokens, {}};
    for (const int32_t count : num_blocks) {
      options.groups.push_back({{}, count});
      cells_.emplace_back(static_cast<size_t>(count * block_size), Stamp{0});
    }
    books_ = std::move(KvBooks::create(options)).value();
  }

  const std::map<SequenceId, ModelSequence>& sequences() const { return model_; }
  int32_t max_tokens() const { return max_tokens_; }

  SequenceId open() {
    const SequenceId id = books_->open();
    model_[id];
    verify();
    return id;
  }

  void close(SequenceId id) {
    books_->close(id);
    model_.erase(id);
    verify();
  }

  void clone(SequenceId source, Position upto) {
    const SequenceId id = books_->clone(source, upto);
    const ModelSequence& from = model_[source];
    model_[id] = {{from.history.begin(), from.history.begin() + upto},
                  {from.blocks.begin(), from.blocks.begin() + blocks_for(upto)}};
    verify();
  }

  void truncate(SequenceId id, Position length) {
    books_->truncate(id, length);
    model_[id].history.resize(static_cast<size_t>(length));
    model_[id].blocks.resize(static_cast<size_t>(blocks_for(length)));
    verify();
  }

  // One step. outcome(i) gives the accepted length of demand i, or kRejected; `aborted` undoes the
  // step after `share` of its writes. Returns whether the step was admitted.
  template <typename Outcome>
  bool step(const std::vector<ModelDemand>& demands, bool aborted, double share, Outcome outcome) {
    std::vector<KvDemand> kv_demands;
    for (const ModelDemand& demand : demands) {
      kv_demands.push_back({demand.sequence, demand.start, demand.count});
    }
    const bool expected = admits(demands);
    EXPECT_EQ(books_->can_admit(kv_demands), expected);
    EXPECT_EQ(books_->plan(kv_demands, plan_), expected);
    if (!expected || testing::Test::HasFailure()) {
      verify();
      return false;
    }
    run_copies();
    std::vector<std::vector<Stamp>> written = run_writes(demands, aborted ? share : 1.0);
    verify_cells();  // nothing of the state before the step was written
    if (aborted) {
      books_->abort(plan_);
      verify();
      return true;
    }
    verify_reads(demands, written);
    std::vector<Position> accepted;
    for (size_t i = 0; i < demands.size(); ++i) accepted.push_back(outcome(i));
    books_->commit(plan_, accepted);
    commit_model(demands, written, accepted);
    verify();
    return true;
  }

 private:
  int32_t blocks_for(Position length) const { return (length + block_size_ - 1) / block_size_; }

  // The blocks a demand goes on with, as the design words it: the full ones before start, and a
  // partial one if it is appended to and owned alone.
  int32_t kept(const ModelDemand& demand) const {
    const ModelSequence& sequence = model_.at(demand.sequence);
    const bool appends = demand.start == static_cast<Position>(sequence.history.size());
    const bool partial = demand.start % block_size_ != 0;
    const bool alone =
        partial &&
        sequence.blocks[static_cast<size_t>(demand.start / block_size_)].use_count() == 1;
    return demand.start / block_size_ + (partial && appends && alone ? 1 : 0);
  }

  int32_t held_blocks() const {
    std::set<const int*> distinct;
    for (const auto& [id, sequence] : model_) {
      for (const ModelBlock& block : sequence.blocks) distinct.insert(block.get());
    }
    return static_cast<int32_t>(distinct.size());
  }

  bool admits(const std::vector<ModelDemand>& demands) const {
    int32_t needed = 0;
    for (const ModelDemand& demand : demands) {
      needed += blocks_for(demand.start + demand.count) - kept(demand);
    }
    for (const auto& cells : cells_) {
      const auto total = static_cast<int32_t>(cells.size()) / block_size_;
      if (needed > total - held_blocks()) return false;
    }
    return true;
  }

  void run_copies() {
    for (const CellCopy& copy : plan_.copies()) {
      std::vector<Stamp>& cells = cells_[static_cast<size_t>(copy.group)];
      for (int32_t i = 0; i < copy.num_cells; ++i) {
        cells[static_cast<size_t>(copy.to * block_size_ + i)] =
            cells[static_cast<size_t>(copy.from * block_size_ + i)];
      }
    }
  }

  std::vector<std::vector<Stamp>> run_writes(const std::vector<ModelDemand>& demands,
                                             double share) {
    std::vector<std::vector<Stamp>> written(demands.size());
    for (size_t i = 0; i < demands.size(); ++i) {
      const auto count = static_cast<int32_t>(share * demands[i].count);
      for (int32_t row = 0; row < count; ++row) {
        written[i].push_back(++next_stamp_);
        for (size_t group = 0; group < cells_.size(); ++group) {
          const CellId cell = plan_.cell(static_cast<int32_t>(i), static_cast<int32_t>(group),
                                         demands[i].start + row);
          cells_[group][static_cast<size_t>(cell)] = next_stamp_;
        }
      }
    }
    return written;
  }

  // During the step the plan's tables read the kept history and then what the step wrote.
  void verify_reads(const std::vector<ModelDemand>& demands,
                    const std::vector<std::vector<Stamp>>& written) const {
    for (size_t i = 0; i < demands.size(); ++i) {
      for (size_t group = 0; group < cells_.size(); ++group) {
        const auto table = plan_.table(static_cast<int32_t>(i), static_cast<int32_t>(group));
        const std::vector<Stamp>& history = model_.at(demands[i].sequence).history;
        for (Position p = 0; p < demands[i].start + demands[i].count; ++p) {
          const Stamp expected = p < demands[i].start
                                     ? history[static_cast<size_t>(p)]
                                     : written[i][static_cast<size_t>(p - demands[i].start)];
          ASSERT_EQ(read(group, table, p), expected);
        }
      }
    }
  }

  void commit_model(const std::vector<ModelDemand>& demands,
                    const std::vector<std::vector<Stamp>>& written,
                    const std::vector<Position>& accepted) {
    std::vector<int32_t> kept_blocks;  // all by the state before the step
    for (const ModelDemand& demand : demands) kept_blocks.push_back(kept(demand));
    for (size_t i = 0; i < demands.size(); ++i) {
      if (accepted[i] == kRejected) continue;
      ModelSequence& sequence = model_[demands[i].sequence];
      sequence.history.resize(static_cast<size_t>(demands[i].start));
      sequence.history.insert(sequence.history.end(), written[i].begin(), written[i].end());
      sequence.history.resize(static_cast<size_t>(accepted[i]));
      sequence.blocks.resize(static_cast<size_t>(kept_blocks[i]));
      while (static_cast<int32_t>(sequence.blocks.size()) < blocks_for(accepted[i])) {
        sequence.blocks.push_back(std::make_shared<int>(0));
      }
    }
  }

  Stamp read(size_t group, std::span<const BlockId> table, Position position) const {
    const BlockId block = table[static_cast<size_t>(position / block_size_)];
    return cells_[group][static_cast<size_t>(block * block_size_ + position % block_size_)];
  }

  void verify_cells() const {
    for (const auto& [id, sequence] : model_) {
      ASSERT_EQ(books_->length(id), static_cast<Position>(sequence.history.size()));
      for (size_t group = 0; group < cells_.size(); ++group) {
        const auto table = books_->table(id, static_cast<int32_t>(group));
        for (size_t p = 0; p < sequence.history.size(); ++p) {
          ASSERT_EQ(read(group, table, static_cast<Position>(p)), sequence.history[p])
              << "sequence " << static_cast<uint64_t>(id) << ", group " << group << ", position "
              << p;
        }
      }
    }
  }

  void verify() {
    verify_cells();
    books_->check_invariants();
    for (size_t group = 0; group < cells_.size(); ++group) {
      const KvGroupUsage usage = books_->usage(static_cast<int32_t>(group));
      ASSERT_EQ(usage.blocks_total - usage.blocks_free, held_blocks());
      // What is free may hold anything: poison it, so that a read of it is noticed.
      for (const BlockId block : books_->free_blocks(static_cast<int32_t>(group))) {
        std::fill_n(cells_[group].begin() + block * block_size_, block_size_, ~Stamp{0});
      }
    }
  }

  int32_t block_size_;
  int32_t max_tokens_;
  std::unique_ptr<KvBooks> books_;
  KvPlan plan_;
  std::map<SequenceId, ModelSequence> model_;
  std::vector<std::vector<Stamp>> cells_;  // [group][cell]
  Stamp next_stamp_ = 0;
};

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
      simulation_.clone(source, up_to(length(source)));
    } else if (kind == 3) {
      const SequenceId id = any();
      simulation_.truncate(id, up_to(length(id)));
    } else {
      step();
    }
  }

  int admitted() const { return admitted_; }
  int refused() const { return refused_; }

 private:
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
      const Position start = random_.below(3) == 0 ? up_to(held) : held;
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
};

TEST(KvBooksModel, RandomSchedules) {
  int admitted = 0;
  int refused = 0;
  for (const int32_t block_size : {1, 16, 32, 64}) {
    for (const size_t num_groups : {1u, 2u}) {
      for (uint64_t seed = 1; seed <= 12; ++seed) {
        SCOPED_TRACE("block size " + std::to_string(block_size) + ", groups " +
                     std::to_string(num_groups) + ", seed " + std::to_string(seed));
        // About three sequences of the longest kind fit, so that some steps are refused.
        const int32_t max_tokens = 130;
        const int32_t num_blocks = 3 * max_tokens / block_size + 2;
        std::vector<int32_t> pools(num_groups, num_blocks);
        pools.back() += 1;
        Simulation simulation(block_size, pools, max_tokens);
        RandomSchedule schedule(simulation, seed);
        for (int event = 0; event < 250; ++event) {
          schedule.event();
          ASSERT_FALSE(testing::Test::HasFailure()) << "event " << event;
        }
        admitted += schedule.admitted();
        refused += schedule.refused();
      }
    }
  }
  // The schedules reach both outcomes.
  EXPECT_GT(admitted, 5000);
  EXPECT_GT(refused, 500);
}

// Every schedule of `depth` events over a pool of up to 4 blocks and up to 2 sequences.
class Exhaustive {
 public:
  Exhaustive(int32_t block_size, int32_t num_blocks)
      : block_size_(block_size), num_blocks_(num_blocks) {}

  int64_t run(int depth) {
    std::vector<size_t> choices;
    do {
      replay(choices, depth);
      ++schedules_;
    } while (advance(choices) && !testing::Test::HasFailure());
    return schedules_;
  }

 private:
  struct Choice {
    int kind = 0;  // 0 open, 1 close, 2 clone, 3 truncate, 4 step, 5 step of both
    SequenceId sequence{};
    Position at = 0;
    int32_t count = 0;
    int outcome = 0;  // 0 accepted, 1 rejected, 2 aborted
  };

  std::vector<Position> lengths_of_interest(Position length) const {
    std::set<Position> all{0, length};
    if (length > 0) all.insert(length - 1);
    if (length > block_size_) all.insert(block_size_);
    return {all.begin(), all.end()};
  }

  std::vector<Choice> choices_in(const Simulation& simulation) const {
    std::vector<Choice> all;
    const auto& sequences = simulation.sequences();
    if (sequences.size() < 2) all.push_back({0, {}, 0, 0, 0});
    for (const auto& [id, sequence] : sequences) {
      all.push_back({1, id, 0, 0, 0});
      const auto length = static_cast<Position>(sequence.history.size());
      for (const Position at : lengths_of_interest(length)) {
        if (sequences.size() < 2) all.push_back({2, id, at, 0, 0});
        for (int outcome = 0; outcome < 3; ++outcome) {
          all.push_back({4, id, at, block_size_ == 1 ? 2 : block_size_ + 1, outcome});
        }
      }
      if (length > 1) all.push_back({3, id, length - 1, 0, 0});
    }
    if (sequences.size() == 2) all.push_back({5, {}, 0, 1, 0});
    return all;
  }

  static void apply(Simulation& simulation, const Choice& choice) {
    if (choice.kind == 0) {
      simulation.open();
    } else if (choice.kind == 1) {
      simulation.close(choice.sequence);
    } else if (choice.kind == 2) {
      simulation.clone(choice.sequence, choice.at);
    } else if (choice.kind == 3) {
      simulation.truncate(choice.sequence, choice.at);
    } else {
      std::vector<ModelDemand> demands{{choice.sequence, choice.at, choice.count}};
      if (choice.kind == 5) {
        demands.clear();
        for (const auto& [id, sequence] : simulation.sequences()) {
          demands.push_back({id, static_cast<Position>(sequence.history.size()), 1});
        }
      }
      simulation.step(demands, choice.outcome == 2, 0.5, [&](size_t i) {
        return choice.outcome == 1 ? kRejected : demands[i].start + demands[i].count;
      });
    }
  }

  // Follows `path`, then always takes the first choice; path becomes what was taken.
  void replay(std::vector<size_t>& path, int depth) {
    Simulation simulation(block_size_, {num_blocks_}, num_blocks_ * block_size_ * depth + 100);
    limits_.clear();
    for (int level = 0; level < depth; ++level) {
      const std::vector<Choice> all = choices_in(simulation);
      if (path.size() == static_cast<size_t>(level)) path.push_back(0);
      limits_.push_back(all.size());
      apply(simulation, all[path[static_cast<size_t>(level)]]);
    }
  }

  bool advance(std::vector<size_t>& path) const {
    while (!path.empty()) {
      if (++path.back() < limits_[path.size() - 1]) return true;
      path.pop_back();
    }
    return false;
  }

  int32_t block_size_;
  int32_t num_blocks_;
  int64_t schedules_ = 0;
  std::vector<size_t> limits_;
};

TEST(KvBooksModel, EveryScheduleOfSmallPools) {
  for (const int32_t block_size : {1, 16}) {
    for (int32_t num_blocks = 1; num_blocks <= 4; ++num_blocks) {
      SCOPED_TRACE("block size " + std::to_string(block_size) + ", blocks " +
                   std::to_string(num_blocks));
      EXPECT_GT(Exhaustive(block_size, num_blocks).run(5), 1000);
      ASSERT_FALSE(testing::Test::HasFailure());
    }
  }
}

}  // namespace
}  // namespace chorus
