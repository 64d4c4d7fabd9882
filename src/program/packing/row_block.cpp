#include "program/packing/row_block.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "program/packing/half.h"
#include "program/packing/r16k4.h"

namespace chorus {

namespace {

constexpr uint32_t kNibbles = 0x0f0f0f0fu;
constexpr uint32_t kOnes = 0x01010101u;
constexpr uint32_t kPairs = 0x03030303u;
constexpr size_t kSuperColumns = 256;  // of a row of a K-quant

// Four bytes side by side.
uint32_t load_word(const void* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}
void store_word(void* to, uint32_t word) { std::memcpy(to, &word, sizeof word); }

const uint8_t* bytes_at(const std::byte* from) { return reinterpret_cast<const uint8_t*>(from); }
uint8_t* bytes_at(std::byte* from) { return reinterpret_cast<uint8_t*>(from); }

// ---- Checkpoint --------------------------------------------------------------------------------

// `count` bytes with the low 4 bits of the quants from `low` on below those from `high` on.
void write_nibbles(const uint8_t* low, const uint8_t* high, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<uint8_t>((low[i] & 15) | high[i] << 4);
  }
}
void read_nibbles(const uint8_t* in, size_t count, uint8_t* low, uint8_t* high) {
  for (size_t i = 0; i < count; ++i) {
    low[i] = in[i] & 15;
    high[i] = in[i] >> 4;
  }
}

// Q5_0, Q5_1: bit k of a word is the fifth bit of quant k.
uint32_t fifth_bits(const uint8_t* quants) {
  uint32_t bits = 0;
  for (uint32_t k = 0; k < 32; ++k) bits |= static_cast<uint32_t>(quants[k] >> 4) << k;
  return bits;
}
void add_fifth_bits(uint32_t bits, uint8_t* quants) {
  for (uint32_t k = 0; k < 32; ++k) quants[k] |= static_cast<uint8_t>((bits >> k & 1u) << 4);
}

// Q4_K, Q5_K: eight scales and eight mins of 6 bits in 12 bytes. The upper two bits of the last
// four of each lie above the first four, their lower four in the last four bytes.
void write_sub_scales(const RowBlock& from, uint8_t* out) {
  for (size_t i = 0; i < 4; ++i) {
    const int scale = from.sub_scales[i + 4];
    const int min = from.sub_mins[i + 4];
    out[i] = static_cast<uint8_t>(from.sub_scales[i] | scale >> 4 << 6);
    out[i + 4] = static_cast<uint8_t>(from.sub_mins[i] | min >> 4 << 6);
    out[i + 8] = static_cast<uint8_t>((scale & 15) | min << 4);
  }
}
void read_sub_scales(const uint8_t* in, RowBlock& to) {
  for (size_t i = 0; i < 4; ++i) {
    to.sub_scales[i] = in[i] & 63;
    to.sub_mins[i] = in[i + 4] & 63;
    to.sub_scales[i + 4] = static_cast<uint8_t>((in[i + 8] & 15) | in[i] >> 6 << 4);
    to.sub_mins[i + 4] = static_cast<uint8_t>(in[i + 8] >> 4 | in[i + 4] >> 6 << 4);
  }
}

// Q4_K, Q5_K: a byte has quants of two neighbouring blocks of 32; Q5_K's fifth bits are a byte a
// column, with a bit a block.
constexpr size_t kSubScalesOffset = 4;
constexpr size_t kQ4_KQuants = 16;
constexpr size_t kQ5_KUpperBits = 16;
constexpr size_t kQ5_KQuants = 48;

void write_super_row(bool five_bits, const RowBlock& from, uint8_t* out) {
  write_sub_scales(from, out + kSubScalesOffset);
  uint8_t* nibbles = out + (five_bits ? kQ5_KQuants : kQ4_KQuants);
  for (size_t pair = 0; pair < 4; ++pair) {
    const uint8_t* quants = from.quants + 64 * pair;
    write_nibbles(quants, quants + 32, 32, nibbles + 32 * pair);
  }
  if (!five_bits) return;
  for (size_t k = 0; k < 32; ++k) {
    int bits = 0;
    for (size_t b = 0; b < 8; ++b) bits |= from.quants[32 * b + k] >> 4 << b;
    out[kQ5_KUpperBits + k] = static_cast<uint8_t>(bits);
  }
}
void read_super_row(bool five_bits, const uint8_t* in, RowBlock& to) {
  read_sub_scales(in + kSubScalesOffset, to);
  const uint8_t* nibbles = in + (five_bits ? kQ5_KQuants : kQ4_KQuants);
  for (size_t pair = 0; pair < 4; ++pair) {
    uint8_t* quants = to.quants + 64 * pair;
    read_nibbles(nibbles + 32 * pair, 32, quants, quants + 32);
  }
  if (!five_bits) return;
  for (size_t b = 0; b < 8; ++b) {
    for (size_t k = 0; k < 32; ++k) {
      to.quants[32 * b + k] |= static_cast<uint8_t>((in[kQ5_KUpperBits + k] >> b & 1) << 4);
    }
  }
}

// Q6_K, for each half of 128 columns: 64 bytes of nibbles (block 0 with 2, 1 with 3) and 32 bytes
// with two upper bits of each of the four blocks.
constexpr size_t kQ6_KUpperBits = 128;
constexpr size_t kQ6_KSubScales = 192;
constexpr size_t kQ6_KScale = 208;

void write_q6_k(const RowBlock& from, uint8_t* out) {
  for (size_t half = 0; half < 2; ++half) {
    const uint8_t* quants = from.quants + 128 * half;
    write_nibbles(quants, quants + 64, 64, out + 64 * half);
    uint8_t* upper = out + kQ6_KUpperBits + 32 * half;
    for (size_t k = 0; k < 32; ++k) {
      upper[k] = static_cast<uint8_t>(quants[k] >> 4 | quants[k + 32] >> 4 << 2 |
                                      quants[k + 64] >> 4 << 4 | quants[k + 96] >> 4 << 6);
    }
  }
  std::memcpy(out + kQ6_KSubScales, from.sub_scales, 16);
}
void read_q6_k(const uint8_t* in, RowBlock& to) {
  for (size_t half = 0; half < 2; ++half) {
    uint8_t* quants = to.quants + 128 * half;
    read_nibbles(in + 64 * half, 64, quants, quants + 64);
    const uint8_t* upper = in + kQ6_KUpperBits + 32 * half;
    for (size_t b = 0; b < 4; ++b) {
      for (size_t k = 0; k < 32; ++k) {
        quants[32 * b + k] |= static_cast<uint8_t>((upper[k] >> 2 * b & 3) << 4);
      }
    }
  }
  std::memcpy(to.sub_scales, in + kQ6_KSubScales, 16);
}

// Q8_0: int8 in the checkpoint, quant + 128 in records.
void flip_signs(const uint8_t* from, uint8_t* to) {
  for (size_t k = 0; k < 32; ++k) to[k] = from[k] ^ 0x80u;
}

// Where a quantised type's scale stands in the checkpoint; its min stands behind it.
size_t scale_offset(WeightType type) { return type == WeightType::kQ6_K ? kQ6_KScale : 0; }

// ---- Records -----------------------------------------------------------------------------------

// 32 quants of a row <-> its lanes in a block's vectors, from `lane` on.
template <size_t kBits>
void write_lanes(const uint8_t* quants, std::byte* lane) {
  if constexpr (kBits == 8) {
    for (size_t j = 0; j < 8; ++j) std::memcpy(lane + kVectorBytes * j, quants + 4 * j, 4);
    return;
  }
  for (size_t j = 0; j < 4; ++j) {
    store_word(lane + kVectorBytes * j, (load_word(quants + 4 * j) & kNibbles) |
                                            (load_word(quants + 16 + 4 * j) & kNibbles) << 4);
  }
  std::byte* plane = lane + 4 * kVectorBytes;
  if constexpr (kBits == 5) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 8; ++j) bits |= (load_word(quants + 4 * j) >> 4 & kOnes) << j;
    store_word(plane, bits);
  }
  if constexpr (kBits == 6) {
    for (size_t half = 0; half < 2; ++half) {
      uint32_t bits = 0;
      for (size_t j = 0; j < 4; ++j) {
        bits |= (load_word(quants + 16 * half + 4 * j) >> 4 & kPairs) << 2 * j;
      }
      store_word(plane + kVectorBytes * half, bits);
    }
  }
}
template <size_t kBits>
void read_lanes(const std::byte* lane, uint8_t* quants) {
  if constexpr (kBits == 8) {
    for (size_t j = 0; j < 8; ++j) std::memcpy(quants + 4 * j, lane + kVectorBytes * j, 4);
    return;
  }
  const std::byte* plane = lane + 4 * kVectorBytes;
  for (size_t j = 0; j < 8; ++j) {
    uint32_t word = load_word(lane + kVectorBytes * (j % 4)) >> (j < 4 ? 0 : 4) & kNibbles;
    if constexpr (kBits == 5) word |= (load_word(plane) >> j & kOnes) << 4;
    if constexpr (kBits == 6) {
      word |= (load_word(plane + kVectorBytes * (j / 4)) >> 2 * (j % 4) & kPairs) << 4;
    }
    store_word(quants + 4 * j, word);
  }
}

