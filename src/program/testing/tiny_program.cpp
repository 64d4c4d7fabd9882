#include "program/testing/tiny_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "program/packing/half.h"
#include "program/packing/r16k4.h"
#include "program/packing/row_block.h"

namespace chorus {

namespace {

constexpr std::string_view kTemplate = "{% for m in messages %}{{ m['content'] }}{% endfor %}";

// A half of the given exponent with a random mantissa.
uint32_t random_half(RandomStream& random, int exponent) {
  return static_cast<uint32_t>(exponent + 15) << 10 | static_cast<uint32_t>(random.below(1024));
}

void write_float(WeightType type, float value, std::byte* to) {
  if (type == WeightType::kF32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  const uint16_t bits = type == WeightType::kBF16 ? float_to_bf16(value) : float_to_half(value);
  std::memcpy(to, &bits, sizeof bits);
}

// Values in about [-amplitude, amplitude], from random bits.
RowBlock random_row(const RecordLayout& layout, double amplitude, RandomStream& random) {
  RowBlock row;
  const int half_range = 1 << (layout.quant_bits - 1);
  const bool sub_scales = layout.sub_scales > 0;
  const int exponent = std::ilogb(amplitude / half_range / (sub_scales ? 48.0 : 1.0));
  const uint32_t scale = random_half(random, exponent);
  row.scale = static_cast<uint16_t>(scale);
  for (uint8_t& quant : row.quants) {
    quant = static_cast<uint8_t>(random.below(uint64_t{1} << layout.quant_bits));
  }
  for (uint8_t& sub : row.sub_scales) sub = static_cast<uint8_t>(random.between(32, 63));
  if (!layout.mins) return row;
  // The minimum is -half_range * scale: up in the exponent, and the sign. That of a K-quant is
  // subtracted, after it is multiplied with its block's integer, which is the scale's.
  std::copy_n(row.sub_scales, std::size(row.sub_mins), row.sub_mins);
  const uint32_t min = scale + (static_cast<uint32_t>(layout.quant_bits - 1) << 10);
  row.min = static_cast<uint16_t>(sub_scales ? min : 0x8000u | min);
  return row;
}

// `count` strings that live as long as the process: "<0>", "<1>", ...
std::vector<std::string_view> numbered_tokens(int32_t count) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int i = 0; i < 4096; ++i) {
      std::string name(1, '<');
      name.append(std::to_string(i)).append(1, '>');
      all.push_back(std::move(name));
    }
    return all;
  }();
  CHORUS_CHECK_LE(static_cast<size_t>(count), names.size());
  return {names.begin(), names.begin() + count};
}

// Adds weights under names, each with a seed of its own.
class RandomWeights {
 public:
  RandomWeights(ProgramBuilder& builder, uint64_t seed) : builder_(builder), seed_(seed << 20) {}

  WeightId matrix(std::string name, WeightType type, int32_t rows, int32_t columns) {
    return builder_.add_matrix(std::move(name), type, rows, columns,
                               random_matrix(type, rows, columns, seed_++));
  }
  // About 1, as norms are.
  WeightId norm(std::string name, int32_t columns) {
    RandomStream random(seed_++);
    std::vector<float> values(static_cast<size_t>(columns));
    for (float& value : values) value = static_cast<float>(0.5 + random.unit());
    return builder_.add_vector(std::move(name), values);
  }

 private:
  ProgramBuilder& builder_;
  uint64_t seed_;
};

