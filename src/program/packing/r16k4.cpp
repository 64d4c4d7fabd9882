#include "program/packing/r16k4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/check.h"
#include "program/packing/half.h"

namespace chorus {

namespace {

static_assert(std::endian::native == std::endian::little, "records are little endian");

constexpr size_t kHalfBytes = 2;
constexpr size_t kLaneBytes = 4;

// Where the parts of a quantised type lie, in a record and in a canonical block.
struct QuantLayout {
  bool has_min;
  size_t record_quants;  // offset of the vectors in a record
  size_t num_vectors;
  size_t block_quants;  // offset of the quants in a canonical block
  uint8_t flip;         // xor between the two: 0x80 turns int8 into quant + 128
};

constexpr QuantLayout quant_layout(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
      return {true, kQ4_1QuantsOffset, 4, 4, 0};
    case WeightType::kQ8_0:
      return {false, kQ8_0QuantsOffset, 8, 2, 0x80};
    default:
      return {false, kQ4_0QuantsOffset, 4, 2, 0};
  }
}

void flip_lane(std::byte* to, const std::byte* from, uint32_t mask) {
  uint32_t lane;
  std::memcpy(&lane, from, kLaneBytes);
  lane ^= mask;
  std::memcpy(to, &lane, kLaneBytes);
}

// One row's canonical block <-> its share of a record. `kPack` says which way the bytes go.
template <bool kPack>
void move_quant_row(const QuantLayout& layout, size_t r, std::byte* block, std::byte* record) {
  const auto move = [](std::byte* a, std::byte* b, size_t bytes) {
    if constexpr (kPack) {
      std::memcpy(b, a, bytes);
    } else {
      std::memcpy(a, b, bytes);
    }
  };
  const uint32_t mask = layout.flip * 0x01010101u;
  move(block, record + kScalesOffset + kHalfBytes * r, kHalfBytes);
  if (layout.has_min) {
    move(block + kHalfBytes, record + kQ4_1MinsOffset + kHalfBytes * r, kHalfBytes);
  }
  std::byte* quants = block + layout.block_quants;
  std::byte* lane = record + layout.record_quants + kLaneBytes * r;
  for (size_t j = 0; j < layout.num_vectors; ++j) {
    if constexpr (kPack) {
      flip_lane(lane + kVectorBytes * j, quants + kLaneBytes * j, mask);
    } else {
      flip_lane(quants + kLaneBytes * j, lane + kVectorBytes * j, mask);
    }
  }
}

// As move_quant_row, for `columns` floats (32, or fewer in a row's last block).
template <bool kPack>
void move_float_row(size_t columns, size_t r, std::byte* block, std::byte* record) {
  for (size_t k = 0; k < columns; ++k) {
    std::byte* in_block = block + kLaneBytes * k;
    std::byte* in_record = record + kVectorBytes * k + kLaneBytes * r;
    if constexpr (kPack) {
      std::memcpy(in_record, in_block, kLaneBytes);
    } else {
      std::memcpy(in_block, in_record, kLaneBytes);
    }
  }
}

// Moves row groups between the two orders. The side that is read is never written through its
// pointer.
template <bool kPack>
void move_row_groups(WeightType type, int32_t rows, int32_t columns, std::byte* canonical,
                     std::byte* packed, int64_t first_group, int64_t end_group) {
  const QuantLayout layout = quant_layout(type);
  const size_t record_size = record_bytes(type);
  const size_t block_size = canonical_block_bytes(type);
  const size_t num_blocks = static_cast<size_t>(num_column_blocks(columns));
  const size_t row_bytes = type == WeightType::kF32 ? kLaneBytes * static_cast<size_t>(columns)
                                                    : block_size * num_blocks;
  for (int64_t group = first_group; group < end_group; ++group) {
    const size_t first_row = static_cast<size_t>(group) * kGroupRows;
    const size_t num_rows = std::min<size_t>(kGroupRows, static_cast<size_t>(rows) - first_row);
    std::byte* group_record = packed + static_cast<size_t>(group) * num_blocks * record_size;
    for (size_t kb = 0; kb < num_blocks; ++kb) {
      std::byte* record = group_record + kb * record_size;
      const size_t block_columns =
          std::min<size_t>(kBlockColumns, static_cast<size_t>(columns) - kb * kBlockColumns);
      const bool padded = num_rows < kGroupRows || block_columns < kBlockColumns;
      if (kPack && padded) std::memset(record, 0, record_size);
      for (size_t r = 0; r < num_rows; ++r) {
        std::byte* block = canonical + (first_row + r) * row_bytes + kb * block_size;
        if (type == WeightType::kF32) {
          move_float_row<kPack>(block_columns, r, block, record);
        } else {
          move_quant_row<kPack>(layout, r, block, record);
        }
      }
    }
  }
}

bool acceptable_shape(WeightType type, int32_t rows, int32_t columns) {
  return rows > 0 && columns > 0 && (type == WeightType::kF32 || columns % kBlockColumns == 0);
}

// a * b * c where it fits 63 bits.
std::optional<uint64_t> product(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || __builtin_mul_overflow(result, c, &result) ||
      result > static_cast<uint64_t>(INT64_MAX)) {
    return std::nullopt;
  }
  return result;
}

