// Who holds which KV cells: sequences, their block tables, and steps planned before they are run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "kv/block_pool.h"
#include "kv/prefix_index.h"
#include "kv/shared_blocks.h"
#include "kv/types.h"

namespace chorus {

struct KvGroupOptions {
  WindowPolicy policy;
  int32_t num_blocks = 0;
};

struct KvOptions {
  int32_t block_size = 16;          // any; which are offered is the backend's to say
  int32_t max_sequence_tokens = 0;  // longest sequence
  std::vector<KvGroupOptions> groups;
};

// Rows for positions [start, start + count) of one sequence. start == length appends, start <
// length rewinds and then appends.
struct KvDemand {
  SequenceId sequence{};
  Position start = 0;
  int32_t count = 0;
};

// What a commit learns about the rows of a demand of an indexed sequence.
struct KvRows {
  std::span<const int32_t> tokens;  // [count] of the demand
  // A generation starts at the accepted length: the windows before it stay cached.
  bool mark = false;
};

// A group whose free blocks do not cover what a set of demands needs.
struct KvShortage {
  int32_t group = 0;
  int64_t needed_blocks = 0;
  int32_t free_blocks = 0;  // cached ones included
};

struct KvGroupUsage {
  int32_t blocks_total = 0;
  int32_t blocks_free = 0;
  int32_t blocks_cached = 0;  // owned by the prefix index alone; free as soon as they are needed
  int32_t blocks_peak = 0;    // most in use or cached at once, blocks of a running step included
};

// In place of an accepted length: the sequence stands as it stood before the step.
inline constexpr Position kRejected = -1;

// One sequence of KvBooks. The blocks of a table cover [first_position, length) exactly; blocks
// before them have been given back.
struct KvSequence {
  struct Table {
    Position first_position = 0;
    std::vector<BlockId> blocks;  // the first one holds first_position
    int32_t index_left = 0;       // blocks before this one the prefix index knows to be left behind
  };
  Position length = 0;
  std::vector<Table> tables;  // [group]

  // Of an indexed sequence:
  PrefixNode root = kNoNode;
  std::vector<PrefixNode> path;  // of its full blocks
  std::vector<int32_t> tail;     // the tokens behind them
  bool is_indexed() const { return root != kNoNode; }
  PrefixNode last_node() const { return path.empty() ? root : path.back(); }
};

// What a step may write and read. Filled by KvBooks::plan, ended by commit or abort, and then ready
// to be filled again; reused, it does not allocate. It is stale as soon as the books change.
class KvPlan {
 public:
  int32_t num_demands() const { return static_cast<int32_t>(demands_.size()); }
  const KvDemand& demand(int32_t index) const { return demands_[static_cast<size_t>(index)]; }

  // The blocks that hold positions [first_position, start + count) of a demand's sequence during
  // the step. Whatever its rows may see is there.
  const BlockTable& table(int32_t demand, int32_t group) const {
    return tables_[static_cast<size_t>(demand) * new_blocks_.size() + static_cast<size_t>(group)];
  }
  std::span<const BlockTable> tables() const { return tables_; }  // [num_demands, num_groups]
  // Where a position is written. Requires: start <= position < start + count.
  CellId cell(int32_t demand, int32_t group, Position position) const;
  // To be made before the first row is written. No copy reads what another one writes.
  std::span<const CellCopy> copies() const { return copies_; }
  // Which demands' tables name the same blocks. They hold positions before the starts of all their
  // demands only: what a step writes is its sequence's own.
  const SharedBlocks& shared() const { return shared_; }

 private:
  friend class KvBooks;
  struct Part {        // one demand in one group
    size_t begin = 0;  // of its table in blocks_
    Position first_position = 0;
    int32_t first_block = 0;
    int32_t kept_blocks = 0;  // at the front of the table: the sequence's own, written or not
    int32_t num_blocks = 0;   // of the whole table; those behind kept_blocks are new
  };
  const Part& part(int32_t demand, int32_t group) const {
    return parts_[static_cast<size_t>(demand) * new_blocks_.size() + static_cast<size_t>(group)];
  }

