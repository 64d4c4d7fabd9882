#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/kernels.h"

namespace chorus::cpu {
namespace {

struct Case {
  int type = kKvBf16;
  int32_t head_dim = 64;
  int32_t block_size = 16;
  int32_t length = 600;
  int32_t window = 0;
  float softcap = 0.0f;
};

float bf16_round(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

std::vector<float> random_values(uint64_t seed, size_t count) {
  RandomStream random(seed);
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(random.unit() * 4.0 - 2.0);
  return values;
}

// Two heads of one sequence in scattered blocks; whatever is not stored is NaN.
class Cache {
 public:
  Cache(const Kernels& kernels, const Case& c, int32_t first_held)
      : kernels_(kernels), case_(c), first_(first_held) {
    num_blocks_ = (c.length + c.block_size - 1) / c.block_size + 3;
    layout_ = {c.block_size, c.head_dim, c.block_size * kv_cell_bytes(c.type, c.head_dim), 0};
    layout_.head_bytes = layout_.block_bytes * num_blocks_;
    k_.assign(static_cast<size_t>(layout_.head_bytes * kHeads), std::byte{0xff});
    v_ = k_;
    table_.resize(static_cast<size_t>(num_blocks_));
    std::iota(table_.begin(), table_.end(), 0);
    RandomStream random(77);
    for (size_t i = table_.size(); i > 1; --i) std::swap(table_[i - 1], table_[random.below(i)]);
    keys = random_values(1, static_cast<size_t>(c.length * kHeads * c.head_dim));
    values = random_values(2, keys.size());
    store();
  }

  static constexpr int32_t kHeads = 2;
  std::vector<float> keys;  // [length, heads, head_dim]
  std::vector<float> values;

  // Attention of queries at the positions [begin, end), `group` heads each, in tiles of `tile`
  // tokens: [token][group][head_dim] of KV head 1.
  std::vector<float> attend(const std::vector<float>& q, int32_t begin, int32_t end, int32_t group,
                            int32_t tile) {
    const int32_t d = case_.head_dim;
    std::vector<float> out(static_cast<size_t>((end - begin) * group * d));
    std::vector<std::byte> scratch(attention_scratch_bytes(d) + 64);
    void* aligned = scratch.data();
    size_t space = scratch.size();
    std::align(64, scratch.size() - 64, aligned, space);
    for (int32_t first = begin; first < end; first += tile) {
      std::vector<AttentionQuery> queries;
      for (int32_t p = first; p < std::min(end, first + tile); ++p) {
        for (int32_t g = 0; g < group; ++g) {
          const int64_t at = ((p - begin) * group + g) * d;
          queries.push_back({q.data() + at, out.data() + at,
                             case_.window == 0 ? 0 : std::max(0, p - case_.window + 1), p});
        }
      }
      const int32_t first_block = first_ / case_.block_size;
      const AttentionPart part{static_cast<int32_t>(queries.size()), table_.data() + first_block,
                               first_block};
      AttentionArgs args{queries.data(),
                         part.num_queries,
                         &part,
                         1,
                         layout_,
                         k_.data() + layout_.head_bytes,
                         v_.data() + layout_.head_bytes,
                         scale(),
                         case_.softcap,
                         static_cast<std::byte*>(aligned)};
      kernels_.attention[case_.type](args);
    }
    return out;
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(case_.head_dim)); }

 private:
  void store() {
    const int32_t width = kHeads * case_.head_dim;
    std::vector<int32_t> cells;
    for (int32_t p = first_; p < case_.length; ++p) {
      cells.push_back(table_[static_cast<size_t>(p / case_.block_size)] * case_.block_size +
                      p % case_.block_size);
    }
    std::vector<uint8_t> not_finite(cells.size());
    StoreKvArgs args;
    args.layout = layout_;
    args.num_heads = kHeads;
    args.k_arena = k_.data();
    args.v_arena = v_.data();
    args.k = keys.data() + first_ * width;
    args.v = values.data() + first_ * width;
    args.k_stride = args.v_stride = width;
    args.rows = static_cast<int32_t>(cells.size());
    args.cells = cells.data();
    args.cells_stride = 1;
    args.not_finite = not_finite.data();
    kernels_.store_kv[case_.type](args);
    EXPECT_EQ(std::count(not_finite.begin(), not_finite.end(), 1), 0);
  }

  const Kernels& kernels_;
  Case case_;
  int32_t first_;
  int32_t num_blocks_ = 0;
  KvLayout layout_;
  std::vector<std::byte> k_, v_;
  std::vector<int32_t> table_;
};

// What `values`, of one head, become in the arena's type.
std::vector<double> stored(const Case& c, const float* values) {
  std::vector<double> out;
  for (int32_t i = 0; i < c.head_dim; ++i) {
    const float x = values[i];
    if (c.type == kKvQ8) {
      float largest = 0;
      for (int32_t j = i / 32 * 32; j < std::min(i / 32 * 32 + 32, c.head_dim); ++j) {
        largest = std::max(largest, std::abs(values[j]));
      }
      out.push_back(std::nearbyint(static_cast<double>(x * (127.0f / largest))) *
                    static_cast<double>(largest / 127.0f));
    } else {
      out.push_back(static_cast<double>(c.type == kKvBf16 ? bf16_round(x) : x));
    }
  }
  return out;
}

std::vector<double> reference(const Case& c, const Cache& cache, const float* query, int32_t p) {
  const auto at = [&](const std::vector<float>& x, int32_t position) {
    return stored(c, x.data() + (position * Cache::kHeads + 1) * c.head_dim);
  };
  // q8 keeps 13 bits of a query: they are within the tolerance.
  const std::vector<double> q =
      c.type == kKvQ8 ? std::vector<double>(query, query + c.head_dim) : stored(c, query);
  const int32_t first = c.window == 0 ? 0 : std::max(0, p - c.window + 1);
  std::vector<double> weights;
  for (int32_t k = first; k <= p; ++k) {
    const std::vector<double> key = at(cache.keys, k);
    double s = std::inner_product(q.begin(), q.end(), key.begin(), 0.0);
    s *= static_cast<double>(cache.scale());
    if (c.softcap > 0)
      s = static_cast<double>(c.softcap) * std::tanh(s / static_cast<double>(c.softcap));
    weights.push_back(s);
  }
  const double m = *std::max_element(weights.begin(), weights.end());
  double l = 0;
  for (double& w : weights) l += w = std::exp(w - m);
  std::vector<double> out(static_cast<size_t>(c.head_dim));
  for (int32_t k = first; k <= p; ++k) {
    const std::vector<double> value = at(cache.values, k);
    for (size_t i = 0; i < value.size(); ++i) {
      out[i] += weights[static_cast<size_t>(k - first)] / l * value[i];
    }
  }
  return out;
}

std::string describe(const Case& c) {
  return "type " + std::to_string(c.type) + " head_dim " + std::to_string(c.head_dim) +
         " block_size " + std::to_string(c.block_size) + " length " + std::to_string(c.length) +
         " window " + std::to_string(c.window) + " softcap " + std::to_string(c.softcap);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int type : {kKvF32, kKvBf16, kKvQ8}) {
    for (int32_t block_size : {1, 16, 32, 64}) {
      all.push_back({type, 64, block_size, 600, 0, 0.0f});
      all.push_back({type, 8, block_size, 300, 0, 20.0f});
      all.push_back({type, 80, block_size, 530, 37, 0.0f});
      all.push_back({type, 16, block_size, 5, 0, 0.0f});
      all.push_back({type, 32, block_size, 700, 256, 0.0f});
    }
  }
  return all;
}

TEST(Attention, MatchesTheDoubleReference) {
  const Kernels& kernels = generic_kernels();
  for (const Case& c : cases()) {
    SCOPED_TRACE(describe(c));
    Cache cache(kernels, c, 0);
    const int32_t begin = std::max(0, c.length - 9);
    const int32_t group = 3;
    const auto q = random_values(3, static_cast<size_t>((c.length - begin) * group * c.head_dim));
    const auto out = cache.attend(q, begin, c.length, group, 4);
    // bf16: the rounding of the weights, 2^-9 each, in values of up to 2. q8: that of q, 2^-13.
    const double tolerance = c.type == kKvBf16 ? 4e-3 : c.type == kKvQ8 ? 1e-3 : 2e-6;
    for (int32_t i = 0; i < (c.length - begin) * group; ++i) {
      const auto expected = reference(c, cache, q.data() + i * c.head_dim, begin + i / group);
      for (int32_t j = 0; j < c.head_dim; ++j) {
        ASSERT_NEAR(out[static_cast<size_t>(i * c.head_dim + j)], expected[static_cast<size_t>(j)],
                    tolerance)
            << "query " << i << " column " << j;
      }
    }
  }
}

// The same bits for every block size, tile, and split of the queries over tiles; and whether cells
// behind the window are held, or free and NaN.
TEST(Attention, BitsDependOnTheVisibleCellsAlone) {
  const Kernels& kernels = generic_kernels();
  for (int type : {kKvF32, kKvBf16, kKvQ8}) {
    for (int32_t window : {0, 37, 256, 300}) {
      Case c{type, 32, 16, 620, window, 0.0f};
      const int32_t begin = 590;
      const int32_t group = 2;
      const auto q = random_values(3, static_cast<size_t>((c.length - begin) * group * c.head_dim));
      const auto expected = Cache(kernels, c, 0).attend(q, begin, c.length, group, 1);
      for (int32_t block_size : {1, 16, 32, 64, 624}) {
        c.block_size = block_size;
        SCOPED_TRACE(describe(c));
        for (int32_t first_held : {0, window == 0 ? 0 : begin - window + 1}) {
          Cache cache(kernels, c, first_held);
          for (int32_t tile : {1, 2, 5, 6}) {
            const auto out = cache.attend(q, begin, c.length, group, tile);
            ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * 4), 0)
                << "tile " << tile << " first held " << first_held;
          }
        }
      }
    }
  }
}