ValueId add_layer(ProgramBuilder& b, RandomWeights& weights, const TinyOptions& o, int32_t index,
                  int32_t group, int32_t rope, ValueId x) {
  const std::string prefix = "layer." + std::to_string(index) + ".";
  const int32_t q_rows = o.num_heads * o.head_dim;
  const int32_t kv_rows = o.num_kv_heads * o.head_dim;
  const int32_t layer = b.add_kv_layer(group, {o.num_kv_heads, o.head_dim});
  const ValueId normed = b.rms_norm(x, weights.norm(prefix + "attn_norm", o.width), 1e-5f);
  const auto qkv = b.linear(normed, {weights.matrix(prefix + "q", o.qk_type, q_rows, o.width),
                                     weights.matrix(prefix + "k", o.qk_type, kv_rows, o.width),
                                     weights.matrix(prefix + "v", o.type, kv_rows, o.width)});
  const ValueId q = b.rope(qkv[0], rope, o.head_dim, RopePairing::kAdjacent);
  const ValueId k = b.rope(qkv[1], rope, o.head_dim, RopePairing::kAdjacent);
  const float scale = 1.0f / std::sqrt(static_cast<float>(o.head_dim));
  const ValueId attended = b.update_and_attend(
      q, k, qkv[2], {layer, o.num_heads, o.num_kv_heads, o.head_dim, scale, 0.0f, kNoWeight});
  const auto projected =
      b.linear(attended, {weights.matrix(prefix + "o", o.type, o.width, q_rows)});
  x = b.add(x, projected[0]);
  const ValueId ff_in = b.rms_norm(x, weights.norm(prefix + "ffn_norm", o.width), 1e-5f);
  const auto gate_up =
      b.linear(ff_in, {weights.matrix(prefix + "gate", o.type, o.ff_width, o.width),
                       weights.matrix(prefix + "up", o.type, o.ff_width, o.width)});
  const ValueId hidden = b.mul(b.silu(gate_up[0]), gate_up[1]);
  const auto down =
      b.linear(hidden, {weights.matrix(prefix + "down", o.type, o.width, o.ff_width)});
  return b.add(x, down[0]);
}

}  // namespace

std::vector<std::byte> random_matrix(WeightType type, int32_t rows, int32_t columns,
                                     uint64_t seed) {
  const auto size = canonical_bytes(type, rows, columns);
  CHORUS_CHECK(size.has_value());
  std::vector<std::byte> bytes(*size);
  RandomStream random(seed);
  const double amplitude =
      std::sqrt(3.0 / columns);  // of a uniform value: deviation 1/sqrt(columns)
  const RecordLayout& layout = record_layout(type);
  if (!is_quantised(type)) {
    for (size_t i = 0; i < bytes.size(); i += layout.element_bytes) {
      write_float(type, static_cast<float>((2.0 * random.unit() - 1.0) * amplitude), &bytes[i]);
    }
    return bytes;
  }
  for (size_t at = 0; at < bytes.size(); at += layout.row_bytes) {
    write_row(type, random_row(layout, amplitude, random), bytes.data() + at);
  }
  return bytes;
}

ProgramBuilder tiny_builder(const TinyOptions& o) {
  ProgramBuilder b;
  b.facts.architecture = "llama";
  b.facts.name = "tiny";
  b.facts.context = o.context;
  b.facts.vocabulary = o.vocabulary;
  b.facts.methods = o.methods.empty() ? forward_method(o.max_tokens) : o.methods;
  if (o.tokenizer) {
    b.facts.tokenizer.model = "gpt2";
    b.facts.tokenizer.eos = 0;
    b.facts.tokens.strings = numbered_tokens(o.vocabulary);
    b.facts.merges.strings = {"< 0", "<0 >"};
    b.facts.chat_template = kTemplate;
  }
  RandomWeights weights(b, o.seed);
  const int32_t full_group = b.add_group({0});
  const int32_t window_group = o.window > 0 ? b.add_group({o.window}) : full_group;
  const int32_t rope = b.add_rope({10000.0, o.head_dim, {}});
  const WeightId table = weights.matrix("embed", o.embed_type, o.vocabulary, o.width);
  ValueId x = b.embed(table);
  for (int32_t i = 0; i < o.num_layers; ++i) {
    x = add_layer(b, weights, o, i, i % 2 == 1 ? window_group : full_group, rope, x);
  }
  x = b.select_rows(x);
  x = b.rms_norm(x, weights.norm("output_norm", o.width), 1e-5f);
  const WeightId head =
      o.tied ? table : weights.matrix("head", o.embed_type, o.vocabulary, o.width);
  b.linear(x, {head});
  return b;
}

Program tiny_program(const TinyOptions& options) {
  auto program = tiny_builder(options).build();
  CHORUS_CHECK(program.ok());
  return std::move(program).value();
}

}  // namespace chorus
