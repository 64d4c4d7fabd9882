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

AttentionTiles::AttentionTiles(const TileShape& shape, int32_t max_rows)
    : shape_(shape),
      together_(std::min(shape.heads, kMaxTileQueries)),
      most_rows_(kMaxTileQueries / together_) {
  parts_.reserve(static_cast<size_t>(max_rows));
  const int32_t splits = (shape.heads + together_ - 1) / together_;
  tiles_.reserve(static_cast<size_t>(max_rows) * static_cast<size_t>(splits));
}

void AttentionTiles::cut(const Step& step, int32_t row_begin, int32_t row_end, int num_threads) {
  parts_.clear();
  tiles_.clear();
  cost_ = 0;
  open_begin_ = 0;
  most_joined_ = most_joined(step, row_begin, row_end, num_threads);
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
}

// How many rows of different sequences to put into a tile: as many as it takes, unless that leaves
// so few tasks that threads wait for each other.
int32_t AttentionTiles::most_joined(const Step& step, int32_t row_begin, int32_t row_end,
                                    int num_threads) const {
  constexpr int32_t kTasksPerThread = 4;
  if (num_threads == 1 || step.order.empty()) return most_rows_;
  int32_t few = 0;  // rows of sequences with less than a tile of them
  for (const StepSequence& rows : step.sequences) {
    const int32_t count =
        std::min(row_end, rows.row_begin + rows.row_count) - std::max(row_begin, rows.row_begin);
    if (0 < count && count < most_rows_) few += count;
  }
  return std::clamp(few * shape_.kv_heads / (kTasksPerThread * num_threads), 1, most_rows_);
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
  const auto end = static_cast<int32_t>(parts_.size());
  for (const TilePart& part : std::span(parts_).subspan(static_cast<size_t>(open_begin_))) {
    const auto row = static_cast<size_t>(part.row_begin);
    const Position last = step.positions[row + static_cast<size_t>(part.row_count) - 1];
    const Position first = first_visible(step.positions[row], shape_.window);
    cost += int64_t{last - first + 33} * part.row_count;
  }
  for (int32_t head = 0; head < shape_.heads; head += together_) {
    const int32_t count = std::min(together_, shape_.heads - head);
    tiles_.push_back({open_begin_, end - open_begin_, head, count, cost * count});
    cost_ += cost * count;
  }
  open_begin_ = end;
  open_rows_ = 0;
}

}  // namespace chorus::cpu
