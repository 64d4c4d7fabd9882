// Every kernel set gives the bits of the portable build of the generic one, for all operators but
// the linear layers (linear_test.cpp). Random shapes and values from printed seeds.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/generic.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/tested_sets.h"
#include "program/packing/r16k4.h"

namespace chorus::cpu {
namespace {

// Equal bits; any NaN equals any other.
void expect_same(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << "at " << i << ": " << a[i] << " and " << b[i];
  }
}

float random_float(RandomStream& random, bool any) {
  if (any && random.below(10) == 0) {
    return std::bit_cast<float>(static_cast<uint32_t>(random.next()));  // NaN and inf, too
  }
  const auto scale = static_cast<int>(random.between(-6, 6));
  return static_cast<float>(std::ldexp(random.unit() * 2.0 - 1.0, scale));
}
std::vector<float> random_floats(RandomStream& random, size_t count, bool any) {
  std::vector<float> values(count);
  for (float& x : values) x = random_float(random, any);
  return values;
}

// Runs body(set, seed) for every set but the portable one.
template <typename Body>
void for_other_sets(uint64_t seeds, Body body) {
  for (const TestedSet& set : tested_sets()) {
    if (set.kernels == &portable_kernels()) continue;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      SCOPED_TRACE(testing::Message() << set.name << " seed " << seed);
      ASSERT_NO_FATAL_FAILURE(body(*set.kernels, seed));
    }
  }
}

TEST(Sets, ThatRunHere) {
  std::string names;
  for (const TestedSet& set : tested_sets()) names += " " + set.name + ",";
  names.back() = '\n';
  std::printf("kernel sets tested here:%s", names.c_str());
#if defined(__x86_64__)
  EXPECT_EQ(&generic_kernels(), avx2_usable() ? &avx2_kernels() : &portable_kernels());
#else
  EXPECT_EQ(&generic_kernels(), &portable_kernels());
#endif
  for (const Isa isa : built_isas()) {
    if (isa_supported(isa)) {
      EXPECT_NE(names.find(isa_name(isa)), std::string::npos);
    }
  }
}

TEST(Sets, Elementwise) {
  using Kernel = void (*Kernels::*)(const ElementwiseArgs&);
  constexpr Kernel kAll[] = {&Kernels::add,         &Kernels::mul,  &Kernels::scale,
                             &Kernels::silu,        &Kernels::gelu, &Kernels::sigmoid,
                             &Kernels::tanh_softcap};
  for_other_sets(20, [&](const Kernels& kernels, uint64_t seed) {
    RandomStream random(seed);
    const auto rows = static_cast<int32_t>(random.between(1, 4));
    const auto width = static_cast<int32_t>(random.between(1, 200));
    const auto count = static_cast<size_t>(rows * width);
    const std::vector<float> a = random_floats(random, count, true);
    const std::vector<float> b = random_floats(random, count, true);
    for (size_t i = 0; i < std::size(kAll); ++i) {
      SCOPED_TRACE(i);
      std::vector<float> out[2];
      const Kernels* sets[2] = {&portable_kernels(), &kernels};
      for (int which = 0; which < 2; ++which) {
        out[which].resize(count);
        ElementwiseArgs args;
        args.a = a.data();
        args.b = b.data();
        args.out = out[which].data();
        args.a_stride = args.b_stride = args.out_stride = width;
        args.rows = rows;
        args.width = width;
        args.scale = 3.5f;
        (sets[which]->*kAll[i])(args);
      }
      ASSERT_NO_FATAL_FAILURE(expect_same(out[1], out[0]));
    }
  });
}

TEST(Sets, RmsNorm) {
  for_other_sets(20, [](const Kernels& kernels, uint64_t seed) {
    RandomStream random(seed);
    const auto rows = static_cast<int32_t>(random.between(1, 4));
    const auto group = static_cast<int32_t>(random.between(1, 600));
    const auto width = group * static_cast<int32_t>(random.between(1, 3));
    const std::vector<float> x =
        random_floats(random, static_cast<size_t>(rows * width), seed % 4 == 0);
    const std::vector<float> weight = random_floats(random, static_cast<size_t>(group), false);
    std::vector<float> out[2];
    const Kernels* sets[2] = {&portable_kernels(), &kernels};
    for (int which = 0; which < 2; ++which) {
      out[which].resize(x.size());
      RmsNormArgs args;
      args.x = x.data();
      args.out = out[which].data();
      args.x_stride = args.out_stride = width;
      args.rows = rows;
      args.width = width;
      args.group_width = group;
      args.weight = seed % 2 == 0 ? weight.data() : nullptr;
      args.epsilon = 1e-5f;
      sets[which]->rms_norm(args);
    }
    ASSERT_NO_FATAL_FAILURE(expect_same(out[1], out[0]));
  });
}

