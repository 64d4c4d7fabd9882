#include "cpu/kv_memory.h"

#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace chorus::cpu {
namespace {

// Two groups whose layers differ in heads and width.
Graph two_groups() {
  Graph graph;
  graph.groups.resize(2);
  graph.groups[0].layers = {0, 2};
  graph.groups[1].layers = {1};
  constexpr int32_t kHeads[] = {3, 1, 2}, kDims[] = {64, 40, 8};
  for (size_t i = 0; i < 3; ++i) {
    graph.kv_layers.push_back({});
    graph.kv_layers[i].num_kv_heads = kHeads[i];
    graph.kv_layers[i].head_dim = kDims[i];
  }
  return graph;
}

std::vector<std::byte> random_bytes(uint64_t seed, size_t size) {
  RandomStream random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
  return bytes;
}

std::vector<CellId> cells_of(int32_t first, int32_t count) {
  std::vector<CellId> cells(static_cast<size_t>(count));
  std::iota(cells.begin(), cells.end(), first);
  return cells;
}

class EveryType : public ::testing::TestWithParam<KvType> {};

// Blocks smaller than a segment, as large, and larger; the last segment is not full.
TEST_P(EveryType, NoTwoCellsShareAByte) {
  for (const int32_t block_size : {1, 16, 48, 64, 256, 512}) {
    const int32_t num_blocks[] = {700 / block_size + 1, 300 / block_size + 2};
    KvMemory memory = KvMemory::create(two_groups(), GetParam(), block_size, num_blocks).value();
    std::vector<std::byte> written[2];
    for (int32_t group : {0, 1}) {
      const auto g = static_cast<size_t>(group);
      const std::vector<CellId> cells = cells_of(0, num_blocks[g] * block_size);
      written[g] =
          random_bytes(g + 1, cells.size() * static_cast<size_t>(memory.bytes_per_cell(group)));
      ASSERT_TRUE(memory.write_cells(group, cells, written[g]).ok());
    }
    for (int32_t group : {0, 1}) {
      const auto g = static_cast<size_t>(group);
      std::vector<std::byte> read(written[g].size());
      const std::vector<CellId> cells = cells_of(0, num_blocks[g] * block_size);
      ASSERT_TRUE(memory.read_cells(group, cells, read).ok());
      EXPECT_EQ(read, written[g]) << "block size " << block_size << " group " << group;
    }
  }
}

TEST_P(EveryType, ACopyIsOfItsBlockAlone) {
  for (const int32_t block_size : {1, 16, 256, 512}) {
    const int32_t num_blocks[] = {600 / block_size + 2, 1};
    const int32_t num_cells = num_blocks[0] * block_size;
    KvMemory memory = KvMemory::create(two_groups(), GetParam(), block_size, num_blocks).value();
    const auto cell_bytes = static_cast<size_t>(memory.bytes_per_cell(0));
    const auto block_bytes = static_cast<ptrdiff_t>(cell_bytes) * block_size;
    std::vector<std::byte> expected = random_bytes(3, static_cast<size_t>(num_cells) * cell_bytes);
    ASSERT_TRUE(memory.write_cells(0, cells_of(0, num_cells), expected).ok());
    const BlockId from = num_blocks[0] - 1, to = 0;
    ASSERT_TRUE(memory.copy_cells({0, from, to, block_size}).ok());
    std::memcpy(expected.data(), expected.data() + from * block_bytes,
                static_cast<size_t>(block_bytes));
    std::vector<std::byte> read(expected.size());
    ASSERT_TRUE(memory.read_cells(0, cells_of(0, num_cells), read).ok());
    EXPECT_EQ(read, expected) << "block size " << block_size;
  }
}

INSTANTIATE_TEST_SUITE_P(KvMemory, EveryType,
                         ::testing::Values(KvType::kF32, KvType::kBf16, KvType::kQ8));

TEST(KvMemory, WhatNoMachineHasIsRefused) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const int32_t block_size : {1, 16, 512, kMost / 16 * 16}) {
    const int32_t num_blocks[] = {kMost / block_size, kMost / block_size};
    Graph graph = two_groups();
    for (KvLayer& layer : graph.kv_layers) {
      layer.num_kv_heads = 1 << 20;
      layer.head_dim = 1 << 17;
    }
    const auto memory = KvMemory::create(graph, KvType::kF32, block_size, num_blocks);
    EXPECT_EQ(memory.status().code(), Code::kResourceExhausted) << block_size;
    EXPECT_EQ(memory.status().field(), "num_blocks");
  }
}

TEST(KvMemory, APoolMayBeEmpty) {
  const int32_t num_blocks[] = {0, 1};
  KvMemory memory = KvMemory::create(two_groups(), KvType::kBf16, 16, num_blocks).value();
  const std::vector<std::byte> cell(static_cast<size_t>(memory.bytes_per_cell(1)));
  EXPECT_TRUE(memory.write_cells(1, cells_of(0, 1), cell).ok());
  EXPECT_EQ(memory.write_cells(0, cells_of(0, 1), cell).field(), "cells");
}

}  // namespace
}  // namespace chorus::cpu