void write_lanes(size_t bits, const uint8_t* quants, std::byte* lane) {
  switch (bits) {
    case 4:
      return write_lanes<4>(quants, lane);
    case 5:
      return write_lanes<5>(quants, lane);
    case 6:
      return write_lanes<6>(quants, lane);
    default:
      return write_lanes<8>(quants, lane);
  }
}
void read_lanes(size_t bits, const std::byte* lane, uint8_t* quants) {
  switch (bits) {
    case 4:
      return read_lanes<4>(lane, quants);
    case 5:
      return read_lanes<5>(lane, quants);
    case 6:
      return read_lanes<6>(lane, quants);
    default:
      return read_lanes<8>(lane, quants);
  }
}

}  // namespace

void read_row(WeightType type, const std::byte* block, RowBlock& to) {
  const uint8_t* in = bytes_at(block);
  std::memcpy(&to.scale, in + scale_offset(type), sizeof to.scale);
  if (record_layout(type).mins) std::memcpy(&to.min, in + 2, sizeof to.min);
  switch (type) {
    case WeightType::kQ4_0:
      return read_nibbles(in + 2, 16, to.quants, to.quants + 16);
    case WeightType::kQ4_1:
      return read_nibbles(in + 4, 16, to.quants, to.quants + 16);
    case WeightType::kQ5_0:
      read_nibbles(in + 6, 16, to.quants, to.quants + 16);
      return add_fifth_bits(load_word(in + 2), to.quants);
    case WeightType::kQ5_1:
      read_nibbles(in + 8, 16, to.quants, to.quants + 16);
      return add_fifth_bits(load_word(in + 4), to.quants);
    case WeightType::kQ8_0:
      return flip_signs(in + 2, to.quants);
    case WeightType::kQ4_K:
      return read_super_row(false, in, to);
    case WeightType::kQ5_K:
      return read_super_row(true, in, to);
    case WeightType::kQ6_K:
      return read_q6_k(in, to);
    default:
      CHORUS_CHECK(false);
  }
}

