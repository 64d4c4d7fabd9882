// Keys and defaults of GGUF: llama.cpp (src/llama-model.cpp, load_hparams; src/llama-context.cpp).
#include "exporter/decoder_config.h"

#include <cmath>
#include <string>

#include "program/limits.h"
#include "program/names.h"

namespace chorus {

namespace {

// A number above `bound`.
Result<double> number_above(GgufConfig& config, std::string_view key, double bound,
                            double otherwise) {
  CHORUS_ASSIGN_OR_RETURN(const double value, config.float_or(key, otherwise));
  if (!std::isfinite(value) || value <= bound) {
    return data_loss(config.name_of(key), "expected a number above " + std::to_string(bound) +
                                              ", found " + std::to_string(value));
  }
  return value;
}

Result<float> read_epsilon(GgufConfig& config) {
  constexpr std::string_view kKey = "attention.layer_norm_rms_epsilon";
  CHORUS_ASSIGN_OR_RETURN(const double epsilon, config.get_float(kKey));
  if (!std::isfinite(epsilon) || epsilon < 0.0) {
    return data_loss(config.name_of(kKey), "expected a number of at least 0");
  }
  return static_cast<float>(epsilon);
}

Status read_heads(GgufConfig& config, DecoderSizes& c) {
  CHORUS_ASSIGN_OR_RETURN(c.num_heads, config.get_int("attention.head_count", 1, kMaxHeads));
  CHORUS_ASSIGN_OR_RETURN(c.num_kv_heads,
                          config.int_or("attention.head_count_kv", c.num_heads, 1, kMaxHeads));
  CHORUS_ASSIGN_OR_RETURN(
      c.head_dim, config.int_or("attention.key_length", c.width / c.num_heads, 1, kMaxHeadDim));
  CHORUS_ASSIGN_OR_RETURN(
      const int64_t value_length,
      config.int_or("attention.value_length", c.width / c.num_heads, 1, kMaxHeadDim));
  if (c.head_dim < 1 || c.head_dim > kMaxHeadDim) {
    return data_loss(
        config.name_of("attention.key_length"),
        "expected 1 to " + std::to_string(kMaxHeadDim) + ", found " + std::to_string(c.head_dim));
  }
  if (value_length != c.head_dim) {
    return unimplemented(config.name_of("attention.value_length"),
                         "expected the key length " + std::to_string(c.head_dim) + ", found " +
                             std::to_string(value_length));
  }
  if (c.num_heads % c.num_kv_heads != 0) {
    return data_loss(config.name_of("attention.head_count_kv"),
                     "expected a divisor of " + std::to_string(c.num_heads) + ", found " +
                         std::to_string(c.num_kv_heads));
  }
  return Status();
}

Result<RopeScalingKind> read_scaling_kind(GgufConfig& config) {
  // Without a type, a factor means linear scaling.
  CHORUS_ASSIGN_OR_RETURN(const auto type, config.find_string("rope.scaling.type"));
  if (!type || *type == "linear") return RopeScalingKind::kLinear;
  if (*type == "none") return RopeScalingKind::kNone;
  if (*type == "yarn") return RopeScalingKind::kYarn;
  return unimplemented(config.name_of("rope.scaling.type"),
                       "expected none, linear or yarn, found " + quoted(*type));
}

Status read_yarn(GgufConfig& config, int64_t context, RopeScaling& scaling) {
  CHORUS_ASSIGN_OR_RETURN(
      const int64_t original,
      config.int_or("rope.scaling.original_context_length", context, 1, kMaxContext));
  scaling.original_context = static_cast<double>(original);
  CHORUS_ASSIGN_OR_RETURN(scaling.beta_fast, number_above(config, "rope.scaling.yarn_beta_fast",
                                                          0.0, scaling.beta_fast));
  CHORUS_ASSIGN_OR_RETURN(scaling.beta_slow, number_above(config, "rope.scaling.yarn_beta_slow",
                                                          0.0, scaling.beta_slow));
  CHORUS_RETURN_IF_ERROR(config.expect_number("rope.scaling.yarn_ext_factor", 1.0));
  CHORUS_RETURN_IF_ERROR(config.expect_number("rope.scaling.yarn_attn_factor", 1.0));
  CHORUS_RETURN_IF_ERROR(config.expect_number("rope.scaling.yarn_log_multiplier", 0.0));
  CHORUS_ASSIGN_OR_RETURN(const double factor,
                          number_above(config, "rope.scaling.attn_factor", 0.0, 1.0));
  scaling.attention_factor = factor * yarn_attention_factor(scaling.factor);
  return Status();
}

}  // namespace

Result<DecoderSizes> read_decoder_sizes(GgufConfig& config) {
  DecoderSizes c;
  CHORUS_ASSIGN_OR_RETURN(c.num_layers, config.get_int("block_count", 1, kMaxKvLayers));
  CHORUS_ASSIGN_OR_RETURN(c.width, config.get_int("embedding_length", 1, kMaxWidth));
  CHORUS_ASSIGN_OR_RETURN(c.ff_width, config.get_int("feed_forward_length", 1, kMaxWidth));
  CHORUS_ASSIGN_OR_RETURN(c.context, config.get_int("context_length", 1, kMaxContext));
  CHORUS_RETURN_IF_ERROR(read_heads(config, c));
  CHORUS_ASSIGN_OR_RETURN(c.epsilon, read_epsilon(config));
  return c;
}

Result<int32_t> read_window(GgufConfig& config) {
  CHORUS_ASSIGN_OR_RETURN(const int64_t window,
                          config.int_or("attention.sliding_window", 0, 0, kMaxContext));
  return static_cast<int32_t>(window);
}

Result<std::vector<bool>> read_window_pattern(GgufConfig& config, int64_t num_layers,
                                              int64_t otherwise) {
  constexpr std::string_view kKey = "attention.sliding_window_pattern";
  CHORUS_ASSIGN_OR_RETURN(const auto pattern, config.find_per_layer(kKey, num_layers));
  std::vector<bool> windowed;
  for (const int64_t flag : pattern.values) windowed.push_back(flag != 0);
  if (!windowed.empty()) return windowed;
  const int64_t period = pattern.number.value_or(otherwise);
  if (period < 0) {
    return data_loss(config.name_of(kKey), "expected at least 0, found " + std::to_string(period));
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    windowed.push_back(period == 0 || i % period < period - 1);
  }
  return windowed;
}

Result<float> read_softcap(GgufConfig& config, std::string_view key) {
  CHORUS_ASSIGN_OR_RETURN(const double cap, config.float_or(key, 0.0));
  if (!std::isfinite(cap) || cap < 0.0) {
    return data_loss(config.name_of(key), "expected a number of at least 0");
  }
  return static_cast<float>(cap);
}

Status check_vocabulary(GgufConfig& config, int64_t rows) {
  return config.int_or("vocab_size", rows, rows, rows).status();
}

Result<double> read_rope_base(GgufConfig& config, std::string_view key, double otherwise) {
  return number_above(config, key, 0.0, otherwise);
}

Result<int32_t> read_rope_dims(GgufConfig& config, int64_t head_dim) {
  constexpr std::string_view kKey = "rope.dimension_count";
  CHORUS_ASSIGN_OR_RETURN(const int64_t dims, config.int_or(kKey, head_dim, 2, head_dim));
  if (dims < 2 || dims % 2 != 0) {
    return data_loss(config.name_of(kKey),
                     "expected an even number, found " + std::to_string(dims));
  }
  return static_cast<int32_t>(dims);
}

Result<RopeScaling> read_rope_scaling(GgufConfig& config, int64_t context) {
  RopeScaling scaling;
  CHORUS_ASSIGN_OR_RETURN(scaling.kind, read_scaling_kind(config));
  CHORUS_ASSIGN_OR_RETURN(const double old_factor,
                          number_above(config, "rope.scale_linear", 0.0, 1.0));
  CHORUS_ASSIGN_OR_RETURN(scaling.factor,
                          number_above(config, "rope.scaling.factor", 0.0, old_factor));
  config.ignore("rope.scaling.finetuned");
  if (scaling.kind == RopeScalingKind::kYarn) {
    CHORUS_RETURN_IF_ERROR(read_yarn(config, context, scaling));
  } else if (scaling.kind == RopeScalingKind::kLinear && scaling.factor == 1.0) {
    scaling.kind = RopeScalingKind::kNone;
  }
  return scaling;
}

}  // namespace chorus
