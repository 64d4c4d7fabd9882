#include "exporter/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/check.h"
#include "program/packing/half.h"
#include "program/packing/r16k4.h"
#include "program/packing/row_block.h"

namespace chorus {

namespace {

constexpr size_t kBlock = 32;
constexpr float kLargestHalf = 65504.0f;

// The integer nearest to (value - min) / scale in [0, largest].
uint8_t nearest_quant(float value, float scale, float min, float largest) {
  constexpr float kRounder = 0x1.8p23f;  // adding it leaves no bits below 1: nearest even
  if (scale == 0.0f) return 0;
  const float quant = std::clamp((value - min) / scale, 0.0f, largest);
  return static_cast<uint8_t>((quant + kRounder) - kRounder);
}

// A half's bits, and what it stores of a float.
uint16_t store_half(float value, float& stored) {
  const uint16_t bits = float_to_half(value);
  stored = half_to_float(bits);
  return bits;
}

// Q8_0 and Q4_0: quants around zero, from 0 to `largest` in the block.
void quantize_around_zero(std::span<const float> values, float scale, int zero, float largest,
                          RowBlock& out) {
  float stored = 0.0f;
  out.scale = store_half(scale, stored);
  const float min = -stored * static_cast<float>(zero);
  for (size_t k = 0; k < values.size(); ++k) {
    out.quants[k] = stored == 0.0f ? static_cast<uint8_t>(zero)
                                   : nearest_quant(values[k], stored, min, largest);
  }
}

float value_of_greatest_magnitude(std::span<const float> values) {
  return *std::max_element(values.begin(), values.end(),
                           [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

void quantize_q8_0(std::span<const float> values, RowBlock& out) {
  const float absmax = std::fabs(value_of_greatest_magnitude(values));
  quantize_around_zero(values, absmax / 127.0f, 128, 255.0f, out);
}

void quantize_q4_0(std::span<const float> values, RowBlock& out) {
  quantize_around_zero(values, value_of_greatest_magnitude(values) / -8.0f, 8, 15.0f, out);
}

void quantize_q4_1(std::span<const float> values, RowBlock& out) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  float scale = 0.0f;
  float min = 0.0f;
  out.scale = store_half((*high - *low) / 15.0f, scale);
  out.min = store_half(*low, min);
  for (size_t k = 0; k < values.size(); ++k) {
    out.quants[k] = nearest_quant(values[k], scale, min, 15.0f);
  }
}

// ---- Q4_K --------------------------------------------------------------------------------------

// value is about scale * quant - offset, quants 0 to 15, both numbers at least 0.
struct Affine {
  float scale = 0.0f;
  float offset = 0.0f;
};

double squared_error(std::span<const float> values, const Affine& a) {
  double sum = 0.0;
  for (const float value : values) {
    const float quant = nearest_quant(value, a.scale, -a.offset, 15.0f);
    const double error = static_cast<double>(a.scale * quant - a.offset - value);
    sum += error * error;
  }
  return sum;
}

// The least squares fit to the quants that `guess` gives.
Affine fit(std::span<const float> values, const Affine& guess) {
  double sum_q = 0.0, sum_qq = 0.0, sum_v = 0.0, sum_qv = 0.0;
  for (const float value : values) {
    const double quant = nearest_quant(value, guess.scale, -guess.offset, 15.0f);
    const auto v = static_cast<double>(value);
    sum_q += quant;
    sum_qq += quant * quant;
    sum_v += v;
    sum_qv += quant * v;
  }
  const auto count = static_cast<double>(values.size());
  const double determinant = count * sum_qq - sum_q * sum_q;
  if (determinant <= 0.0) return guess;
  double scale = (count * sum_qv - sum_q * sum_v) / determinant;
  double offset = (scale * sum_q - sum_v) / count;
  if (offset < 0.0) {
    offset = 0.0;
    scale = sum_qv / sum_qq;
  }
  if (scale <= 0.0) return guess;
  return {static_cast<float>(scale), static_cast<float>(offset)};
}

// The best of several guesses that cut the range of the values into somewhat more or fewer than 15
// steps, each improved by a fit.
Affine search(std::span<const float> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const float offset = std::max(-*low, 0.0f);
  const float range = *high + offset;
  if (range <= 0.0f) return {0.0f, offset};  // all the same and not above zero
  Affine best{range / 15.0f, offset};
  double least = squared_error(values, best);
  for (float steps = 13.0f; steps <= 17.0f; steps += 0.25f) {
    const Affine candidate = fit(values, {range / steps, offset});
    const double error = squared_error(values, candidate);
    if (error < least) {
      least = error;
      best = candidate;
    }
  }
  return best;
}

void quantize_q4_k(std::span<const float> values, RowBlock& out) {
  Affine blocks[8];
  float greatest_scale = 0.0f;
  float greatest_offset = 0.0f;
  for (size_t b = 0; b < 8; ++b) {
    blocks[b] = search(values.subspan(kBlock * b, kBlock));
    greatest_scale = std::max(greatest_scale, blocks[b].scale);
    greatest_offset = std::max(greatest_offset, blocks[b].offset);
  }
  float d = 0.0f;
  float dmin = 0.0f;
  out.scale = store_half(greatest_scale / 63.0f, d);
  out.min = store_half(greatest_offset / 63.0f, dmin);
  for (size_t b = 0; b < 8; ++b) {
    out.sub_scales[b] = nearest_quant(blocks[b].scale, d, 0.0f, 63.0f);
    out.sub_mins[b] = nearest_quant(blocks[b].offset, dmin, 0.0f, 63.0f);
    const float scale = d * static_cast<float>(out.sub_scales[b]);
    const float min = -(dmin * static_cast<float>(out.sub_mins[b]));
    for (size_t k = kBlock * b; k < kBlock * (b + 1); ++k) {
      out.quants[k] = nearest_quant(values[k], scale, min, 15.0f);
    }
  }
}

// ---- Rows --------------------------------------------------------------------------------------

// What a row's record holds of `values`.
void quantize_block(WeightType type, std::span<const float> values, RowBlock& out) {
  switch (type) {
    case WeightType::kQ8_0:
      return quantize_q8_0(values, out);
    case WeightType::kQ4_0:
      return quantize_q4_0(values, out);
    case WeightType::kQ4_1:
      return quantize_q4_1(values, out);
    default:
      return quantize_q4_k(values, out);
  }
}

QuantizeError error_of(std::span<const float> values, std::span<const float> stored) {
  QuantizeError error;
  for (size_t k = 0; k < values.size(); ++k) {
    const auto value = static_cast<double>(values[k]);
    const double difference = static_cast<double>(stored[k]) - value;
    error.squared_error += difference * difference;
    error.squares += value * value;
  }
  return error;
}

Status check_sizes(WeightType type, int32_t columns, size_t num_values, size_t out_bytes) {
  if (columns <= 0 || columns % column_multiple(type) != 0) {
    return invalid_argument("columns", "expected a positive multiple of " +
                                           std::to_string(column_multiple(type)) + ", found " +
                                           std::to_string(columns));
  }
  if (num_values % static_cast<size_t>(columns) != 0) {
    return invalid_argument("values", "expected whole rows of " + std::to_string(columns) +
                                          ", found " + std::to_string(num_values) + " values");
  }
  const RecordLayout& layout = record_layout(type);
  const size_t bytes = num_values / layout.columns() * layout.row_bytes;
  if (out_bytes != bytes) {
    return invalid_argument(
        "out", "expected " + std::to_string(bytes) + " bytes, found " + std::to_string(out_bytes));
  }
  return Status();
}

}  // namespace

double QuantizeError::relative() const {
  return squares > 0.0 ? std::sqrt(squared_error / squares) : 0.0;
}

void QuantizeError::add(const QuantizeError& other) {
  squared_error += other.squared_error;
  squares += other.squares;
}

bool can_quantize_to(WeightType type) {
  return type == WeightType::kQ8_0 || type == WeightType::kQ4_0 || type == WeightType::kQ4_1 ||
         type == WeightType::kQ4_K;
}

Result<QuantizeError> quantize_rows(WeightType type, int32_t columns, std::span<const float> values,
                                    std::span<std::byte> out) {
  CHORUS_CHECK(can_quantize_to(type));
  CHORUS_RETURN_IF_ERROR(check_sizes(type, columns, values.size(), out.size()));
  const RecordLayout& layout = record_layout(type);
  QuantizeError error;
  float stored[256];
  std::byte* block = out.data();
  for (size_t at = 0; at < values.size(); at += layout.columns(), block += layout.row_bytes) {
    const auto part = values.subspan(at, layout.columns());
    for (size_t k = 0; k < part.size(); ++k) {
      // A half must hold the scale, and for Q4_1 the min and the whole range.
      if (!(std::fabs(part[k]) <= kLargestHalf)) {
        return invalid_argument("values", "expected numbers of magnitude 65504 at most, found " +
                                              std::to_string(part[k]));
      }
    }
    RowBlock row;
    quantize_block(type, part, row);
    write_row(type, row, block);
    const auto back = std::span(stored).first(part.size());
    dequantize(type, row, back);
    error.add(error_of(part, back));
  }
  return error;
}

std::optional<WeightType> quantized_type(WeightType from, WeightType target, int32_t columns) {
  const WeightType to = columns % column_multiple(target) == 0 ? target : WeightType::kQ8_0;
  if (columns % column_multiple(to) != 0) return std::nullopt;
  const auto row_bytes = [&](WeightType type) { return *canonical_bytes(type, 1, columns); };
  if (columns % column_multiple(from) != 0 || row_bytes(to) >= row_bytes(from)) {
    return std::nullopt;
  }
  return to;
}

Result<QuantizedMatrix> quantize_matrix(WeightType from, WeightType to, int32_t rows,
                                        int32_t columns, std::span<const std::byte> source) {
  const size_t from_bytes = *canonical_bytes(from, 1, columns);
  const size_t to_bytes = *canonical_bytes(to, 1, columns);
  const auto num_rows = static_cast<size_t>(rows);
  CHORUS_CHECK_EQ(source.size(), num_rows * from_bytes);
  QuantizedMatrix out;
  out.bytes.resize(num_rows * to_bytes);
  std::vector<float> values(static_cast<size_t>(columns));
  for (size_t r = 0; r < num_rows; ++r) {
    read_checkpoint_row(from, source.subspan(r * from_bytes, from_bytes), values);
    const auto row = std::span(out.bytes).subspan(r * to_bytes, to_bytes);
    CHORUS_ASSIGN_OR_RETURN(const QuantizeError error, quantize_rows(to, columns, values, row));
    out.error.add(error);
  }
  return out;
}

void read_checkpoint_row(WeightType type, std::span<const std::byte> row, std::span<float> values) {
  const RecordLayout& layout = record_layout(type);
  if (is_quantised(type)) {
    CHORUS_CHECK_EQ(row.size() * layout.columns(), values.size() * layout.row_bytes);
    for (size_t at = 0; at < values.size(); at += layout.columns()) {
      RowBlock block;
      read_row(type, row.data() + at / layout.columns() * layout.row_bytes, block);
      dequantize(type, block, values.subspan(at, layout.columns()));
    }
    return;
  }
  CHORUS_CHECK_EQ(row.size(), values.size() * layout.element_bytes);
  if (type == WeightType::kF32) {
    std::memcpy(values.data(), row.data(), row.size());
    return;
  }
  for (size_t k = 0; k < values.size(); ++k) {
    uint16_t bits;
    std::memcpy(&bits, row.data() + 2 * k, sizeof bits);
    values[k] = type == WeightType::kF16 ? half_to_float(bits) : bf16_to_float(bits);
  }
}

}  // namespace chorus