void write_row(WeightType type, const RowBlock& from, std::byte* block) {
  uint8_t* out = bytes_at(block);
  std::memcpy(out + scale_offset(type), &from.scale, sizeof from.scale);
  if (record_layout(type).mins) std::memcpy(out + 2, &from.min, sizeof from.min);
  switch (type) {
    case WeightType::kQ4_0:
      return write_nibbles(from.quants, from.quants + 16, 16, out + 2);
    case WeightType::kQ4_1:
      return write_nibbles(from.quants, from.quants + 16, 16, out + 4);
    case WeightType::kQ5_0:
      write_nibbles(from.quants, from.quants + 16, 16, out + 6);
      return store_word(out + 2, fifth_bits(from.quants));
    case WeightType::kQ5_1:
      write_nibbles(from.quants, from.quants + 16, 16, out + 8);
      return store_word(out + 4, fifth_bits(from.quants));
    case WeightType::kQ8_0:
      return flip_signs(from.quants, out + 2);
    case WeightType::kQ4_K:
      return write_super_row(false, from, out);
    case WeightType::kQ5_K:
      return write_super_row(true, from, out);
    case WeightType::kQ6_K:
      return write_q6_k(from, out);
    default:
      CHORUS_CHECK(false);
  }
}

void read_record(WeightType type, const std::byte* record, size_t row, RowBlock& to) {
  const RecordLayout& layout = record_layout(type);
  std::memcpy(&to.scale, record + 2 * row, sizeof to.scale);
  if (layout.mins) std::memcpy(&to.min, record + 32 + 2 * row, sizeof to.min);
  const std::byte* block = record + layout.header_bytes();
  for (size_t b = 0; b < layout.blocks; ++b, block += layout.block_bytes()) {
    for (size_t s = 0; s < layout.sub_scales; ++s) {
      to.sub_scales[b * layout.sub_scales + s] = bytes_at(block)[16 * s + row];
    }
    if (layout.sub_scales > 0 && layout.mins) {
      to.sub_mins[b] = bytes_at(block)[layout.sub_mins_offset() + row];
    }
    read_lanes(layout.quant_bits, block + layout.quants_offset() + 4 * row, to.quants + 32 * b);
  }
}

