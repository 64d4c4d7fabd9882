#include "exporter/quantize.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "program/packing/half.h"
#include "program/packing/r16k4.h"
#include "program/packing/row_block.h"
#include "program/testing/tiny_program.h"

namespace chorus {
namespace {

constexpr WeightType kTargets[] = {WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kQ4_1,
                                   WeightType::kQ4_K};

// About normal, so that blocks have outliers.
std::vector<float> random_values(uint64_t seed, size_t count, double mean = 0.0) {
  RandomStream random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += random.unit();
    value = static_cast<float>(0.02 * (sum + mean));
  }
  return values;
}

struct Quantised {
  std::vector<std::byte> bytes;
  std::vector<float> back;
  QuantizeError error;
};
Quantised quantise(WeightType type, int32_t columns, const std::vector<float>& values) {
  Quantised out;
  const auto rows = static_cast<int32_t>(values.size() / static_cast<size_t>(columns));
  out.bytes.resize(*canonical_bytes(type, rows, columns));
  const auto error = quantize_rows(type, columns, values, out.bytes);
  EXPECT_TRUE(error.ok());
  if (error.ok()) out.error = *error;
  out.back.resize(values.size());
  const size_t row_bytes = out.bytes.size() / static_cast<size_t>(rows);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    read_checkpoint_row(type, std::span(out.bytes).subspan(r * row_bytes, row_bytes),
                        std::span(out.back).subspan(r * static_cast<size_t>(columns),
                                                    static_cast<size_t>(columns)));
  }
  return out;
}

// Every value becomes the nearest of those that the stored scale and min have quants for: found by
// trying all of them.
TEST(Quantize, EveryQuantIsTheNearest) {
  for (const WeightType type : kTargets) {
    SCOPED_TRACE(static_cast<int>(type));
    const auto columns = static_cast<int32_t>(record_layout(type).columns());
    const size_t row_bytes = record_layout(type).row_bytes;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const auto values =
          random_values(seed, static_cast<size_t>(2 * columns), seed % 3 == 0 ? 4.0 : 0.0);
      const Quantised q = quantise(type, columns, values);
      for (size_t k = 0; k < values.size(); ++k) {
        RowBlock block;
        const size_t in_row = k % static_cast<size_t>(columns);
        read_row(type, q.bytes.data() + k / static_cast<size_t>(columns) * row_bytes, block);
        double least = std::numeric_limits<double>::infinity();
        std::vector<float> tried(static_cast<size_t>(columns));
        for (int quant = 0; quant < 1 << record_layout(type).quant_bits; ++quant) {
          if (type == WeightType::kQ8_0 && quant == 0) continue;  // -128 is not made
          block.quants[in_row] = static_cast<uint8_t>(quant);
          dequantize(type, block, tried);
          least = std::min(least, std::fabs(static_cast<double>(tried[in_row] - values[k])));
        }
        ASSERT_LE(std::fabs(static_cast<double>(q.back[k] - values[k])), least + 1e-7) << k;
      }
    }
  }
}

TEST(Quantize, ReportsTheErrorThatItMakes) {
  for (const WeightType type : kTargets) {
    const auto values = random_values(5, 16 * 256);
    const Quantised q = quantise(type, 256, values);
    double squared_error = 0.0;
    double squares = 0.0;
    for (size_t k = 0; k < values.size(); ++k) {
      squared_error += std::pow(static_cast<double>(q.back[k]) - static_cast<double>(values[k]), 2);
      squares += std::pow(static_cast<double>(values[k]), 2);
    }
    EXPECT_NEAR(q.error.relative(), std::sqrt(squared_error / squares), 1e-9);
  }
}

