// Linear kernels against a plain reading of the contract, on matrices packed by program/packing.
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/generic.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/tested_sets.h"
#include "program/packing/half.h"
#include "program/packing/r16k4.h"
#include "program/packing/row_block.h"

namespace chorus::cpu {
namespace {

constexpr WeightType kAllTypes[] = {WeightType::kF32,  WeightType::kQ4_0, WeightType::kQ4_1,
                                    WeightType::kQ8_0, WeightType::kQ5_0, WeightType::kQ5_1,
                                    WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K,
                                    WeightType::kBF16, WeightType::kF16};
static_assert(std::size(kAllTypes) == kNumWeights);

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

// What the halves of a type's canonical block are: at these bytes of it.
std::vector<size_t> half_offsets(WeightType type) {
  if (type == WeightType::kQ6_K) return {208};
  return record_layout(type).mins ? std::vector<size_t>{0, 2} : std::vector<size_t>{0};
}

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
  if (!is_quantised(type)) {
    const size_t size = record_layout(type).element_bytes;
    for (size_t i = 0; i < bytes.size(); i += size) {
      const auto value = static_cast<float>(random.unit() * 2 - 1);
      const uint16_t bits = type == WeightType::kBF16 ? float_to_bf16(value) : half();
      std::memcpy(&bytes[i], size == 4 ? static_cast<const void*>(&value) : &bits, size);
    }
    return bytes;
  }
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  for (size_t i = 0; i < bytes.size(); i += canonical_block_bytes(type)) {
    for (const size_t offset : half_offsets(type)) {
      const uint16_t value = half();
      std::memcpy(&bytes[i + offset], &value, 2);
    }
  }
  return bytes;
}

// 32 columns of a row of a matrix in the checkpoint's order, with a scale for each half of them.
struct Block {
  float scale[2] = {};
  float min = 0;
  int quant[32] = {};    // without the zero point
  float value[32] = {};  // of float types
};
void read_floats(WeightType type, const std::byte* from, int count, Block& out) {
  for (int k = 0; k < count; ++k) {
    uint16_t bits = 0;
    if (type == WeightType::kF32) {
      std::memcpy(&out.value[k], from + 4 * k, 4);
      continue;
    }
    std::memcpy(&bits, from + 2 * k, 2);
    out.value[k] = type == WeightType::kBF16 ? bf16_to_float(bits) : half_to_float(bits);
  }
}
// Of the checkpoint's layouts, program/packing's test has the plain reading.
void read_quants(WeightType type, const std::byte* from, int part, Block& out) {
  RowBlock row;
  read_row(type, from, row);
  const float d = half_to_float(row.scale);
  for (int half = 0; half < 2; ++half) {
    out.scale[half] = d;
    if (type == WeightType::kQ4_K || type == WeightType::kQ5_K) {
      out.scale[half] = d * static_cast<float>(row.sub_scales[part]);
    }
    if (type == WeightType::kQ6_K) {
      out.scale[half] =
          d * static_cast<float>(static_cast<int8_t>(row.sub_scales[2 * part + half]));
    }
  }
  if (type == WeightType::kQ4_1 || type == WeightType::kQ5_1) out.min = half_to_float(row.min);
  if (type == WeightType::kQ4_K || type == WeightType::kQ5_K) {
    out.min = -(half_to_float(row.min) * static_cast<float>(row.sub_mins[part]));
  }
  int zero = 0;
  if (type == WeightType::kQ4_0) zero = 8;
  if (type == WeightType::kQ5_0) zero = 16;
  if (type == WeightType::kQ6_K) zero = 32;
  if (type == WeightType::kQ8_0) zero = 128;
  for (int k = 0; k < 32; ++k) out.quant[k] = row.quants[32 * part + k] - zero;
}
Block read_block(WeightType type, const std::vector<std::byte>& matrix, int32_t columns,
                 int32_t row, int32_t block) {
  Block out;
  const auto at = static_cast<size_t>(row) * static_cast<size_t>(columns);  // elements before
  if (!is_quantised(type)) {
    const size_t first = at + static_cast<size_t>(block * 32);
    read_floats(type, matrix.data() + first * record_layout(type).element_bytes,
                std::min(32, columns - block * 32), out);
    return out;
  }
  const size_t record_columns = record_layout(type).columns();
  const size_t first = (at + static_cast<size_t>(block * 32)) / record_columns;
  read_quants(type, matrix.data() + first * canonical_block_bytes(type),
              block % static_cast<int>(record_columns / 32), out);
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

enum class Input { kInt8, kBf16, kF32 };
constexpr Input kInputs[] = {Input::kInt8, Input::kBf16, Input::kF32};
// int8 is what quantised types take, bf16 what BF16 takes; f32, what any takes.
bool takes(WeightType type, Input input) {
  if (input == Input::kInt8) return is_quantised(type);
  return input == Input::kF32 || type == WeightType::kBF16;
}

// The contract of docs/formats.md, one output at a time.
float linear_plainly(WeightType type, const std::vector<std::byte>& matrix, int32_t columns,
                     int32_t row, const float* x, Input input) {
  float acc = 0;
  for (int32_t block = 0; block * 32 < columns; ++block) {
    const int count = std::min(32, columns - block * 32);
    const Block w = read_block(type, matrix, columns, row, block);
    const float* xs = x + block * 32;
    if (input == Input::kInt8) {
      const Quantised a = quantise_plainly(xs, count);
      int sum[2] = {};
      int sum_q = 0;
      for (int k = 0; k < count; ++k) {
        sum[k / 16] += w.quant[k] * a.q[k];
        sum_q += a.q[k];
      }
      if (type == WeightType::kQ6_K) {
        acc = std::fma(static_cast<float>(sum[0]), w.scale[0] * a.sx, acc);
        acc = std::fma(static_cast<float>(sum[1]), w.scale[1] * a.sx, acc);
      } else {
        acc = std::fma(static_cast<float>(sum[0] + sum[1]), w.scale[0] * a.sx, acc);
      }
      if (record_layout(type).mins) {
        acc = std::fma(w.min, a.sx * static_cast<float>(sum_q), acc);
      }
    } else {
      for (int k = 0; k < count; ++k) {
        const float value = is_quantised(type)
                                ? std::fma(w.scale[k / 16], static_cast<float>(w.quant[k]), w.min)
                                : w.value[k];
        const float rounded = bf16_to_float(float_to_bf16(xs[k]));
        acc = std::fma(value, input == Input::kBf16 ? rounded : xs[k], acc);
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
                       int32_t tokens, Input input, const float* bias, int parts) {
  const auto quads = static_cast<size_t>((tokens + 3) / 4);
  const auto blocks = static_cast<size_t>(p.k_blocks());
  const bool int8 = input == Input::kInt8;
  Aligned<QuadBlock> quantised(int8 ? quads * blocks : 0);
  Aligned<float> plain(int8 ? 0 : quads * blocks * 128);
  PrepareArgs prepare;
  prepare.x = x.data();
  prepare.x_stride = p.columns;
  prepare.columns = p.columns;
  prepare.tokens = tokens;
  prepare.k_blocks = p.k_blocks();
  prepare.out = int8 ? static_cast<void*>(quantised.data()) : static_cast<void*>(plain.data());
  if (int8) kernels.quantize(prepare);
  if (input == Input::kBf16) kernels.prepare_bf16(prepare);
  if (input == Input::kF32) kernels.prepare_f32(prepare);
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
                     int32_t tokens, Input input, const std::vector<float>& bias, int parts) {
  const std::vector<float> y =
      run(kernels, p, x, tokens, input, bias.empty() ? nullptr : bias.data(), parts);
  for (int32_t t = 0; t < tokens; ++t) {
    for (int32_t r = 0; r < p.rows + 3; ++r) {
      const size_t at =
          static_cast<size_t>(t) * static_cast<size_t>(p.rows + 3) + static_cast<size_t>(r);
      float expected = 12345.0f;
      if (r < p.rows) {
        expected =
            linear_plainly(p.type, p.matrix, p.columns, r,
                           &x[static_cast<size_t>(t) * static_cast<size_t>(p.columns)], input);
        if (!bias.empty()) expected += bias[static_cast<size_t>(r)];
      }
      ASSERT_TRUE(same(y[at], expected))
          << "token " << t << " row " << r << ": " << y[at] << " and " << expected;
    }
  }
}

// The least number of columns that a type allows and that is not below `columns`.
int32_t columns_for(WeightType type, int32_t columns) {
  const int32_t multiple = column_multiple(type);
  return (columns + multiple - 1) / multiple * multiple;
}

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
      const int32_t columns = columns_for(type, s.columns);
      const Problem p(type, s.rows, columns, random);
      const auto x = random_activations(static_cast<size_t>(s.tokens * columns), random);
      std::vector<float> bias;
      if (s.tokens % 2 == 1) bias = random_activations(static_cast<size_t>(s.rows), random);
      for (const TestedSet& v : tested_sets()) {
        for (const Input input : kInputs) {
          if (!takes(type, input)) continue;
          SCOPED_TRACE(testing::Message()
                       << v.name << " type " << static_cast<int>(type) << " input "
                       << static_cast<int>(input) << " rows " << s.rows << " columns " << columns
                       << " tokens " << s.tokens << " seed " << kSeed);
          ASSERT_NO_FATAL_FAILURE(expect_contract(*v.kernels, p, x, s.tokens, input, bias, 2));
        }
      }
    }
  }
}

TEST(Linear, FloatColumnsNeedNotBeAMultipleOf32) {
  RandomStream random(2);
  for (const WeightType type : {WeightType::kF32, WeightType::kBF16, WeightType::kF16}) {
    for (const int32_t columns : {1, 31, 33, 100}) {
      const Problem p(type, 20, columns, random);
      const auto x = random_activations(static_cast<size_t>(6 * columns), random);
      for (const TestedSet& v : tested_sets()) {
        for (const Input input : kInputs) {
          if (!takes(type, input)) continue;
          SCOPED_TRACE(testing::Message()
                       << v.name << " type " << static_cast<int>(type) << " columns " << columns);
          ASSERT_NO_FATAL_FAILURE(expect_contract(*v.kernels, p, x, 6, input, {}, 1));
        }
      }
    }
  }
}

// Solo equals batched: a token's outputs do not depend on how many tokens or calls there are.
TEST(Linear, TokensAndSplitsDoNotChangeBits) {
  RandomStream random(3);
  constexpr int32_t kRows = 40, kTokens = 70;
  for (const WeightType type : kAllTypes) {
    const int32_t columns = columns_for(type, 96);
    const Problem p(type, kRows, columns, random);
    const auto x = random_activations(static_cast<size_t>(kTokens * columns), random);
    for (const TestedSet& v : tested_sets()) {
      for (const Input input : kInputs) {
        if (!takes(type, input)) continue;
        std::vector<float> solo;
        for (int32_t t = 0; t < kTokens; ++t) {
          const std::vector<float> one(x.begin() + t * columns, x.begin() + (t + 1) * columns);
          const std::vector<float> y = run(*v.kernels, p, one, 1, input, nullptr, 1);
          solo.insert(solo.end(), y.begin(), y.end());
        }
        for (int32_t tokens = 1; tokens <= kTokens; tokens += tokens < 34 ? 1 : 6) {
          const std::vector<float> y =
              run(*v.kernels, p, x, tokens, input, nullptr, 1 + tokens % 5);
          ASSERT_EQ(std::memcmp(y.data(), solo.data(), y.size() * sizeof(float)), 0)
              << v.name << " type " << static_cast<int>(type) << " input "
              << static_cast<int>(input) << " tokens " << tokens;
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
    for (const Input input : kInputs) {
      if (!takes(type, input)) continue;
      for (const TestedSet& v : tested_sets()) {
        SCOPED_TRACE(testing::Message() << v.name << " type " << static_cast<int>(type));
        ASSERT_NO_FATAL_FAILURE(expect_contract(*v.kernels, p, x, 8, input, {}, 1));
      }
    }
  }
}

// Sums as large as they get: blocks of one quant, activations of +-127, scales and mins that are
// not finite among the others; every number of tokens.
TEST(Linear, ExtremeQuantsAndScales) {
  constexpr uint64_t kSeed = 7;
  RandomStream random(kSeed);
  constexpr int32_t kRows = 35, kTokens = 40;
  constexpr int kQuants[] = {0x00, 0xff, 0x7f, 0x80, 0x88, 0x0f, 0xf0};
  constexpr uint16_t kHalves[] = {0x3c00, 0xbc00, 0x7e00, 0x7c00, 0x0001, 0x0000, 0x7bff};
  for (const WeightType type : kAllTypes) {
    if (!is_quantised(type)) continue;
    const int32_t columns = columns_for(type, 96);
    const size_t block_bytes = canonical_block_bytes(type);
    std::vector<std::byte> matrix(canonical_bytes(type, kRows, columns).value());
    for (size_t i = 0; i < matrix.size(); i += block_bytes) {
      std::memset(&matrix[i], kQuants[random.below(std::size(kQuants))], block_bytes);
      for (const size_t offset : half_offsets(type)) {
        const bool any = random.below(8) == 0;
        const uint16_t half = kHalves[random.below(any ? std::size(kHalves) : 2)];
        std::memcpy(&matrix[i + offset], &half, sizeof half);
      }
    }
    const Problem p(type, kRows, columns, matrix);
    std::vector<float> x(static_cast<size_t>(kTokens * columns));
    for (size_t i = 0; i < x.size(); ++i) {  // some tokens all of one sign
      const size_t token = i / static_cast<size_t>(columns);
      x[i] = (token % 3 == 0 ? token % 2 == 0 : random.below(2) == 0) ? 0.5f : -0.5f;
    }
    for (const TestedSet& v : tested_sets()) {
      SCOPED_TRACE(testing::Message()
                   << v.name << " type " << static_cast<int>(type) << " seed " << kSeed);
      ASSERT_NO_FATAL_FAILURE(expect_contract(*v.kernels, p, x, kTokens, Input::kInt8, {}, 1));
      const std::vector<float> all = run(*v.kernels, p, x, kTokens, Input::kInt8, nullptr, 1);
      for (int32_t tokens = 1; tokens < kTokens; ++tokens) {
        const std::vector<float> y = run(*v.kernels, p, x, tokens, Input::kInt8, nullptr, 2);
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
        int first = 0;
        for (int k = 0; k < 32; ++k) {
          ASSERT_EQ(quad.q[t % 4][k], expected.q[k]);
          sum += expected.q[k];
          if (k < 16) first += expected.q[k];
        }
        EXPECT_TRUE(same(quad.sx[t % 4], expected.sx));
        EXPECT_EQ(quad.c8[t % 4], -8 * sum);
        EXPECT_EQ(quad.c32[t % 4], -32 * first);
        EXPECT_TRUE(same(quad.m[t % 4], expected.sx * static_cast<float>(sum)));
      }
    }
  }
}

TEST(PrepareBf16, RoundsEachValue) {
  RandomStream random(8);
  constexpr int32_t kTokens = 5, kColumns = 40;
  std::vector<float> x(kTokens * kColumns);
  for (float& value : x) value = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
  for (const TestedSet& v : tested_sets()) {
    Aligned<float> out(2 * 64 * 4);
    PrepareArgs args;
    args.x = x.data();
    args.x_stride = args.columns = kColumns;
    args.tokens = kTokens;
    args.k_blocks = 2;
    args.out = out.data();
    v.kernels->prepare_bf16(args);
    for (int32_t t = 0; t < 8; ++t) {
      for (int32_t k = 0; k < 64; ++k) {
        float expected = 0.0f;
        if (t < kTokens && k < kColumns) {
          expected = bf16_to_float(float_to_bf16(x[static_cast<size_t>(t * kColumns + k)]));
        }
        ASSERT_TRUE(same(out.data()[(t / 4 * 64 + k) * 4 + t % 4], expected))
            << v.name << " token " << t << " column " << k;
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