void write_record(WeightType type, const RowBlock& from, size_t row, std::byte* record) {
  const RecordLayout& layout = record_layout(type);
  std::memcpy(record + 2 * row, &from.scale, sizeof from.scale);
  if (layout.mins) std::memcpy(record + 32 + 2 * row, &from.min, sizeof from.min);
  std::byte* block = record + layout.header_bytes();
  for (size_t b = 0; b < layout.blocks; ++b, block += layout.block_bytes()) {
    for (size_t s = 0; s < layout.sub_scales; ++s) {
      bytes_at(block)[16 * s + row] = from.sub_scales[b * layout.sub_scales + s];
    }
    if (layout.sub_scales > 0 && layout.mins) {
      bytes_at(block)[layout.sub_mins_offset() + row] = from.sub_mins[b];
    }
    write_lanes(layout.quant_bits, from.quants + 32 * b, block + layout.quants_offset() + 4 * row);
  }
}

void dequantize(WeightType type, const RowBlock& from, std::span<float> values) {
  const RecordLayout& layout = record_layout(type);
  CHORUS_CHECK_LE(values.size(), kSuperColumns);
  const size_t part = layout.sub_scales == 0 ? 32 : 32 / layout.sub_scales;
  for (size_t k = 0; k < values.size(); ++k) {
    float scale = half_to_float(from.scale);
    float min = layout.mins ? half_to_float(from.min) : 0.0f;
    if (layout.sub_scales > 0) {
      const uint8_t sub = from.sub_scales[k / part];
      scale *= static_cast<float>(type == WeightType::kQ6_K ? static_cast<int8_t>(sub) : int{sub});
      if (layout.mins) min = -(min * static_cast<float>(from.sub_mins[k / 32]));
    }
    values[k] = std::fma(scale, static_cast<float>(from.quants[k] - layout.zero), min);
  }
}

}  // namespace chorus
