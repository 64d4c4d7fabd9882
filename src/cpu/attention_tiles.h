// How the attention of a slice is cut into tiles, and the tiles dealt to threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"
#include "cpu/kernels/kernels.h"
#include "exec/module.h"

namespace chorus::cpu {

// Consecutive tokens of one sequence and query heads of one KV head.
struct AttentionTile {
  int32_t sequence = 0;
  int32_t row_begin = 0;  // rows of the step
  int32_t row_count = 0;
  int32_t head_begin = 0;  // query heads, counted from the KV head's first
  int32_t head_count = 0;
  int64_t cost = 0;  // cells times queries, about
};

inline int32_t first_visible(Position position, int32_t window) {
  return window == 0 ? 0 : std::max(0, position - window + 1);
}

// Calls f(tile) for the tiles of the rows [row_begin, row_end) of a step in their order; padded
// rows belong to no tile. `heads` is the number of query heads of one KV head.
template <typename F>
void for_tiles(const Step& step, int32_t row_begin, int32_t row_end, int32_t group, int32_t heads,
               int32_t window, F f) {
  const int32_t together = std::min(heads, kMaxTileQueries);
  const int32_t tokens = kMaxTileQueries / together;
  const auto is_padded = [&](int32_t row) {
    return step.cells[static_cast<size_t>(row) * static_cast<size_t>(step.num_groups) +
                      static_cast<size_t>(group)] == kNoCell;
  };
  for (int32_t row = row_begin; row < row_end;) {
    if (is_padded(row)) {
      ++row;
      continue;
    }
    AttentionTile tile;
    tile.sequence = step.row_sequence[static_cast<size_t>(row)];
    tile.row_begin = row;
    for (; row < row_end && tile.row_count < tokens && !is_padded(row) &&
           step.row_sequence[static_cast<size_t>(row)] == tile.sequence;
         ++row) {
      ++tile.row_count;
    }
    const Position last = step.positions[static_cast<size_t>(row - 1)];
    const Position first =
        first_visible(step.positions[static_cast<size_t>(tile.row_begin)], window);
    for (int32_t head = 0; head < heads; head += together) {
      tile.head_begin = head;
      tile.head_count = std::min(together, heads - head);
      tile.cost = int64_t{last - first + 33} * tile.row_count * tile.head_count;
      f(tile);
    }
  }
}

// Calls f(KV head, tile) for one thread's tasks: every tile of every KV head, heads outermost so
// that sequences which share blocks read them while they are cached, cut into pieces of about equal
// cost.
template <typename F>
void for_attention_tasks(const Step& step, int32_t row_begin, int32_t row_end, int32_t group,
                         int32_t kv_heads, int32_t heads, int32_t window, int num_threads,
                         int thread, F f) {
  int64_t cost = 0;
  for_tiles(step, row_begin, row_end, group, heads, window,
            [&](const AttentionTile& tile) { cost += tile.cost; });
  const Range mine = share_of(cost * kv_heads, num_threads, thread);
  int64_t at = 0;
  for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
    for_tiles(step, row_begin, row_end, group, heads, window, [&](const AttentionTile& tile) {
      // A task belongs to the thread in whose share its middle lies.
      const int64_t middle = at + tile.cost / 2;
      if (mine.begin <= middle && middle < mine.end) f(kv_head, tile);
      at += tile.cost;
    });
  }
}

}  // namespace chorus::cpu
