// The gemma3 architecture: windowed and full attention layers with their own bases of rope, norms
// of q and k per head, norms before and behind attention and feed-forward, a scaled embedding.
//
// GGUF names and defaults: llama.cpp (src/models/gemma3.cpp), whose converter adds the 1 of norms.
// Hugging Face's: transformers 5.24 (models/gemma3).
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exporter/decoder_config.h"
#include "exporter/lowering.h"
#include "program/limits.h"

namespace chorus {

namespace {

constexpr int64_t kLayersOf27B = 62;  // whose attention is scaled by its width

// The vision tower and what joins it to the text model: left out.
constexpr std::string_view kVisionTensors[] = {"vision_tower.", "multi_modal_projector.",
                                               "model.vision_tower.",
                                               "model.multi_modal_projector."};
constexpr std::string_view kVisionKeys[] = {
    "vision_config",   "mm_tokens_per_image", "image_token_index", "image_token_id",
    "boi_token_index", "boi_token_id",        "eoi_token_index",   "eoi_token_id"};

// The layers of one kind.
struct LayerKind {
  WindowPolicy window;
  RopeTable rope;
  double attention_factor = 1.0;  // of q and of k
};

struct Config {
  DecoderSizes sizes;
  LayerKind full;
  LayerKind windowed;
  std::vector<bool> is_windowed;  // of each layer
  double attention_scale = 0.0;
  float attention_softcap = 0.0f;  // 0: none
  float final_softcap = 0.0f;      // 0: none
  float norm_offset = 0.0f;
};

Result<Config> read_config(GgufConfig& config) {
  Config c;
  CHORUS_ASSIGN_OR_RETURN(c.sizes, read_decoder_sizes(config));
  CHORUS_ASSIGN_OR_RETURN(c.windowed.window.window, read_window(config));
  CHORUS_ASSIGN_OR_RETURN(c.is_windowed, read_window_pattern(config, c.sizes.num_layers, 6));
  if (c.windowed.window.window == 0) c.is_windowed.assign(c.is_windowed.size(), false);
  CHORUS_ASSIGN_OR_RETURN(const int32_t dims, read_rope_dims(config, c.sizes.head_dim));
  CHORUS_ASSIGN_OR_RETURN(const double base, read_rope_base(config, "rope.freq_base", 10000.0));
  CHORUS_ASSIGN_OR_RETURN(const double window_base,
                          read_rope_base(config, "rope.freq_base_swa", 10000.0));
  CHORUS_ASSIGN_OR_RETURN(const RopeScaling scaling, read_rope_scaling(config, c.sizes.context));
  c.full.rope = make_rope_table(base, dims, scaling);
  c.full.attention_factor = scaling.attention_factor;
  c.windowed.rope = make_rope_table(window_base, dims, {});
  CHORUS_ASSIGN_OR_RETURN(c.attention_softcap, read_softcap(config, "attn_logit_softcapping"));
  CHORUS_ASSIGN_OR_RETURN(c.final_softcap, read_softcap(config, "final_logit_softcapping"));
  const int64_t scaled_by =
      c.sizes.num_layers == kLayersOf27B ? c.sizes.width / c.sizes.num_heads : c.sizes.head_dim;
  c.attention_scale = 1.0 / std::sqrt(static_cast<double>(scaled_by));
  return c;
}

// What transformers' Gemma3TextConfig takes where a checkpoint says nothing.
constexpr DecoderSizes kDefaults{26, 2304, 9216, 8, 4, 256, 131072, 1e-6f};

// Each kind of layer has an object of its own in rope_parameters; older files have one base and
// scaling for full layers, and a base for windowed ones.
Status read_ropes(const HfConfig& config, Config& c) {
  const auto dims = static_cast<int32_t>(c.sizes.head_dim);
  RopeSettings full;
  RopeSettings windowed;
  CHORUS_ASSIGN_OR_RETURN(full.theta, read_rope_base(config, "rope_theta", 1e6));
  CHORUS_ASSIGN_OR_RETURN(windowed.theta, read_rope_base(config, "rope_local_base_freq", 1e4));
  CHORUS_ASSIGN_OR_RETURN(const auto parameters, config.find_section("rope_parameters"));
  CHORUS_ASSIGN_OR_RETURN(const auto scaling, config.find_section("rope_scaling"));
  const auto read = [&](std::string_view key, RopeSettings& rope) -> Status {
    std::optional<HfConfig> section;
    if (parameters) {
      CHORUS_ASSIGN_OR_RETURN(section, parameters->find_section(key));
    }
    if (!section) return Status();
    CHORUS_ASSIGN_OR_RETURN(rope, read_rope_section(*section, rope.theta, c.sizes.context));
    return Status();
  };
  if (scaling && parameters) {
    return unimplemented(config.field("rope_scaling"), "expected none beside rope_parameters");
  }
  if (scaling) {
    CHORUS_ASSIGN_OR_RETURN(full, read_rope_section(*scaling, full.theta, c.sizes.context));
  }
  CHORUS_RETURN_IF_ERROR(read("full_attention", full));
  CHORUS_RETURN_IF_ERROR(read("sliding_attention", windowed));
  c.full.rope = make_rope_table(full.theta, dims, full.scaling);
  c.full.attention_factor = full.scaling.attention_factor;
  c.windowed.rope = make_rope_table(windowed.theta, dims, windowed.scaling);
  c.windowed.attention_factor = windowed.scaling.attention_factor;
  return Status();
}

Result<Config> read_config(const HfConfig& config) {
  Config c;
  CHORUS_ASSIGN_OR_RETURN(c.sizes, read_decoder_sizes(config, kDefaults));
  CHORUS_RETURN_IF_ERROR(config.expect_string("hidden_activation", "gelu_pytorch_tanh"));
  CHORUS_RETURN_IF_ERROR(config.expect_bool("use_bidirectional_attention", false));
  config.skip("cache_implementation");
  int64_t period = 6;
  for (const char* key : {"_sliding_window_pattern", "sliding_window_pattern"}) {
    CHORUS_ASSIGN_OR_RETURN(period, config.int_or(key, period, 1, kMaxKvLayers));
  }
  for (int64_t i = 1; i <= c.sizes.num_layers; ++i) c.is_windowed.push_back(i % period != 0);
  CHORUS_ASSIGN_OR_RETURN(c.is_windowed, read_layer_types(config, std::move(c.is_windowed)));
  CHORUS_ASSIGN_OR_RETURN(c.windowed.window.window, read_window(config, 4096));
  CHORUS_RETURN_IF_ERROR(read_ropes(config, c));
  CHORUS_ASSIGN_OR_RETURN(c.attention_softcap, read_softcap(config, "attn_logit_softcapping", 0.0));
  CHORUS_ASSIGN_OR_RETURN(c.final_softcap, read_softcap(config, "final_logit_softcapping", 0.0));
  CHORUS_ASSIGN_OR_RETURN(const int64_t scaled_by,
                          config.int_or("query_pre_attn_scalar", 256, 1, kMaxWidth));
  c.attention_scale = 1.0 / std::sqrt(static_cast<double>(scaled_by));
  c.norm_offset = 1.0f;
  return c;
}

class Builder {
 public:
  Builder(Lowering& lowering, const Config& config, const DecoderNames& names)
      : lowering_(lowering),
        b_(lowering.builder()),
        config_(config),
        c_(config.sizes),
        names_(names) {}

