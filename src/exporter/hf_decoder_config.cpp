// Members and defaults of Hugging Face configurations: transformers 5.24 (configuration_utils.py,
// modeling_rope_utils.py).
#include <cmath>
#include <string>
#include <utility>

#include "exporter/decoder_config.h"
#include "program/limits.h"
#include "program/names.h"

namespace chorus {

namespace {

Result<double> number_above(const HfConfig& config, std::string_view key, double bound,
                            std::optional<double> otherwise) {
  double value = 0.0;
  if (otherwise) {
    CHORUS_ASSIGN_OR_RETURN(value, config.float_or(key, *otherwise));
  } else {
    CHORUS_ASSIGN_OR_RETURN(value, config.get_float(key));
  }
  if (std::isfinite(value) && value > bound) return value;
  return data_loss(config.field(key), "expected a number above " + std::to_string(bound) +
                                          ", found " + std::to_string(value));
}

Result<int64_t> size_of(const HfConfig& config, std::string_view key, int64_t otherwise,
                        int64_t most) {
  if (otherwise == 0) return config.get_int(key, 1, most);
  return config.int_or(key, otherwise, 1, most);
}

Status read_heads(const HfConfig& config, const DecoderSizes& defaults, DecoderSizes& c) {
  CHORUS_ASSIGN_OR_RETURN(c.num_heads,
                          size_of(config, "num_attention_heads", defaults.num_heads, kMaxHeads));
  CHORUS_ASSIGN_OR_RETURN(
      c.num_kv_heads,
      size_of(config, "num_key_value_heads",
              defaults.num_kv_heads == 0 ? c.num_heads : defaults.num_kv_heads, kMaxHeads));
  int64_t head_dim = defaults.head_dim;
  if (head_dim == 0) head_dim = std::max(c.width / c.num_heads, int64_t{1});
  CHORUS_ASSIGN_OR_RETURN(c.head_dim, config.int_or("head_dim", head_dim, 1, kMaxHeadDim));
  if (c.head_dim > kMaxHeadDim || c.head_dim % 2 != 0) {
    return data_loss(config.field("head_dim"), "expected an even number of at most " +
                                                   std::to_string(kMaxHeadDim) + ", found " +
                                                   std::to_string(c.head_dim));
  }
  if (c.num_heads % c.num_kv_heads != 0) {
    return data_loss(config.field("num_key_value_heads"),
                     "expected a divisor of " + std::to_string(c.num_heads) + ", found " +
                         std::to_string(c.num_kv_heads));
  }
  return Status();
}

Result<RopeScalingKind> read_kind(const HfConfig& section) {
  // "type" is the older name.
  CHORUS_ASSIGN_OR_RETURN(const std::string older, section.string_or("type", "default"));
  CHORUS_ASSIGN_OR_RETURN(const std::string kind, section.string_or("rope_type", older));
  if (kind == "default") return RopeScalingKind::kNone;
  if (kind == "linear") return RopeScalingKind::kLinear;
  if (kind == "llama3") return RopeScalingKind::kLlama3;
  if (kind == "yarn") return RopeScalingKind::kYarn;
  return unimplemented(section.field("rope_type"),
                       "expected default, linear, llama3 or yarn, found " + quoted(kind));
}

Status read_llama3(const HfConfig& section, RopeScaling& scaling) {
  CHORUS_ASSIGN_OR_RETURN(scaling.low_frequency_factor,
                          number_above(section, "low_freq_factor", 0.0, std::nullopt));
  CHORUS_ASSIGN_OR_RETURN(
      scaling.high_frequency_factor,
      number_above(section, "high_freq_factor", scaling.low_frequency_factor, std::nullopt));
  return Status();
}

Result<double> read_attention_factor(const HfConfig& section, double factor) {
  CHORUS_ASSIGN_OR_RETURN(const double mscale, section.float_or("mscale", 0.0));
  CHORUS_ASSIGN_OR_RETURN(const double mscale_all, section.float_or("mscale_all_dim", 0.0));
  double otherwise = yarn_attention_factor(factor);
  if (mscale != 0.0 && mscale_all != 0.0) {
    otherwise = yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, mscale_all);
  }
  return number_above(section, "attention_factor", 0.0, otherwise);
}

Status read_yarn(const HfConfig& section, RopeScaling& scaling) {
  CHORUS_ASSIGN_OR_RETURN(scaling.attention_factor, read_attention_factor(section, scaling.factor));
  CHORUS_ASSIGN_OR_RETURN(scaling.beta_fast,
                          number_above(section, "beta_fast", 0.0, scaling.beta_fast));
  CHORUS_ASSIGN_OR_RETURN(scaling.beta_slow,
                          number_above(section, "beta_slow", 0.0, scaling.beta_slow));
  CHORUS_ASSIGN_OR_RETURN(scaling.truncate, section.bool_or("truncate", true));
  return Status();
}

}  // namespace

