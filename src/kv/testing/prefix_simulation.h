// KvBooks with its prefix index and simulated bytes, for tests. Cells hold a hash of all that KV
// bytes are a function of: the key and the tokens up to their position. So whatever is shared,
// found or taken in place of another block, each sequence must read what its own tokens give. What
// differs is reported through googletest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kv/books.h"

namespace chorus::kv_testing {

using Tokens = std::vector<int32_t>;

struct PrefixGroup {
  int32_t window = 0;
  int32_t num_blocks = 0;
};

// KvBooks with the bytes, and with what each sequence is made of.
class PrefixSimulation {
 public:
  struct Sequence {
    std::string key;  // empty: not indexed
    Tokens tokens;
    Position length() const { return static_cast<Position>(tokens.size()); }
  };
  struct Step {
    SequenceId id{};
    Position start = 0;
    Tokens tokens;
    bool mark = false;
  };

  PrefixSimulation(int32_t block_size, std::vector<PrefixGroup> groups, int32_t max_tokens)
      : block_size_(block_size), groups_(std::move(groups)) {
    KvOptions options{block_size, max_tokens, {}};
    for (const PrefixGroup& group : groups_) {
      options.groups.push_back({{group.window}, group.num_blocks});
      cells_.emplace_back(static_cast<size_t>(group.num_blocks * block_size), 0);
    }
    books_ = std::move(KvBooks::create(options)).value();
  }

  KvBooks& operator*() { return *books_; }
  KvBooks* operator->() { return books_.get(); }
  const std::map<SequenceId, Sequence>& sequences() const { return sequences_; }
  Position length(SequenceId id) const { return sequences_.at(id).length(); }

  SequenceId open(const std::string& key) {
    return add(key.empty() ? books_->open() : books_->open(key), key, {});
  }
  SequenceId open_prefix(const std::string& key, const Tokens& tokens, Position cap) {
    const Position expected = longest_by_force(key, tokens, cap);
    EXPECT_EQ(books_->longest_prefix(key, tokens, cap), expected);
    const SequenceId id = books_->open_prefix(key, tokens, cap);
    EXPECT_EQ(books_->length(id), expected);
    return add(id, key, Tokens(tokens.begin(), tokens.begin() + books_->length(id)));
  }
  SequenceId clone(SequenceId source, Position upto) {
    const Sequence& from = sequences_.at(source);
    return add(books_->clone(source, upto), from.key,
               Tokens(from.tokens.begin(), from.tokens.begin() + upto));
  }
  // Restores a sequence under key "", whose bytes the keyless hash gives.
  SequenceId restore(const Tokens& tokens, const std::vector<Position>& first_positions) {
    SequenceId id{};
    const auto length = static_cast<Position>(tokens.size());
    EXPECT_FALSE(books_->restore(length, first_positions, id).has_value());
    sequences_[id] = {"", tokens};
    fill(id);
    verify();
    return id;
  }
  void close(SequenceId id) {
    books_->close(id);
    sequences_.erase(id);
    verify();
  }
  void truncate(SequenceId id, Position length) {
    books_->truncate(id, length);
    sequences_.at(id).tokens.resize(static_cast<size_t>(length));
    verify();
  }

  enum class End { kCommit, kAbort };
  // accepted(i) as in KvBooks::commit. Returns whether the step was admitted, which is checked
  // against the blocks that no sequence holds.
  template <typename Accepted>
  bool step(const std::vector<Step>& steps, End end, Accepted accepted_of) {
    std::vector<KvDemand> demands;
    std::vector<KvRows> rows;
    for (const Step& each : steps) {
      demands.push_back({each.id, each.start, static_cast<int32_t>(each.tokens.size())});
      rows.push_back({each.tokens, each.mark});
    }
    const bool expected = admits(demands);
    const bool must_not_evict = fits_free(demands);
    const size_t num_named = named_blocks().size();
    EXPECT_EQ(books_->can_admit(demands), expected);
    EXPECT_EQ(books_->plan(demands, plan_), expected);
    if (must_not_evict || !expected) {
      EXPECT_EQ(named_blocks().size(), num_named);
    }
    if (!expected || testing::Test::HasFailure()) return false;
    write(steps);
    verify_cells();  // nothing of the state before the step was written
    if (end == End::kAbort) {
      books_->abort(plan_);
      verify();
      return true;
    }
    std::vector<Position> accepted;
    for (size_t i = 0; i < steps.size(); ++i) accepted.push_back(accepted_of(i));
    books_->commit(plan_, accepted, rows);
    for (size_t i = 0; i < steps.size(); ++i) {
      if (accepted[i] == kRejected) continue;
      Tokens& tokens = sequences_.at(steps[i].id).tokens;
      tokens.resize(static_cast<size_t>(steps[i].start));
      tokens.insert(tokens.end(), steps[i].tokens.begin(), steps[i].tokens.end());
      tokens.resize(static_cast<size_t>(accepted[i]));
    }
    verify();
    return true;
  }
  // A step of one sequence, all accepted.
  bool append(SequenceId id, const Tokens& tokens, bool mark = false) {
    const Position start = length(id);
    return step({{id, start, tokens, mark}}, End::kCommit,
                [&](size_t) { return start + static_cast<Position>(tokens.size()); });
  }

