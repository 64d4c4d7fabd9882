#include "program/packing/r16k4.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "program/packing/half.h"

namespace chorus {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF32,  WeightType::kQ4_0, WeightType::kQ4_1,
                                 WeightType::kQ8_0, WeightType::kQ5_0, WeightType::kQ5_1,
                                 WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K,
                                 WeightType::kBF16, WeightType::kF16};
static_assert(std::size(kTypes) == kNumWeightTypes && kNumRecordLayouts == kNumWeightTypes);

int32_t record_columns(WeightType type) {
  return static_cast<int32_t>(record_layout(type).columns());
}

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
      for (const int32_t columns : {32, 64, 96, 33, 7, 256, 768}) {
        if (columns % column_multiple(type) != 0) continue;
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
  EXPECT_EQ(packed[32], std::byte{0});
  std::vector<std::byte> back(source.size());
  ASSERT_TRUE(unpack(WeightType::kQ8_0, 17, 32, packed, back).ok());
  EXPECT_EQ(back, source);
}

// Packing moves every byte of an unpadded matrix to a place of its own: flipping any one source bit
// flips exactly one packed bit.
TEST(R16K4, EverySourceBitHasOnePackedBit) {
  for (const WeightType type : kTypes) {
    SCOPED_TRACE(static_cast<int>(type));
    const int32_t columns = record_columns(type);
    const Packed before = pack_random(type, 16, columns, 3);
    // All of the first row's bits and some of the others', which are moved by the same code.
    const size_t row_bits = canonical_block_bytes(type) * 8;
    for (size_t bit = 0; bit < before.source.size() * 8; bit += bit < row_bits ? 1 : 509) {
      std::vector<std::byte> source = before.source;
      source[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      std::vector<std::byte> packed(before.packed.size());
      ASSERT_TRUE(pack(type, 16, columns, source, packed).ok());
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
    const Packed matrix = pack_random(type, 1, record_columns(type), 9);
    size_t nonzero = 0;
    for (const std::byte byte : matrix.packed) nonzero += byte != std::byte{0};
    // The six-bit scales and mins of a K-quant have a byte each: four bytes more than the source.
    EXPECT_LE(nonzero, canonical_block_bytes(type) + 4);
  }
  const Packed floats = pack_random(WeightType::kF32, 16, 33, 9);
  for (size_t i = record_bytes(WeightType::kF32) + kVectorBytes; i < floats.packed.size(); ++i) {
    ASSERT_EQ(floats.packed[i], std::byte{0}) << i;
  }
}

// Value of (row, column) read straight from the checkpoint's order, after ggml's block structs:
// d, min, upper bits and quants at fixed bytes, one value at a time.
class Checkpoint {
 public:
  explicit Checkpoint(const Packed& matrix) : matrix_(matrix) {}

  float value(size_t row, size_t column) const {
    const auto columns = static_cast<size_t>(matrix_.weight.columns);
    const WeightType type = matrix_.weight.type;
    const auto* bytes = reinterpret_cast<const uint8_t*>(matrix_.source.data());
    if (type == WeightType::kF32) {
      float value;
      std::memcpy(&value, bytes + 4 * (row * columns + column), 4);
      return value;
    }
    if (type == WeightType::kBF16 || type == WeightType::kF16) {
      const uint16_t bits = half_bits(bytes + 2 * (row * columns + column));
      return type == WeightType::kF16 ? half_to_float(bits) : bf16_to_float(bits);
    }
    const auto size = static_cast<size_t>(record_columns(type));
    return block_value(
        type, bytes + (row * (columns / size) + column / size) * canonical_block_bytes(type),
        column % size);
  }

 private:
  static uint16_t half_bits(const uint8_t* at) { return static_cast<uint16_t>(at[0] | at[1] << 8); }
  static float half(const uint8_t* at) { return half_to_float(half_bits(at)); }

  static int nibble(const uint8_t* quants, size_t k) {
    return k < 16 ? quants[k] & 15 : quants[k - 16] >> 4;
  }
  static int fifth(const uint8_t* bits, size_t k) { return (bits[k / 8] >> (k % 8) & 1) * 16; }

  static float block_value(WeightType type, const uint8_t* b, size_t k) {
    const auto scaled = [&](int quant) { return half(b) * static_cast<float>(quant); };
    switch (type) {
      case WeightType::kQ4_0:  // d, qs[16]
        return scaled(nibble(b + 2, k) - 8);
      case WeightType::kQ4_1:  // d, m, qs[16]
        return scaled(nibble(b + 4, k)) + half(b + 2);
      case WeightType::kQ5_0:  // d, qh[4], qs[16]
        return scaled(nibble(b + 6, k) + fifth(b + 2, k) - 16);
      case WeightType::kQ5_1:  // d, m, qh[4], qs[16]
        return scaled(nibble(b + 8, k) + fifth(b + 4, k)) + half(b + 2);
      case WeightType::kQ8_0:  // d, qs[32]
        return scaled(static_cast<int8_t>(b[2 + k]));
      case WeightType::kQ6_K:
        return q6_k_value(b, k);
      default:
        return super_value(type, b, k);
    }
  }

  // Q4_K: d, dmin, scales[12], qs[128]. Q5_K: d, dmin, scales[12], qh[32], qs[128].
  static float super_value(WeightType type, const uint8_t* b, size_t k) {
    const bool five = type == WeightType::kQ5_K;
    const size_t block = k / 32;
    const uint8_t* s = b + 4;
    int scale = s[block] & 63;
    int min = s[(block + 4) % 12] & 63;
    if (block >= 4) {
      scale = (s[block + 4] & 15) | (s[block - 4] >> 6) << 4;
      min = (s[block + 4] >> 4) | (s[block] >> 6) << 4;
    }
    const uint8_t byte = b[(five ? 48 : 16) + k / 64 * 32 + k % 32];
    int quant = block % 2 == 0 ? byte & 15 : byte >> 4;
    if (five && (b[16 + k % 32] >> block & 1) != 0) quant += 16;
    return half(b) * static_cast<float>(scale) * static_cast<float>(quant) -
           half(b + 2) * static_cast<float>(min);
  }

  // ql[128], qh[64], int8 scales[16], d.
  static float q6_k_value(const uint8_t* b, size_t k) {
    const size_t half_block = k / 128;
    const size_t in_half = k % 128;
    const uint8_t low = b[64 * half_block + in_half % 64];
    const uint8_t high = b[128 + 32 * half_block + in_half % 32];
    const int quant = (in_half < 64 ? low & 15 : low >> 4) | (high >> (2 * (in_half / 32)) & 3)
                                                                 << 4;
    const auto scale = static_cast<int8_t>(b[192 + k / 16]);
    return half(b + 208) * static_cast<float>(scale) * static_cast<float>(quant - 32);
  }

  const Packed& matrix_;
};

TEST(R16K4, DequantizedRowsMatchTheCheckpointsFormula) {
  for (const WeightType type : kTypes) {
    const int32_t columns = column_multiple(type) == 1 ? 77 : 3 * column_multiple(type);
    const Packed matrix = pack_random(type, 37, columns, 21);
    const Checkpoint checkpoint(matrix);
    std::vector<float> row(static_cast<size_t>(columns));
    for (int32_t r = 0; r < 37; ++r) {
      dequantize_row(matrix.weight, matrix.packed, r, row);
      for (size_t c = 0; c < row.size(); ++c) {
        const float expected = checkpoint.value(static_cast<size_t>(r), c);
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(row[c]));
        } else {
          ASSERT_EQ(row[c], expected)
              << "type " << static_cast<int>(type) << " row " << r << " column " << c;
        }
      }
    }
  }
}

