// The llama architecture: pre-norm attention with rope and grouped KV heads, SwiGLU feed-forward,
// norm and head over the wanted rows only. Names, defaults and the pairing of rope: llama.cpp
// (src/llama-arch.cpp, src/llama-model.cpp): converters permute q and k, so that the columns that
// rotate together are neighbours.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "exporter/lowering.h"
#include "program/limits.h"

namespace chorus {

namespace {

struct Config {
  int64_t num_layers = 0;
  int64_t width = 0;
  int64_t ff_width = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  float epsilon = 0.0f;
};

Result<Config> read_config(GgufLowering& lowering) {
  Config c;
  CHORUS_ASSIGN_OR_RETURN(c.num_layers, lowering.get_int("block_count", 1, kMaxKvLayers));
  CHORUS_ASSIGN_OR_RETURN(c.width, lowering.get_int("embedding_length", 1, kMaxWidth));
  CHORUS_ASSIGN_OR_RETURN(c.ff_width, lowering.get_int("feed_forward_length", 1, kMaxWidth));
  CHORUS_ASSIGN_OR_RETURN(c.num_heads, lowering.get_int("attention.head_count", 1, kMaxHeads));
  CHORUS_ASSIGN_OR_RETURN(c.num_kv_heads,
                          lowering.int_or("attention.head_count_kv", c.num_heads, 1, kMaxHeads));
  CHORUS_ASSIGN_OR_RETURN(
      c.head_dim, lowering.int_or("attention.key_length", c.width / c.num_heads, 1, kMaxHeadDim));
  CHORUS_ASSIGN_OR_RETURN(
      const int64_t value_length,
      lowering.int_or("attention.value_length", c.width / c.num_heads, 1, kMaxHeadDim));
  if (c.head_dim < 1 || c.head_dim > kMaxHeadDim) {
    return data_loss("llama.attention.key_length", "expected 1 to " + std::to_string(kMaxHeadDim) +
                                                       ", found " + std::to_string(c.head_dim));
  }
  if (value_length != c.head_dim) {
    return unimplemented("llama.attention.value_length",
                         "expected the key length " + std::to_string(c.head_dim) + ", found " +
                             std::to_string(value_length));
  }
  if (c.num_heads % c.num_kv_heads != 0) {
    return data_loss("llama.attention.head_count_kv", "expected a divisor of " +
                                                          std::to_string(c.num_heads) + ", found " +
                                                          std::to_string(c.num_kv_heads));
  }
  CHORUS_ASSIGN_OR_RETURN(const double epsilon,
                          lowering.get_float("attention.layer_norm_rms_epsilon"));
  c.epsilon = static_cast<float>(epsilon);
  if (!std::isfinite(c.epsilon) || c.epsilon < 0.0f) {
    return data_loss("llama.attention.layer_norm_rms_epsilon", "expected a number of at least 0");
  }
  return c;
}

// Known features that this lowering does not implement; absent or neutral values are fine.
Status refuse_features(GgufLowering& lowering) {
  CHORUS_RETURN_IF_ERROR(lowering.expect_string("rope.scaling.type", "none"));
  CHORUS_RETURN_IF_ERROR(lowering.expect_number("rope.scaling.factor", 1.0));
  CHORUS_RETURN_IF_ERROR(lowering.expect_number("rope.scale_linear", 1.0));
  CHORUS_RETURN_IF_ERROR(lowering.expect_number("expert_count", 0.0));
  CHORUS_RETURN_IF_ERROR(lowering.expect_number("expert_used_count", 0.0));
  CHORUS_RETURN_IF_ERROR(lowering.expect_number("attention.sliding_window", 0.0));
  CHORUS_RETURN_IF_ERROR(lowering.expect_number("attention.causal", 1.0));
  CHORUS_RETURN_IF_ERROR(lowering.expect_number("attention.clamp_kqv", 0.0));
  return lowering.expect_string("tensor_data_layout", "Meta AI original pth");
}

// The rope table, with the frequency factors of the tensor rope_freqs where there is one.
Result<int32_t> add_rope(GgufLowering& lowering, const Config& c) {
  RopeTable rope;
  CHORUS_ASSIGN_OR_RETURN(const int64_t dims,
                          lowering.int_or("rope.dimension_count", c.head_dim, 2, c.head_dim));
  CHORUS_ASSIGN_OR_RETURN(rope.theta, lowering.float_or("rope.freq_base", 10000.0));
  if (dims < 2 || dims % 2 != 0) {
    return data_loss("llama.rope.dimension_count",
                     "expected an even number, found " + std::to_string(dims));
  }
  if (!std::isfinite(rope.theta) || rope.theta <= 0.0) {
    return data_loss("llama.rope.freq_base", "expected a positive number");
  }
  rope.dims = static_cast<int32_t>(dims);
  const GgufTensor* factors = lowering.take_tensor("rope_freqs.weight");
  if (factors != nullptr) {
    if (factors->type != kGgmlF32 || factors->num_elements() != dims / 2) {
      return data_loss("rope_freqs.weight", "expected " + std::to_string(dims / 2) +
                                                " values of F32, found " +
                                                std::to_string(factors->num_elements()) + " of " +
                                                ggml_type_name(factors->type));
    }
    rope.factors.resize(static_cast<size_t>(dims / 2));
    std::memcpy(rope.factors.data(), factors->data.data(), factors->data.size());
    for (const float factor : rope.factors) {
      if (!std::isfinite(factor) || factor <= 0.0f) {
        return data_loss("rope_freqs.weight", "expected positive numbers");
      }
    }
  }
  return lowering.builder().add_rope(std::move(rope));
}

// One linear over several tensors `blk.N.NAME.weight`, with the biases that are there.
struct Part {
  const char* name;
  int64_t rows;
};
Result<std::vector<ValueId>> joined_linear(GgufLowering& lowering, const std::string& prefix,
                                           const std::vector<Part>& parts, int64_t columns,
                                           ValueId x) {
  std::vector<WeightId> weights;
  std::vector<WeightId> biases;
  for (const Part& part : parts) {
    const std::string name = prefix + part.name;
    CHORUS_ASSIGN_OR_RETURN(const WeightId weight,
                            lowering.matrix(name + ".weight", part.rows, columns));
    CHORUS_ASSIGN_OR_RETURN(const WeightId bias,
                            lowering.optional_vector(name + ".bias", part.rows));
    weights.push_back(weight);
    biases.push_back(bias);
  }
  return lowering.builder().linear(x, weights, biases);
}

Result<ValueId> norm(GgufLowering& lowering, const Config& c, const std::string& name, ValueId x) {
  CHORUS_ASSIGN_OR_RETURN(const WeightId weight, lowering.vector(name, c.width));
  return lowering.builder().rms_norm(x, weight, c.epsilon);
}

Result<ValueId> add_layer(GgufLowering& lowering, const Config& c, int64_t index, int32_t group,
                          int32_t rope, ValueId x) {
  ProgramBuilder& b = lowering.builder();
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const auto head_dim = static_cast<int32_t>(c.head_dim);
  AttentionShape shape;
  shape.num_heads = static_cast<int32_t>(c.num_heads);
  shape.num_kv_heads = static_cast<int32_t>(c.num_kv_heads);
  shape.head_dim = head_dim;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  shape.layer = b.add_kv_layer(group, {shape.num_kv_heads, head_dim});

  CHORUS_ASSIGN_OR_RETURN(const ValueId normed, norm(lowering, c, prefix + "attn_norm.weight", x));
  CHORUS_ASSIGN_OR_RETURN(const auto qkv, joined_linear(lowering, prefix,
                                                        {{"attn_q", c.num_heads * c.head_dim},
                                                         {"attn_k", c.num_kv_heads * c.head_dim},
                                                         {"attn_v", c.num_kv_heads * c.head_dim}},
                                                        c.width, normed));
  const ValueId q = b.rope(qkv[0], rope, head_dim, RopePairing::kAdjacent);
  const ValueId k = b.rope(qkv[1], rope, head_dim, RopePairing::kAdjacent);
  const ValueId attended = b.update_and_attend(q, k, qkv[2], shape);
  CHORUS_ASSIGN_OR_RETURN(const auto projected,
                          joined_linear(lowering, prefix, {{"attn_output", c.width}},
                                        c.num_heads * c.head_dim, attended));
  const ValueId middle = b.add(x, projected[0]);

  CHORUS_ASSIGN_OR_RETURN(const ValueId ff_in,
                          norm(lowering, c, prefix + "ffn_norm.weight", middle));
  CHORUS_ASSIGN_OR_RETURN(
      const auto gate_up,
      joined_linear(lowering, prefix, {{"ffn_gate", c.ff_width}, {"ffn_up", c.ff_width}}, c.width,
                    ff_in));
  const ValueId hidden = b.mul(b.silu(gate_up[0]), gate_up[1]);
  CHORUS_ASSIGN_OR_RETURN(const auto down, joined_linear(lowering, prefix, {{"ffn_down", c.width}},
                                                         c.ff_width, hidden));
  return b.add(middle, down[0]);
}

// The rows of the embedding: vocab_size where it is given, and the table's own.
Result<int64_t> read_vocabulary(GgufLowering& lowering) {
  const GgufTensor* table = lowering.file().find_tensor("token_embd.weight");
  if (table == nullptr) return data_loss("token_embd.weight", "expected this tensor, found none");
  if (table->dims.size() != 2 || table->dims[1] > kMaxVocabulary) {
    return data_loss("token_embd.weight",
                     "expected a matrix of at most " + std::to_string(kMaxVocabulary) + " rows");
  }
  return lowering.int_or("vocab_size", table->dims[1], table->dims[1], table->dims[1]);
}

}  // namespace

Status lower_llama(GgufLowering& lowering) {
  ProgramBuilder& b = lowering.builder();
  CHORUS_ASSIGN_OR_RETURN(const Config c, read_config(lowering));
  CHORUS_RETURN_IF_ERROR(refuse_features(lowering));
  CHORUS_ASSIGN_OR_RETURN(const int64_t context,
                          lowering.get_int("context_length", 1, kMaxContext));
  CHORUS_ASSIGN_OR_RETURN(const int64_t vocabulary, read_vocabulary(lowering));
  b.facts.context = static_cast<int32_t>(context);
  b.facts.vocabulary = static_cast<int32_t>(vocabulary);
  CHORUS_ASSIGN_OR_RETURN(const int32_t rope, add_rope(lowering, c));
  const int32_t group = b.add_group(WindowPolicy{0});

  CHORUS_ASSIGN_OR_RETURN(const WeightId table,
                          lowering.matrix("token_embd.weight", vocabulary, c.width));
  ValueId x = b.embed(table);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    CHORUS_ASSIGN_OR_RETURN(x, add_layer(lowering, c, i, group, rope, x));
  }
  x = b.select_rows(x);
  CHORUS_ASSIGN_OR_RETURN(x, norm(lowering, c, "output_norm.weight", x));
  WeightId head = table;
  if (lowering.file().find_tensor("output.weight") != nullptr) {
    CHORUS_ASSIGN_OR_RETURN(head, lowering.matrix("output.weight", vocabulary, c.width));
  }
  b.linear(x, {head});
  return lowering.check_all_used();
}

}  // namespace chorus