  int32_t block_size_ = 0;
  const void* books_ = nullptr;  // whose plan this is; null when it is not to be run
  uint64_t version_ = 0;         // of the books when planned
  std::vector<KvDemand> demands_;
  std::vector<KvSequence*> sequences_;  // [num_demands]
  std::vector<Part> parts_;             // [num_demands, num_groups]
  std::vector<BlockId> blocks_;
  std::vector<BlockTable> tables_;  // over blocks_
  SharedBlocks shared_;
  std::vector<CellCopy> copies_;
  std::vector<int32_t> new_blocks_;  // [num_groups] taken from the front of the free list
  std::vector<SequenceId> sorted_;   // scratch of the check for duplicates
};

// The KV bookkeeping of one program: a pool of blocks per layer group, and sequences, each a length
// and one block table per group. Integers only.
//
// A step is planned (pure; may fail for want of blocks), run by a backend, then committed (cannot
// fail) or aborted (nothing has changed, also when part of the step has run). For that to be true
// of the bytes too, until commit
//   - no cell that belongs to any sequence's state is written, and
//   - no block that the step gives up is used again.
// So a rewinding demand continues in new blocks, with the kept part of a partial block copied; a
// demand that would write into a block with several owners copies it first.
//
// In a group with a window, a commit gives up the blocks all of whose cells the window has left
// behind: they are free when their last owner has left them. A sequence's first_position in a group
// is the first position whose KV it still holds. It grows at commits, and falls only when the
// sequence becomes empty. So a sequence may be rewound, or cloned, to every length whose next query
// sees nothing before first_position in any group: see can_rewind.
//
// Sequences opened with a key are *indexed*: at every commit their full blocks are put into the
// prefix index under that key, from which open_prefix makes new sequences. Two that hold the same
// tokens under one key hold the same blocks, also when both have computed them: their bytes are the
// same. Blocks that only the index owns count as free wherever blocks are needed.
//
// Invariants: in every group, a sequence of length n has exactly the blocks that hold
// [first_position, n), and first_position <= max(0, n - window + 1); with full history it is 0. A
// block's reference count is the number of tables that name it, and one for the index. An indexed
// sequence holds the very blocks that the nodes of its path name.
// Thread: engine. plan, commit, truncate and close cost O(blocks named by the tables involved).
// Misuse (unknown sequence, gap, stale plan) fails a CHECK.
// Source: ExecuTorch extension/llm/cache, for plan and commit (commit cff6f4dd).
class KvBooks {
 public:
  // kInvalidArgument names block_size, max_sequence_tokens, groups or groups[i].
  static Result<std::unique_ptr<KvBooks>> create(const KvOptions& options);

  int32_t num_groups() const { return static_cast<int32_t>(pools_.size()); }
  int32_t block_size() const { return options_.block_size; }
  const KvOptions& options() const { return options_; }

  // An empty sequence. There is no limit on their number.
  SequenceId open();
  // An empty, indexed one. `key` stands for everything besides tokens that decides KV bytes or
  // keeps users apart: kv_identity, adapter, salt.
  SequenceId open(std::string_view key) { return open_prefix(key, {}, 0); }
  // An indexed sequence that holds the longest prefix of `tokens` the index has under `key`, of at
  // most `cap` tokens; its length says how many. It copies nothing and needs no free block.
  SequenceId open_prefix(std::string_view key, std::span<const int32_t> tokens, Position cap);
  // How long what open_prefix takes would be. O(blocks) of the prefix, its tokens hashed and
  // compared.
  Position longest_prefix(std::string_view key, std::span<const int32_t> tokens,
                          Position cap) const;
  void close(SequenceId sequence);
  // A new sequence that holds [0, upto) of `source`, as far as `source` holds it, indexed if
  // `source` is. It shares all blocks, a partial one included: the first write into that one copies
  // it. Requires: can_rewind(source, upto).
  SequenceId clone(SequenceId source, Position upto);
  // A new sequence of `length` tokens that holds [first_positions[group], length) in blocks of its
  // own, whose bytes the caller fills. The group that has too few blocks, if any: then nothing has
  // changed. Requires: 1 <= length <= max_sequence_tokens, one first position per group, each in
  // [0, first_visible(length, policy)], 0 with full history. It is not indexed.
  std::optional<KvShortage> restore(Position length, std::span<const Position> first_positions,
                                    SequenceId& sequence);
  // Its next append does not copy a partial block that only the index owns besides: that one leaves
  // the index. Requires: can_rewind(sequence, length).
  void truncate(SequenceId sequence, Position length);
  Position length(SequenceId sequence) const;
  BlockTable table(SequenceId sequence, int32_t group) const;

  // Whether the sequence may be made `length` tokens long: 0, or first_rewind to its own length.
  bool can_rewind(SequenceId sequence, Position length) const;
  // The shortest such length but 0. As long as no block has been left behind, it is 0.
  Position first_rewind(SequenceId sequence) const;
  // Blocks that no other sequence holds: what close would free, or leave cached.
  int32_t exclusive_blocks(SequenceId sequence, int32_t group) const;
  // Blocks that no sequence but these holds: what closing them all would free, or leave cached.
  // Each is named once.
  int32_t exclusive_blocks(std::span<const SequenceId> sequences, int32_t group) const;
  // Whether the next append copies the last, partial block of some group, since it has other
  // owners.
  bool shares_last_block(SequenceId sequence) const;