TEST(R16K4, LayoutIsTheDocumentedOne) {
  const Packed matrix = pack_random(WeightType::kQ4_0, 32, 64, 5);
  // Row 18 (group 1, r = 2), k-block 1, k = 16 + 4 * 3 + 1: high nibble of byte 4r + 1 of vector 3.
  const std::byte* record = matrix.packed.data() + (1 * 2 + 1) * 288;
  const std::byte* block = matrix.source.data() + (18 * 2 + 1) * 18;
  EXPECT_EQ(record[32 + 3 * kVectorBytes + 4 * 2 + 1], block[2 + 13]);
  EXPECT_EQ(record[2 * 2], block[0]);
  const Packed floats = pack_random(WeightType::kF32, 16, 32, 5);
  EXPECT_EQ(std::memcmp(floats.packed.data() + 7 * kVectorBytes + 4 * 3,
                        floats.source.data() + 4 * (3 * 32 + 7), 4),
            0);
  const Packed halves = pack_random(WeightType::kF16, 16, 32, 5);
  EXPECT_EQ(std::memcmp(halves.packed.data() + 2 * (16 * 7 + 3),
                        halves.source.data() + 2 * (3 * 32 + 7), 2),
            0);
  const Packed pairs = pack_random(WeightType::kBF16, 16, 32, 5);
  EXPECT_EQ(std::memcmp(pairs.packed.data() + 3 * kVectorBytes + 4 * 5,
                        pairs.source.data() + 2 * (5 * 32 + 6), 4),
            0);
}

int bit_of(std::byte byte, size_t bit) { return static_cast<int>(byte) >> bit & 1; }

