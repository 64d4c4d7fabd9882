// Linear kernels against a plain reading of the contract, on matrices packed by program/packing.
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/generic.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/tested_sets.h"
#include "program/packing/half.h"
#include "program/packing/r16k4.h"

namespace chorus::cpu {
namespace {

constexpr WeightType kAllTypes[] = {WeightType::kF32, WeightType::kQ4_0, WeightType::kQ4_1,
                                    WeightType::kQ8_0};

// Equal bits; any NaN equals any other.
bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// A buffer whose start is aligned as the kernels want it.
template <typename T>
class Aligned {
 public:
  explicit Aligned(size_t count)
      : size_(count), data_(static_cast<T*>(::operator new(count * sizeof(T) + 1, kAlign))) {
    std::memset(static_cast<void*>(data_), 0, count * sizeof(T));
  }
  ~Aligned() { ::operator delete(data_, kAlign); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  size_t size_;
  T* data_;
};

// A matrix in the checkpoint's order: random quants over their whole range, scales of either sign.
std::vector<std::byte> random_matrix(WeightType type, int32_t rows, int32_t columns,
                                     RandomStream& random) {
  std::vector<std::byte> bytes(canonical_bytes(type, rows, columns).value());
  const auto half = [&] {  // magnitude 2^-6 .. 2^1, sometimes subnormal or zero
    const uint64_t kind = random.below(20);
    const auto sign = static_cast<uint16_t>(random.below(2) << 15);
    if (kind == 0) return static_cast<uint16_t>(sign | random.below(1024));
    return static_cast<uint16_t>(sign | (random.between(9, 15) << 10) | random.between(0, 1023));
  };
  if (type == WeightType::kF32) {
    for (size_t i = 0; i < bytes.size(); i += 4) {
      const auto value = static_cast<float>(random.unit() * 2 - 1);
      std::memcpy(&bytes[i], &value, 4);
    }
    return bytes;
  }
  const size_t block_bytes = canonical_block_bytes(type);
  for (size_t i = 0; i < bytes.size(); i += block_bytes) {
    for (size_t k = 0; k < block_bytes; ++k)
      bytes[i + k] = static_cast<std::byte>(random.below(256));
    for (size_t field = 0; field < (type == WeightType::kQ4_1 ? 2u : 1u); ++field) {
      const uint16_t value = half();
      std::memcpy(&bytes[i + 2 * field], &value, 2);
    }
  }
  return bytes;
}

// Block `block` of row `row` of a matrix in the checkpoint's order.
struct Block {
  float scale = 0;
  float min = 0;
  int quant[32] = {};  // as stored, without the zero point
  int zero = 0;
  float value[32] = {};  // F32
};
Block read_block(WeightType type, const std::vector<std::byte>& matrix, int32_t columns,
                 int32_t row, int32_t block) {
  Block out;
  if (type == WeightType::kF32) {
    for (int k = 0; k < 32 && block * 32 + k < columns; ++k) {
      std::memcpy(&out.value[k],
                  &matrix[(static_cast<size_t>(row) * static_cast<size_t>(columns) +
                           static_cast<size_t>(block * 32 + k)) *
                          4],
                  4);
    }
    return out;
  }
  const std::byte* bytes =
      matrix.data() +
      canonical_block_bytes(type) * (static_cast<size_t>(row) * static_cast<size_t>(columns / 32) +
                                     static_cast<size_t>(block));
  uint16_t half = 0;
  std::memcpy(&half, bytes, 2);
  out.scale = half_to_float(half);
  bytes += 2;
  if (type == WeightType::kQ4_1) {
    std::memcpy(&half, bytes, 2);
    out.min = half_to_float(half);
    bytes += 2;
  }
  out.zero = type == WeightType::kQ4_0 ? 8 : 0;
  for (int k = 0; k < 32; ++k) {
    if (type == WeightType::kQ8_0) {
      out.quant[k] = static_cast<int8_t>(bytes[k]);
    } else {
      const int both = static_cast<int>(bytes[k % 16]);
      out.quant[k] = k < 16 ? both & 15 : both >> 4;
    }
  }
  return out;
}

struct Quantised {
  float sx = 0;
  int q[32] = {};
};
Quantised quantise_plainly(const float* x, int count) {
  Quantised out;
  float absmax = 0;
  for (int k = 0; k < count; ++k) {
    if (!std::isfinite(x[k])) {
      out.sx = std::nanf("");
      return out;
    }
    absmax = std::max(absmax, std::fabs(x[k]));
  }
  if (absmax == 0 || std::isinf(127.0f / absmax)) return out;
  out.sx = absmax / 127.0f;
  for (int k = 0; k < count; ++k)
    out.q[k] = static_cast<int>(std::nearbyint(x[k] * (127.0f / absmax)));
  return out;
}

// The contract of docs/formats.md, one output at a time.
float linear_plainly(WeightType type, const std::vector<std::byte>& matrix, int32_t columns,
                     int32_t row, const float* x, bool int8) {
  float acc = 0;
  for (int32_t block = 0; block * 32 < columns; ++block) {
    const int count = std::min(32, columns - block * 32);
    const Block w = read_block(type, matrix, columns, row, block);
    const float* xs = x + block * 32;
    if (int8) {
      const Quantised a = quantise_plainly(xs, count);
      int sum = 0;
      int sum_q = 0;
      for (int k = 0; k < count; ++k) {
        sum += (w.quant[k] - w.zero) * a.q[k];
        sum_q += a.q[k];
      }
      acc = std::fma(static_cast<float>(sum), w.scale * a.sx, acc);
      if (type == WeightType::kQ4_1) acc = std::fma(w.min, a.sx * static_cast<float>(sum_q), acc);
    } else {
      for (int k = 0; k < count; ++k) {
        const float value = type == WeightType::kF32
                                ? w.value[k]
                                : std::fma(w.scale, static_cast<float>(w.quant[k] - w.zero), w.min);
        acc = std::fma(value, xs[k], acc);
      }
    }
  }
  return acc;
}

struct Problem {
  WeightType type;
  int32_t rows, columns;
  std::vector<std::byte> matrix;
  Aligned<std::byte> packed;

