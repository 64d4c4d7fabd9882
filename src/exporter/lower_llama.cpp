// The llama architecture: pre-norm attention with rope and grouped KV heads, SwiGLU feed-forward,
// norm and head over the wanted rows only.
//
// GGUF names and defaults: llama.cpp (src/models/llama.cpp). Its converters permute q and k, so
// that the columns that rotate together are neighbours.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "exporter/decoder_config.h"
#include "exporter/lowering.h"
#include "program/limits.h"

namespace chorus {

namespace {

struct Config {
  DecoderSizes sizes;
  RopeTable rope;
  double attention_factor = 1.0;  // of q and of k
  RopePairing pairing = RopePairing::kAdjacent;
};

// Known features that this lowering does not implement; absent or neutral values are fine.
Status refuse_features(GgufConfig& config) {
  CHORUS_RETURN_IF_ERROR(config.expect_number("expert_count", 0.0));
  CHORUS_RETURN_IF_ERROR(config.expect_number("expert_used_count", 0.0));
  CHORUS_RETURN_IF_ERROR(config.expect_number("attention.sliding_window", 0.0));
  CHORUS_RETURN_IF_ERROR(config.expect_number("attention.causal", 1.0));
  CHORUS_RETURN_IF_ERROR(config.expect_number("attention.clamp_kqv", 0.0));
  return config.expect_string("tensor_data_layout", "Meta AI original pth");
}

// The tensor of frequency factors that converters make of llama3's scaling.
Status multiply_factors(Lowering& lowering, RopeTable& rope) {
  const std::string name = "rope_freqs.weight";
  CHORUS_ASSIGN_OR_RETURN(const std::vector<float> factors,
                          lowering.take_floats(name, rope.dims / 2));
  if (factors.empty()) return Status();
  rope.factors.resize(factors.size(), 1.0f);
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!std::isfinite(factors[i]) || factors[i] <= 0.0f) {
      return data_loss(name, "expected positive numbers");
    }
    rope.factors[i] *= factors[i];
  }
  return Status();
}

Result<Config> read_config(GgufConfig& config, Lowering& lowering) {
  Config c;
  CHORUS_ASSIGN_OR_RETURN(c.sizes, read_decoder_sizes(config));
  CHORUS_RETURN_IF_ERROR(refuse_features(config));
  CHORUS_ASSIGN_OR_RETURN(const int32_t dims, read_rope_dims(config, c.sizes.head_dim));
  CHORUS_ASSIGN_OR_RETURN(const double base, read_rope_base(config, "rope.freq_base", 10000.0));
  CHORUS_ASSIGN_OR_RETURN(const RopeScaling scaling, read_rope_scaling(config, c.sizes.context));
  c.rope = make_rope_table(base, dims, scaling);
  c.attention_factor = scaling.attention_factor;
  CHORUS_RETURN_IF_ERROR(multiply_factors(lowering, c.rope));
  return c;
}

// Defaults of transformers' LlamaConfig, whose q and k rotate by halves.
Result<Config> read_config(const HfConfig& config) {
  Config c;
  DecoderSizes defaults;
  defaults.context = 2048;
  defaults.epsilon = 1e-6f;
  CHORUS_ASSIGN_OR_RETURN(c.sizes, read_decoder_sizes(config, defaults));
  CHORUS_RETURN_IF_ERROR(config.expect_string("hidden_act", "silu"));
  CHORUS_RETURN_IF_ERROR(config.expect_string("activation", "swiglu"));
  config.skip("pretraining_tp");
  CHORUS_ASSIGN_OR_RETURN(const RopeSettings rope, read_rope(config, 10000.0, c.sizes.context));
  c.rope = make_rope_table(rope.theta, static_cast<int32_t>(c.sizes.head_dim), rope.scaling);
  c.attention_factor = rope.scaling.attention_factor;
  c.pairing = RopePairing::kHalf;
  return c;
}

