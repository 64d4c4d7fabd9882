#include "cpu/attention_tiles.h"

#include <algorithm>
#include <limits>

namespace chorus::cpu {

namespace {

constexpr SharedRange kEverything{0, std::numeric_limits<Position>::max()};

SharedRange both(const SharedRange& a, const SharedRange& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

SharedRange whole_chunks(const SharedRange& range) {
  const SharedRange whole{(range.begin + kChunk - 1) / kChunk * kChunk,
                          range.end / kChunk * kChunk};
  return whole.is_empty() ? SharedRange{} : whole;
}

}  // namespace

AttentionTiles::AttentionTiles(const TileShape& shape, int32_t max_rows, int num_threads,
                               int64_t max_partials)
    : shape_(shape),
      num_threads_(num_threads),
      max_partials_(max_partials),
      together_(std::min(shape.heads, kMaxTileQueries)),
      most_rows_(kMaxTileQueries / together_) {
  parts_.reserve(static_cast<size_t>(max_rows));
  const int32_t splits = (shape.heads + together_ - 1) / together_;
  tiles_.reserve(static_cast<size_t>(max_rows) * static_cast<size_t>(splits));
  // Each border between shares splits at most one tile, and makes a piece more of it.
  splits_.reserve(static_cast<size_t>(num_threads));
  pieces_.reserve(2 * static_cast<size_t>(num_threads));
}

void AttentionTiles::cut(const Step& step, int32_t row_begin, int32_t row_end) {
  parts_.clear();
  tiles_.clear();
  cost_ = 0;
  open_begin_ = 0;
  most_joined_ = most_joined(step, row_begin, row_end);
  const auto num_groups = static_cast<size_t>(step.num_groups);
  SharedRange with_last = kEverything;  // what the sequence at hand shares with the last part
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.order.empty()) {
      with_last = {};
    } else {
      with_last = both(with_last, step.shared[i * num_groups + static_cast<size_t>(shape_.group)]);
    }
    const auto sequence = step.order.empty() ? static_cast<int32_t>(i) : step.order[i];
    const StepSequence& rows = step.sequences[static_cast<size_t>(sequence)];
    const int32_t begin = std::max(row_begin, rows.row_begin);
    const int32_t end = std::min(row_end, rows.row_begin + rows.row_count);
    if (begin >= end) continue;
    add_rows(step, {sequence, begin, end - begin, whole_chunks(with_last)});
    with_last = kEverything;
  }
  finish_tile(step);
  split_tiles();
}

// How many rows of different sequences to put into a tile: as many as it takes, unless that leaves
// so few tasks that threads wait for each other.
int32_t AttentionTiles::most_joined(const Step& step, int32_t row_begin, int32_t row_end) const {
  constexpr int32_t kTasksPerThread = 4;
  if (num_threads_ == 1 || step.order.empty()) return most_rows_;
  int32_t few = 0;  // rows of sequences with less than a tile of them
  for (const StepSequence& rows : step.sequences) {
    const int32_t count =
        std::min(row_end, rows.row_begin + rows.row_count) - std::max(row_begin, rows.row_begin);
    if (0 < count && count < most_rows_) few += count;
  }
  return std::clamp(few * shape_.kv_heads / (kTasksPerThread * num_threads_), 1, most_rows_);
}

// Of more than fill a tile, the last ones may be joined by rows of the next sequence.
void AttentionTiles::add_rows(const Step& step, TilePart rows) {
  const bool joins =
      open_rows_ > 0 && open_rows_ + rows.row_count <= most_joined_ && !rows.shared.is_empty();
  if (!joins) {
    finish_tile(step);
    rows.shared = {};
  }
  while (rows.row_count > 0) {
    TilePart part = rows;
    part.row_count = std::min(rows.row_count, most_rows_);
    rows.row_begin += part.row_count;
    rows.row_count -= part.row_count;
    parts_.push_back(part);
    open_rows_ += part.row_count;
    if (rows.row_count > 0) finish_tile(step);
  }
}

void AttentionTiles::finish_tile(const Step& step) {
  if (open_rows_ == 0) return;
  int64_t cost = 0;  // of one head
  Position tile_first = std::numeric_limits<Position>::max();
  Position tile_last = 0;
  const auto end = static_cast<int32_t>(parts_.size());
  for (const TilePart& part : std::span(parts_).subspan(static_cast<size_t>(open_begin_))) {
    const auto row = static_cast<size_t>(part.row_begin);
    const Position last = step.positions[row + static_cast<size_t>(part.row_count) - 1];
    const Position first = first_visible(step.positions[row], shape_.window);
    cost += int64_t{last - first + 33} * part.row_count;
    tile_first = std::min(tile_first, first);
    tile_last = std::max(tile_last, last);
  }
  for (int32_t head = 0; head < shape_.heads; head += together_) {
    const int32_t count = std::min(together_, shape_.heads - head);
    tiles_.push_back({open_begin_, end - open_begin_, head, count, open_rows_, cost * count,
                      tile_first, tile_last});
    cost_ += cost * count;
  }
  open_begin_ = end;
  open_rows_ = 0;
}

// Looks at each border between two threads' shares for the tile that lies across it.
void AttentionTiles::split_tiles() {
  splits_.clear();
  pieces_.clear();
  num_partials_ = 0;
  if (max_partials_ == 0 || num_threads_ == 1) return;
  int border = 1;
  int64_t at = 0;
  for (int32_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
    for (size_t i = 0; i < tiles_.size(); ++i) {
      const int64_t end = at + tiles_[i].cost;
      bool across = false;
      for (; border < num_threads_; ++border) {
        const int64_t begin = share_of(cost_ * shape_.kv_heads, num_threads_, border).begin;
        if (begin >= end) break;
        across = across || begin > at;
      }
      if (across) split(kv_head, static_cast<int32_t>(i), at);
      at = end;
    }
  }
}

// A chunk belongs to the thread in whose share its middle lies, as far as cost is even over the
// tile's positions.
void AttentionTiles::split(int32_t kv_head, int32_t tile_index, int64_t at) {
  const AttentionTile& tile = tiles_[static_cast<size_t>(tile_index)];
  AttentionSplit split{kv_head, tile_index,   tile.first / kChunk, tile.last / kChunk + 1,
                       0,       num_partials_};
  const int64_t partials =
      int64_t{split.chunk_end - split.chunk_begin} * tile.num_rows * tile.head_count;
  if (num_partials_ + partials > max_partials_) return;
  const auto index = static_cast<int32_t>(splits_.size());
  const size_t first_piece = pieces_.size();
  int thread = 0;
  for (int32_t chunk = split.chunk_begin; chunk < split.chunk_end; ++chunk) {
    const Position begin = std::max(tile.first, chunk * kChunk);
    const Position end = std::min(tile.last + 1, (chunk + 1) * kChunk);
    const int64_t middle = at + tile.cost * (int64_t{begin} + end - 2 * int64_t{tile.first}) /
                                    (2 * (int64_t{tile.last} + 1 - tile.first));
    while (middle >= share_of(cost_ * shape_.kv_heads, num_threads_, thread).end) ++thread;
    if (pieces_.size() == first_piece || pieces_.back().thread != thread) {
      pieces_.push_back({index, thread, chunk, chunk});
    }
    pieces_.back().chunk_end = chunk + 1;
  }
  split.num_pieces = static_cast<int32_t>(pieces_.size() - first_piece);
  if (split.num_pieces == 1) {
    pieces_.pop_back();
    return;
  }
  num_partials_ += partials;
  splits_.push_back(split);
}

}  // namespace chorus::cpu