TEST(Sets, Rope) {
  for_other_sets(20, [](const Kernels& kernels, uint64_t seed) {
    RandomStream random(seed);
    constexpr int32_t kRows = 3, kHeads = 2;
    const int32_t head_dim = 8 * static_cast<int32_t>(random.between(2, 16));
    const int32_t dims = seed % 3 == 0 ? head_dim / 2 : head_dim;
    const std::vector<float> x =
        random_floats(random, static_cast<size_t>(kRows * kHeads * head_dim), false);
    const std::vector<float> factors(static_cast<size_t>(dims / 2), 1.5f);
    const int32_t positions[kRows] = {0, static_cast<int32_t>(random.below(131072)), 7};
    std::vector<float> out[2];
    std::vector<float> angles[2];
    const Kernels* sets[2] = {&portable_kernels(), &kernels};
    for (int which = 0; which < 2; ++which) {
      std::vector<double> frequencies(static_cast<size_t>(dims / 2));
      sets[which]->rope_frequencies(seed % 2 == 0 ? 10000.0 : 500000.0, dims,
                                    seed % 5 == 0 ? factors.data() : nullptr, frequencies.data());
      angles[which].resize(static_cast<size_t>(kRows * dims));
      sets[which]->rope_angles({frequencies.data(), dims, positions, kRows, angles[which].data()});
      out[which].resize(x.size());
      RopeArgs args;
      args.x = x.data();
      args.out = out[which].data();
      args.x_stride = args.out_stride = kHeads * head_dim;
      args.rows = kRows;
      args.num_heads = kHeads;
      args.head_dim = head_dim;
      args.dims = dims;
      args.half = seed % 2 == 0;
      args.angles = angles[which].data();
      sets[which]->rope(args);
    }
    ASSERT_NO_FATAL_FAILURE(expect_same(angles[1], angles[0]));
    ASSERT_NO_FATAL_FAILURE(expect_same(out[1], out[0]));
  });
}

TEST(Sets, Embed) {
  for_other_sets(6, [](const Kernels& kernels, uint64_t seed) {
    RandomStream random(seed);
    const auto rows = static_cast<int32_t>(random.between(1, 50));
    for (int i = 0; i < kNumWeights; ++i) {
      const auto type = static_cast<WeightType>(i);
      SCOPED_TRACE(i);
      const int32_t columns = column_multiple(type) *
                              static_cast<int32_t>(random.between(1, is_quantised(type) ? 5 : 90));
      const auto k_blocks = static_cast<int32_t>(num_column_blocks(columns));
      std::vector<std::byte> packed(packed_bytes(type, rows, columns).value());
      for (std::byte& byte : packed) byte = static_cast<std::byte>(random.below(256));
      const int32_t tokens[3] = {0, rows - 1,
                                 static_cast<int32_t>(random.below(static_cast<uint64_t>(rows)))};
      std::vector<float> out[2];
      const Kernels* sets[2] = {&portable_kernels(), &kernels};
      for (int which = 0; which < 2; ++which) {
        out[which].resize(static_cast<size_t>(3 * columns));
        EmbedArgs args;
        args.weights = packed.data();
        args.k_blocks = k_blocks;
        args.columns = columns;
        args.tokens = tokens;
        args.rows = 3;
        args.out = out[which].data();
        args.out_stride = columns;
        sets[which]->embed[static_cast<int>(type)](args);
      }
      ASSERT_NO_FATAL_FAILURE(expect_same(out[1], out[0]));
      Weight weight;
      weight.type = type;
      weight.packing = Packing::kR16K4;
      weight.rows = rows;
      weight.columns = columns;
      std::vector<float> values(static_cast<size_t>(columns));
      for (size_t t = 0; t < 3; ++t) {
        dequantize_row(weight, packed, tokens[t], values);
        const auto row = out[1].begin() + static_cast<std::ptrdiff_t>(t * values.size());
        ASSERT_NO_FATAL_FAILURE(expect_same({row, row + columns}, values));
      }
    }
  });
}