TEST(Attention, ScoresFarBelowTheMaximumWeighNothing) {
  Case c{kKvF32, 16, 16, 300, 0, 0.0f};
  Cache cache(generic_kernels(), c, 0);
  std::vector<float> q(16);
  // A key in the second chunk that beats all others by far.
  for (size_t i = 0; i < 16; ++i) q[i] = cache.keys[(299 * 2 + 1) * 16 + i] * 1000.0f;
  const auto out = cache.attend(q, 299, 300, 1, 1);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(out[i], cache.values[(299 * 2 + 1) * 16 + i]);
}

// 8-bit integers lose at most half a step of 1/127 of the head's largest magnitude; zeros, and what
// is too small to have an inverse, are zero.
TEST(StoreKv, Q8KeepsMagnitudes) {
  for (int32_t block_size : {1, 16}) {
    for (const float size : {1.0f, 1e30f, 1e-30f, 0x1p-149f, 0.0f}) {
      SCOPED_TRACE(size);
      constexpr int32_t kDim = 32;
      std::vector<float> k = random_values(9, kDim), q(kDim, 0.0f), out(kDim);
      for (float& x : k) x *= size;
      std::vector<float> v = k;
      const int64_t bytes = block_size * kv_cell_bytes(kKvQ8, kDim);
      std::vector<std::byte> arena(static_cast<size_t>(2 * bytes));
      const int32_t cell = 0;
      uint8_t not_finite = 0;
      StoreKvArgs store;
      store.layout = {block_size, kDim, bytes, 0};
      store.num_heads = 1;
      store.k_arena = arena.data();
      store.v_arena = arena.data() + bytes;
      store.k = k.data();
      store.v = v.data();
      store.rows = 1;
      store.cells = &cell;
      store.not_finite = &not_finite;
      generic_kernels().store_kv[kKvQ8](store);
      EXPECT_EQ(not_finite, 0);
      // Attention to one cell is its value.
      const AttentionQuery query{q.data(), out.data(), 0, 0};
      const AttentionPart part{1, &cell, 0};
      alignas(64) static std::byte scratch[attention_scratch_bytes(kDim)];
      const AttentionArgs args{&query,        1,    &part, 1,      store.layout, store.k_arena,
                               store.v_arena, 1.0f, 0.0f,  scratch};
      generic_kernels().attention[kKvQ8](args);
      float largest = 0;
      for (const float x : v) largest = std::max(largest, std::abs(x));
      const float tolerance = size < 1e-37f ? largest : largest * (0.5f / 127 + 1e-6f);
      for (size_t i = 0; i < v.size(); ++i) EXPECT_NEAR(out[i], v[i], tolerance);
    }
  }
}