Result<DecoderSizes> read_decoder_sizes(const HfConfig& config, const DecoderSizes& defaults) {
  DecoderSizes c;
  CHORUS_ASSIGN_OR_RETURN(c.num_layers,
                          size_of(config, "num_hidden_layers", defaults.num_layers, kMaxKvLayers));
  CHORUS_ASSIGN_OR_RETURN(c.width, size_of(config, "hidden_size", defaults.width, kMaxWidth));
  CHORUS_ASSIGN_OR_RETURN(c.ff_width,
                          size_of(config, "intermediate_size", defaults.ff_width, kMaxWidth));
  CHORUS_ASSIGN_OR_RETURN(
      c.context, size_of(config, "max_position_embeddings", defaults.context, kMaxContext));
  CHORUS_RETURN_IF_ERROR(read_heads(config, defaults, c));
  CHORUS_ASSIGN_OR_RETURN(const double epsilon,
                          config.float_or("rms_norm_eps", static_cast<double>(defaults.epsilon)));
  if (!std::isfinite(epsilon) || epsilon < 0.0) {
    return data_loss(config.field("rms_norm_eps"), "expected a number of at least 0");
  }
  c.epsilon = static_cast<float>(epsilon);
  return c;
}

Result<double> read_rope_base(const HfConfig& config, std::string_view key, double otherwise) {
  return number_above(config, key, 0.0, otherwise);
}

Result<RopeSettings> read_rope_section(const HfConfig& section, double default_theta,
                                       int64_t context) {
  RopeSettings rope;
  CHORUS_ASSIGN_OR_RETURN(rope.scaling.kind, read_kind(section));
  const bool is_yarn = rope.scaling.kind == RopeScalingKind::kYarn;
  CHORUS_ASSIGN_OR_RETURN(rope.theta,
                          number_above(section, "rope_theta", is_yarn ? 1.0 : 0.0, default_theta));
  CHORUS_RETURN_IF_ERROR(section.expect_number("partial_rotary_factor", 1.0));
  if (rope.scaling.kind == RopeScalingKind::kNone) return rope;
  CHORUS_ASSIGN_OR_RETURN(
      rope.scaling.original_context,
      number_above(section, "original_max_position_embeddings", 0.0, static_cast<double>(context)));
  std::optional<double> factor;
  if (is_yarn) factor = static_cast<double>(context) / rope.scaling.original_context;
  CHORUS_ASSIGN_OR_RETURN(rope.scaling.factor, number_above(section, "factor", 0.0, factor));
  if (rope.scaling.kind == RopeScalingKind::kLlama3) {
    CHORUS_RETURN_IF_ERROR(read_llama3(section, rope.scaling));
  } else if (is_yarn) {
    CHORUS_RETURN_IF_ERROR(read_yarn(section, rope.scaling));
  }
  return rope;
}

Result<RopeSettings> read_rope(const HfConfig& config, double default_theta, int64_t context) {
  CHORUS_RETURN_IF_ERROR(config.expect_number("partial_rotary_factor", 1.0));
  CHORUS_ASSIGN_OR_RETURN(const double theta, read_rope_base(config, "rope_theta", default_theta));
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    CHORUS_ASSIGN_OR_RETURN(const auto section, config.find_section(key));
    if (section) return read_rope_section(*section, theta, context);
  }
  return RopeSettings{theta, {}};
}

Result<std::vector<bool>> read_layer_types(const HfConfig& config, std::vector<bool> otherwise) {
  CHORUS_ASSIGN_OR_RETURN(const auto types, config.find_strings("layer_types"));
  if (!types) return otherwise;
  if (types->size() != otherwise.size()) {
    return data_loss(config.field("layer_types"),
                     "expected one for each of " + std::to_string(otherwise.size()) +
                         " layers, found " + std::to_string(types->size()));
  }
  std::vector<bool> windowed;
  for (size_t i = 0; i < types->size(); ++i) {
    const std::string& type = (*types)[i];
    if (type != "sliding_attention" && type != "full_attention") {
      return unimplemented(config.field("layer_types") + "[" + std::to_string(i) + "]",
                           "expected sliding_attention or full_attention, found " + quoted(type));
    }
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

Result<int32_t> read_window(const HfConfig& config, int64_t otherwise) {
  CHORUS_ASSIGN_OR_RETURN(const int64_t window,
                          config.int_or("sliding_window", otherwise, 1, kMaxContext));
  return static_cast<int32_t>(window);
}

Result<float> read_softcap(const HfConfig& config, std::string_view key, double otherwise) {
  CHORUS_ASSIGN_OR_RETURN(const double cap, config.float_or(key, otherwise));
  if (!std::isfinite(cap) || cap < 0.0) {
    return data_loss(config.field(key), "expected a number of at least 0");
  }
  return static_cast<float>(cap);
}

Status check_vocabulary(const HfConfig& config, int64_t rows) {
  return config.int_or("vocab_size", rows, rows, rows).status();
}

}  // namespace chorus
