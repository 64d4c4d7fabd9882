#include "chorus/kv_pool.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/random.h"
#include "chorus/engine.h"
#include "program/builder.h"

namespace chorus {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

KvPoolWish wish_of(int32_t context, int32_t max_sessions) {
  KvPoolWish wish;
  wish.block_size = 16;
  wish.max_sessions = max_sessions;
  wish.max_step_tokens = 544;
  wish.model_context = 131072;
  wish.context = context;
  wish.memory_bytes = 64 * kGiB;
  return wish;
}

// The layers of muse-glimmer's 28B model, with next to no weights: 52 layers of 2 KV heads of 128,
// of which every fourth sees all and the others 2048 tokens.
Result<Program> full_geometry() {
  ProgramBuilder b;
  b.facts.architecture = "muse-glimmer";
  b.facts.context = 131072;
  b.facts.vocabulary = 16;
  b.facts.methods = {{"forward", 1, 512, 0}};
  const int32_t windowed = b.add_group(WindowPolicy{2048});
  const int32_t full = b.add_group(WindowPolicy{0});
  const auto matrix = [&](const std::string& name, int32_t rows, int32_t columns) {
    const auto bytes = static_cast<size_t>(rows) * static_cast<size_t>(columns) * sizeof(float);
    return b.add_matrix(name, WeightType::kF32, rows, columns, std::vector<std::byte>(bytes));
  };
  const WeightId table = matrix("table", 16, 4);
  const WeightId q = matrix("q", 32 * 128, 4);
  const WeightId kv = matrix("kv", 2 * 128, 4);
  const WeightId output = matrix("output", 4, 32 * 128);
  ValueId x = b.embed(table);
  for (int32_t i = 0; i < 52; ++i) {
    AttentionShape shape;
    shape.num_heads = 32;
    shape.num_kv_heads = 2;
    shape.head_dim = 128;
    shape.scale = 0.1f;
    shape.layer = b.add_kv_layer(i % 4 == 3 ? full : windowed, {2, 128});
    const auto qkv = b.linear(x, {q, kv, kv});
    x = b.add(x, b.linear(b.update_and_attend(qkv[0], qkv[1], qkv[2], shape), {output})[0]);
  }
  b.linear(b.select_rows(x), {table});
  return b.build();
}

// 13 full layers hold 13,312 bytes a token; 39 windowed ones, for one session, a constant.
TEST(KvPool, MuseGlimmersMemoryGrowsByItsFullLayersAlone) {
  auto built = full_geometry();
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  const auto program = std::make_shared<const Program>(std::move(*built));
  const SteadyClock clock;
  for (const int32_t context : {4096, 32768, 131072}) {
    SCOPED_TRACE(context);
    EngineOptions options;
    options.context = context;
    options.max_sessions = 1;
    options.threads = 1;
    options.kv_memory_bytes = 8 * kGiB;
    const auto engine = Engine::create(program, options, clock);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    const EngineSettings& settings = (*engine)->settings();
    const int64_t full_blocks = context / 16 + 1;
    const int64_t windowed_blocks = touched_blocks(2048 + settings.max_batch_tokens - 1, 16) + 1;
    EXPECT_EQ(settings.kv_blocks, (std::vector<int32_t>{static_cast<int32_t>(windowed_blocks),
                                                        static_cast<int32_t>(full_blocks)}));
    EXPECT_EQ(settings.kv_bytes, full_blocks * 16 * 13312 + windowed_blocks * 16 * 39 * 1024);
    EXPECT_EQ(settings.context, context);
  }
}

TEST(KvPool, ShortSessionsFindAsMuchRoomInWindowedGroups) {
  const std::vector<KvGroupSize> groups = {{WindowPolicy{512}, 100}, {WindowPolicy{0}, 50}};
  KvPoolWish wish = wish_of(0, 256);
  wish.memory_bytes = 150 * 16 * 1000;
  const auto size = size_kv_pool(groups, wish);
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(size->blocks, (std::vector<int32_t>{1000, 1000}));
  EXPECT_EQ(size->context, 999 * 16);
}

TEST(KvPool, NeverTakesMoreThanItWasGivenAndNeverLessThanItCould) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    std::vector<KvGroupSize> groups;
    for (uint64_t n = random.below(3) + 1; n > 0; --n) {
      const auto window = static_cast<int32_t>(random.below(2) * random.between(1, 300));
      groups.push_back({WindowPolicy{window}, random.between(1, 64) * 16});
    }
    KvPoolWish wish = wish_of(0, static_cast<int32_t>(random.between(1, 8)));
    wish.model_context = static_cast<int32_t>(random.between(1, 4000));
    wish.max_step_tokens = static_cast<int32_t>(random.between(1, 600));
    wish.memory_bytes = random.between(1, 40'000'000);
    const auto size = size_kv_pool(groups, wish);
    if (!size.ok()) {
      EXPECT_EQ(size.status().field(), "kv_blocks");
      continue;
    }
    int64_t bytes = 0;
    for (size_t i = 0; i < groups.size(); ++i)
      bytes += groups[i].bytes_per_token * 16 * size->blocks[i];
    EXPECT_EQ(size->bytes, bytes);
    EXPECT_LE(bytes, wish.memory_bytes);
    // Every group can hold the longest session.
    for (size_t i = 0; i < groups.size(); ++i) {
      EXPECT_GE(size->blocks[i],
                smallest_pool(groups[i].policy, 16, size->context, wish.max_step_tokens));
    }
    // The same with one block more was not to be had, or of no use.
    KvPoolWish more = wish;
    more.blocks = 1 + *std::max_element(size->blocks.begin(), size->blocks.end());
    const auto larger = size_kv_pool(groups, more);
    ASSERT_TRUE(larger.ok());
    const int64_t whole = (wish.model_context + 15) / 16;
    EXPECT_TRUE(larger->bytes > wish.memory_bytes || larger->bytes == size->bytes ||
                more.blocks > (whole + 1) * wish.max_sessions);
  }
}

TEST(KvPool, RefusesByField) {
  const std::vector<KvGroupSize> groups = {{WindowPolicy{64}, 1024}};
  const auto field = [&](const KvPoolWish& wish) {
    return size_kv_pool(groups, wish).status().field();
  };
  KvPoolWish wish = wish_of(200000, 4);
  EXPECT_EQ(field(wish), "context");
  wish = wish_of(4096, 4);
  wish.blocks = 10;
  EXPECT_EQ(field(wish), "context");
  wish = wish_of(0, 4);
  wish.blocks = INT32_MAX;
  EXPECT_EQ(field(wish), "kv_blocks");
  wish = wish_of(0, 4);
  wish.memory_bytes = 1000;
  EXPECT_EQ(field(wish), "kv_blocks");
  wish.memory_was_given = true;
  EXPECT_EQ(field(wish), "kv_memory_bytes");
}

}  // namespace
}  // namespace chorus