  Status build() {
    b_.facts.context = static_cast<int32_t>(c_.context);
    CHORUS_ASSIGN_OR_RETURN(const WeightId table, lowering_.embedding(names_, c_.width));
    ValueId x = b_.scale(b_.embed(table), std::sqrt(static_cast<float>(c_.width)));
    for (int64_t i = 0; i < c_.num_layers; ++i) {
      CHORUS_ASSIGN_OR_RETURN(x, layer(i, x));
    }
    x = b_.select_rows(x);
    CHORUS_ASSIGN_OR_RETURN(x, lowering_.rms_norm(names_.final_norm, norm(), x));
    CHORUS_ASSIGN_OR_RETURN(x, lowering_.head(names_, c_.width, table, x));
    if (config_.final_softcap > 0.0f) b_.tanh_softcap(x, config_.final_softcap);
    return lowering_.check_all_used();
  }

 private:
  NormShape norm() const { return {c_.width, c_.epsilon, config_.norm_offset}; }
  NormShape head_norm() const { return {c_.head_dim, c_.epsilon, config_.norm_offset, true}; }

  Result<ValueId> layer(int64_t index, ValueId x) {
    const std::string prefix = names_.layer(index);
    const auto normed = [&](std::string_view name, ValueId value) {
      return lowering_.rms_norm(prefix + std::string(name), norm(), value);
    };
    CHORUS_ASSIGN_OR_RETURN(ValueId y, normed(names_.attention_norm, x));
    CHORUS_ASSIGN_OR_RETURN(y, attention(index, prefix, y));
    CHORUS_ASSIGN_OR_RETURN(y, normed(names_.attention_post_norm, y));
    x = b_.add(x, y);
    CHORUS_ASSIGN_OR_RETURN(y, normed(names_.ff_norm, x));
    CHORUS_ASSIGN_OR_RETURN(y, lowering_.feed_forward(names_, prefix, c_, OpKind::kGelu, y));
    CHORUS_ASSIGN_OR_RETURN(y, normed(names_.ff_post_norm, y));
    return b_.add(x, y);
  }