TEST(R16K4, UpperBitsLieAsDocumented) {
  constexpr size_t kRow = 9;
  const Packed five = pack_random(WeightType::kQ5_0, 16, 32, 6);
  const std::byte* five_block = five.source.data() + kRow * 22;
  for (size_t k = 0; k < 32; ++k) {
    EXPECT_EQ(bit_of(five.packed[32 + 256 + 4 * kRow + k % 4], k / 4),
              bit_of(five_block[2 + k / 8], k % 8));
  }
  const Packed six = pack_random(WeightType::kQ6_K, 16, 256, 6);
  const std::byte* six_block = six.source.data() + kRow * 210;
  // Block 1: columns 32 to 63.
  const std::byte* record = six.packed.data() + 32 + 416;
  EXPECT_EQ(record[kRow], six_block[192 + 2]);
  EXPECT_EQ(record[16 + kRow], six_block[192 + 3]);
  for (size_t k = 0; k < 32; ++k) {
    for (size_t bit = 0; bit < 2; ++bit) {
      EXPECT_EQ(bit_of(record[32 + 256 + 64 * (k / 16) + 4 * kRow + k % 4], 2 * (k / 4 % 4) + bit),
                bit_of(six_block[128 + k], 2 + bit));
    }
  }
}

TEST(R16K4, SizesAreOverflowSafe) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(packed_bytes(WeightType::kQ4_0, 16, 32), 288u);
  EXPECT_EQ(packed_bytes(WeightType::kQ4_1, 17, 64), 4u * 320);
  EXPECT_EQ(packed_bytes(WeightType::kQ8_0, 1, 32), 544u);
  EXPECT_EQ(packed_bytes(WeightType::kF32, 16, 33), 4096u);
  EXPECT_EQ(packed_bytes(WeightType::kQ5_0, 16, 32), 352u);
  EXPECT_EQ(packed_bytes(WeightType::kQ5_1, 16, 32), 384u);
  EXPECT_EQ(packed_bytes(WeightType::kQ4_K, 16, 256), 2368u);
  EXPECT_EQ(packed_bytes(WeightType::kQ5_K, 17, 256), 2u * 2880);
  EXPECT_EQ(packed_bytes(WeightType::kQ6_K, 16, 512), 2u * 3360);
  EXPECT_EQ(packed_bytes(WeightType::kBF16, 1, 33), 2048u);
  EXPECT_EQ(packed_bytes(WeightType::kF16, 17, 1), 2048u);
  EXPECT_EQ(packed_bytes(WeightType::kQ4_K, 16, 128), std::nullopt);
  EXPECT_EQ(packed_bytes(WeightType::kQ6_K, 16, kMax), std::nullopt);
  EXPECT_EQ(canonical_bytes(WeightType::kQ6_K, 3, 512), 3u * 420);
  EXPECT_EQ(canonical_bytes(WeightType::kBF16, 3, 33), 198u);
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

// The nearest of all halves, ties to the even one; found by search.
TEST(Half, RoundsToTheNearest) {
  const auto nearest = [](float value) {
    uint32_t low = 0;
    uint32_t high = 0x7c00;  // half_to_float is monotonic over [0, infinity]
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      (half_to_float(static_cast<uint16_t>(middle)) <= value ? low : high) = middle;
    }
    // Infinity stands where the next half would be.
    const auto at = [](uint32_t bits) {
      return bits == 0x7c00 ? 65536.0
                            : static_cast<double>(half_to_float(static_cast<uint16_t>(bits)));
    };
    const double below = static_cast<double>(value) - at(low);
    const double above = at(high) - static_cast<double>(value);
    return below < above || (below == above && low % 2 == 0) ? low : high;
  };
  RandomStream random(3);
  for (int i = 0; i < 50000; ++i) {
    const auto exponent = static_cast<uint32_t>(random.between(127 - 27, 127 + 16));
    const auto mantissa = static_cast<uint32_t>(random.below(1 << 23));
    const uint32_t cut = i % 2 == 0 ? ~0u : ~0xfffu;  // so that ties occur
    const float value = std::bit_cast<float>(exponent << 23 | (mantissa & cut));
    ASSERT_EQ(float_to_half(value), nearest(value)) << value;
    ASSERT_EQ(float_to_half(-value), nearest(value) | 0x8000u) << value;
  }
  EXPECT_EQ(float_to_half(INFINITY), 0x7c00);
  EXPECT_EQ(float_to_half(1e30f), 0x7c00);
  EXPECT_EQ(float_to_half(-0.0f), 0x8000);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(NAN))));
}

TEST(Half, EveryHalfComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (!std::isnan(half_to_float(half))) {
      EXPECT_EQ(float_to_half(half_to_float(half)), half);
    }
    if (std::isnan(bf16_to_float(half))) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bf16_to_float(half)))));
    } else {
      EXPECT_EQ(float_to_bf16(bf16_to_float(half)), half);
    }
  }
}

TEST(Bf16, RoundsToTheNearest) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie: even
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0xbf807fffu)), 0xbf80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bf16(0x1p-149f), 0);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace chorus