  // At most one demand per sequence; can_rewind(sequence, start), count > 0, start + count <=
  // max_sequence_tokens. plan succeeds exactly when can_admit is true.
  bool can_admit(std::span<const KvDemand> demands) const { return !shortage(demands); }
  // The first group that has too few blocks, if any.
  std::optional<KvShortage> shortage(std::span<const KvDemand> demands) const;
  // Fills `plan` and changes nothing, except that cached blocks are given back when the free ones
  // do not suffice. On false, `plan` is not to be run.
  bool plan(std::span<const KvDemand> demands, KvPlan& plan);

  // Ends a plan that has run. accepted[i] is the new length of demand i's sequence, in [start,
  // start + count], or kRejected. Blocks wholly beyond it are given back, and those that a window
  // which ends there has left behind.
  void commit(KvPlan& plan, std::span<const Position> accepted) { commit(plan, accepted, {}); }
  // `rows` has an entry for each demand, or none if no demand is of an indexed sequence.
  void commit(KvPlan& plan, std::span<const Position> accepted, std::span<const KvRows> rows);
  // Ends a plan that has run in part, or not at all.
  void abort(KvPlan& plan);

  KvGroupUsage usage(int32_t group) const;
  const PrefixIndex& prefix_index() const { return index_; }
  int64_t num_sequences() const { return static_cast<int64_t>(sequences_.size()); }
  int64_t copied_blocks() const { return copied_blocks_; }  // by committed steps
  std::span<const BlockId> free_blocks(int32_t group) const { return pool(group).free_blocks(); }

  // O(all blocks).
  void check_invariants() const;

 private:
  explicit KvBooks(const KvOptions& options);

  const BlockPool& pool(int32_t group) const { return pools_[static_cast<size_t>(group)]; }
  const KvSequence& find(SequenceId sequence) const;
  KvSequence& find(SequenceId sequence) {
    return const_cast<KvSequence&>(std::as_const(*this).find(sequence));
  }
  SequenceId insert(KvSequence sequence);
  void start_path(std::string_view key, KvSequence& sequence);
  void follow(KvSequence& sequence, std::span<const PrefixNode> path, Position length);
  void shorten_path(KvSequence& sequence, Position length);
  void add_to_path(std::span<const int32_t> tokens, KvSequence& sequence);
  void index_rows(const KvDemand& demand, Position accepted, const KvRows& rows,
                  KvSequence& sequence);
  void index_block(int32_t index, Position length, KvSequence& sequence);
  void tell_windows(bool mark, KvSequence& sequence);
  int32_t first_indexed(int32_t group, Position length) const;
  KvSequence make_sequence() const;
  int32_t blocks_for(Position length) const;
  int32_t num_holders(BlockId block, int32_t group) const;
  Position first_rewind(const KvSequence& sequence) const;
  bool can_rewind(const KvSequence& sequence, Position length) const;
  KvPlan::Part make_part(const KvSequence& sequence, const KvDemand& demand, int32_t group) const;
  void check_demand(const KvSequence& sequence, const KvDemand& demand) const;
  void plan_part(const KvSequence& sequence, const KvDemand& demand, int32_t group,
                 KvPlan& plan) const;
  void commit_part(const KvPlan::Part& part, std::span<const BlockId> blocks, Position accepted,
                   int32_t group, KvSequence::Table& table);
  void leave_behind(int32_t group, Position length, KvSequence::Table& table);
  void release(int32_t group, std::span<const BlockId> blocks);
  void check_path(const KvSequence& sequence) const;
  void check_current(const KvPlan& plan) const;
  void note_peak(int32_t group, int32_t extra_blocks);

  KvOptions options_;
  std::vector<WindowPolicy> policies_;  // [num_groups]
  std::vector<BlockPool> pools_;        // [num_groups]
  PrefixIndex index_;                   // over pools_, which does not move
  std::vector<int32_t> peaks_;          // [num_groups]
  std::unordered_map<SequenceId, std::unique_ptr<KvSequence>> sequences_;
  uint64_t next_sequence_ = 1;
  uint64_t version_ = 0;  // counts changes, so that a stale plan is found out
  int64_t copied_blocks_ = 0;
  mutable std::vector<PrefixNode> found_;  // scratch of lookups
};

}  // namespace chorus
