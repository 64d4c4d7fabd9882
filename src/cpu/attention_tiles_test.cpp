#include "cpu/attention_tiles.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"

namespace chorus::cpu {
namespace {

// Decoding sequences at position 1100, in order, each sharing `shared` with the one before.
Step decode_step(int32_t sequences, SharedRange shared) {
  Step step;
  step.num_groups = 1;
  for (int32_t i = 0; i < sequences; ++i) {
    step.sequences.push_back({i, 1, 1100});
    step.tokens.push_back(0);
    step.row_sequence.push_back(i);
    step.positions.push_back(1100);
    step.cells.push_back(i);
    step.order.push_back(i);
    step.shared.push_back(i == 0 ? SharedRange{} : shared);
  }
  return step;
}

std::vector<int32_t> parts_of_tiles(const AttentionTiles& tiles) {
  std::vector<int32_t> counts;
  for (const AttentionTile& tile : tiles.tiles()) counts.push_back(tile.part_count);
  return counts;
}

TEST(AttentionTiles, JoinSequencesThatShareWholeChunks) {
  using Counts = std::vector<int32_t>;
  AttentionTiles tiles({0, 3, 3, 0}, 64);
  tiles.cut(decode_step(6, {0, 1024}), 0, 6, 1);
  EXPECT_EQ(parts_of_tiles(tiles), (Counts{4, 2}));
  const auto parts = tiles.parts(tiles.tiles()[0]);
  EXPECT_EQ(parts[0].shared, (SharedRange{}));
  EXPECT_EQ(parts[1].shared, (SharedRange{0, 1024}));
  tiles.cut(decode_step(6, {16, 1040}), 0, 6, 1);
  EXPECT_EQ(tiles.parts(tiles.tiles()[0])[1].shared, (SharedRange{256, 1024}));
  tiles.cut(decode_step(6, {16, 496}), 0, 6, 1);
  EXPECT_EQ(parts_of_tiles(tiles), (Counts{1, 1, 1, 1, 1, 1}));
  tiles.cut(decode_step(6, {}), 0, 6, 1);
  EXPECT_EQ(parts_of_tiles(tiles), (Counts{1, 1, 1, 1, 1, 1}));
  // A slice that leaves out a sequence: what its neighbours share goes through it.
  Step step = decode_step(3, {0, 1024});
  step.order = {0, 2, 1};
  step.shared[1].end = 512;
  tiles.cut(step, 0, 2, 1);
  ASSERT_EQ(parts_of_tiles(tiles), (Counts{2}));
  EXPECT_EQ(tiles.parts(tiles.tiles()[0])[1].shared, (SharedRange{0, 512}));
}

TEST(AttentionTiles, LeaveWorkForEveryThread) {
  AttentionTiles tiles({0, 3, 3, 0}, 64);
  const Step step = decode_step(8, {0, 1024});
  tiles.cut(step, 0, 8, 1);
  EXPECT_EQ(tiles.tiles().size(), 2u);
  tiles.cut(step, 0, 8, 2);
  EXPECT_EQ(tiles.tiles().size(), 3u);
  tiles.cut(step, 0, 8, 16);
  EXPECT_EQ(tiles.tiles().size(), 8u);
}

TEST(AttentionTiles, WithManyHeadsHaveOneSequenceEach) {
  AttentionTiles tiles({0, 1, 7, 0}, 64);
  tiles.cut(decode_step(6, {0, 1024}), 0, 6, 1);
  EXPECT_EQ(tiles.tiles().size(), 6u);
  AttentionTiles split({0, 1, 25, 0}, 64);
  split.cut(decode_step(2, {0, 1024}), 0, 2, 1);
  EXPECT_EQ(split.tiles().size(), 6u);
}

// Every query of a slice is in one tile, which fits the kernel; tasks cover the tiles of all heads.
TEST(AttentionTiles, CoverEveryQueryOnce) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    Step step;
    step.num_groups = 1;
    const auto sequences = static_cast<int32_t>(random.between(1, 12));
    for (int32_t i = 0; i < sequences; ++i) {
      const auto rows = static_cast<int32_t>(random.between(1, random.below(3) == 0 ? 30 : 2));
      const auto start = static_cast<Position>(random.between(0, 2000));
      step.sequences.push_back({step.num_rows(), rows, start});
      for (int32_t row = 0; row < rows; ++row) {
        step.tokens.push_back(0);
        step.row_sequence.push_back(i);
        step.positions.push_back(start + row);
      }
    }
    if (random.below(4) != 0) {
      for (int32_t i = 0; i < sequences; ++i) step.order.push_back(i);
      for (size_t i = step.order.size(); i > 1; --i) {
        std::swap(step.order[i - 1], step.order[random.below(i)]);
      }
      for (int32_t i = 0; i < sequences; ++i) {
        SharedRange range;
        if (i > 0) {
          range.begin = static_cast<Position>(random.below(300));
          range.end = range.begin + static_cast<Position>(random.below(900));
        }
        step.shared.push_back(range);
      }
    }
    const auto heads = static_cast<int32_t>(random.between(1, 20));
    const auto kv_heads = static_cast<int32_t>(random.between(1, 4));
    const int32_t begin = static_cast<int32_t>(random.below(step.tokens.size()));
    const auto end = static_cast<int32_t>(random.between(begin + 1, step.num_rows()));
    const auto threads = static_cast<int>(random.between(1, 5));
    AttentionTiles tiles({0, kv_heads, heads, 0}, step.num_rows());
    tiles.cut(step, begin, end, threads);
    std::map<std::pair<int32_t, int32_t>, int> seen;  // row, head
    for (int thread = 0; thread < threads; ++thread) {
      tiles.for_tasks(threads, thread, [&](int32_t kv_head, const AttentionTile& tile) {
        int32_t rows = 0;
        for (const TilePart& part : tiles.parts(tile)) {
          const StepSequence& sequence = step.sequences[static_cast<size_t>(part.sequence)];
          EXPECT_GE(part.row_begin, std::max(begin, sequence.row_begin));
          EXPECT_LE(part.row_begin + part.row_count,
                    std::min(end, sequence.row_begin + sequence.row_count));
          rows += part.row_count;
          for (int32_t row = 0; row < part.row_count; ++row) {
            for (int32_t head = 0; head < tile.head_count; ++head) {
              ++seen[{part.row_begin + row, kv_head * heads + tile.head_begin + head}];
            }
          }
        }
        EXPECT_LE(rows * tile.head_count, kMaxTileQueries);
      });
    }
    EXPECT_EQ(std::ssize(seen), int64_t{end - begin} * heads * kv_heads);
    for (const auto& [query, count] : seen) ASSERT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace chorus::cpu
