// Steps whose sequences share blocks, on the CPU module.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/module.h"
#include "cpu/testing/step_driver.h"
#include "program/testing/tiny_program.h"

namespace chorus::cpu {
namespace {

constexpr int32_t kVocabulary = 67;

std::shared_ptr<const Program> make_program(int32_t kv_heads) {
  TinyOptions options;
  options.width = 32;
  options.ff_width = 32;
  options.head_dim = 16;
  options.num_kv_heads = kv_heads;
  options.vocabulary = kVocabulary;
  options.context = 1024;
  options.window = 300;
  return std::make_shared<const Program>(tiny_program(options));
}

std::unique_ptr<Module> load(const std::shared_ptr<const Program>& program, CpuOptions options) {
  options.num_blocks.assign(2, 4000 / options.block_size + 8);
  options.max_step_tokens = 700;
  return CpuModule::create(program, options).value();
}

std::vector<TokenId> random_tokens(RandomStream& random, int32_t count) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(random.below(kVocabulary)));
  }
  return tokens;
}

// Seven histories: two end a prefix of 300 tokens, five one of 560 that begins with it.
std::vector<std::vector<TokenId>> histories(uint64_t seed) {
  RandomStream random(seed);
  const std::vector<TokenId> trunk = random_tokens(random, 560);
  std::vector<std::vector<TokenId>> all;
  for (int i = 0; i < 7; ++i) {
    all.emplace_back(trunk.begin(), trunk.begin() + (i < 2 ? 300 : 560));
    const auto own = random_tokens(random, static_cast<int32_t>(random.between(10, 30)));
    all.back().insert(all.back().end(), own.begin(), own.end());
  }
  return all;
}

using Logits = std::vector<std::vector<float>>;

void expect_same(const Logits& got, const Logits& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t row = 0; row < got.size(); ++row) {
    ASSERT_EQ(std::memcmp(got[row].data(), want[row].data(), want[row].size() * 4), 0)
        << "position " << row;
  }
}

// Forks the histories from one another and runs them to their ends together, a few tokens of some
// of them in each step.
void run_forks(Module& module, bool tell, const std::vector<std::vector<TokenId>>& tokens,
               uint64_t seed, const std::vector<Logits>& want) {
  RandomStream random(seed);
  StepDriver driver(module);
  driver.tell_shared(tell);
  driver.add(tokens[2]);
  const StepDriver::Part first{0, 300};
  driver.step({&first, 1});
  std::vector<int32_t> ids{driver.clone(0, tokens[0]), driver.clone(0, tokens[1]), 0};
  const StepDriver::Part second{0, 260};
  driver.step({&second, 1});
  for (size_t i = 3; i < tokens.size(); ++i) ids.push_back(driver.clone(0, tokens[i]));
  for (bool more = true; more;) {
    std::vector<StepDriver::Part> parts;
    more = false;
    for (const int32_t id : ids) {
      const auto& s = driver.sequence(id);
      const int32_t left = static_cast<int32_t>(s.tokens.size()) - s.length;
      more |= left > 0;
      if (left == 0 || random.below(5) == 0) continue;
      parts.push_back({id, std::min(left, static_cast<int32_t>(random.between(1, 3)))});
    }
    const bool in_slices = random.below(3) == 0;
    if (!parts.empty()) {
      driver.step(parts, in_slices ? static_cast<int32_t>(random.between(1, 8)) : 700);
    }
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    SCOPED_TRACE("history " + std::to_string(i));
    ASSERT_NO_FATAL_FAILURE(expect_same(driver.sequence(ids[i]).logits, want[i]));
  }
}

TEST(SharedPrefix, HasTheBitsOfEachSequenceAlone) {
  uint64_t seed = 0;
  for (const int32_t kv_heads : {6, 2, 1}) {
    const auto program = make_program(kv_heads);
    for (const KvType type : {KvType::kBf16, KvType::kF32, KvType::kQ8}) {
      const auto tokens = histories(++seed);
      CpuOptions options{.kv_type = type};
      std::vector<Logits> want;
      for (const auto& each : tokens) {
        auto module = load(program, options);
        StepDriver driver(*module);
        driver.run_alone(driver.add(each), 512);
        want.push_back(driver.sequence(0).logits);
      }
      for (const int32_t block_size : {1, 16, 32, 64, 592}) {
        for (const bool tell : {true, false}) {
          options.block_size = block_size;
          options.threads = block_size == 16 ? 2 : 1;
          SCOPED_TRACE("kv heads " + std::to_string(kv_heads) + " type " +
                       std::string(name_of(type)) + " block size " + std::to_string(block_size) +
                       (tell ? " shared" : " unshared"));
          auto module = load(program, options);
          ASSERT_NO_FATAL_FAILURE(run_forks(*module, tell, tokens, ++seed, want));
        }
      }
    }
  }
}

TEST(SharedPrefix, RangesThatTheTablesDoNotHoldAreRefused) {
  const auto program = make_program(2);
  auto module = load(program, {});
  const std::vector<BlockId> a{0, 1, 2}, b{0, 1, 3};
  Step step;
  step.num_groups = 2;
  step.sequences = {{0, 1, 40}, {1, 1, 33}};
  step.tables = {{0, 0, a}, {0, 0, a}, {0, 0, b}, {0, 0, b}};
  step.tokens = {1, 2};
  step.row_sequence = {0, 1};
  step.positions = {40, 33};
  step.cells = {40, 40, 49, 49};
  step.order = {1, 0};
  step.shared = {{}, {}, {0, 32}, {0, 32}};
  EXPECT_TRUE(module->begin(step).ok());
  step.shared[2].end = 48;  // 33 is written in this step
  EXPECT_EQ(module->begin(step).field(), "step.shared[2]");
  step.shared[2] = {-16, 32};
  EXPECT_EQ(module->begin(step).field(), "step.shared[2]");
  step.shared[2] = {};
  step.shared[1] = {0, 16};  // the first in order has nothing before it
  EXPECT_EQ(module->begin(step).field(), "step.shared[1]");
  step.shared[1] = {};
  step.order = {1, 2};
  EXPECT_EQ(module->begin(step).field(), "step.order");
  step.order = {1};
  EXPECT_EQ(module->begin(step).field(), "step.order");
}

}  // namespace
}  // namespace chorus::cpu
