// KvBooks beside a naive model that simulates the bytes, for tests: cells hold stamps, a step's
// copies and writes are applied to them, and after every event each sequence must read back its own
// history as far as its windows reach. What differs is reported through googletest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "kv/books.h"

namespace chorus::kv_testing {

using Stamp = uint64_t;

// A block as the model sees it: an object that lives as long as somebody owns it.
using ModelBlock = std::shared_ptr<int>;

struct ModelSequence {
  std::vector<Stamp> history;
  // The longest it has been since it, or what it was cloned from, was last empty: blocks that a
  // window left behind at that length are gone.
  Position longest = 0;
  std::vector<std::map<int32_t, ModelBlock>> blocks;  // [group]: by block index, those held
};

struct ModelGroup {
  int32_t window = 0;
  int32_t num_blocks = 0;
};

struct ModelDemand {
  SequenceId sequence{};
  Position start = 0;
  int32_t count = 0;
};

class Simulation {
 public:
  Simulation(int32_t block_size, std::vector<ModelGroup> groups, int32_t max_tokens)
      : block_size_(block_size), max_tokens_(max_tokens), groups_(std::move(groups)) {
    KvOptions options{block_size, max_tokens, {}};
    for (const ModelGroup& group : groups_) {
      options.groups.push_back({{group.window}, group.num_blocks});
      cells_.emplace_back(static_cast<size_t>(group.num_blocks * block_size), Stamp{0});
    }
    books_ = std::move(KvBooks::create(options)).value();
  }

  const std::map<SequenceId, ModelSequence>& sequences() const { return model_; }
  const std::vector<Stamp>& history(SequenceId id) const { return model_.at(id).history; }
  const KvBooks& books() const { return *books_; }
  // Unverified events are for the way to a state that was verified before.
  void set_verifying(bool verifying) { verifying_ = verifying; }
  int32_t block_size() const { return block_size_; }
  int32_t max_tokens() const { return max_tokens_; }

  SequenceId open() {
    const SequenceId id = books_->open();
    model_[id].blocks.resize(groups_.size());
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
    model_[id] = model_[source];
    shorten(model_[id], upto);
    verify();
  }

  void truncate(SequenceId id, Position length) {
    books_->truncate(id, length);
    shorten(model_[id], length);
    verify();
  }

  // Whether every key that the token behind [0, length) sees is held, by looking at each of them. A
  // window of 1 shows no keys but is treated as if it showed the place of the next one.
  bool can_rewind(SequenceId id, Position length) const {
    const ModelSequence& sequence = model_.at(id);
    if (length < 0 || length > static_cast<Position>(sequence.history.size())) return false;
    for (size_t group = 0; group < groups_.size(); ++group) {
      const int32_t window = groups_[group].window;
      const auto& blocks = sequence.blocks[group];
      for (Position key = length - 1; key >= 0; --key) {
        if (window > 0 && length - key >= window) break;
        if (!blocks.contains(key / block_size_)) return false;
      }
      const auto end = static_cast<Position>(sequence.history.size());
      const Position held = blocks.empty() ? end : blocks.begin()->first * block_size_;
      if (window == 1 && length > 0 && length < held) return false;
    }
    return true;
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
    if (verifying_) verify_cells();  // nothing of the state before the step was written
    if (aborted) {
      books_->abort(plan_);
      verify();
      return true;
    }
    if (verifying_) verify_reads(demands, written);
    std::vector<Position> accepted;
    for (size_t i = 0; i < demands.size(); ++i) accepted.push_back(outcome(i));
    books_->commit(plan_, accepted);
    commit_model(demands, written, accepted);
    verify();
    return true;
  }

 private:
  int32_t blocks_for(Position length) const { return (length + block_size_ - 1) / block_size_; }

  // The first block index that a demand writes into a new block: behind the full ones before start,
  // and behind a partial one if it is appended to and owned alone.
  int32_t first_new(const ModelDemand& demand, size_t group) const {
    const ModelSequence& sequence = model_.at(demand.sequence);
    const bool appends = demand.start == static_cast<Position>(sequence.history.size());
    const int32_t block = demand.start / block_size_;
    if (demand.start % block_size_ == 0 || !appends) return block;
    return block + (sequence.blocks[group].at(block).use_count() == 1 ? 1 : 0);
  }

  int32_t held_blocks(size_t group) const {
    std::set<const int*> distinct;
    for (const auto& [id, sequence] : model_) {
      for (const auto& [index, block] : sequence.blocks[group]) distinct.insert(block.get());
    }
    return static_cast<int32_t>(distinct.size());
  }

  bool admits(const std::vector<ModelDemand>& demands) const {
    for (size_t group = 0; group < groups_.size(); ++group) {
      int32_t needed = 0;
      for (const ModelDemand& demand : demands) {
        needed += blocks_for(demand.start + demand.count) - first_new(demand, group);
      }
      if (needed > groups_[group].num_blocks - held_blocks(group)) return false;
    }
    return true;
  }