  Problem(WeightType t, int32_t r, int32_t c, RandomStream& random)
      : Problem(t, r, c, random_matrix(t, r, c, random)) {}
  Problem(WeightType t, int32_t r, int32_t c, std::vector<std::byte> canonical)
      : type(t),
        rows(r),
        columns(c),
        matrix(std::move(canonical)),
        packed(packed_bytes(t, r, c).value()) {
    EXPECT_TRUE(pack(t, r, c, matrix, {packed.data(), packed.size()}).ok());
  }
  int32_t k_blocks() const { return static_cast<int32_t>(num_column_blocks(columns)); }
};

// y [tokens][rows + 3]: the gap must stay as it was. Row groups in `parts` calls.
std::vector<float> run(const Kernels& kernels, const Problem& p, const std::vector<float>& x,
                       int32_t tokens, bool int8, const float* bias, int parts) {
  const auto quads = static_cast<size_t>((tokens + 3) / 4);
  const auto blocks = static_cast<size_t>(p.k_blocks());
  Aligned<QuadBlock> quantised(int8 ? quads * blocks : 0);
  Aligned<float> plain(int8 ? 0 : quads * blocks * 128);
  PrepareArgs prepare;
  prepare.x = x.data();
  prepare.x_stride = p.columns;
  prepare.columns = p.columns;
  prepare.tokens = tokens;
  prepare.k_blocks = p.k_blocks();
  prepare.out = int8 ? static_cast<void*>(quantised.data()) : static_cast<void*>(plain.data());
  (int8 ? kernels.quantize : kernels.prepare_f32)(prepare);
  const int32_t stride = p.rows + 3;
  std::vector<float> y(static_cast<size_t>(tokens) * static_cast<size_t>(stride), 12345.0f);
  LinearArgs args;
  args.weights = p.packed.data();
  args.k_blocks = p.k_blocks();
  args.rows = p.rows;
  args.activations = prepare.out;
  args.tokens = tokens;
  args.bias = bias;
  args.out = y.data();
  args.out_stride = stride;
  const auto groups = static_cast<int32_t>(num_row_groups(p.rows));
  for (int part = 0; part < parts; ++part) {
    args.group_begin = groups * part / parts;
    args.group_end = groups * (part + 1) / parts;
    (int8 ? kernels.linear_int8 : kernels.linear_f32)[static_cast<int>(p.type)](args);
  }
  return y;
}

std::vector<float> random_activations(size_t count, RandomStream& random) {
  std::vector<float> x(count);
  for (float& value : x) {
    const double spread = std::exp2(static_cast<double>(random.between(-8, 3)));
    value = static_cast<float>((random.unit() * 2 - 1) * spread);
  }
  return x;
}

void expect_contract(const Kernels& kernels, const Problem& p, const std::vector<float>& x,
                     int32_t tokens, bool int8, const std::vector<float>& bias, int parts) {
  const std::vector<float> y =
      run(kernels, p, x, tokens, int8, bias.empty() ? nullptr : bias.data(), parts);
  for (int32_t t = 0; t < tokens; ++t) {
    for (int32_t r = 0; r < p.rows + 3; ++r) {
      const size_t at =
          static_cast<size_t>(t) * static_cast<size_t>(p.rows + 3) + static_cast<size_t>(r);
      float expected = 12345.0f;
      if (r < p.rows) {
        expected =
            linear_plainly(p.type, p.matrix, p.columns, r,
                           &x[static_cast<size_t>(t) * static_cast<size_t>(p.columns)], int8);
        if (!bias.empty()) expected += bias[static_cast<size_t>(r)];
      }
      ASSERT_TRUE(same(y[at], expected))
          << "token " << t << " row " << r << ": " << y[at] << " and " << expected;
    }
  }
}

bool has_int8(WeightType type) { return type != WeightType::kF32; }

TEST(Linear, EveryShapeMatchesThePlainReading) {
  constexpr uint64_t kSeed = 1;
  RandomStream random(kSeed);
  struct Shape {
    int32_t rows, columns, tokens;
  };
  const Shape shapes[] = {{16, 32, 1},  {1, 32, 2},    {17, 64, 3},  {40, 96, 5},
                          {33, 576, 4}, {48, 2048, 1}, {16, 2048, 9}};
  for (const WeightType type : kAllTypes) {
    for (const Shape& s : shapes) {
      const Problem p(type, s.rows, s.columns, random);
      const auto x = random_activations(static_cast<size_t>(s.tokens * s.columns), random);
      std::vector<float> bias;
      if (s.tokens % 2 == 1) bias = random_activations(static_cast<size_t>(s.rows), random);
      for (const TestedSet& v : tested_sets()) {
        for (const bool int8 : {true, false}) {
          if (int8 && !has_int8(type)) continue;
          SCOPED_TRACE(testing::Message()
                       << v.name << " type " << static_cast<int>(type) << " int8 " << int8
                       << " rows " << s.rows << " columns " << s.columns << " tokens " << s.tokens
                       << " seed " << kSeed);
          ASSERT_NO_FATAL_FAILURE(expect_contract(*v.kernels, p, x, s.tokens, int8, bias, 2));
        }
      }
    }
  }
}

TEST(Linear, FloatColumnsNeedNotBeAMultipleOf32) {
  RandomStream random(2);
  for (const int32_t columns : {1, 31, 33, 100}) {
    const Problem p(WeightType::kF32, 20, columns, random);
    const auto x = random_activations(static_cast<size_t>(6 * columns), random);
    for (const TestedSet& v : tested_sets()) {
      SCOPED_TRACE(testing::Message() << v.name << " columns " << columns);
      ASSERT_NO_FATAL_FAILURE(expect_contract(*v.kernels, p, x, 6, false, {}, 1));
    }
  }
}

// Solo equals batched: a token's outputs do not depend on how many tokens or calls there are.
TEST(Linear, TokensAndSplitsDoNotChangeBits) {
  RandomStream random(3);
  constexpr int32_t kRows = 40, kColumns = 96, kTokens = 33;
  for (const WeightType type : kAllTypes) {
    const Problem p(type, kRows, kColumns, random);
    const auto x = random_activations(kTokens * kColumns, random);
    for (const TestedSet& v : tested_sets()) {
      for (const bool int8 : {true, false}) {
        if (int8 && !has_int8(type)) continue;
        std::vector<float> solo;
        for (int32_t t = 0; t < kTokens; ++t) {
          const std::vector<float> one(x.begin() + t * kColumns, x.begin() + (t + 1) * kColumns);
          const std::vector<float> y = run(*v.kernels, p, one, 1, int8, nullptr, 1);
          solo.insert(solo.end(), y.begin(), y.end());
        }
        for (int32_t tokens = 1; tokens <= kTokens; ++tokens) {
          const std::vector<float> y = run(*v.kernels, p, x, tokens, int8, nullptr, 1 + tokens % 5);
          ASSERT_EQ(std::memcmp(y.data(), solo.data(), y.size() * sizeof(float)), 0)
              << v.name << " type " << static_cast<int>(type) << " int8 " << int8 << " tokens "
              << tokens;
        }
      }
    }
  }
}

// Every kernel variant gives the same bits, on values that reach subnormals and overflow too.
TEST(Linear, VariantsAgreeOnExtremeValues) {
  RandomStream random(4);
  for (const WeightType type : kAllTypes) {
    const Problem p(type, 32, 256, random);
    std::vector<float> x(8 * 256);
    for (float& value : x) {
      value = static_cast<float>(
          std::ldexp(random.unit() * 2 - 1, static_cast<int>(random.between(-149, 127))));
      if (random.below(400) == 0)
        value = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
    }
    for (const bool int8 : {true, false}) {
      if (int8 && !has_int8(type)) continue;
      for (const TestedSet& v : tested_sets()) {
        SCOPED_TRACE(testing::Message() << v.name << " type " << static_cast<int>(type));
        ASSERT_NO_FATAL_FAILURE(expect_contract(*v.kernels, p, x, 8, int8, {}, 1));
      }
    }
  }
}

// Sums as large as they get: blocks of one quant, activations of +-127, scales and mins that are
// not finite among the others; every number of tokens.
TEST(Linear, ExtremeQuantsAndScales) {
  constexpr uint64_t kSeed = 7;
  RandomStream random(kSeed);
  constexpr int32_t kRows = 35, kColumns = 96, kTokens = 40;
  constexpr int kQuants[] = {0x00, 0xff, 0x7f, 0x80, 0x88, 0x0f, 0xf0};
  constexpr uint16_t kHalves[] = {0x3c00, 0xbc00, 0x7e00, 0x7c00, 0x0001, 0x0000, 0x7bff};
  for (const WeightType type : {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ8_0}) {
    const size_t block_bytes = canonical_block_bytes(type);
    const size_t fields = type == WeightType::kQ4_1 ? 2 : 1;
    std::vector<std::byte> matrix(canonical_bytes(type, kRows, kColumns).value());
    for (size_t i = 0; i < matrix.size(); i += block_bytes) {
      std::memset(&matrix[i], kQuants[random.below(std::size(kQuants))], block_bytes);
      for (size_t field = 0; field < fields; ++field) {
        const bool any = random.below(8) == 0;
        const uint16_t half = kHalves[random.below(any ? std::size(kHalves) : 2)];
        std::memcpy(&matrix[i + 2 * field], &half, sizeof half);
      }
    }
    const Problem p(type, kRows, kColumns, matrix);
    std::vector<float> x(static_cast<size_t>(kTokens * kColumns));
    for (size_t i = 0; i < x.size(); ++i) {  // some tokens all of one sign
      const size_t token = i / kColumns;
      x[i] = (token % 3 == 0 ? token % 2 == 0 : random.below(2) == 0) ? 0.5f : -0.5f;
    }
    for (const TestedSet& v : tested_sets()) {
      SCOPED_TRACE(testing::Message()
                   << v.name << " type " << static_cast<int>(type) << " seed " << kSeed);
      ASSERT_NO_FATAL_FAILURE(expect_contract(*v.kernels, p, x, kTokens, true, {}, 1));
      const std::vector<float> all = run(*v.kernels, p, x, kTokens, true, nullptr, 1);
      for (int32_t tokens = 1; tokens < kTokens; ++tokens) {
        const std::vector<float> y = run(*v.kernels, p, x, tokens, true, nullptr, 2);
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_TRUE(same(y[i], all[i])) << "tokens " << tokens << " at " << i;
        }
      }
    }
  }
}

TEST(Quantize, FollowsTheContract) {
  RandomStream random(5);
  constexpr int32_t kTokens = 7, kBlocks = 3, kColumns = 32 * kBlocks;
  std::vector<float> x = random_activations(kTokens * kColumns, random);
  const auto at = [&](int32_t t, int32_t k) -> float& {
    return x[static_cast<size_t>(t * kColumns + k)];
  };
  for (int k = 0; k < 32; ++k) at(0, k) = 0.0f;  // absmax 0
  at(1, 5) = INFINITY;                           // not finite
  at(2, 40) = -NAN;
  for (int k = 64; k < 96; ++k) at(3, k) = 1e-40f;                       // 127 / absmax overflows
  for (int k = 0; k < 32; ++k) at(4, k) = static_cast<float>(k) + 0.5f;  // ties
  at(4, 31) = 127.0f;
  for (const TestedSet& v : tested_sets()) {
    Aligned<QuadBlock> quads(2 * kBlocks);
    PrepareArgs args;
    args.x = x.data();
    args.x_stride = kColumns;
    args.columns = kColumns;
    args.tokens = kTokens;
    args.k_blocks = kBlocks;
    args.out = quads.data();
    std::memset(args.out, 0x5a, quads.size() * sizeof(QuadBlock));
    v.kernels->quantize(args);
    for (int32_t t = 0; t < 8; ++t) {
      for (int32_t b = 0; b < kBlocks; ++b) {
        SCOPED_TRACE(testing::Message() << v.name << " token " << t << " block " << b);
        const QuadBlock& quad = quads.data()[t / 4 * kBlocks + b];
        const Quantised expected = t < kTokens ? quantise_plainly(&at(t, 32 * b), 32) : Quantised{};
        int sum = 0;
        for (int k = 0; k < 32; ++k) {
          ASSERT_EQ(quad.q[t % 4][k], expected.q[k]);
          sum += expected.q[k];
        }
        EXPECT_TRUE(same(quad.sx[t % 4], expected.sx));
        EXPECT_EQ(quad.c8[t % 4], -8 * sum);
        EXPECT_EQ(quad.c128[t % 4], -128 * sum);
        EXPECT_TRUE(same(quad.m[t % 4], expected.sx * static_cast<float>(sum)));
      }
    }
  }
}

// The emulated fma against libm's, where both roundings matter: ties, subnormals, overflow.
TEST(Fused, EmulationIsExact) {
  constexpr uint64_t kSeed = 6;
  RandomStream random(kSeed);
  const auto check = [&](float a, float b, float c) {
    ASSERT_TRUE(same(portable_fma(a, b, c), std::fma(a, b, c)))
        << std::hexfloat << a << " * " << b << " + " << c << " seed " << kSeed;
  };
  for (int i = 0; i < 100000; ++i) {
    const auto bits = [&] { return std::bit_cast<float>(static_cast<uint32_t>(random.next())); };
    ASSERT_NO_FATAL_FAILURE(check(bits(), bits(), bits()));
    // c near the product, few bits set: results close to a tie between two floats.
    const auto few = [&] {
      const auto mantissa = static_cast<uint32_t>((random.below(8) << 20) | random.below(4));
      return std::bit_cast<float>(static_cast<uint32_t>(random.below(2) << 31) |
                                  (static_cast<uint32_t>(random.between(90, 160)) << 23) |
                                  mantissa);
    };
    const float a = few();
    const float b = few();
    const float product = a * b;
    const int shift = static_cast<int>(random.between(-30, 30));
    ASSERT_NO_FATAL_FAILURE(check(a, b, std::ldexp(few() > 0 ? product : -product, shift)));
    ASSERT_NO_FATAL_FAILURE(check(a, b, few()));
    // A tie of the float sum, broken only by a product far below.
    const float tiny =
        std::ldexp(few() > 0 ? 1.0f : -1.0f, static_cast<int>(random.between(-120, -25)));
    const float base = std::ldexp(1.0f + static_cast<float>(random.below(1u << 23)) * 0x1p-23f,
                                  static_cast<int>(random.between(-126, 20)));
    const float half_ulp = std::ldexp(1.0f, std::ilogb(base) - 24);
    ASSERT_NO_FATAL_FAILURE(
        check(half_ulp, 1.0f + 0x1p-23f * static_cast<float>(random.below(3)), base));
    ASSERT_NO_FATAL_FAILURE(check(half_ulp * tiny, half_ulp, base));
  }
  // The same among subnormals: the product is just below half a step of 2^-149.
  for (int i = 0; i < 1000; ++i) {
    const auto step = static_cast<float>(random.between(1, (1 << 22) - 1)) * 0x1p-149f;
    const float c = 0x1p-127f + step;
    ASSERT_NO_FATAL_FAILURE(check(0x1.000002p-75f, 0x1.fffffcp-76f, c));
    ASSERT_NO_FATAL_FAILURE(check(-0x1.000002p-75f, 0x1.fffffcp-76f, -c));
  }
  ASSERT_NO_FATAL_FAILURE(check(0x1.fffffep127f, 1.0f, 0x1p103f));
  ASSERT_NO_FATAL_FAILURE(check(0x1.fffffep127f, 1.0f, 0x1.fffffep102f));
  ASSERT_NO_FATAL_FAILURE(check(0x1p-149f, 0.5f, 0x1p-149f));
  ASSERT_NO_FATAL_FAILURE(check(0x1p-149f, 0.5f, 0.0f));
}

}  // namespace
}  // namespace chorus::cpu
