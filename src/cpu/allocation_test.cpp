// A warm step allocates nothing. Every allocation of this process is counted.
#include <atomic>
#include <cstdlib>
#include <gtest/gtest.h>
#include <memory>
#include <new>
#include <vector>

#include "cpu/module.h"
#include "program/testing/tiny_program.h"

namespace {
std::atomic<int64_t> allocations{0};

void* counted(std::size_t size) {
  ++allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) { return counted(size); }
[[gnu::noinline]] void* operator new[](std::size_t size) { return counted(size); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace chorus::cpu {
namespace {

void expect_no_allocation(bool profile) {
  constexpr int32_t kRows = 24;
  TinyOptions tiny;
  tiny.window = 40;
  const auto program = std::make_shared<const Program>(tiny_program(tiny));
  auto created =
      CpuModule::create(program, {.threads = 2, .num_blocks = {4, 4}, .profile = profile});
  ASSERT_TRUE(created.ok());
  Module& module = **created;
  const std::vector<BlockId> blocks{0, 1};
  Step step;
  step.num_groups = 2;
  step.sequences = {{0, kRows, 0}};
  step.tables = {{0, 0, blocks}, {0, 0, blocks}};
  std::vector<RowSpec> specs;
  std::vector<int32_t> wanted;
  for (int32_t row = 0; row < kRows; ++row) {
    step.tokens.push_back(row);
    step.row_sequence.push_back(0);
    step.positions.push_back(row);
    step.cells.insert(step.cells.end(), {row, row});
    wanted.push_back(row);
    RowSpec spec;
    spec.row = row;
    spec.sample = spec.logprobs = true;
    spec.temperature = row % 2 == 0 ? 0.7f : 0.0f;
    spec.num_likeliest = 3;
    if (row % 4 == 0) spec.typical_p = 0.5f;
    specs.push_back(spec);
  }
  std::vector<TokenAdjustment> list{{.id = 1, .bias = 2.0f}, {.id = 3, .count = 2}};
  specs[2].adjustments = list;
  std::vector<uint8_t> not_finite(kRows);
  std::vector<RowResult> results(kRows);
  std::vector<TokenLogprob> likeliest;
  int64_t before = 0;
  for (int run = 0; run < 4; ++run) {
    if (run == 1) before = allocations;
    likeliest.clear();
    ASSERT_TRUE(module.begin(step).ok());
    ASSERT_TRUE(module.run(0, {0, 10, std::span(wanted).first(10)}, not_finite).ok());
    ASSERT_TRUE(module.run(0, {10, 14, std::span(wanted).subspan(10)}, not_finite).ok());
    ASSERT_TRUE(module.reduce_rows(specs, results, likeliest).ok());
  }
  EXPECT_EQ(allocations - before, 0);
  EXPECT_GT(before, 0);
}

TEST(CpuModule, AWarmStepAllocatesNothing) { expect_no_allocation(false); }
TEST(CpuModule, AWarmStepWithAProfileAllocatesNothing) { expect_no_allocation(true); }

// Two sequences whose first 256 positions lie in the same blocks decode, then one of them alone.
TEST(CpuModule, AWarmStepWithASharedPrefixAllocatesNothing) {
  TinyOptions tiny;
  const auto program = std::make_shared<const Program>(tiny_program(tiny));
  auto created = CpuModule::create(program, {.threads = 1, .num_blocks = {18}});
  ASSERT_TRUE(created.ok());
  Module& module = **created;
  std::vector<BlockId> blocks[2];
  for (BlockId block = 0; block < 16; ++block) {
    blocks[0].push_back(block);
    blocks[1].push_back(block);
  }
  blocks[0].push_back(16);
  blocks[1].push_back(17);
  Step step;
  step.num_groups = 1;
  for (int32_t i = 0; i < 2; ++i) {
    step.sequences.push_back({i, 1, 256});
    step.tables.push_back({0, 0, blocks[i]});
    step.tokens.push_back(i);
    step.row_sequence.push_back(i);
    step.positions.push_back(256);
    step.cells.push_back((16 + i) * 16);
  }
  step.order = {0, 1};
  step.shared = {{}, {0, 256}};
  std::vector<uint8_t> not_finite(2);
  int64_t before = 0;
  for (int run = 0; run < 3; ++run) {
    if (run == 1) before = allocations;
    ASSERT_TRUE(module.begin(step).ok());
    ASSERT_TRUE(module.run(0, {0, 2, {}}, not_finite).ok());
  }
  EXPECT_EQ(allocations - before, 0);
}

// One sequence decodes behind 600 positions, whose chunks are split between the threads.
TEST(CpuModule, AWarmStepOfALongSequenceAllocatesNothing) {
  TinyOptions tiny;
  tiny.context = 1024;
  tiny.num_kv_heads = 1;
  const auto program = std::make_shared<const Program>(tiny_program(tiny));
  auto created = CpuModule::create(program, {.threads = 2, .num_blocks = {40}});
  ASSERT_TRUE(created.ok());
  Module& module = **created;
  std::vector<BlockId> blocks;
  for (BlockId block = 0; block < 40; ++block) blocks.push_back(block);
  Step step;
  step.num_groups = 1;
  step.sequences = {{0, 1, 600}};
  step.tables = {{0, 0, blocks}};
  step.tokens = {1};
  step.row_sequence = {0};
  step.positions = {600};
  step.cells = {600};
  std::vector<uint8_t> not_finite(1);
  int64_t before = 0;
  for (int run = 0; run < 3; ++run) {
    if (run == 1) before = allocations;
    ASSERT_TRUE(module.begin(step).ok());
    ASSERT_TRUE(module.run(0, {0, 1, {}}, not_finite).ok());
  }
  EXPECT_EQ(allocations - before, 0);
}

}  // namespace
}  // namespace chorus::cpu
