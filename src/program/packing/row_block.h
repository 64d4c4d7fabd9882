// One row's share of a record of a quantised type, taken apart: the step between the checkpoint's
// order and records. For the packer, the quantisers and tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "program/graph.h"

namespace chorus {

// Of 32 columns, or 256 for the K-quants. What a type does not have is not looked at.
struct RowBlock {
  uint16_t scale = 0;           // fp16
  uint16_t min = 0;             // fp16
  uint8_t sub_scales[16] = {};  // 8 of 6 bits (Q4_K, Q5_K), or 16 int8 (Q6_K), columns ascending
  uint8_t sub_mins[8] = {};     // 6 bits
  uint8_t quants[256] = {};     // unsigned, as records hold them: RecordLayout::zero is in them
};

// Requires, for all: a quantised type; `block` is the row's RecordLayout::row_bytes in the
// checkpoint; `record` is a record and `row` one of its 16. Only the row's bits are written.
void read_row(WeightType type, const std::byte* block, RowBlock& to);
void write_row(WeightType type, const RowBlock& from, std::byte* block);
void read_record(WeightType type, const std::byte* record, size_t row, RowBlock& to);
void write_record(WeightType type, const RowBlock& from, size_t row, std::byte* record);

// The values of columns [0, values.size()), each by one fma: fma(scale, quant - zero, min). For
// K-quants scale is the product of the half and the integer, which is exact, and min the negative
// product of theirs.
void dequantize(WeightType type, const RowBlock& from, std::span<float> values);

}  // namespace chorus
