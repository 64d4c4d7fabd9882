#include "cpu/profile.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cpu/module.h"
#include "cpu/testing/step_driver.h"
#include "program/testing/tiny_program.h"

namespace chorus::cpu {
namespace {

constexpr int32_t kWindow = 40;

std::shared_ptr<const Program> windowed_program() {
  TinyOptions tiny;
  tiny.num_layers = 4;
  tiny.window = kWindow;
  return std::make_shared<const Program>(tiny_program(tiny));
}

std::unique_ptr<Module> load(const std::shared_ptr<const Program>& program, CpuOptions options) {
  options.num_blocks.assign(program->graph().groups.size(), 80);
  auto module = CpuModule::create(program, options);
  EXPECT_TRUE(module.ok()) << module.status().to_string();
  return std::move(module).value();
}

std::vector<TokenId> random_tokens(uint64_t seed, int32_t count) {
  RandomStream random(seed);
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(random.below(293)));
  return tokens;
}

OperatorUsage find(const Module& module, const std::string& name) {
  for (const OperatorUsage& each : module.usage().operators) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << "no operator " << name;
  return {};
}

// Counts by looking at every row, key and cell.
struct NaiveCounts {
  int64_t linear_macs = 0;
  int64_t head_macs = 0;
  int64_t attention_macs = 0;
  int64_t attention_bytes = 0;
  int64_t linear_bytes = 0;
  int64_t head_bytes = 0;

  void add(const Program& program, const StepDriver& driver,
           const std::vector<std::pair<int32_t, Position>>& rows) {
    const Graph& graph = program.graph();
    bool is_tail = false;
    for (const Op& op : graph.ops) {
      is_tail = is_tail || op.kind == OpKind::kSelectRows;
      if (op.kind == OpKind::kLinear) {
        for (const WeightId id : op.weights) {
          const Weight& weight = program.weights()[static_cast<size_t>(id)];
          // The head is read once for 32 rows.
          const auto tail_tiles = (std::ssize(rows) + 31) / 32;
          (is_tail ? head_macs : linear_macs) +=
              std::ssize(rows) * int64_t{weight.rows} * weight.columns;
          (is_tail ? head_bytes : linear_bytes) +=
              static_cast<int64_t>(weight.bytes) * (is_tail ? tail_tiles : 1);
        }
      }
      if (op.kind == OpKind::kUpdateAndAttend) add_attention(graph, op, driver, rows);
    }
  }

 private:
  void add_attention(const Graph& graph, const Op& op, const StepDriver& driver,
                     const std::vector<std::pair<int32_t, Position>>& rows) {
    for (size_t g = 0; g < graph.groups.size(); ++g) {
      const auto& layers = graph.groups[g].layers;
      if (std::find(layers.begin(), layers.end(), op.layer) == layers.end()) continue;
      const int32_t window = graph.groups[g].policy.window;
      std::set<CellId> cells;
      for (const auto& [sequence, query] : rows) {
        for (Position key = 0; key <= query; ++key) {
          if (window > 0 && query - key >= window) continue;
          attention_macs += int64_t{2} * op.num_heads * op.head_dim;
          cells.insert(driver.cell(sequence, static_cast<int32_t>(g), key));
        }
      }
      constexpr int64_t kBf16Bytes = 2;
      attention_bytes += 2 * std::ssize(cells) * op.num_kv_heads * op.head_dim * kBf16Bytes;
    }
  }
};

TEST(Profile, CountsWhatANaiveModelCounts) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    const auto program = windowed_program();
    const auto module = load(program, {.threads = 2, .profile = true});
    StepDriver driver(*module, StepDriver::LeftBehind::kPresent);
    driver.tell_shared(true);
    const int32_t prefix = 16 * static_cast<int32_t>(random.between(1, 5));
    driver.add(random_tokens(seed, prefix + 40));
    NaiveCounts naive;
    const auto run = [&](const std::vector<StepDriver::Part>& parts) {
      std::vector<std::pair<int32_t, Position>> rows;
      for (const StepDriver::Part& part : parts) {
        const Position start = driver.sequence(part.sequence).length;
        for (int32_t i = 0; i < part.count; ++i) rows.push_back({part.sequence, start + i});
      }
      driver.step(parts);
      naive.add(*program, driver, rows);
    };
    run({{0, prefix}});
    driver.clone(0, random_tokens(seed + 9, prefix + 40));
    driver.clone(0, random_tokens(seed + 10, prefix + 40));
    for (int step = 0; step < 5; ++step) {
      std::vector<StepDriver::Part> parts;
      for (int32_t i = 0; i < 3; ++i)
        parts.push_back({i, static_cast<int32_t>(random.between(1, 4))});
      run(parts);
    }
    EXPECT_EQ(find(*module, "linear").int8_macs, naive.linear_macs);
    EXPECT_EQ(find(*module, "linear").bytes, naive.linear_bytes);
    EXPECT_EQ(find(*module, "head").int8_macs, naive.head_macs);
    EXPECT_EQ(find(*module, "head").bytes, naive.head_bytes);
    EXPECT_EQ(find(*module, "update_and_attend").float_macs, naive.attention_macs);
    EXPECT_EQ(find(*module, "update_and_attend").bytes, naive.attention_bytes);
    EXPECT_EQ(find(*module, "update_and_attend").calls, 6 * 4);
  }
}

TEST(Profile, OperatorsTakeNoMoreThanTheGraphAndTheReduction) {
  const auto module = load(windowed_program(), {.threads = 2, .profile = true});
  StepDriver driver(*module);
  driver.add(random_tokens(1, 64));
  driver.run_alone(0, 16);
  int64_t sum = 0;
  for (const OperatorUsage& each : module->usage().operators) {
    EXPECT_GT(each.ns, 0) << each.name;
    if (each.name != "reduce_rows") sum += each.ns;
  }
  EXPECT_GT(sum, 0);
  EXPECT_LE(sum, module->usage().graph_ns);
}

TEST(Profile, ChangesNoBitAndIsAbsentUnlessAskedFor) {
  const auto program = windowed_program();
  std::vector<std::vector<float>> logits[2];
  for (const bool profile : {false, true}) {
    const auto module = load(program, {.threads = 2, .profile = profile});
    StepDriver driver(*module);
    driver.add(random_tokens(1, 90));
    driver.run_alone(0, 7);
    logits[profile ? 1 : 0] = driver.sequence(0).logits;
    EXPECT_EQ(module->usage().operators.empty(), !profile);
    EXPECT_GT(module->usage().graph_ns, 0);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

}  // namespace
}  // namespace chorus::cpu
