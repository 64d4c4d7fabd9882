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
    const int32_t d = (c.head_dim + 15) / 16 * 16;
    const int64_t element = c.type == kKvBf16 ? 2 : 4;
    num_blocks_ = (c.length + c.block_size - 1) / c.block_size + 3;
    layout_ = {c.block_size, c.head_dim, c.block_size * d * element, 0};
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

std::vector<double> reference(const Case& c, const Cache& cache, const float* query, int32_t p) {
  const auto stored = [&](float x) {
    return static_cast<double>(c.type == kKvBf16 ? bf16_round(x) : x);
  };
  const auto at = [&](const std::vector<float>& x, int32_t position, int32_t i) {
    return stored(x[static_cast<size_t>((position * Cache::kHeads + 1) * c.head_dim + i)]);
  };
  const int32_t first = c.window == 0 ? 0 : std::max(0, p - c.window + 1);
  std::vector<double> weights;
  for (int32_t k = first; k <= p; ++k) {
    double s = 0;
    for (int32_t i = 0; i < c.head_dim; ++i) s += stored(query[i]) * at(cache.keys, k, i);
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
    for (int32_t i = 0; i < c.head_dim; ++i) {
      out[static_cast<size_t>(i)] +=
          weights[static_cast<size_t>(k - first)] / l * at(cache.values, k, i);
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
  for (int type : {kKvF32, kKvBf16}) {
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
    // bf16: the rounding of the weights, 2^-9 each, in values of up to 2.
    const double tolerance = c.type == kKvBf16 ? 4e-3 : 2e-6;
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
  for (int type : {kKvF32, kKvBf16}) {
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

TEST(StoreKv, MarksRowsThatAreNotFiniteOnceRounded) {
  const float inf = std::numeric_limits<float>::infinity();
  for (int type : {kKvF32, kKvBf16}) {
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
      args.layout = {block_size, 16, block_size * 16 * (type == kKvBf16 ? 2 : 4), 0};
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