Status check_sizes(WeightType type, int32_t rows, int32_t columns, size_t source_size,
                   size_t packed_size) {
  if (rows <= 0) {
    return invalid_argument("rows", "expected at least 1, found " + std::to_string(rows));
  }
  const auto canonical = canonical_bytes(type, rows, columns);
  const auto packed = packed_bytes(type, rows, columns);
  if (!canonical || !packed) {
    return invalid_argument("columns",
                            "expected a positive multiple of 32 (any number for F32), found " +
                                std::to_string(columns));
  }
  if (source_size != *canonical) {
    return invalid_argument("source", "expected " + std::to_string(*canonical) + " bytes, found " +
                                          std::to_string(source_size));
  }
  if (packed_size != *packed) {
    return invalid_argument("packed", "expected " + std::to_string(*packed) + " bytes, found " +
                                          std::to_string(packed_size));
  }
  return Status();
}

float read_half(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return half_to_float(bits);
}

float read_float(const std::byte* at) {
  float value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The value of row r, index k in one record.
float record_value(WeightType type, const std::byte* record, size_t r, size_t k) {
  if (type == WeightType::kF32) return read_float(record + kVectorBytes * k + kLaneBytes * r);
  const QuantLayout layout = quant_layout(type);
  const float scale = read_half(record + kScalesOffset + kHalfBytes * r);
  const std::byte* lanes = record + layout.record_quants + kLaneBytes * r;
  if (type == WeightType::kQ8_0) {
    const auto quant = static_cast<uint8_t>(lanes[kVectorBytes * (k / 4) + k % 4]);
    return std::fma(scale, static_cast<float>(quant - 128), 0.0f);
  }
  const size_t low_k = k % 16;
  const auto pair = static_cast<uint8_t>(lanes[kVectorBytes * (low_k / 4) + low_k % 4]);
  const int quant = k < 16 ? pair & 15 : pair >> 4;
  if (type == WeightType::kQ4_0) return std::fma(scale, static_cast<float>(quant - 8), 0.0f);
  return std::fma(scale, static_cast<float>(quant),
                  read_half(record + kQ4_1MinsOffset + kHalfBytes * r));
}

}  // namespace

std::optional<uint64_t> packed_bytes(WeightType type, int32_t rows, int32_t columns) {
  if (!acceptable_shape(type, rows, columns)) return std::nullopt;
  return product(static_cast<uint64_t>(num_row_groups(rows)),
                 static_cast<uint64_t>(num_column_blocks(columns)), record_bytes(type));
}

std::optional<uint64_t> canonical_bytes(WeightType type, int32_t rows, int32_t columns) {
  if (!acceptable_shape(type, rows, columns)) return std::nullopt;
  if (type == WeightType::kF32) {
    return product(static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), kLaneBytes);
  }
  return product(static_cast<uint64_t>(rows), static_cast<uint64_t>(num_column_blocks(columns)),
                 canonical_block_bytes(type));
}

Status pack(WeightType type, int32_t rows, int32_t columns, std::span<const std::byte> source,
            std::span<std::byte> packed) {
  CHORUS_RETURN_IF_ERROR(check_sizes(type, rows, columns, source.size(), packed.size()));
  pack_row_groups(type, rows, columns, source, packed, 0, num_row_groups(rows));
  return Status();
}

void pack_row_groups(WeightType type, int32_t rows, int32_t columns,
                     std::span<const std::byte> source, std::span<std::byte> packed,
                     int64_t first_group, int64_t end_group) {
  CHORUS_CHECK_LE(0, first_group);
  CHORUS_CHECK_LE(end_group, num_row_groups(rows));
  move_row_groups<true>(type, rows, columns, const_cast<std::byte*>(source.data()), packed.data(),
                        first_group, end_group);
}

Status unpack(WeightType type, int32_t rows, int32_t columns, std::span<const std::byte> packed,
              std::span<std::byte> source) {
  CHORUS_RETURN_IF_ERROR(check_sizes(type, rows, columns, source.size(), packed.size()));
  move_row_groups<false>(type, rows, columns, source.data(), const_cast<std::byte*>(packed.data()),
                         0, num_row_groups(rows));
  return Status();
}

void dequantize_row(const Weight& weight, std::span<const std::byte> bytes, int32_t row,
                    std::span<float> values) {
  CHORUS_CHECK(row >= 0 && row < weight.rows);
  const size_t columns = static_cast<size_t>(weight.columns);
  CHORUS_CHECK_EQ(values.size(), columns);
  const size_t row_index = static_cast<size_t>(row);
  if (weight.packing == Packing::kRowMajor) {
    CHORUS_CHECK(weight.type == WeightType::kF32);
    CHORUS_CHECK_GE(bytes.size(), (row_index + 1) * columns * kLaneBytes);
    std::memcpy(values.data(), bytes.data() + row_index * columns * kLaneBytes,
                columns * kLaneBytes);
    return;
  }
  const size_t record_size = record_bytes(weight.type);
  const size_t num_blocks = static_cast<size_t>(num_column_blocks(weight.columns));
  const size_t first_record = row_index / kGroupRows * num_blocks;
  CHORUS_CHECK_GE(bytes.size(), (first_record + num_blocks) * record_size);
  for (size_t c = 0; c < columns; ++c) {
    const std::byte* record = bytes.data() + (first_record + c / kBlockColumns) * record_size;
    values[c] = record_value(weight.type, record, row_index % kGroupRows, c % kBlockColumns);
  }
}

}  // namespace chorus