// Scales are chosen well: against the best single scale (and min) for each block, searched for
// finely.
double least_block_error(WeightType type, std::span<const float> values) {
  float low = values[0];
  float high = values[0];
  for (const float value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  const int largest = type == WeightType::kQ8_0 ? 254 : 15;
  const bool mins = type == WeightType::kQ4_1 || type == WeightType::kQ4_K;
  const float absmax = std::max(std::fabs(low), std::fabs(high));
  double least = std::numeric_limits<double>::infinity();
  for (int s = 60; s <= 110; ++s) {
    for (int m = mins ? 60 : 100; m <= (mins ? 110 : 100); ++m) {
      float min = mins ? std::min(low, 0.0f) * static_cast<float>(m) / 100.0f : -absmax;
      if (type == WeightType::kQ4_1)
        min = low + (high - low) * static_cast<float>(m - 100) / 100.0f;
      const float range = mins ? high - min : 2.0f * absmax;
      const float scale = range / static_cast<float>(largest) * static_cast<float>(s) / 100.0f;
      if (!mins) min = -scale * static_cast<float>(largest == 15 ? 8 : 127);
      double sum = 0.0;
      for (const float value : values) {
        const float quant = std::nearbyint((value - min) / scale);
        const float held = std::min(std::max(quant, 0.0f), static_cast<float>(largest));
        sum += std::pow(static_cast<double>(scale * held + min - value), 2);
      }
      least = std::min(least, sum);
    }
  }
  return least;
}

TEST(Quantize, IsNotFarFromTheBestScales) {
  for (const WeightType type : kTargets) {
    const auto values = random_values(11, 8 * 256);
    const Quantised q = quantise(type, 256, values);
    double least = 0.0;
    for (size_t at = 0; at < values.size(); at += 32) {
      least += least_block_error(type, std::span(values).subspan(at, 32));
    }
    // Of the root mean square; a scale from the extremes alone is somewhat too large.
    const double ratio = std::sqrt(q.error.squared_error / least);
    RecordProperty("ratio_" + std::to_string(static_cast<int>(type)), std::to_string(ratio));
    const bool searched = type == WeightType::kQ4_K || type == WeightType::kQ4_0;
    EXPECT_LE(ratio, searched ? 1.04 : 1.15) << static_cast<int>(type);
    EXPECT_LE(q.error.relative(), type == WeightType::kQ8_0 ? 0.006 : 0.09);
  }
}

TEST(Quantize, SomeValuesAreExact) {
  // Zeros, and the values of a grid that the type has.
  for (const WeightType type : kTargets) {
    const Quantised zeros = quantise(type, 256, std::vector<float>(512, 0.0f));
    EXPECT_EQ(zeros.back, std::vector<float>(512, 0.0f));
    EXPECT_EQ(zeros.error.relative(), 0.0);
    const Quantised tiny = quantise(type, 256, std::vector<float>(256, 1e-30f));
    EXPECT_EQ(tiny.back, std::vector<float>(256, 0.0f));
  }
  std::vector<float> grid(32);
  for (size_t k = 0; k < 32; ++k) grid[k] = 0.25f * (static_cast<float>(k % 16) - 8.0f);
  EXPECT_EQ(quantise(WeightType::kQ4_0, 32, grid).back, grid);
  EXPECT_EQ(quantise(WeightType::kQ4_1, 32, grid).back, grid);
}

// The whole range of what a half can hold, constants of either sign, single outliers.
TEST(Quantize, ExtremesStayFinite) {
  for (const WeightType type : kTargets) {
    for (const float extreme : {65504.0f, -65504.0f, 1e-7f, -1e-7f, 3.0f, -3.0f}) {
      std::vector<float> values(256, extreme);
      const Quantised constant = quantise(type, 256, values);
      for (const float value : constant.back) {
        ASSERT_TRUE(std::isfinite(value));
        EXPECT_NEAR(value, extreme, std::fabs(extreme) * 0.01f + 1e-6f) << static_cast<int>(type);
      }
      values.assign(256, 0.001f);
      values[77] = extreme;
      values[78] = -extreme;
      for (const float value : quantise(type, 256, values).back) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST(Quantize, RefusesWhatItCannotTake) {
  std::vector<std::byte> out(34);
  std::vector<float> values(32, 1.0f);
  const auto field = [&](WeightType type, int32_t columns, size_t bytes) {
    const auto result = quantize_rows(type, columns, values, std::span(out).first(bytes));
    return result.ok() ? std::string("none") : result.status().field();
  };
  EXPECT_EQ(field(WeightType::kQ8_0, 32, 34), "none");
  EXPECT_EQ(field(WeightType::kQ8_0, 0, 34), "columns");
  EXPECT_EQ(field(WeightType::kQ8_0, 31, 34), "columns");
  EXPECT_EQ(field(WeightType::kQ4_K, 32, 34), "columns");
  EXPECT_EQ(field(WeightType::kQ8_0, 64, 34), "values");
  EXPECT_EQ(field(WeightType::kQ8_0, 32, 33), "out");
  for (const float bad : {INFINITY, -INFINITY, NAN, 65536.0f}) {
    values[31] = bad;
    EXPECT_EQ(field(WeightType::kQ8_0, 32, 34), "values");
  }
}

TEST(Quantize, MatricesStayWhereNothingIsGained) {
  using enum WeightType;
  EXPECT_EQ(quantized_type(kF32, kQ4_K, 512), kQ4_K);
  EXPECT_EQ(quantized_type(kBF16, kQ4_K, 640), kQ8_0);
  EXPECT_EQ(quantized_type(kF16, kQ4_0, 33), std::nullopt);
  EXPECT_EQ(quantized_type(kQ8_0, kQ4_1, 64), kQ4_1);
  EXPECT_EQ(quantized_type(kQ6_K, kQ4_K, 256), kQ4_K);
  EXPECT_EQ(quantized_type(kQ4_K, kQ8_0, 256), std::nullopt);
  EXPECT_EQ(quantized_type(kQ4_0, kQ4_0, 64), std::nullopt);
  EXPECT_EQ(quantized_type(kQ5_0, kQ4_K, 96), std::nullopt);
}

TEST(Quantize, AMatrixIsItsRows) {
  const auto source = random_matrix(WeightType::kQ8_0, 3, 512, 8);
  const auto matrix = quantize_matrix(WeightType::kQ8_0, WeightType::kQ4_K, 3, 512, source);
  ASSERT_TRUE(matrix.ok());
  std::vector<float> values(512);
  QuantizeError error;
  for (size_t r = 0; r < 3; ++r) {
    read_checkpoint_row(WeightType::kQ8_0, std::span(source).subspan(r * 544, 544), values);
    const Quantised row = quantise(WeightType::kQ4_K, 512, values);
    EXPECT_TRUE(std::ranges::equal(row.bytes, std::span(matrix->bytes).subspan(r * 288, 288)));
    error.add(row.error);
  }
  EXPECT_EQ(matrix->error.relative(), error.relative());
  EXPECT_GT(error.relative(), 0.01);
}

TEST(CheckpointRow, IsTheRowOfThePackedForm) {
  for (int i = 0; i < kNumWeightTypes; ++i) {
    SCOPED_TRACE(i);
    const auto type = static_cast<WeightType>(i);
    const auto source = random_matrix(type, 5, 512, 3);
    std::vector<std::byte> packed(*packed_bytes(type, 5, 512));
    ASSERT_TRUE(pack(type, 5, 512, source, packed).ok());
    Weight weight;
    weight.type = type;
    weight.packing = Packing::kR16K4;
    weight.rows = 5;
    weight.columns = 512;
    std::vector<float> expected(512);
    std::vector<float> found(512);
    const size_t row_bytes = source.size() / 5;
    for (int32_t r = 0; r < 5; ++r) {
      dequantize_row(weight, packed, r, expected);
      read_checkpoint_row(
          type, std::span(source).subspan(static_cast<size_t>(r) * row_bytes, row_bytes), found);
      EXPECT_EQ(found, expected);
    }
  }
}

}  // namespace
}  // namespace chorus
