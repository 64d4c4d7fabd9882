#include "program/describe.h"

#include <gtest/gtest.h>

#include "program/testing/tiny_program.h"

namespace chorus {
namespace {

TinyOptions windowed() {
  TinyOptions options;
  options.window = 32;
  options.tokenizer = true;
  return options;
}

TEST(Describe, CountsAddUp) {
  const Program program = tiny_program(windowed());
  const ProgramDescription d = describe(program);
  EXPECT_EQ(d.architecture, "llama");
  EXPECT_EQ(d.num_layers, 2);
  EXPECT_EQ(d.width, 64);
  // Per layer: q 96, k 32, v 32 rows and o 64 x 96; gate and up 96 rows, down 64 x 96; two norms.
  EXPECT_EQ(d.num_parameters,
            293 * 64 + 2 * (64 * (96 + 32 + 32) + 64 * 96 + 3 * 64 * 96 + 2 * 64) + 64);
  ASSERT_EQ(d.groups.size(), 2u);
  EXPECT_EQ(d.groups[1].window, 32);
  EXPECT_EQ(d.groups[1].kv_bytes_per_token_bf16, 2 * 2 * 16 * 2);
  EXPECT_EQ(d.kv_bytes_per_token_f32, 2 * 2 * 2 * 16 * 4);
  ASSERT_EQ(d.weights_by_type.size(), 3u);
  uint64_t bytes = 0;
  int64_t weights = 0;
  for (const TypeTotal& total : d.weights_by_type) {
    bytes += total.bytes;
    weights += total.num_weights;
  }
  EXPECT_EQ(bytes, d.weight_bytes);
  EXPECT_EQ(weights, std::ssize(d.weights));
  EXPECT_LT(d.weight_bytes, d.file_bytes);
  EXPECT_EQ(d.num_tokens, 293);
  EXPECT_TRUE(d.has_chat_template);
  EXPECT_EQ(d.content.size(), 64u);
}

TEST(Describe, GraphHasALinePerOperator) {
  TinyOptions options;
  options.num_layers = 1;
  const Program program = tiny_program(options);
  const auto lines = graph_lines(program);
  ASSERT_EQ(lines.size(), program.graph().ops.size());
  EXPECT_EQ(lines[0], "%0 = embed() [embed:Q8_0] -> T x 64");
  EXPECT_EQ(lines[2],
            "%2 %3 %4 = linear(%1) [layer.0.q:Q4_1, layer.0.k:Q4_1, layer.0.v:Q4_1] -> T x 96 | "
            "32 | 32");
  EXPECT_EQ(lines[3], "%5 = rope(%2) pairing=adjacent head_dim=16 dims=16 theta=10000 -> T x 96");
  EXPECT_EQ(lines[5],
            "%7 = update_and_attend(%5, %6, %4) layer=0 heads=6 kv_heads=2 head_dim=16 scale=0.25 "
            "-> T x 96");
  EXPECT_EQ(lines.back(), "%19 = linear(%18) [embed:Q8_0] -> K x 293");
}

}  // namespace
}  // namespace chorus