Result<ValueId> attention(Lowering& lowering, const Config& config, const DecoderNames& names,
                          const std::string& prefix, int32_t group, int32_t rope, ValueId x) {
  ProgramBuilder& b = lowering.builder();
  const DecoderSizes& c = config.sizes;
  AttentionShape shape = lowering.add_attention(group, c);
  const double factor = config.attention_factor;
  shape.scale = static_cast<float>(factor * factor / std::sqrt(static_cast<double>(c.head_dim)));
  CHORUS_ASSIGN_OR_RETURN(const auto qkv, lowering.linear(qkv_parts(names, prefix, c), c.width, x));
  const ValueId q = b.rope(qkv[0], rope, shape.head_dim, config.pairing);
  const ValueId k = b.rope(qkv[1], rope, shape.head_dim, config.pairing);
  const ValueId attended = b.update_and_attend(q, k, qkv[2], shape);
  return lowering.linear(
      {prefix + std::string(names.attention_output), c.width, names.attention_bias}, c.q_width(),
      attended);
}

Status build(Lowering& lowering, const Config& config, const DecoderNames& names) {
  ProgramBuilder& b = lowering.builder();
  const DecoderSizes& c = config.sizes;
  b.facts.context = static_cast<int32_t>(c.context);
  const int32_t rope = b.add_rope(config.rope);
  const int32_t group = b.add_group(WindowPolicy{0});
  const NormShape norm{c.width, c.epsilon};

  CHORUS_ASSIGN_OR_RETURN(const WeightId table, lowering.embedding(names, c.width));
  ValueId x = b.embed(table);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string prefix = names.layer(i);
    CHORUS_ASSIGN_OR_RETURN(ValueId normed,
                            lowering.rms_norm(prefix + std::string(names.attention_norm), norm, x));
    CHORUS_ASSIGN_OR_RETURN(const ValueId attended,
                            attention(lowering, config, names, prefix, group, rope, normed));
    x = b.add(x, attended);
    CHORUS_ASSIGN_OR_RETURN(normed,
                            lowering.rms_norm(prefix + std::string(names.ff_norm), norm, x));
    CHORUS_ASSIGN_OR_RETURN(const ValueId fed,
                            lowering.feed_forward(names, prefix, c, OpKind::kSilu, normed));
    x = b.add(x, fed);
  }
  x = b.select_rows(x);
  CHORUS_ASSIGN_OR_RETURN(x, lowering.rms_norm(names.final_norm, norm, x));
  CHORUS_RETURN_IF_ERROR(lowering.head(names, c.width, table, x).status());
  return lowering.check_all_used();
}

}  // namespace

Status lower_llama(GgufConfig& gguf, Lowering& lowering) {
  CHORUS_ASSIGN_OR_RETURN(const Config config, read_config(gguf, lowering));
  CHORUS_RETURN_IF_ERROR(build(lowering, config, gguf_names()));
  CHORUS_RETURN_IF_ERROR(check_vocabulary(gguf, lowering.builder().facts.vocabulary));
  return gguf.check_all_used();
}

Status lower_llama(const HfConfig& hf, Lowering& lowering) {
  CHORUS_ASSIGN_OR_RETURN(const Config config, read_config(hf));
  DecoderNames names = hf_names(lowering.checkpoint());
  CHORUS_ASSIGN_OR_RETURN(const bool ff_bias, hf.bool_or("mlp_bias", false));
  if (ff_bias) names.ff_bias = Bias::kAlways;
  CHORUS_RETURN_IF_ERROR(lowering.apply_bias_and_tie(hf, hf, false, names));
  // Older files have the frequencies of rope, which follow from the configuration, in every layer.
  for (int64_t i = 0; i < config.sizes.num_layers; ++i) {
    lowering.skip(names.layer(i) + "self_attn.rotary_emb.inv_freq");
  }
  CHORUS_RETURN_IF_ERROR(build(lowering, config, names));
  CHORUS_RETURN_IF_ERROR(check_vocabulary(hf, lowering.builder().facts.vocabulary));
  return hf.check_all_used();
}

}  // namespace chorus
