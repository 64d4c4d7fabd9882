// Where the parts of a packed record lie. Numbers only, so that the kernels of every instruction
// set can include it; r16k4.h has the words to it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chorus {

// A record of a quantised type: the scales of 16 rows in halves, then their mins in halves where
// the type has mins, then the blocks. A block has 16 rows x 32 columns: integer scales of its own
// and integer mins (K-quants), a byte a row each, then the quants, as nibbles with planes of the
// upper bits, or as bytes.
struct RecordLayout {
  size_t blocks = 1;         // in a record: of the same rows, at 32 columns each
  size_t quant_bits = 0;     // 4, 5, 6 or 8; 0: the record holds floats
  int zero = 0;              // is taken off a stored quant
  size_t sub_scales = 0;     // of a row in a block, for equal parts of its columns
  bool mins = false;         // added to what scale and quant give; K-quants: subtracted
  size_t element_bytes = 0;  // of floats
  size_t row_bytes = 0;      // a row's share of a record, in the checkpoint's order

  constexpr size_t columns() const { return 32 * blocks; }
  constexpr size_t header_bytes() const { return quant_bits == 0 ? 0 : mins ? 64 : 32; }
  constexpr size_t sub_mins_offset() const { return 16 * sub_scales; }  // in a block
  constexpr size_t quants_offset() const {                              // in a block
    return 16 * (sub_scales + (mins && sub_scales > 0 ? 1 : 0));
  }
  constexpr size_t upper_bits_offset() const { return quants_offset() + 256; }  // 5 and 6 bits
  constexpr size_t block_bytes() const {
    return quant_bits == 0 ? 512 * element_bytes : quants_offset() + 64 * quant_bits;
  }
  constexpr size_t record_bytes() const { return header_bytes() + blocks * block_bytes(); }
};

// In the order of WeightType.
inline constexpr RecordLayout kRecordLayouts[] = {
    {.element_bytes = 4, .row_bytes = 128},                                           // F32
    {.quant_bits = 4, .zero = 8, .row_bytes = 18},                                    // Q4_0
    {.quant_bits = 4, .mins = true, .row_bytes = 20},                                 // Q4_1
    {.quant_bits = 8, .zero = 128, .row_bytes = 34},                                  // Q8_0
    {.quant_bits = 5, .zero = 16, .row_bytes = 22},                                   // Q5_0
    {.quant_bits = 5, .mins = true, .row_bytes = 24},                                 // Q5_1
    {.blocks = 8, .quant_bits = 4, .sub_scales = 1, .mins = true, .row_bytes = 144},  // Q4_K
    {.blocks = 8, .quant_bits = 5, .sub_scales = 1, .mins = true, .row_bytes = 176},  // Q5_K
    {.blocks = 8, .quant_bits = 6, .zero = 32, .sub_scales = 2, .row_bytes = 210},    // Q6_K
    {.element_bytes = 2, .row_bytes = 64},                                            // BF16
    {.element_bytes = 2, .row_bytes = 64},                                            // F16
};
inline constexpr int kNumRecordLayouts = 11;
static_assert(sizeof kRecordLayouts == kNumRecordLayouts * sizeof(RecordLayout));

}  // namespace chorus
