// How the attention of a slice is cut into tiles, and the tiles dealt to threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/kernels/kernels.h"
#include "exec/module.h"

namespace chorus::cpu {

// Consecutive rows of one sequence in a tile.
struct TilePart {
  int32_t sequence = 0;
  int32_t row_begin = 0;  // rows of the step
  int32_t row_count = 0;
  SharedRange shared;  // whole chunks that lie in the same blocks as those of the part before
};

// Query heads of one KV head for the rows of some parts.
struct AttentionTile {
  int32_t part_begin = 0;  // into AttentionTiles::parts
  int32_t part_count = 0;
  int32_t head_begin = 0;  // query heads, counted from the KV head's first
  int32_t head_count = 0;
  int32_t num_rows = 0;
  int64_t cost = 0;    // cells times queries, about
  Position first = 0;  // that its queries see
  Position last = 0;
};

// A tile of one KV head whose chunks several threads compute; their partial results are merged when
// all are there.
struct AttentionSplit {
  int32_t kv_head = 0;
  int32_t tile = 0;
  int32_t chunk_begin = 0;  // all chunks of the tile
  int32_t chunk_end = 0;
  int32_t num_pieces = 0;
  int64_t partials = 0;  // where its partial results begin, counted in those
};

// What one thread computes of a split tile.
struct AttentionPiece {
  int32_t split = 0;
  int thread = 0;
  int32_t chunk_begin = 0;
  int32_t chunk_end = 0;
};

// Layers whose tiles are the same.
struct TileShape {
  int32_t group = 0;
  int32_t kv_heads = 0;
  int32_t heads = 0;   // query heads of one KV head
  int32_t window = 0;  // of the group
  friend bool operator==(const TileShape&, const TileShape&) = default;
};

inline int32_t first_visible(Position position, int32_t window) {
  return chorus::first_visible(position, WindowPolicy{window});
}

// The tiles of one slice for layers of one shape, and which thread computes them. A tile has
// queries of one sequence; or those of several, where they share whole chunks and would fill a part
// of a tile only: then the kernel reads what they share once, and has enough queries at a time to
// be fast. A tile that lies across the border between two threads' shares is split there, between
// chunks, so that one long sequence keeps all threads busy. Allocates at construction only.
// Thread: cut() by one, then readable by all.
class AttentionTiles {
 public:
  // max_partials: how many partial results (of a query and a chunk) there is room for; a tile that
  // finds none left is not split.
  AttentionTiles(const TileShape& shape, int32_t max_rows, int num_threads, int64_t max_partials);

  const TileShape& shape() const { return shape_; }

  // The rows [row_begin, row_end) of a step, of which those of no sequence (padding) have no tile.
  void cut(const Step& step, int32_t row_begin, int32_t row_end);

  std::span<const AttentionTile> tiles() const { return tiles_; }
  std::span<const TilePart> parts(const AttentionTile& tile) const {
    return std::span(parts_).subspan(static_cast<size_t>(tile.part_begin),
                                     static_cast<size_t>(tile.part_count));
  }
  std::span<const AttentionSplit> splits() const { return splits_; }

  // Calls f(KV head, tile, piece) for one thread's tasks, piece null where they are whole tiles:
  // every tile of every KV head, heads outermost so that tiles which share blocks read them while
  // they are cached, cut into shares of about equal cost.
  template <typename F>
  void for_tasks(int thread, F f) const {
    const Range mine = share_of(cost_ * shape_.kv_heads, num_threads_, thread);
    int64_t at = 0;
    size_t piece = 0;
    for (int32_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
      for (size_t i = 0; i < tiles_.size(); ++i) {
        const AttentionTile& tile = tiles_[i];
        // A whole task belongs to the thread in whose share its middle lies.
        const int64_t middle = at + tile.cost / 2;
        at += tile.cost;
        bool is_split = false;
        for (; piece < pieces_.size(); ++piece) {
          const AttentionSplit& split = splits_[static_cast<size_t>(pieces_[piece].split)];
          if (split.kv_head != kv_head || static_cast<size_t>(split.tile) != i) break;
          if (pieces_[piece].thread == thread) f(kv_head, tile, &pieces_[piece]);
          is_split = true;
        }
        if (!is_split && mine.begin <= middle && middle < mine.end) f(kv_head, tile, nullptr);
      }
    }
  }

 private:
  int32_t most_joined(const Step& step, int32_t row_begin, int32_t row_end) const;
  void add_rows(const Step& step, TilePart rows);
  void finish_tile(const Step& step);
  void split_tiles();
  void split(int32_t kv_head, int32_t tile, int64_t at);

  TileShape shape_;
  int num_threads_;
  int64_t max_partials_;
  int32_t together_;   // query heads of a tile
  int32_t most_rows_;  // of a tile
  int32_t most_joined_ = 0;
  std::vector<TilePart> parts_;
  std::vector<AttentionTile> tiles_;
  int32_t open_begin_ = 0;  // parts from here on belong to no tile yet
  int32_t open_rows_ = 0;   // of those
  int64_t cost_ = 0;        // of all tiles
  std::vector<AttentionSplit> splits_;
  std::vector<AttentionPiece> pieces_;  // in the order of their splits
  int64_t num_partials_ = 0;
};

}  // namespace chorus::cpu
