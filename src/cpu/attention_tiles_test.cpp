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
  AttentionTiles tiles({0, 3, 3, 0}, 64, 1, 0);
  tiles.cut(decode_step(6, {0, 1024}), 0, 6);
  EXPECT_EQ(parts_of_tiles(tiles), (Counts{4, 2}));
  const auto parts = tiles.parts(tiles.tiles()[0]);
  EXPECT_EQ(parts[0].shared, (SharedRange{}));
  EXPECT_EQ(parts[1].shared, (SharedRange{0, 1024}));
  tiles.cut(decode_step(6, {16, 1040}), 0, 6);
  EXPECT_EQ(tiles.parts(tiles.tiles()[0])[1].shared, (SharedRange{256, 1024}));
  tiles.cut(decode_step(6, {16, 496}), 0, 6);
  EXPECT_EQ(parts_of_tiles(tiles), (Counts{1, 1, 1, 1, 1, 1}));
  tiles.cut(decode_step(6, {}), 0, 6);
  EXPECT_EQ(parts_of_tiles(tiles), (Counts{1, 1, 1, 1, 1, 1}));
  // A slice that leaves out a sequence: what its neighbours share goes through it.
  Step step = decode_step(3, {0, 1024});
  step.order = {0, 2, 1};
  step.shared[1].end = 512;
  tiles.cut(step, 0, 2);
  ASSERT_EQ(parts_of_tiles(tiles), (Counts{2}));
  EXPECT_EQ(tiles.parts(tiles.tiles()[0])[1].shared, (SharedRange{0, 512}));
}

TEST(AttentionTiles, LeaveWorkForEveryThread) {
  const Step step = decode_step(8, {0, 1024});
  for (const auto& [threads, count] : std::map<int, size_t>{{1, 2}, {2, 3}, {16, 8}}) {
    AttentionTiles tiles({0, 3, 3, 0}, 64, threads, 0);
    tiles.cut(step, 0, 8);
    EXPECT_EQ(tiles.tiles().size(), count) << threads << " threads";
  }
}

TEST(AttentionTiles, WithManyHeadsHaveOneSequenceEach) {
  AttentionTiles tiles({0, 1, 7, 0}, 64, 1, 0);
  tiles.cut(decode_step(6, {0, 1024}), 0, 6);
  EXPECT_EQ(tiles.tiles().size(), 6u);
  AttentionTiles split({0, 1, 25, 0}, 64, 1, 0);
  split.cut(decode_step(2, {0, 1024}), 0, 2);
  EXPECT_EQ(split.tiles().size(), 6u);
}

// What a thread is given of a step: chunks times queries.
std::vector<int64_t> work_of_threads(const AttentionTiles& tiles, int threads) {
  std::vector<int64_t> work;
  for (int thread = 0; thread < threads; ++thread) {
    work.push_back(0);
    tiles.for_tasks(thread, [&](int32_t, const AttentionTile& tile, const AttentionPiece* piece) {
      const int64_t chunks = piece == nullptr ? tile.last / kChunk + 1 - tile.first / kChunk
                                              : piece->chunk_end - piece->chunk_begin;
      work.back() += chunks * tile.num_rows * tile.head_count;
    });
  }
  return work;
}

TEST(AttentionTiles, SplitALongSequenceBetweenThreads) {
  using Work = std::vector<int64_t>;
  Step step = decode_step(1, {});
  step.sequences[0].start = step.positions[0] = 8191;  // 32 chunks
  AttentionTiles two({0, 3, 3, 0}, 64, 2, 1000);
  two.cut(step, 0, 1);
  EXPECT_EQ(work_of_threads(two, 2), (Work{48 * 3, 48 * 3}));
  ASSERT_EQ(two.splits().size(), 1u);
  EXPECT_EQ(two.splits()[0].kv_head, 1);
  AttentionTiles five({0, 1, 4, 0}, 64, 5, 1000);
  five.cut(step, 0, 1);
  const Work work = work_of_threads(five, 5);
  EXPECT_GE(*std::min_element(work.begin(), work.end()), 6 * 4);
  ASSERT_EQ(five.splits().size(), 1u);
  EXPECT_EQ(five.splits()[0].num_pieces, 5);
  AttentionTiles crowded({0, 3, 3, 0}, 64, 2, 95);  // it takes 96
  crowded.cut(step, 0, 1);
  EXPECT_EQ(work_of_threads(crowded, 2), (Work{32 * 3, 64 * 3}));
  AttentionTiles windowed({0, 1, 4, 300}, 64, 2, 1000);
  windowed.cut(step, 0, 1);
  EXPECT_EQ(windowed.splits()[0].chunk_begin, (8191 - 299) / kChunk);
  EXPECT_EQ(work_of_threads(windowed, 2), (Work{4, 4}));
  step.positions[0] = step.sequences[0].start = 255;
  two.cut(step, 0, 1);
  EXPECT_TRUE(two.splits().empty());
}

// Every query of a slice is in one tile, which fits the kernel; tasks cover the tiles of all heads,
// and pieces all chunks of a tile that is split.
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
    const int64_t room = random.below(3) == 0 ? random.between(0, 100) : 4096;
    AttentionTiles tiles({0, kv_heads, heads, 0}, step.num_rows(), threads, room);
    tiles.cut(step, begin, end);
    std::map<std::pair<int32_t, int32_t>, int> seen;  // row, head
    std::vector<int32_t> next_chunk;                  // of each split
    std::vector<int32_t> pieces(tiles.splits().size());
    for (const AttentionSplit& split : tiles.splits()) next_chunk.push_back(split.chunk_begin);
    for (int thread = 0; thread < threads; ++thread) {
      tiles.for_tasks(
          thread, [&](int32_t kv_head, const AttentionTile& tile, const AttentionPiece* piece) {
            if (piece != nullptr) {
              const auto split = static_cast<size_t>(piece->split);
              EXPECT_EQ(piece->chunk_begin, next_chunk[split]);
              EXPECT_LT(piece->chunk_begin, piece->chunk_end);
              next_chunk[split] = piece->chunk_end;
              if (++pieces[split] > 1) return;
            }
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
    int64_t partials = 0;
    for (size_t i = 0; i < tiles.splits().size(); ++i) {
      const AttentionSplit& split = tiles.splits()[i];
      const AttentionTile& tile = tiles.tiles()[static_cast<size_t>(split.tile)];
      EXPECT_EQ(split.chunk_begin, tile.first / kChunk);
      EXPECT_EQ(split.chunk_end, tile.last / kChunk + 1);
      EXPECT_EQ(next_chunk[i], split.chunk_end);
      EXPECT_EQ(pieces[i], split.num_pieces);
      EXPECT_GT(split.num_pieces, 1);
      EXPECT_EQ(split.partials, partials);
      partials += int64_t{split.chunk_end - split.chunk_begin} * tile.num_rows * tile.head_count;
    }
    EXPECT_LE(partials, room);
    EXPECT_EQ(std::ssize(seen), int64_t{end - begin} * heads * kv_heads);
    for (const auto& [query, count] : seen) ASSERT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace chorus::cpu
