#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/kernels.h"
#include "program/packing/r16k4.h"

namespace chorus::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> apply(void (*kernel)(const ElementwiseArgs&), const std::vector<float>& x,
                         float scale = 0.0f) {
  std::vector<float> out(x.size());
  ElementwiseArgs args;
  args.a = x.data();
  args.out = out.data();
  args.rows = 1;
  args.width = static_cast<int32_t>(x.size());
  args.scale = scale;
  kernel(args);
  return out;
}

std::vector<float> grid(float low, float high, int count) {
  std::vector<float> x;
  for (int i = 0; i <= count; ++i) {
    x.push_back(low + (high - low) * static_cast<float>(i) / static_cast<float>(count));
  }
  return x;
}

// |got - want| in units of the float spacing at `want`.
double ulps(float got, double want) {
  const float at = std::abs(static_cast<float>(want));
  const double spacing = static_cast<double>(std::nextafter(at, kInf)) - static_cast<double>(at);
  return std::abs(static_cast<double>(got) - want) / spacing;
}

TEST(Rows, ActivationsMatchDouble) {
  const Kernels& kernels = generic_kernels();
  const std::vector<float> x = grid(-30.0f, 30.0f, 60013);
  const auto silu = apply(kernels.silu, x);
  const auto sigmoid = apply(kernels.sigmoid, x);
  const auto gelu = apply(kernels.gelu, x);
  const auto capped = apply(kernels.tanh_softcap, x, 5.0f);
  const auto scaled = apply(kernels.scale, x, 0.3f);
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = static_cast<double>(x[i]);
    ASSERT_LE(ulps(silu[i], v / (1 + std::exp(-v))), 5) << x[i];
    ASSERT_LE(ulps(sigmoid[i], 1 / (1 + std::exp(-v))), 5) << x[i];
    const double u = std::sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v);
    const double want = 0.5 * v * (1 + std::tanh(u));
    ASSERT_NEAR(gelu[i], want, 4e-6 * std::max(std::abs(want), 0.1)) << x[i];
    ASSERT_LE(ulps(capped[i], 5 * std::tanh(v / 5)), 4) << x[i];
    ASSERT_EQ(scaled[i], x[i] * 0.3f);
  }
}

TEST(Rows, ActivationsAtTheEdges) {
  const Kernels& kernels = generic_kernels();
  const std::vector<float> x{0.0f, -200.0f, 200.0f, -kInf, kInf, std::nanf("")};
  const auto sigmoid = apply(kernels.sigmoid, x);
  EXPECT_EQ(sigmoid[0], 0.5f);
  EXPECT_EQ(sigmoid[1], 0.0f);
  EXPECT_EQ(sigmoid[2], 1.0f);
  EXPECT_EQ(sigmoid[3], 0.0f);
  EXPECT_EQ(sigmoid[4], 1.0f);
  EXPECT_TRUE(std::isnan(sigmoid[5]));
  EXPECT_EQ(apply(kernels.silu, x)[1], 0.0f);
  EXPECT_EQ(apply(kernels.silu, x)[2], 200.0f);
  EXPECT_TRUE(std::isnan(apply(kernels.tanh_softcap, x, 5.0f)[5]));
  EXPECT_EQ(apply(kernels.tanh_softcap, x, 5.0f)[4], 5.0f);
}

TEST(Rows, AddAndMulWithStridesAndTails) {
  const Kernels& kernels = generic_kernels();
  std::vector<float> a(3 * 40), b(3 * 50), out(3 * 60, 7.0f);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i);
  for (size_t i = 0; i < b.size(); ++i) b[i] = 0.5f * static_cast<float>(i);
  ElementwiseArgs args{a.data(), 40, b.data(), 50, out.data(), 60, 3, 37, 0.0f};
  kernels.add(args);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t i = 0; i < 60; ++i) {
      EXPECT_EQ(out[row * 60 + i], i < 37 ? a[row * 40 + i] + b[row * 50 + i] : 7.0f);
    }
  }
  kernels.mul(args);
  EXPECT_EQ(out[60 + 36], a[40 + 36] * b[50 + 36]);
}

TEST(Rows, RmsNormMatchesDouble) {
  RandomStream random(5);
  for (const auto& [width, group] : std::vector<std::pair<int32_t, int32_t>>{
           {64, 64}, {576, 576}, {96, 24}, {2049, 2049}, {5, 5}}) {
    for (bool weighted : {false, true}) {
      std::vector<float> x(static_cast<size_t>(width)), w(static_cast<size_t>(group)), out(x);
      for (float& v : x) v = static_cast<float>(random.unit() * 6 - 2);
      for (float& v : w) v = static_cast<float>(random.unit());
      RmsNormArgs args;
      args.x = x.data();
      args.out = out.data();
      args.rows = 1;
      args.width = width;
      args.group_width = group;
      args.weight = weighted ? w.data() : nullptr;
      args.epsilon = 1e-5f;
      generic_kernels().rms_norm(args);
      for (int32_t i = 0; i < width; ++i) {
        double sum = 0;
        for (int32_t j = 0; j < group; ++j) {
          const double v = static_cast<double>(x[static_cast<size_t>(i / group * group + j)]);
          sum += v * v;
        }
        const double factor =
            weighted ? static_cast<double>(w[static_cast<size_t>(i % group)]) : 1.0;
        const double want =
            static_cast<double>(x[static_cast<size_t>(i)]) / std::sqrt(sum / group + 1e-5) * factor;
        ASSERT_NEAR(out[static_cast<size_t>(i)], want, 1e-6 * std::abs(want) + 1e-9);
      }
    }
  }
}