  int32_t held_by_sequences(int32_t group) const {
    std::set<BlockId> held;
    for (const auto& [id, sequence] : sequences_) {
      for (const BlockId block : books_->table(id, group).blocks) held.insert(block);
    }
    return static_cast<int32_t>(held.size());
  }

  // What the index holds, as (key, tokens up to the end of the block, group): block.
  std::map<std::tuple<std::string, Tokens, int32_t>, BlockId> named_blocks() const {
    std::map<std::tuple<std::string, Tokens, int32_t>, BlockId> named;
    const PrefixIndex& index = books_->prefix_index();
    for (PrefixNode node = 0; node < index.end(); ++node) {
      if (!index.is_node(node)) continue;
      Tokens tokens;
      PrefixNode at = node;
      for (; index.parent(at) != kNoNode; at = index.parent(at)) {
        const auto own = index.tokens(at);
        tokens.insert(tokens.begin(), own.begin(), own.end());
      }
      std::string key;
      for (const char* each : {"a", "b"}) {
        if (index.find_root(each) == at) key = each;
      }
      EXPECT_FALSE(key.empty());
      for (int32_t group = 0; group < std::ssize(groups_); ++group) {
        if (index.block(node, group) == kNoBlock) continue;
        EXPECT_TRUE(named.emplace(std::tuple(key, tokens, group), index.block(node, group)).second);
      }
    }
    return named;
  }

 private:
  SequenceId add(SequenceId id, const std::string& key, Tokens tokens) {
    sequences_[id] = {key, std::move(tokens)};
    verify();
    return id;
  }