  Result<ValueId> attention(int64_t index, const std::string& prefix, ValueId x) {
    const bool is_windowed = config_.is_windowed[static_cast<size_t>(index)];
    const LayerKind& kind = is_windowed ? config_.windowed : config_.full;
    const Place& place = place_of(is_windowed);
    AttentionShape shape = lowering_.add_attention(place.group, c_);
    shape.scale =
        static_cast<float>(config_.attention_scale * kind.attention_factor * kind.attention_factor);
    shape.softcap = config_.attention_softcap;
    CHORUS_ASSIGN_OR_RETURN(const auto qkv,
                            lowering_.linear(qkv_parts(names_, prefix, c_), c_.width, x));
    const auto rotated = [&](std::string_view name, ValueId value) -> Result<ValueId> {
      CHORUS_ASSIGN_OR_RETURN(value,
                              lowering_.rms_norm(prefix + std::string(name), head_norm(), value));
      return b_.rope(value, place.rope, shape.head_dim, RopePairing::kHalf);
    };
    CHORUS_ASSIGN_OR_RETURN(const ValueId q, rotated(names_.q_norm, qkv[0]));
    CHORUS_ASSIGN_OR_RETURN(const ValueId k, rotated(names_.k_norm, qkv[1]));
    const ValueId attended = b_.update_and_attend(q, k, qkv[2], shape);
    return lowering_.linear(
        {prefix + std::string(names_.attention_output), c_.width, names_.attention_bias},
        c_.q_width(), attended);
  }

  // Group and rope of a kind of layer, made with its first layer.
  struct Place {
    int32_t group = -1;
    int32_t rope = -1;
  };
  const Place& place_of(bool is_windowed) {
    Place& place = is_windowed ? windowed_ : full_;
    if (place.group < 0) {
      const LayerKind& kind = is_windowed ? config_.windowed : config_.full;
      place = {b_.add_group(kind.window), b_.add_rope(kind.rope)};
    }
    return place;
  }

  Lowering& lowering_;
  ProgramBuilder& b_;
  const Config& config_;
  const DecoderSizes& c_;
  const DecoderNames& names_;
  Place full_;
  Place windowed_;
};

}  // namespace

Status lower_gemma3(GgufConfig& gguf, Lowering& lowering) {
  CHORUS_ASSIGN_OR_RETURN(const Config config, read_config(gguf));
  const DecoderNames names = gguf_names();
  CHORUS_RETURN_IF_ERROR(Builder(lowering, config, names).build());
  CHORUS_RETURN_IF_ERROR(check_vocabulary(gguf, lowering.builder().facts.vocabulary));
  return gguf.check_all_used();
}

Status lower_gemma3(const HfConfig& hf, Lowering& lowering) {
  CHORUS_ASSIGN_OR_RETURN(const HfConfig text, text_config(hf, kVisionKeys));
  CHORUS_ASSIGN_OR_RETURN(const Config config, read_config(text));
  DecoderNames names = hf_names(lowering.checkpoint());
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  names.attention_post_norm = "post_attention_layernorm";
  names.ff_norm = "pre_feedforward_layernorm";
  names.ff_post_norm = "post_feedforward_layernorm";
  CHORUS_RETURN_IF_ERROR(lowering.apply_bias_and_tie(hf, text, true, names));
  for (const std::string_view prefix : kVisionTensors) lowering.skip(prefix);
  CHORUS_RETURN_IF_ERROR(Builder(lowering, config, names).build());
  CHORUS_RETURN_IF_ERROR(check_vocabulary(text, lowering.builder().facts.vocabulary));
  return hf.check_all_used();
}

}  // namespace chorus