TEST(Rows, RopeMatchesDouble) {
  const Kernels& kernels = generic_kernels();
  for (const double theta : {10000.0, 100000.0, 500000.0, 1e6}) {
    for (bool half : {false, true}) {
      constexpr int32_t kDim = 64;
      const int32_t dims = half ? 64 : 48;
      std::vector<float> factors(static_cast<size_t>(dims / 2), 1.0f);
      factors[3] = 2.5f;
      std::vector<double> frequencies(factors.size());
      kernels.rope_frequencies(theta, dims, factors.data(), frequencies.data());
      const std::vector<int32_t> positions{0, 1, 2, 77, 4095, 131071, 1000000};
      const auto rows = static_cast<int32_t>(positions.size());
      std::vector<float> angles(positions.size() * static_cast<size_t>(dims));
      kernels.rope_angles({frequencies.data(), dims, positions.data(), rows, angles.data()});
      std::vector<float> x(positions.size() * 2 * kDim), out(x.size());
      RandomStream random(9);
      for (float& v : x) v = static_cast<float>(random.unit() * 2 - 1);
      RopeArgs args{x.data(), 2 * kDim, out.data(), 2 * kDim, rows,
                    2,        kDim,     dims,       half,     angles.data()};
      kernels.rope(args);
      for (size_t row = 0; row < positions.size(); ++row) {
        for (int32_t i = 0; i < dims / 2; ++i) {
          const double f = std::pow(theta, -2.0 * i / dims) /
                           static_cast<double>(factors[static_cast<size_t>(i)]);
          const double angle = positions[row] * f;
          for (int32_t head = 0; head < 2; ++head) {
            const size_t base = row * 2 * kDim + static_cast<size_t>(head * kDim);
            const size_t p = base + static_cast<size_t>(half ? i : 2 * i);
            const size_t q = half ? p + kDim / 2 : p + 1;
            const double a = static_cast<double>(x[p]), b = static_cast<double>(x[q]);
            ASSERT_NEAR(out[p], a * std::cos(angle) - b * std::sin(angle), 3e-7);
            ASSERT_NEAR(out[q], b * std::cos(angle) + a * std::sin(angle), 3e-7);
          }
        }
        for (size_t i = static_cast<size_t>(dims); i < kDim; ++i) {
          ASSERT_EQ(out[row * 2 * kDim + i], x[row * 2 * kDim + i]);
        }
      }
      kernels.rope(
          {x.data(), 2 * kDim, x.data(), 2 * kDim, rows, 2, kDim, dims, half, angles.data()});
      EXPECT_EQ(x, out) << "in place";
    }
  }
}

TEST(Rows, EmbedIsTheUnpackedRow) {
  for (const WeightType type :
       {WeightType::kF32, WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ8_0}) {
    const int32_t rows = 35;
    const int32_t columns = type == WeightType::kF32 ? 70 : 96;
    std::vector<std::byte> source(*canonical_bytes(type, rows, columns));
    RandomStream random(3);
    for (std::byte& b : source) b = static_cast<std::byte>(random.below(256));
    if (type != WeightType::kF32) {  // scales and mins that are finite
      for (size_t i = 0; i < source.size(); i += canonical_block_bytes(type)) {
        source[i + 1] = static_cast<std::byte>(0x24 + random.below(24));
        if (type == WeightType::kQ4_1)
          source[i + 3] = static_cast<std::byte>(0xa4 + random.below(24));
      }
    } else {
      for (size_t i = 3; i < source.size(); i += 4) source[i] = std::byte{0x3e};
    }
    std::vector<std::byte> packed(*packed_bytes(type, rows, columns));
    ASSERT_TRUE(pack(type, rows, columns, source, packed).ok());
    const std::vector<int32_t> tokens{0, 34, 16, 15, 7, 7};
    std::vector<float> out(tokens.size() * static_cast<size_t>(columns));
    EmbedArgs args{packed.data(),
                   (columns + 31) / 32,
                   columns,
                   tokens.data(),
                   static_cast<int32_t>(tokens.size()),
                   out.data(),
                   columns};
    generic_kernels().embed[static_cast<int>(type)](args);
    Weight weight;
    weight.type = type;
    weight.packing = Packing::kR16K4;
    weight.rows = rows;
    weight.columns = columns;
    std::vector<float> want(static_cast<size_t>(columns));
    for (size_t i = 0; i < tokens.size(); ++i) {
      dequantize_row(weight, packed, tokens[i], want);
      ASSERT_EQ(std::memcmp(want.data(), out.data() + i * want.size(), want.size() * 4), 0)
          << "type " << static_cast<int>(type) << " row " << tokens[i];
    }
  }
}

TEST(Rows, LogIsExactToARoundingOrTwo) {
  for (double x = 1e-30; x < 1e30; x *= 1.37) {
    ASSERT_NEAR(generic_kernels().log(x), std::log(x), 4e-16 * std::abs(std::log(x)) + 1e-18) << x;
  }
  EXPECT_EQ(generic_kernels().log(1.0), 0.0);
}

}  // namespace
}  // namespace chorus::cpu
