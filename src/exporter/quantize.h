// Makes quantised weights of floats, for `chorus export --quantize`.
//
// Every quant is the nearest to its value that scale and min, as they are stored, allow. Scales:
//   Q8_0  absmax / 127.   Q4_0  the value of greatest magnitude / -8, so that it is exact.
//   Q4_1  (max - min) / 15 and min.
//   Q4_K  for each 32 values the scale and the min of a search (least squares over several first
//         guesses, min <= 0), then rounded to 6 bits of the greatest scale and min among eight.
// The choices for Q8_0, Q4_0 and Q4_1 are ggml's (ggml-quants.c, quantize_row_*_ref).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "program/graph.h"

namespace chorus {

// How far quantised values are from their floats.
struct QuantizeError {
  double squared_error = 0.0;  // sums over the values
  double squares = 0.0;

  // Root of the mean squared error over the values' root mean square; 0 where all values are 0.
  double relative() const;
  void add(const QuantizeError& other);
};

// Q8_0, Q4_0, Q4_1 and Q4_K.
bool can_quantize_to(WeightType type);

// Whole rows: `values` are rows * columns floats, `out` is their canonical_bytes
// (program/packing/r16k4.h). A row's bytes depend on the row alone, so rows may be split over
// threads. Requires: can_quantize_to(type). Errors: kInvalidArgument, field "columns" (not
// positive, or no multiple of column_multiple(type)), "values" (their number is no multiple of
// columns, or one is not finite or so large that no half can be its scale) or "out" (its size).
Result<QuantizeError> quantize_rows(WeightType type, int32_t columns, std::span<const float> values,
                                    std::span<std::byte> out);

// What becomes of a matrix of `from` where `target` is wanted: `target`, or Q8_0 where the columns
// are no multiple of what it needs; nullopt: it stays as it is, because its columns fit neither or
// its values would not take fewer bits.
std::optional<WeightType> quantized_type(WeightType from, WeightType target, int32_t columns);

// A matrix that was quantised.
struct QuantizedTensor {
  std::string_view name;
  WeightType from = WeightType::kF32;
  WeightType to = WeightType::kF32;
  QuantizeError error;  // against the values of `from`
};

struct QuantizedMatrix {
  std::vector<std::byte> bytes;  // in the checkpoint's order
  QuantizeError error;
};

// A whole matrix in the checkpoint's order, row by row. Requires: can_quantize_to(to), `source` is
// canonical_bytes(from, rows, columns) and columns fit `to`. Errors: as quantize_rows, "values".
Result<QuantizedMatrix> quantize_matrix(WeightType from, WeightType to, int32_t rows,
                                        int32_t columns, std::span<const std::byte> source);

// The values of one row in the checkpoint's order, of any type; the same as dequantize_row() of its
// packed form. Requires: `row` is columns of `type` (canonical_bytes for one row), values.size() ==
// columns.
void read_checkpoint_row(WeightType type, std::span<const std::byte> row, std::span<float> values);

}  // namespace chorus
