// The packed layout R16K4, version 1: 16 rows side by side, 4 consecutive k of a row in each 32-bit
// lane. One packed form serves every instruction set.
//
// A matrix W[rows, columns] is cut into row groups of 16 and, in a group, into records of 32
// columns (K-quants: 256). Records follow one another without gaps, so a kernel that walks a row
// group reads one sequential stream. Rows are padded to a multiple of 16 and columns of float types
// to a multiple of 32; every byte of padding is zero (so the scale of a padded row is zero).
//
// In a record, r is the row in the group (0..15), k the index in a block of 32 columns, and vector
// j is 64 bytes of which bytes 4r .. 4r+3 belong to row r. The quants of a block, unsigned:
//   4 bits  4 vectors. Byte 4r + i of vector j holds in its low nibble k = 4j + i and in its high
//           nibble k = 16 + 4j + i.
//   5 bits  the low 4 bits as above, then 1 vector: bit j of byte 4r + i is bit 4 of k = 4j + i.
//   6 bits  the low 4 bits as above, then 2 vectors: bits 2j, 2j + 1 of byte 4r + i of vector h are
//           bits 4, 5 of k = 16h + 4j + i.
//   8 bits  8 vectors. Byte 4r + i of vector j is k = 4j + i.
// Records:
//   Q4_0  288 B  16 fp16 scales; quants of 4 bits. w = scale * (quant - 8)
//   Q4_1  320 B  16 fp16 scales; 16 fp16 mins; quants of 4 bits. w = fma(scale, quant, min)
//   Q5_0  352 B, Q5_1 384 B: the same with quants of 5 bits; for Q5_0, quant - 16.
//   Q8_0  544 B  16 fp16 scales; quants of 8 bits, int8 + 128. w = scale * (quant - 128); an int8
//                of -128 is kept.
//   Q4_K 2368 B  16 fp16 scales d; 16 fp16 dmin; 8 blocks {16 bytes s; 16 bytes m; quants of 4
//                bits}. w = fma(d * s, quant, -(dmin * m)), both products exact.
//   Q5_K 2880 B  the same with quants of 5 bits.
//   Q6_K 3360 B  16 fp16 scales d; 8 blocks {16 int8 s for k < 16; 16 int8 s for k >= 16; quants of
//                6 bits}. w = (d * s) * (quant - 32)
//   F32  2048 B  32 vectors of 16 floats: vector k holds w of rows 0..15.
//   F16  1024 B  32 x 16 halves: k by k, rows 0..15.
//   BF16 1024 B  16 vectors: the lane of row r in vector j holds k = 2j, then k = 2j + 1.
// All numbers are little endian. The packing is a bijection on unpadded elements: unpack() gives
// back the checkpoint's bytes. Those are GGUF's: row after row, each row as blocks of ggml's layout
// of the type (ggml-common.h, block_q4_K and its like), or as floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "program/graph.h"
#include "program/packing/record_layout.h"

namespace chorus {

inline constexpr int32_t kR16K4Version = 1;
inline constexpr int32_t kGroupRows = 16;        // rows of a record
inline constexpr int32_t kBlockColumns = 32;     // columns of a block
inline constexpr size_t kVectorBytes = 64;       // 16 rows x 4 bytes
inline constexpr size_t kSegmentAlignment = 64;  // of a packed matrix in memory and in files

constexpr const RecordLayout& record_layout(WeightType type) {
  return kRecordLayouts[static_cast<size_t>(type)];
}
constexpr size_t record_bytes(WeightType type) { return record_layout(type).record_bytes(); }
constexpr bool is_quantised(WeightType type) { return record_layout(type).quant_bits != 0; }

// Bytes of one row's share of a record in the checkpoint's order (for floats: of 32).
constexpr size_t canonical_block_bytes(WeightType type) { return record_layout(type).row_bytes; }

// What the columns of a matrix are a multiple of: 1, 32 or 256.
constexpr int32_t column_multiple(WeightType type) {
  return is_quantised(type) ? static_cast<int32_t>(record_layout(type).columns()) : 1;
}

constexpr int64_t num_row_groups(int32_t rows) {
  return (int64_t{rows} + kGroupRows - 1) / kGroupRows;
}
constexpr int64_t num_column_blocks(int32_t columns) {
  return (int64_t{columns} + kBlockColumns - 1) / kBlockColumns;
}
// Records of a row group.
constexpr int64_t num_records(WeightType type, int32_t columns) {
  const auto record_columns = static_cast<int64_t>(record_layout(type).columns());
  return (int64_t{columns} + record_columns - 1) / record_columns;
}

// Bytes of the packed matrix, and of the same matrix in the checkpoint's order. nullopt when rows
// or columns are not positive, when columns are no multiple of column_multiple(type), or when the
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