  // The longest prefix, at most cap long, all of whose keys that its next token sees are named.
  Position longest_by_force(const std::string& key, const Tokens& tokens, Position cap) const {
    const auto named = named_blocks();
    for (Position length = std::min(cap, static_cast<Position>(tokens.size())); length > 0;
         --length) {
      bool usable = true;
      for (int32_t group = 0; group < std::ssize(groups_); ++group) {
        const int32_t window = groups_[static_cast<size_t>(group)].window;
        Position seen = window == 0 ? 0 : std::max(0, length - window + 1);
        // A window of 1 shows no keys, but a partial block has to be there to go on in.
        if (window == 1) seen = length / block_size_ * block_size_;
        for (; seen < length; ++seen) {
          const auto end = static_cast<size_t>((seen / block_size_ + 1) * block_size_);
          usable =
              usable && end <= tokens.size() &&
              named.contains(
                  {key, Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end)),
                   group});
        }
      }
      if (usable) return length;
    }
    return 0;
  }

  // New blocks a demand needs: none for those it goes on with, which are the full ones before start
  // and a partial one that nobody else has and the index does not name.
  int32_t needed(const KvDemand& demand, int32_t group) const {
    const Sequence& sequence = sequences_.at(demand.sequence);
    int32_t first_new = demand.start / block_size_;
    if (demand.start % block_size_ != 0 && demand.start == sequence.length()) {
      const BlockTable table = books_->table(demand.sequence, group);
      const BlockId partial = table.blocks[static_cast<size_t>(first_new - table.first_block)];
      int owners = 0;
      for (const auto& [id, other] : sequences_) {
        const auto blocks = books_->table(id, group).blocks;
        owners += static_cast<int>(std::count(blocks.begin(), blocks.end(), partial));
      }
      for (const auto& [name, block] : named_blocks()) {
        owners += std::get<2>(name) == group && block == partial ? 1 : 0;
      }
      if (owners == 1) ++first_new;
    }
    return (demand.start + demand.count + block_size_ - 1) / block_size_ - first_new;
  }
  bool fits(const std::vector<KvDemand>& demands, int32_t group, int32_t room) const {
    int32_t sum = 0;
    for (const KvDemand& demand : demands) sum += needed(demand, group);
    return sum <= room;
  }
  bool admits(const std::vector<KvDemand>& demands) const {
    for (int32_t group = 0; group < std::ssize(groups_); ++group) {
      const int32_t total = groups_[static_cast<size_t>(group)].num_blocks;
      if (!fits(demands, group, total - held_by_sequences(group))) return false;
    }
    return true;
  }
  bool fits_free(const std::vector<KvDemand>& demands) const {
    for (int32_t group = 0; group < std::ssize(groups_); ++group) {
      if (!fits(demands, group, books_->usage(group).blocks_free)) return false;
    }
    return true;
  }

  void fill(SequenceId id) {
    const std::vector<uint64_t> content = contents(sequences_.at(id).key, sequences_.at(id).tokens);
    for (int32_t group = 0; group < std::ssize(groups_); ++group) {
      const BlockTable table = books_->table(id, group);
      for (Position p = table.first_position; p < std::ssize(content); ++p) {
        const BlockId block =
            table.blocks[static_cast<size_t>(p / block_size_ - table.first_block)];
        cells_[static_cast<size_t>(group)]
              [static_cast<size_t>(block * block_size_ + p % block_size_)] =
                  content[static_cast<size_t>(p)];
      }
    }
  }

  static std::vector<uint64_t> contents(const std::string& key, const Tokens& tokens) {
    std::vector<uint64_t> all;
    uint64_t hash = key.empty() ? 1 : static_cast<uint64_t>(key[0]);
    for (const int32_t token : tokens) {
      hash = (hash + static_cast<uint64_t>(token) + 1) * 0x9E3779B97F4A7C15;
      hash ^= hash >> 31;
      all.push_back(hash);
    }
    return all;
  }

  void write(const std::vector<Step>& steps) {
    for (const CellCopy& copy : plan_.copies()) {
      std::vector<uint64_t>& cells = cells_[static_cast<size_t>(copy.group)];
      std::copy_n(cells.begin() + copy.from * block_size_, copy.num_cells,
                  cells.begin() + copy.to * block_size_);
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      const Sequence& sequence = sequences_.at(steps[i].id);
      Tokens tokens(sequence.tokens.begin(), sequence.tokens.begin() + steps[i].start);
      tokens.insert(tokens.end(), steps[i].tokens.begin(), steps[i].tokens.end());
      const std::vector<uint64_t> content = contents(sequence.key, tokens);
      for (int32_t group = 0; group < std::ssize(groups_); ++group) {
        for (Position p = steps[i].start; p < std::ssize(tokens); ++p) {
          const CellId cell = plan_.cell(static_cast<int32_t>(i), group, p);
          cells_[static_cast<size_t>(group)][static_cast<size_t>(cell)] =
              content[static_cast<size_t>(p)];
        }
      }
    }
  }

  void verify_cells() const {
    for (int32_t group = 0; group < std::ssize(groups_); ++group) {
      const std::vector<uint64_t>& cells = cells_[static_cast<size_t>(group)];
      for (const auto& [id, sequence] : sequences_) {
        const std::vector<uint64_t> content = contents(sequence.key, sequence.tokens);
        const BlockTable table = books_->table(id, group);
        ASSERT_EQ(books_->length(id), sequence.length());
        for (Position p = table.first_position; p < sequence.length(); ++p) {
          const BlockId block =
              table.blocks[static_cast<size_t>(p / block_size_ - table.first_block)];
          ASSERT_EQ(cells[static_cast<size_t>(block * block_size_ + p % block_size_)],
                    content[static_cast<size_t>(p)])
              << "sequence " << static_cast<uint64_t>(id) << ", group " << group << ", position "
              << p;
        }
      }
    }
  }

  void verify() {
    verify_cells();
    books_->check_invariants();
    for (int32_t group = 0; group < std::ssize(groups_); ++group) {
      std::vector<uint64_t>& cells = cells_[static_cast<size_t>(group)];
      const KvGroupUsage usage = books_->usage(group);
      ASSERT_EQ(usage.blocks_cached,
                usage.blocks_total - usage.blocks_free - held_by_sequences(group));
      for (const BlockId block : books_->free_blocks(group)) {
        std::fill_n(cells.begin() + block * block_size_, block_size_, ~uint64_t{0});
      }
    }
  }

  int32_t block_size_;
  std::vector<PrefixGroup> groups_;
  std::unique_ptr<KvBooks> books_;
  KvPlan plan_;
  std::map<SequenceId, Sequence> sequences_;
  std::vector<std::vector<uint64_t>> cells_;  // [group][cell]
};

}  // namespace chorus::kv_testing