  // Drops what is beyond `length`; an empty sequence is as a new one.
  void shorten(ModelSequence& sequence, Position length) const {
    sequence.history.resize(static_cast<size_t>(length));
    if (length == 0) sequence.longest = 0;
    for (auto& blocks : sequence.blocks) {
      blocks.erase(blocks.lower_bound(blocks_for(length)), blocks.end());
    }
  }

  // Drops the blocks none of whose cells the token behind the longest history so far would see.
  void leave_behind(ModelSequence& sequence) const {
    for (size_t group = 0; group < groups_.size(); ++group) {
      const int32_t window = groups_[group].window;
      if (window == 0) continue;
      std::erase_if(sequence.blocks[group], [&](const auto& each) {
        const Position last_cell = (each.first + 1) * block_size_ - 1;
        return sequence.longest - last_cell >= window;
      });
    }
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
        const int32_t window = groups_[group].window;
        const Position first = window == 0 ? 0 : std::max(0, demands[i].start - window + 1);
        ASSERT_LE(table.first_position, first);
        ASSERT_EQ(table.first_block, table.first_position / block_size_);
        for (Position p = first; p < demands[i].start + demands[i].count; ++p) {
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
    std::vector<std::vector<int32_t>> new_from(demands.size());  // by the state before the step
    for (size_t i = 0; i < demands.size(); ++i) {
      for (size_t group = 0; group < groups_.size(); ++group) {
        new_from[i].push_back(first_new(demands[i], group));
      }
    }
    for (size_t i = 0; i < demands.size(); ++i) {
      if (accepted[i] == kRejected) continue;
      ModelSequence& sequence = model_[demands[i].sequence];
      shorten(sequence, demands[i].start);
      sequence.history.insert(sequence.history.end(), written[i].begin(), written[i].end());
      for (size_t group = 0; group < groups_.size(); ++group) {
        for (int32_t b = new_from[i][group]; b < blocks_for(accepted[i]); ++b) {
          sequence.blocks[group][b] = std::make_shared<int>(0);
        }
      }
      shorten(sequence, accepted[i]);
      sequence.longest = std::max(sequence.longest, accepted[i]);
      leave_behind(sequence);
    }
  }

  Stamp read(size_t group, const BlockTable& table, Position position) const {
    const BlockId block =
        table.blocks[static_cast<size_t>(position / block_size_ - table.first_block)];
    return cells_[group][static_cast<size_t>(block * block_size_ + position % block_size_)];
  }

  void verify_cells() const {
    for (const auto& [id, sequence] : model_) {
      ASSERT_EQ(books_->length(id), static_cast<Position>(sequence.history.size()));
      for (size_t group = 0; group < cells_.size(); ++group) {
        const auto table = books_->table(id, static_cast<int32_t>(group));
        const auto& blocks = sequence.blocks[group];
        ASSERT_EQ(table.blocks.size(), blocks.size());
        if (blocks.empty()) continue;
        ASSERT_EQ(table.first_position, blocks.begin()->first * block_size_);
        for (auto p = static_cast<size_t>(table.first_position); p < sequence.history.size(); ++p) {
          ASSERT_EQ(read(group, table, static_cast<Position>(p)), sequence.history[p])
              << "sequence " << static_cast<uint64_t>(id) << ", group " << group << ", position "
              << p;
        }
      }
    }
  }

  void verify_rewinds() const {
    for (const auto& [id, sequence] : model_) {
      const Position first = books_->first_rewind(id);
      const auto held = static_cast<Position>(sequence.history.size());
      for (Position length = -1; length <= held + 1; length += length < held - 45 ? 17 : 1) {
        const bool expected = can_rewind(id, length);
        ASSERT_EQ(books_->can_rewind(id, length), expected) << "to " << length;
        if (length > 0 && length <= held) {
          ASSERT_EQ(length >= first, expected) << "to " << length;
        }
      }
    }
  }

  void verify() {
    if (!verifying_) return;
    verify_cells();
    verify_rewinds();
    books_->check_invariants();
    for (size_t group = 0; group < cells_.size(); ++group) {
      const KvGroupUsage usage = books_->usage(static_cast<int32_t>(group));
      ASSERT_EQ(usage.blocks_total - usage.blocks_free, held_blocks(group));
      // What is free may hold anything: poison it, so that a read of it is noticed.
      for (const BlockId block : books_->free_blocks(static_cast<int32_t>(group))) {
        std::fill_n(cells_[group].begin() + block * block_size_, block_size_, ~Stamp{0});
      }
    }
  }

  int32_t block_size_;
  int32_t max_tokens_;
  std::vector<ModelGroup> groups_;
  std::unique_ptr<KvBooks> books_;
  KvPlan plan_;
  std::map<SequenceId, ModelSequence> model_;
  std::vector<std::vector<Stamp>> cells_;  // [group][cell]
  Stamp next_stamp_ = 0;
  bool verifying_ = true;
};

}  // namespace chorus::kv_testing
