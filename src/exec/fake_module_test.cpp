#include "exec/fake_module.h"

#include <cmath>
#include <gtest/gtest.h>
#include <tuple>
#include <vector>

#include "base/random.h"

namespace chorus {
namespace {

FakeModuleOptions make_options(int32_t block_size, int32_t window = 0) {
  FakeModuleOptions options;
  options.groups = {{{0}, 64}, {{window}, 64}};
  options.block_size = block_size;
  return options;
}

using Tokens = std::vector<TokenId>;

// One sequence in given blocks, the same in both groups, with a step over it.
struct Scene {
  std::vector<BlockId> blocks;
  Step step;

  Scene(std::vector<BlockId> in_blocks, int32_t block_size, Position start,
        const std::vector<TokenId>& tokens)
      : blocks(std::move(in_blocks)) {
    step.num_groups = 2;
    step.sequences = {{0, static_cast<int32_t>(tokens.size()), start}};
    step.tables = {{0, 0, blocks}, {0, 0, blocks}};
    step.tokens = tokens;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Position position = start + static_cast<Position>(i);
      step.row_sequence.push_back(0);
      step.positions.push_back(position);
      const CellId cell =
          blocks[static_cast<size_t>(position / block_size)] * block_size + position % block_size;
      step.cells.push_back(cell);
      step.cells.push_back(cell);
    }
  }
};

// The logits of the last row of a step.
std::vector<float> run(FakeModule& module, const Scene& scene) {
  std::vector<float> logits(64);
  std::vector<uint8_t> not_finite(scene.step.tokens.size(), 0);
  const std::vector<int32_t> wanted{scene.step.num_rows() - 1};
  EXPECT_TRUE(module.begin(scene.step).ok());
  EXPECT_TRUE(module.run(0, {0, scene.step.num_rows(), wanted}, not_finite).ok());
  RowSpec spec;
  spec.row = wanted[0];
  spec.raw = logits;
  std::vector<RowResult> results(1);
  std::vector<TokenLogprob> likeliest;
  EXPECT_TRUE(module.reduce_rows(std::span(&spec, 1), results, likeliest).ok());
  if (!results[0].finite) logits[0] = NAN;
  return logits;
}

TEST(FakeModule, LogitsDependOnTokensAndNeitherOnPlacesNorOnChunks) {
  FakeModule one(make_options(16));
  const std::vector<float> whole = run(one, {{3, 1}, 16, 0, {5, 6, 7, 8}});
  FakeModule two(make_options(1));
  run(two, {{9, 4, 11, 2}, 1, 0, {5, 6}});
  EXPECT_EQ(run(two, {{9, 4, 11, 2}, 1, 2, {7, 8}}), whole);
  FakeModule three(make_options(16));
  EXPECT_NE(run(three, {{3, 1}, 16, 0, {4, 6, 7, 8}}), whole);
  EXPECT_EQ(one.bad_reads() + two.bad_reads() + three.bad_reads(), 0);
}

TEST(FakeModule, AWindowHidesWhatItsLayersCannotSee) {
  FakeModule module(make_options(16, 2));
  FakeModule full(make_options(16));
  const Scene scene({0}, 16, 0, {1, 2, 3, 4});
  EXPECT_NE(run(module, scene), run(full, scene));
}

// What the window of every layer of a group has left behind may be held, spoiled, or not in the
// table at all.
TEST(FakeModule, EvictedPresentAndPoisonedGiveTheSame) {
  for (const int32_t block_size : {1, 16}) {
    FakeModuleOptions options = make_options(block_size, 4);
    options.groups[0].policy.window = 4;
    Tokens tokens;
    std::vector<BlockId> blocks;
    for (int32_t i = 0; i < 30; ++i) tokens.push_back(i);
    for (int32_t i = 0; i < 45 / block_size + 1; ++i) blocks.push_back((i * 7 + 3) % 64);
    std::vector<std::vector<float>> logits;
    for (int kind = 0; kind < 3; ++kind) {
      FakeModule module(options);
      run(module, {blocks, block_size, 0, tokens});
      // The token at 30 sees from 27 on.
      const int32_t first_block = 27 / block_size;
      Scene next(blocks, block_size, 30, {1, 2, 3});
      if (kind == 1) {
        std::vector<CellId> left;
        for (Position p = 0; p < 27; ++p) {
          left.push_back(blocks[static_cast<size_t>(p / block_size)] * block_size + p % block_size);
        }
        for (int32_t group = 0; group < 2; ++group) module.poison(group, left);
      }
      if (kind == 2) {
        for (BlockTable& table : next.step.tables) {
          table = {first_block * block_size, first_block,
                   std::span(next.blocks).subspan(static_cast<size_t>(first_block))};
        }
      }
      logits.push_back(run(module, next));
      EXPECT_EQ(module.bad_reads(), 0);
    }
    EXPECT_EQ(logits[1], logits[0]);
    EXPECT_EQ(logits[2], logits[0]);
  }
}

TEST(FakeModuleDeathTest, ATableThatBeginsTooLateIsCaught) {
  FakeModule module(make_options(16, 4));
  Scene scene({0, 1, 2}, 16, 36, {1});
  scene.step.tables[1] = {34, 2, std::span(scene.blocks).subspan(2)};
  EXPECT_DEATH(std::ignore = module.begin(scene.step).ok(), "first_position");
}

TEST(FakeModule, APoisonedCellIsNoticed) {
  FakeModule module(make_options(16));
  run(module, {{0}, 16, 0, {1, 2, 3}});
  module.poison(1, std::vector<CellId>{1});
  const std::vector<float> logits = run(module, {{0}, 16, 3, {4}});
  EXPECT_TRUE(std::isnan(logits[0]));
  EXPECT_EQ(module.bad_reads(), 1);
}

TEST(FakeModule, ReadAndWriteCellsMoveAHistory) {
  FakeModule from(make_options(16));
  run(from, {{2}, 16, 0, {1, 2, 3}});
  FakeModule to(make_options(1));
  for (int32_t group = 0; group < 2; ++group) {
    std::vector<std::byte> bytes(3 * static_cast<size_t>(from.info().groups[0].bytes_per_cell));
    ASSERT_TRUE(from.read_cells(group, std::vector<CellId>{32, 33, 34}, bytes).ok());
    ASSERT_TRUE(to.write_cells(group, std::vector<CellId>{7, 5, 6}, bytes).ok());
  }
  EXPECT_EQ(run(to, {{7, 5, 6, 1}, 1, 3, {4}}), run(from, {{2}, 16, 3, {4}}));
  EXPECT_EQ(to.bad_reads(), 0);
}

TEST(FakeModule, FaultsHappenAtTheCallNamed) {
  FakeModule module(make_options(16));
  const Scene scene({0}, 16, 0, {1, 2, 3, 4});
  std::vector<uint8_t> not_finite(4, 0);
  module.set_faults({.begin = 2});
  EXPECT_TRUE(module.begin(scene.step).ok());
  EXPECT_EQ(module.begin(scene.step).code(), Code::kInternal);
  module.set_faults({.run = 2});
  ASSERT_TRUE(module.begin(scene.step).ok());
  EXPECT_TRUE(module.run(0, {0, 2, {}}, not_finite).ok());
  EXPECT_EQ(module.run(0, {2, 2, {}}, not_finite).code(), Code::kInternal);
  module.set_faults({.reduce = 1});
  std::vector<TokenLogprob> likeliest;
  EXPECT_EQ(module.reduce_rows({}, {}, likeliest).code(), Code::kInternal);
}

TEST(FakeModule, RowsThatAreNotFiniteAreReported) {
  FakeModuleOptions options = make_options(16);
  options.nan_kv_token = 9;
  FakeModule module(options);
  const Scene scene({0}, 16, 0, {1, 9, 3, 4});
  std::vector<uint8_t> not_finite(4, 0);
  ASSERT_TRUE(module.begin(scene.step).ok());
  ASSERT_TRUE(module.run(0, {0, 4, {}}, not_finite).ok());
  EXPECT_EQ(not_finite, (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(module.bad_reads(), 0);
}

// A draw at temperature 1 has the probabilities of the softmax: chi-square over the 8 tokens.
TEST(FakeModule, DrawsFollowTheSoftmax) {
  FakeModuleOptions options = make_options(16);
  options.vocabulary = 8;
  FakeModule module(options);
  const Scene scene({0}, 16, 0, {1, 2, 3});
  std::vector<float> logits(8);
  std::vector<uint8_t> not_finite(3, 0);
  const std::vector<int32_t> wanted{2};
  ASSERT_TRUE(module.begin(scene.step).ok());
  ASSERT_TRUE(module.run(0, {0, 3, wanted}, not_finite).ok());
  RowSpec spec;
  spec.row = 2;
  spec.raw = logits;
  spec.sample = true;
  spec.temperature = 1.0f;
  const int num_draws = 20000;
  std::vector<int> counts(8, 0);
  RowResult result;
  std::vector<TokenLogprob> likeliest;
  for (int draw = 0; draw < num_draws; ++draw) {
    spec.position = draw;
    ASSERT_TRUE(module.reduce_rows(std::span(&spec, 1), std::span(&result, 1), likeliest).ok());
    ++counts[static_cast<size_t>(result.token.id)];
  }
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  double chi_square = 0;
  for (size_t id = 0; id < 8; ++id) {
    const double expected = num_draws * std::exp(static_cast<double>(logits[id])) / sum;
    chi_square += (counts[id] - expected) * (counts[id] - expected) / std::max(expected, 1e-3);
  }
  EXPECT_LT(chi_square, 30.0);  // 7 degrees of freedom: exceeded once in 10,000
}

TEST(FakeModule, AMaskLimitsTheChoiceAndRanksAreOverAllTokens) {
  FakeModule module(make_options(16));
  const Scene scene({0}, 16, 0, {1, 2, 3});
  std::vector<uint8_t> not_finite(3, 0);
  const std::vector<int32_t> wanted{2};
  ASSERT_TRUE(module.begin(scene.step).ok());
  ASSERT_TRUE(module.run(0, {0, 3, wanted}, not_finite).ok());
  RowSpec spec;
  spec.row = 2;
  spec.sample = true;
  spec.logprobs = true;
  spec.num_likeliest = 64;
  RowResult result;
  std::vector<TokenLogprob> likeliest;
  ASSERT_TRUE(module.reduce_rows(std::span(&spec, 1), std::span(&result, 1), likeliest).ok());
  EXPECT_EQ(result.token.rank, 1);
  ASSERT_EQ(likeliest.size(), 64u);
  EXPECT_EQ(likeliest[0].id, result.token.id);
  std::vector<uint32_t> mask{0, 0};
  const auto third = static_cast<size_t>(likeliest[2].id);
  const auto fifth = static_cast<size_t>(likeliest[4].id);
  mask[third / 32] |= 1u << (third % 32);
  mask[fifth / 32] |= 1u << (fifth % 32);
  spec.mask = mask;
  spec.num_likeliest = 0;
  ASSERT_TRUE(module.reduce_rows(std::span(&spec, 1), std::span(&result, 1), likeliest).ok());
  EXPECT_EQ(result.token.id, static_cast<TokenId>(third));
  EXPECT_EQ(result.token.rank, 3);
  EXPECT_EQ(result.token.logprob, likeliest[2].logprob);
}

}  // namespace
}  // namespace chorus
