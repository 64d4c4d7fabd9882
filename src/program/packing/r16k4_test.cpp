#include "program/packing/r16k4.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "program/packing/half.h"

namespace chorus {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF32, WeightType::kQ4_0, WeightType::kQ4_1,
                                 WeightType::kQ8_0};

std::vector<std::byte> random_bytes(uint64_t seed, size_t size) {
  RandomStream random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

struct Packed {
  Weight weight;
  std::vector<std::byte> source;
  std::vector<std::byte> packed;
};

// A matrix of random bytes, packed; 0x5a marks what pack() left unwritten.
Packed pack_random(WeightType type, int32_t rows, int32_t columns, uint64_t seed) {
  Packed result;
  result.weight.type = type;
  result.weight.packing = Packing::kR16K4;
  result.weight.rows = rows;
  result.weight.columns = columns;
  result.source = random_bytes(seed, *canonical_bytes(type, rows, columns));
  result.packed.assign(*packed_bytes(type, rows, columns), std::byte{0x5a});
  EXPECT_TRUE(pack(type, rows, columns, result.source, result.packed).ok());
  return result;
}

TEST(R16K4, UnpackGivesBackEverySourceByte) {
  for (const WeightType type : kTypes) {
    for (const int32_t rows : {1, 15, 16, 17, 40}) {
      for (const int32_t columns : {32, 64, 96, 33, 7}) {
        if (type != WeightType::kF32 && columns % 32 != 0) continue;
        SCOPED_TRACE("type " + std::to_string(static_cast<int>(type)) + " rows " +
                     std::to_string(rows) + " columns " + std::to_string(columns));
        const Packed matrix = pack_random(type, rows, columns, static_cast<uint64_t>(rows));
        std::vector<std::byte> back(matrix.source.size(), std::byte{0x77});
        ASSERT_TRUE(unpack(type, rows, columns, matrix.packed, back).ok());
        EXPECT_EQ(back, matrix.source);
      }
    }
  }
}

TEST(R16K4, Q8QuantOfMinus128IsKept) {
  std::vector<std::byte> source(17 * 34, std::byte{0x80});
  std::vector<std::byte> packed(*packed_bytes(WeightType::kQ8_0, 17, 32));
  ASSERT_TRUE(pack(WeightType::kQ8_0, 17, 32, source, packed).ok());
  EXPECT_EQ(packed[kQ8_0QuantsOffset], std::byte{0});
  std::vector<std::byte> back(source.size());
  ASSERT_TRUE(unpack(WeightType::kQ8_0, 17, 32, packed, back).ok());
  EXPECT_EQ(back, source);
}

// Packing moves every byte of an unpadded matrix to a place of its own: flipping any one source bit
// flips exactly one packed bit.
TEST(R16K4, EverySourceBitHasOnePackedBit) {
  for (const WeightType type : kTypes) {
    const Packed before = pack_random(type, 16, 32, 3);
    for (size_t bit = 0; bit < before.source.size() * 8; ++bit) {
      std::vector<std::byte> source = before.source;
      source[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      std::vector<std::byte> packed(before.packed.size());
      ASSERT_TRUE(pack(type, 16, 32, source, packed).ok());
      int flipped = 0;
      for (size_t i = 0; i < packed.size(); ++i) {
        flipped += __builtin_popcount(static_cast<unsigned>(packed[i] ^ before.packed[i]));
      }
      ASSERT_EQ(flipped, 1) << "bit " << bit;
    }
  }
}

// Also over a dirty buffer: the share of the rows and columns past the end of the matrix.
TEST(R16K4, PaddingIsZero) {
  for (const WeightType type : kTypes) {
    const Packed matrix = pack_random(type, 1, 32, 9);
    size_t nonzero = 0;
    for (const std::byte byte : matrix.packed) nonzero += byte != std::byte{0};
    EXPECT_LE(nonzero, canonical_block_bytes(type));
  }
  const Packed floats = pack_random(WeightType::kF32, 16, 33, 9);
  for (size_t i = kF32RecordBytes + kVectorBytes; i < floats.packed.size(); ++i) {
    ASSERT_EQ(floats.packed[i], std::byte{0}) << i;
  }
}

// Value of (row, column) read straight from the checkpoint's order.
float canonical_value(const Packed& matrix, size_t row, size_t column) {
  const WeightType type = matrix.weight.type;
  const size_t columns = static_cast<size_t>(matrix.weight.columns);
  if (type == WeightType::kF32) {
    float value;
    std::memcpy(&value, matrix.source.data() + 4 * (row * columns + column), 4);
    return value;
  }
  const size_t size = canonical_block_bytes(type);
  const auto* block = reinterpret_cast<const uint8_t*>(matrix.source.data()) +
                      (row * columns / 32 + column / 32) * size;
  const float scale = half_to_float(static_cast<uint16_t>(block[0] | block[1] << 8));
  const size_t k = column % 32;
  if (type == WeightType::kQ8_0)
    return scale * static_cast<float>(static_cast<int8_t>(block[2 + k]));
  const uint8_t* quants = block + (type == WeightType::kQ4_0 ? 2 : 4);
  const int quant = k < 16 ? quants[k] & 15 : quants[k - 16] >> 4;
  if (type == WeightType::kQ4_0) return scale * static_cast<float>(quant - 8);
  return scale * static_cast<float>(quant) +
         half_to_float(static_cast<uint16_t>(block[2] | block[3] << 8));
}

TEST(R16K4, DequantizedRowsMatchTheCheckpointsFormula) {
  for (const WeightType type : kTypes) {
    const int32_t columns = type == WeightType::kF32 ? 77 : 96;
    const Packed matrix = pack_random(type, 37, columns, 21);
    std::vector<float> row(static_cast<size_t>(columns));
    for (int32_t r = 0; r < 37; ++r) {
      dequantize_row(matrix.weight, matrix.packed, r, row);
      for (size_t c = 0; c < row.size(); ++c) {
        const float expected = canonical_value(matrix, static_cast<size_t>(r), c);
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(row[c]));
        } else {
          EXPECT_EQ(row[c], expected) << "row " << r << " column " << c;
        }
      }
    }
  }
}

