// Bias, penalties, temperature and filters against what transformers' logits processors leave
// (tools/oracle/make_sampling_goldens.py).
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "batching/sampling_policy.h"
#include "batching/sampling_state.h"
#include "chorus/generation_fields.h"
#include "exec/sampling.h"

namespace chorus {
namespace {

// How often each token is drawn, for bits spread evenly over their range.
std::vector<double> shares(const std::vector<float>& logits, const RowSpec& spec) {
  constexpr uint64_t kSteps = 8192;
  std::vector<double> found(logits.size());
  std::vector<TokenId> order;
  for (uint64_t i = 0; i < kSteps; ++i) {
    const TokenId id = choose_token(logits, spec, (2 * i + 1) << 50, order);
    found[static_cast<size_t>(id)] += 1.0 / kSteps;
  }
  return found;
}

void expect_as_transformers(const json::Value& line) {
  std::vector<float> logits;
  for (const json::Value& each : line.find("logits")->as_array())
    logits.push_back(static_cast<float>(each.to_number("logits").value()));
  std::vector<TokenId> given;
  for (const json::Value& each : line.find("given")->as_array())
    given.push_back(static_cast<TokenId>(each.to_integer("given", 0, 99).value()));
  auto fields = read_generation_fields(*line.find("parameters"));
  ASSERT_TRUE(fields.ok()) << fields.status().to_string();
  SamplingParams params = fields->sampling;
  params.before = std::make_shared<const std::vector<TokenId>>(given);
  params.first_position = static_cast<Position>(given.size());
  const auto vocabulary = static_cast<int32_t>(logits.size());
  ASSERT_TRUE(check_sampling(params, vocabulary).ok());
  SamplingState state(params, vocabulary);
  RowSpec spec = sampled_row(params, 0, params.first_position, {});
  spec.adjustments = state.adjustments();
  const std::vector<double> found = shares(logits, spec);
  for (size_t id = 0; id < found.size(); ++id) {
    const json::Value* kept = line.find("kept")->find(std::to_string(id));
    const double expected = kept == nullptr ? 0 : kept->to_number("kept").value();
    if (kept == nullptr) {
      EXPECT_EQ(found[id], 0) << "token " << id;
    } else {
      EXPECT_NEAR(found[id], expected, 3e-4) << "token " << id;
    }
  }
}

TEST(SamplingGolden, LeavesWhatTransformersLeaves) {
  std::ifstream file(CHORUS_SOURCE_DIR "/tests/golden/sampling.jsonl");
  std::string text;
  int num_lines = 0;
  while (std::getline(file, text)) {
    SCOPED_TRACE("line " + std::to_string(++num_lines));
    ASSERT_NO_FATAL_FAILURE(expect_as_transformers(json::parse(text, "line").value()));
  }
  EXPECT_EQ(num_lines, 120);
}

}  // namespace
}  // namespace chorus
