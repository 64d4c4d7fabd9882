// The whole way from checkpoint to logits, against the reference forward of tools/oracle, which
// shares no code with this one.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/memory_map.h"
#include "cpu/module.h"
#include "cpu/testing/step_driver.h"
#include "exporter/export.h"
#include "json/value.h"

namespace chorus::cpu {
namespace {

const std::string kFolder = std::string(CHORUS_SOURCE_DIR) + "/tests/golden/tiny/";

// One line of reference.jsonl.
struct Reference {
  std::string file;
  std::vector<TokenId> ids;
  std::vector<int32_t> rows;
  std::vector<std::vector<double>> logits;
};

double number(const json::Value& value) {
  auto result = value.to_number("reference");
  EXPECT_TRUE(result.ok());
  return result.ok() ? *result : 0.0;
}

std::vector<Reference> references() {
  auto text = read_text_file(kFolder + "reference.jsonl", size_t{1} << 24);
  EXPECT_TRUE(text.ok());
  std::istringstream lines(*text);
  std::vector<Reference> all;
  for (std::string line; std::getline(lines, line);) {
    auto value = json::parse(line, "reference");
    EXPECT_TRUE(value.ok()) << value.status().to_string();
    Reference r;
    r.file = value->find("file")->as_string();
    for (const auto& id : value->find("ids")->as_array()) {
      r.ids.push_back(static_cast<TokenId>(number(id)));
    }
    for (const auto& row : value->find("rows")->as_array()) {
      r.rows.push_back(static_cast<int32_t>(number(row)));
    }
    for (const auto& row : value->find("logits")->as_array()) {
      r.logits.emplace_back();
      for (const auto& x : row.as_array()) r.logits.back().push_back(number(x));
    }
    all.push_back(std::move(r));
  }
  EXPECT_GE(all.size(), 3u);
  return all;
}

// The greatest difference of a logit from the reference, over all files and rows.
double largest_error(CpuOptions options) {
  double largest = 0;
  int files = 0;
  for (const Reference& r : references()) {
    ++files;
    auto program = export_program(kFolder + r.file);
    EXPECT_TRUE(program.ok()) << program.status().to_string();
    if (!program.ok()) return INFINITY;
    options.num_blocks = {64};
    options.max_step_tokens = 600;
    auto module =
        CpuModule::create(std::make_shared<const Program>(std::move(program).value()), options);
    EXPECT_TRUE(module.ok()) << module.status().to_string();
    StepDriver driver(**module);
    driver.run_alone(driver.add(r.ids), 600);
    for (size_t i = 0; i < r.rows.size(); ++i) {
      const auto& got = driver.sequence(0).logits[static_cast<size_t>(r.rows[i])];
      EXPECT_EQ(got.size(), r.logits[i].size());
      for (size_t j = 0; j < got.size(); ++j) {
        largest = std::max(largest, std::abs(static_cast<double>(got[j]) - r.logits[i][j]));
      }
    }
  }
  EXPECT_GE(files, 3);
  return largest;
}

TEST(Golden, TinyCheckpointsInTheReferenceMode) {
  // Logits are up to 10 in size; a float there has a spacing of 1e-6.
  EXPECT_LT(largest_error({.activations = Activations::kF32, .kv_type = KvType::kF32}), 1e-4);
}

TEST(Golden, TinyCheckpointsWithTheDefaults) {
  const double bf16 = largest_error({.activations = Activations::kF32});
  const double int8 = largest_error({});
  const double q8 = largest_error({.activations = Activations::kF32, .kv_type = KvType::kQ8});
  RecordProperty("f32_activations_bf16_kv", std::to_string(bf16));
  RecordProperty("f32_activations_q8_kv", std::to_string(q8));
  RecordProperty("int8_activations_bf16_kv", std::to_string(int8));
  EXPECT_LT(bf16, 0.2);
  EXPECT_LT(q8, 0.4);
  EXPECT_LT(int8, 1.0);
}

}  // namespace
}  // namespace chorus::cpu