TEST(StoreKv, MarksRowsThatAreNotFiniteOnceRounded) {
  const float inf = std::numeric_limits<float>::infinity();
  for (int type : {kKvF32, kKvBf16, kKvQ8}) {
    for (int32_t block_size : {1, 16}) {
      std::vector<float> k(6 * 16, 1.0f), v(6 * 16, 1.0f);
      k[1 * 16 + 3] = inf;
      v[2 * 16 + 15] = std::nanf("");
      k[3 * 16] = 3.4e38f;  // finite, but inf as bf16
      v[5 * 16] = inf;      // of a padded row
      const std::vector<int32_t> cells{0, 1, 2, 3, 4, -1};
      std::vector<std::byte> arena(2 * 16 * 16 * 4 * 2);
      std::vector<uint8_t> marks(6);
      StoreKvArgs args;
      args.layout = {block_size, 16, block_size * kv_cell_bytes(type, 16), 0};
      args.num_heads = 1;
      args.k_arena = arena.data();
      args.v_arena = arena.data() + arena.size() / 2;
      args.k = k.data();
      args.v = v.data();
      args.k_stride = args.v_stride = 16;
      args.rows = 6;
      args.cells = cells.data();
      args.cells_stride = 1;
      args.not_finite = marks.data();
      generic_kernels().store_kv[type](args);
      const uint8_t rounds_to_inf = type == kKvBf16 ? 1 : 0;
      EXPECT_EQ(marks, (std::vector<uint8_t>{0, 1, 1, rounds_to_inf, 0, 0}));
    }
  }
}

}  // namespace
}  // namespace chorus::cpu
