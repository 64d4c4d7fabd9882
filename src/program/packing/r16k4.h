// The packed layout R16K4, version 1: 16 rows side by side, 4 consecutive k of a row in each 32-bit
// lane. One packed form serves every instruction set.
//
// A matrix W[rows, columns] is cut into row groups of 16 and k-blocks of 32. For each row group,
// for each k-block in order, there is one record; records follow one another without gaps, so a
// kernel that walks a row group reads one sequential stream. Rows are padded to a multiple of 16
// and columns to a multiple of 32; every byte of padding is zero (so the scale of a padded row is
// zero).
//
// In a record, r is the row in the group (0..15), k the index in the block (0..31), and vector j is
// 64 bytes of which bytes 4r .. 4r+3 belong to row r:
//   Q4_0  288 B  16 fp16 scales; 4 vectors. Byte 4r + i of vector j holds in its low nibble the
//                quant (0..15) of k = 4j + i and in its high nibble that of k = 16 + 4j + i.
//                w = scale * (quant - 8)
//   Q4_1  320 B  16 fp16 scales; 16 fp16 mins; 4 vectors as Q4_0. w = fma(scale, quant, min)
//   Q8_0  544 B  16 fp16 scales; 8 vectors. Byte 4r + i of vector j is the quant + 128 (0..255) of
//                k = 4j + i. w = scale * (byte - 128); a quant of -128 is kept.
//   F32  2048 B  32 vectors of 16 floats: vector k holds w of rows 0..15.
// All numbers are little endian. The packing is a bijection on unpadded elements: unpack() gives
// back the checkpoint's bytes. Those are GGUF's: row after row, each row as blocks of 32 (Q4_0:
// fp16 scale, 16 bytes; Q4_1: fp16 scale, fp16 min, 16 bytes; Q8_0: fp16 scale, 32 int8; F32:
// floats).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "program/graph.h"

namespace chorus {

inline constexpr int32_t kR16K4Version = 1;
inline constexpr int32_t kGroupRows = 16;        // rows of a record
inline constexpr int32_t kBlockColumns = 32;     // columns of a record
inline constexpr size_t kVectorBytes = 64;       // 16 rows x 4 bytes
inline constexpr size_t kSegmentAlignment = 64;  // of a packed matrix in memory and in files

inline constexpr size_t kQ4_0RecordBytes = 288;
inline constexpr size_t kQ4_1RecordBytes = 320;
inline constexpr size_t kQ8_0RecordBytes = 544;
inline constexpr size_t kF32RecordBytes = 2048;

// Offsets in a record.
inline constexpr size_t kScalesOffset = 0;       // Q4_0, Q4_1, Q8_0: 16 fp16
inline constexpr size_t kQ4_1MinsOffset = 32;    // 16 fp16
inline constexpr size_t kQ4_0QuantsOffset = 32;  // 4 vectors
inline constexpr size_t kQ4_1QuantsOffset = 64;  // 4 vectors
inline constexpr size_t kQ8_0QuantsOffset = 32;  // 8 vectors

constexpr size_t record_bytes(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return kF32RecordBytes;
    case WeightType::kQ4_0:
      return kQ4_0RecordBytes;
    case WeightType::kQ4_1:
      return kQ4_1RecordBytes;
    case WeightType::kQ8_0:
      return kQ8_0RecordBytes;
  }
  return 0;
}

// Bytes of one row's share of a k-block in the checkpoint's order (for F32: of 32 floats).
constexpr size_t canonical_block_bytes(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 128;
    case WeightType::kQ4_0:
      return 18;
    case WeightType::kQ4_1:
      return 20;
    case WeightType::kQ8_0:
      return 34;
  }
  return 0;
}

constexpr int64_t num_row_groups(int32_t rows) {
  return (int64_t{rows} + kGroupRows - 1) / kGroupRows;
}
constexpr int64_t num_column_blocks(int32_t columns) {
  return (int64_t{columns} + kBlockColumns - 1) / kBlockColumns;
}

// Bytes of the packed matrix, and of the same matrix in the checkpoint's order. nullopt when rows
// or columns are not positive, when columns of a quantised type are no multiple of 32, or when the
// size does not fit 63 bits.
std::optional<uint64_t> packed_bytes(WeightType type, int32_t rows, int32_t columns);
std::optional<uint64_t> canonical_bytes(WeightType type, int32_t rows, int32_t columns);

// Packs `source` (canonical_bytes long, any alignment) into `packed` (packed_bytes long, any
// alignment; every byte is written). Errors: kInvalidArgument, field "rows", "columns", "source" or
// "packed", when a size does not fit.
Status pack(WeightType type, int32_t rows, int32_t columns, std::span<const std::byte> source,
            std::span<std::byte> packed);

// The row groups [first_group, end_group) of pack() alone, for several threads: `source` and
// `packed` are those of the whole matrix. Requires: sizes as pack() checks them, groups in range.
void pack_row_groups(WeightType type, int32_t rows, int32_t columns,
                     std::span<const std::byte> source, std::span<std::byte> packed,
                     int64_t first_group, int64_t end_group);

// The inverse of pack(): the exact bytes of the checkpoint. Padding is not looked at.
Status unpack(WeightType type, int32_t rows, int32_t columns, std::span<const std::byte> packed,
              std::span<std::byte> source);

// The values of one row of a weight, either packing: the plain reading of the layout, for oracles
// and tests. The arithmetic is the contract's: one fma per value, fma(scale, quant - zero, min).
// Requires: `bytes` is the weight's segment, 0 <= row < weight.rows, values.size() ==
// weight.columns.
void dequantize_row(const Weight& weight, std::span<const std::byte> bytes, int32_t row,
                    std::span<float> values);

}  // namespace chorus