TEST(R16K4, LayoutIsTheDocumentedOne) {
  const Packed matrix = pack_random(WeightType::kQ4_0, 32, 64, 5);
  // Row 18 (group 1, r = 2), k-block 1, k = 16 + 4 * 3 + 1: high nibble of byte 4r + 1 of vector 3.
  const std::byte* record = matrix.packed.data() + (1 * 2 + 1) * kQ4_0RecordBytes;
  const std::byte* block = matrix.source.data() + (18 * 2 + 1) * 18;
  EXPECT_EQ(record[kQ4_0QuantsOffset + 3 * kVectorBytes + 4 * 2 + 1], block[2 + 13]);
  EXPECT_EQ(record[2 * 2], block[0]);
  const Packed floats = pack_random(WeightType::kF32, 16, 32, 5);
  EXPECT_EQ(std::memcmp(floats.packed.data() + 7 * kVectorBytes + 4 * 3,
                        floats.source.data() + 4 * (3 * 32 + 7), 4),
            0);
}

TEST(R16K4, SizesAreOverflowSafe) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(packed_bytes(WeightType::kQ4_0, 16, 32), 288u);
  EXPECT_EQ(packed_bytes(WeightType::kQ4_1, 17, 64), 4u * 320);
  EXPECT_EQ(packed_bytes(WeightType::kQ8_0, 1, 32), 544u);
  EXPECT_EQ(packed_bytes(WeightType::kF32, 16, 33), 4096u);
  EXPECT_EQ(packed_bytes(WeightType::kF32, kMax, kMax), std::nullopt);
  EXPECT_EQ(packed_bytes(WeightType::kQ4_0, kMax, kMax), std::nullopt);
  EXPECT_EQ(packed_bytes(WeightType::kQ4_0, 16, 31), std::nullopt);
  EXPECT_EQ(packed_bytes(WeightType::kQ4_0, 0, 32), std::nullopt);
  EXPECT_EQ(packed_bytes(WeightType::kF32, 1, -32), std::nullopt);
  EXPECT_EQ(canonical_bytes(WeightType::kQ4_1, 3, 64), 120u);
}

TEST(R16K4, WrongSizesAreRefusedByField) {
  std::vector<std::byte> source(18 * 16);
  std::vector<std::byte> packed(288);
  const auto field = [&](int32_t rows, int32_t columns, size_t source_size, size_t packed_size) {
    return pack(WeightType::kQ4_0, rows, columns, std::span(source).first(source_size),
                std::span(packed).first(packed_size))
        .field();
  };
  EXPECT_EQ(field(16, 32, 288, 288), "");
  EXPECT_EQ(field(0, 32, 288, 288), "rows");
  EXPECT_EQ(field(16, 31, 288, 288), "columns");
  EXPECT_EQ(field(16, 32, 287, 288), "source");
  EXPECT_EQ(field(16, 32, 288, 287), "packed");
  EXPECT_EQ(unpack(WeightType::kQ4_0, 16, 64, packed, source).field(), "source");
}

TEST(Half, EveryHalfIsItsFloat) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = half_to_float(static_cast<uint16_t>(bits));
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    const double mantissa = bits & 1023;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_EQ(std::isinf(value), mantissa == 0);
    } else {
      const double expected =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25);
      EXPECT_EQ(static_cast<double>(value), sign * expected);
    }
    EXPECT_EQ(std::signbit(value), sign < 0);
  }
}

}  // namespace
}  // namespace chorus