// One head: stores `length` positions, then attends from a tile of queries; the outputs and the
// arenas' bytes.
struct AttentionResult {
  std::vector<float> out;
  std::vector<std::byte> arenas;
};
AttentionResult attend(const Kernels& kernels, int type, uint64_t seed) {
  RandomStream random(seed);
  constexpr int32_t kBlockSizes[] = {1, 16, 32, 64};
  const int32_t block_size = kBlockSizes[random.below(4)];
  const auto head_dim = static_cast<int32_t>(seed % 3 == 0 ? random.between(1, 128) : 64);
  const auto length = static_cast<int32_t>(random.between(1, 700));
  const auto queries = static_cast<int32_t>(random.between(1, kMaxTileQueries));
  const int32_t window = seed % 4 == 0 ? static_cast<int32_t>(random.between(1, length)) : length;
  const int32_t blocks = (length + block_size - 1) / block_size;
  KvLayout layout{block_size, head_dim, block_size * kv_cell_bytes(type, head_dim), 0};
  layout.head_bytes = layout.block_bytes * blocks;
  const auto arena_bytes = static_cast<size_t>(layout.head_bytes);
  AttentionResult result;
  result.arenas.resize(2 * arena_bytes);
  const std::vector<float> k = random_floats(random, static_cast<size_t>(length * head_dim), false);
  const std::vector<float> v = random_floats(random, k.size(), false);
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  for (int32_t i = 0; i < blocks; ++i) table[static_cast<size_t>(i)] = blocks - 1 - i;
  std::vector<int32_t> cells(static_cast<size_t>(length));
  for (int32_t p = 0; p < length; ++p) {
    cells[static_cast<size_t>(p)] =
        table[static_cast<size_t>(p / block_size)] * block_size + p % block_size;
  }
  std::vector<uint8_t> not_finite(static_cast<size_t>(length));
  StoreKvArgs store;
  store.layout = layout;
  store.num_heads = 1;
  store.k_arena = result.arenas.data();
  store.v_arena = result.arenas.data() + arena_bytes;
  store.k = k.data();
  store.v = v.data();
  store.k_stride = store.v_stride = head_dim;
  store.rows = length;
  store.cells = cells.data();
  store.cells_stride = 1;
  store.not_finite = not_finite.data();
  kernels.store_kv[type](store);
  const std::vector<float> q =
      random_floats(random, static_cast<size_t>(queries * head_dim), false);
  result.out.resize(q.size());
  std::vector<AttentionQuery> tile;
  for (int32_t i = 0; i < queries; ++i) {
    const int32_t last = std::max(0, length - 1 - (queries - 1 - i) / 2);
    tile.push_back({q.data() + i * head_dim, result.out.data() + i * head_dim,
                    std::max(0, last - window + 1), last});
  }
  std::vector<std::byte> scratch(attention_scratch_bytes(head_dim) + 64);
  void* aligned = scratch.data();
  size_t space = scratch.size();
  std::align(64, scratch.size() - 64, aligned, space);
  const AttentionPart part{queries, table.data()};
  AttentionArgs args;
  args.parts = &part;
  args.num_parts = 1;
  args.queries = tile.data();
  args.num_queries = queries;
  args.layout = layout;
  args.k = store.k_arena;
  args.v = store.v_arena;
  args.scale = 0.125f;
  args.softcap = seed % 5 == 0 ? 20.0f : 0.0f;
  args.scratch = static_cast<std::byte*>(aligned);
  kernels.attention[type](args);
  return result;
}

TEST(Sets, Attention) {
  for_other_sets(10, [](const Kernels& kernels, uint64_t seed) {
    for (const int type : {kKvF32, kKvBf16, kKvQ8}) {
      SCOPED_TRACE(type);
      const AttentionResult expected = attend(portable_kernels(), type, seed);
      const AttentionResult found = attend(kernels, type, seed);
      ASSERT_TRUE(found.arenas == expected.arenas);
      ASSERT_NO_FATAL_FAILURE(expect_same(found.out, expected.out));
    }
  });
}

TEST(Sets, Reductions) {
  for_other_sets(30, [](const Kernels& kernels, uint64_t seed) {
    RandomStream random(seed);
    const auto count = static_cast<int32_t>(random.between(1, 3000));
    std::vector<float> logits = random_floats(random, static_cast<size_t>(count), false);
    if (seed % 3 == 0) {
      for (float& x : logits) x = std::round(x);  // ties
    }
    std::vector<uint32_t> mask(static_cast<size_t>(count) / 32 + 2);
    for (uint32_t& word : mask) word = static_cast<uint32_t>(random.next());
    mask[0] |= 1;
    const LogitsArgs args{logits.data(), count, seed % 2 == 0 ? mask.data() : nullptr};
    const Kernels& portable = portable_kernels();
    const LogitsMax expected = portable.logits_max(args);
    const LogitsMax found = kernels.logits_max(args);
    EXPECT_EQ(found.index, expected.index);
    EXPECT_EQ(found.max, expected.max);
    EXPECT_EQ(found.nan, expected.nan);
    EXPECT_EQ(std::bit_cast<uint32_t>(kernels.sum_exp(args, expected.max)),
              std::bit_cast<uint32_t>(portable.sum_exp(args, expected.max)));
    EXPECT_EQ(kernels.count_above(args, 0.5f, count / 2),
              portable.count_above(args, 0.5f, count / 2));
    for (int i = 0; i < 20; ++i) {
      const DrawArgs draw{args, expected.max, static_cast<float>(0.2 + random.unit()),
                          random.next()};
      ASSERT_EQ(kernels.draw(draw), portable.draw(draw));
    }
    std::vector<int32_t> top(20), expected_top(20);
    const int32_t held = portable.top_n(args, 20, expected_top.data());
    ASSERT_EQ(kernels.top_n(args, 20, top.data()), held);
    EXPECT_EQ(top, expected_top);
    const double x = random.unit() + 1e-300;
    EXPECT_EQ(kernels.log(x), portable.log(x));
  });
}

}  // namespace
}  // namespace chorus::cpu
