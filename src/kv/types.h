// The words in which KV bookkeeping speaks: ids, layer groups, demands. Integers only.
#pragma once

#include <cstdint>

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

// Whether a block size is one of the offered ones: 1, 16, 32 or 64 cells.
constexpr bool is_block_size(int32_t cells) {
  return cells == 1 || cells == 16 || cells == 32 || cells == 64;
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
