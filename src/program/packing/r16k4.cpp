#include "program/packing/r16k4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/check.h"
#include "program/packing/half.h"
#include "program/packing/row_block.h"

namespace chorus {

namespace {

static_assert(std::endian::native == std::endian::little, "records are little endian");

// Where the element (r, k) of a record of floats lies.
size_t element_offset(WeightType type, size_t r, size_t k) {
  switch (type) {
    case WeightType::kBF16:
      return kVectorBytes * (k / 2) + 4 * r + 2 * (k % 2);
    case WeightType::kF16:
      return 2 * (kGroupRows * k + r);
    default:
      return kVectorBytes * k + 4 * r;
  }
}

// One row's share of a record, for `columns` floats (32, or fewer in a row's last record). `kPack`
// says which way the bytes go.
template <bool kPack, size_t kBytes>
void move_floats(WeightType type, size_t columns, size_t r, std::byte* block, std::byte* record) {
  for (size_t k = 0; k < columns; ++k) {
    std::byte* in_block = block + kBytes * k;
    std::byte* in_record = record + element_offset(type, r, k);
    if constexpr (kPack) {
      std::memcpy(in_record, in_block, kBytes);
    } else {
      std::memcpy(in_block, in_record, kBytes);
    }
  }
}

template <bool kPack>
void move_row(WeightType type, size_t columns, size_t r, std::byte* block, std::byte* record) {
  if (type == WeightType::kF32) return move_floats<kPack, 4>(type, columns, r, block, record);
  if (!is_quantised(type)) return move_floats<kPack, 2>(type, columns, r, block, record);
  RowBlock row;
  if constexpr (kPack) {
    read_row(type, block, row);
    write_record(type, row, r, record);
  } else {
    read_record(type, record, r, row);
    write_row(type, row, block);
  }
}

// Of a row in the checkpoint's order.
size_t canonical_row_bytes(WeightType type, int32_t columns) {
  if (!is_quantised(type)) return record_layout(type).element_bytes * static_cast<size_t>(columns);
  return canonical_block_bytes(type) * static_cast<size_t>(num_records(type, columns));
}

// Moves row groups between the two orders. The side that is read is never written through its
// pointer.
template <bool kPack>
void move_row_groups(WeightType type, int32_t rows, int32_t columns, std::byte* canonical,
                     std::byte* packed, int64_t first_group, int64_t end_group) {
  const size_t record_size = record_bytes(type);
  const size_t block_size = canonical_block_bytes(type);
  const size_t record_columns = record_layout(type).columns();
  const auto records = static_cast<size_t>(num_records(type, columns));
  const size_t row_bytes = canonical_row_bytes(type, columns);
  for (int64_t group = first_group; group < end_group; ++group) {
    const size_t first_row = static_cast<size_t>(group) * kGroupRows;
    const size_t num_rows = std::min<size_t>(kGroupRows, static_cast<size_t>(rows) - first_row);
    std::byte* record = packed + static_cast<size_t>(group) * records * record_size;
    for (size_t i = 0; i < records; ++i, record += record_size) {
      const size_t held =
          std::min(record_columns, static_cast<size_t>(columns) - i * record_columns);
      const bool padded = num_rows < kGroupRows || held < record_columns;
      if (kPack && padded) std::memset(record, 0, record_size);
      for (size_t r = 0; r < num_rows; ++r) {
        std::byte* block = canonical + (first_row + r) * row_bytes + i * block_size;
        move_row<kPack>(type, held, r, block, record);
      }
    }
  }
}

bool acceptable_shape(WeightType type, int32_t rows, int32_t columns) {
  return rows > 0 && columns > 0 && columns % column_multiple(type) == 0;
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
    return invalid_argument("columns", "expected a positive multiple of " +
                                           std::to_string(column_multiple(type)) + ", found " +
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

float read_element(WeightType type, const std::byte* at) {
  if (type == WeightType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return type == WeightType::kBF16 ? bf16_to_float(bits) : half_to_float(bits);
}

}  // namespace

std::optional<uint64_t> packed_bytes(WeightType type, int32_t rows, int32_t columns) {
  if (!acceptable_shape(type, rows, columns)) return std::nullopt;
  return product(static_cast<uint64_t>(num_row_groups(rows)),
                 static_cast<uint64_t>(num_records(type, columns)), record_bytes(type));
}

std::optional<uint64_t> canonical_bytes(WeightType type, int32_t rows, int32_t columns) {
  if (!acceptable_shape(type, rows, columns)) return std::nullopt;
  return product(static_cast<uint64_t>(rows), canonical_row_bytes(type, columns), 1);
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
    CHORUS_CHECK_GE(bytes.size(), (row_index + 1) * columns * sizeof(float));
    std::memcpy(values.data(), bytes.data() + row_index * columns * sizeof(float),
                columns * sizeof(float));
    return;
  }
  const WeightType type = weight.type;
  const size_t record_columns = record_layout(type).columns();
  const auto records = static_cast<size_t>(num_records(type, weight.columns));
  const std::byte* record = bytes.data() + row_index / kGroupRows * records * record_bytes(type);
  CHORUS_CHECK_GE(bytes.size(), (row_index / kGroupRows + 1) * records * record_bytes(type));
  const size_t r = row_index % kGroupRows;
  for (size_t c = 0; c < columns; c += record_columns, record += record_bytes(type)) {
    const auto held = values.subspan(c, std::min(record_columns, columns - c));
    if (is_quantised(type)) {
      RowBlock block;
      read_record(type, record, r, block);
      dequantize(type, block, held);
      continue;
    }
    for (size_t k = 0; k < held.size(); ++k) {
      held[k] = read_element(type, record + element_offset(type, r, k));
    }
  }
}

}  // namespace chorus
