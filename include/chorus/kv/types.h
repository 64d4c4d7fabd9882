// The words in which KV bookkeeping speaks: ids, layer groups, demands. Integers only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace chorus {

// A token history inside `kv`: a length and one block table per layer group. Never reused.
enum class SequenceId : uint64_t {};

// A block of one layer group: the index of a run of `block_size` cells in that group's pool.
using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;

// The place of one token's keys and values in a layer group: block * block_size + position %
// block_size.
using CellId = int32_t;
inline constexpr CellId kNoCell = -1;  // a padded row: nothing is written

// The position of a token in its sequence, from 0. 2^31 - 1 is a real bound and is checked.
using Position = int32_t;

// The attention policy that the layers of one group share. A window includes the query itself: key
// k is visible to query q exactly when 0 <= q - k < window.
struct WindowPolicy {
  int32_t window = 0;  // 0: full history
  friend bool operator==(const WindowPolicy&, const WindowPolicy&) = default;
};

// The first key that a query at `position` sees.
constexpr Position first_visible(Position position, WindowPolicy policy) {
  return policy.window == 0 ? 0 : std::max<Position>(0, position - policy.window + 1);
}

// Where one sequence's cells of one layer group lie. Position p is in
// blocks[p / block_size - first_block], at place p % block_size.
struct BlockTable {
  Position first_position = 0;      // the first position whose KV is held
  int32_t first_block = 0;          // first_position / block_size
  std::span<const BlockId> blocks;  // in order of position; memory of whoever made the table
};

// Positions [begin, end) of a layer group whose KV two sequences hold in the same cells. It ends at
// the end of a block.
struct SharedRange {
  Position begin = 0;
  Position end = 0;
  bool is_empty() const { return begin >= end; }
  friend bool operator==(const SharedRange&, const SharedRange&) = default;
};

// Whether a block size is one that backends offer: a cell, or units of 16 cells.
constexpr bool is_block_size(int32_t cells) { return cells == 1 || (cells > 0 && cells % 16 == 0); }

// How cells are dealt to sessions. Every result has the same bits in both.
enum class KvLayout : uint8_t {
  kPaged,     // blocks of 1, 16, 32 or 64 cells, shared by whoever holds the same tokens
  kSequence,  // one block per session and group, as large as the longest session: see
              // sequence_block_size
};

// The block size of a kSequence layout. Bytes become resident where they are first written. A clone
// holds its source's block until either of them writes, which then copies it; no block is ever full
// before its session is, so there is nothing for a prefix index; windows leave nothing behind.
constexpr int32_t sequence_block_size(int32_t max_sequence_tokens) {
  return (max_sequence_tokens + 15) / 16 * 16;
}

// The most blocks that `count` consecutive positions can touch. Requires: count >= 1.
constexpr int64_t touched_blocks(int64_t count, int32_t block_size) {
  return (count - 1 + block_size - 1) / block_size + 1;
}

// The blocks with which a group can always run a sequence that is alone in the pool, in steps of at
// most max_step_tokens (rewinds truncated first). With a window: what one step may touch, and a
// copy of a partial block that others hold as well.
constexpr int64_t smallest_pool(WindowPolicy policy, int32_t block_size,
                                int32_t max_sequence_tokens, int32_t max_step_tokens) {
  const int64_t whole = (int64_t{max_sequence_tokens} + block_size - 1) / block_size;
  if (policy.window == 0) return whole;
  const int64_t seen = int64_t{policy.window} + max_step_tokens - 1;
  return std::min(whole, touched_blocks(seen, block_size)) + 1;
}

// "Copy the first `num_cells` cells of block `from` to block `to` in layer group `group`", for all
// layers of the group, before any row of the step is run.
struct CellCopy {
  int32_t group = 0;
  BlockId from = kNoBlock;
  BlockId to = kNoBlock;
  int32_t num_cells = 0;
  friend bool operator==(const CellCopy&, const CellCopy&) = default;
};

}  // namespace chorus
