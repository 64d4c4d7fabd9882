// The muse-glimmer architecture: windowed layers with rope alternate with full ones without, norms
// of q and k per head, a sigmoid gate on what attention gives, norms before and behind attention
// and feed-forward, a normalised embedding, logits under a soft cap.
//
// GGUF names and defaults: llama.cpp (src/models/muse-glimmer.cpp). Its converter adds the 1 of the
// layers' norms, gives q and k the order in which neighbours rotate together, and puts the scale of
// q into the weight of its norm.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "exporter/decoder_config.h"
#include "exporter/lowering.h"
#include "program/limits.h"

namespace chorus {

namespace {

constexpr float kPostNormEpsilon = 1e-8f;

// The vision tower and what joins it to the text model: left out.
constexpr std::string_view kVisionTensors[] = {"model.vision_tower.", "model.vision_adapter.",
                                               "model.vision_projection."};
constexpr std::string_view kVisionKeys[] = {"vision_config",         "image_token_id",
                                            "video_token_id",        "out_hidden_size",
                                            "projector_hidden_size", "projector_hidden_act"};

struct Config {
  DecoderSizes sizes;
  std::vector<int32_t> windows;  // of each layer; 0: full
  std::vector<bool> is_rotated;  // of each layer
  RopeTable rope;
  double attention_factor = 1.0;  // of q and of k, where they are rotated
  RopePairing pairing = RopePairing::kAdjacent;
  float attention_scale = 0.0f;
  std::optional<float> q_scale;  // of the normed q, where it has no weight for that
  float post_norm_epsilon = kPostNormEpsilon;
  float norm_offset = 0.0f;  // of the layers' norms
  float logit_scale = 1.0f;
  float logit_softcap = 0.0f;  // 0: none
};

Result<Config> read_config(GgufConfig& config) {
  Config c;
  CHORUS_ASSIGN_OR_RETURN(c.sizes, read_decoder_sizes(config));
  CHORUS_ASSIGN_OR_RETURN(const int32_t dims, read_rope_dims(config, c.sizes.head_dim));
  if (dims != c.sizes.head_dim) {
    return unimplemented(config.name_of("rope.dimension_count"), "expected the whole head");
  }
  CHORUS_ASSIGN_OR_RETURN(const double base, read_rope_base(config, "rope.freq_base", 10000.0));
  CHORUS_ASSIGN_OR_RETURN(const double window_base,
                          read_rope_base(config, "rope.freq_base_swa", base));
  c.rope = make_rope_table(window_base, dims, {});
  CHORUS_RETURN_IF_ERROR(config.expect_string("rope.scaling.type", "none"));
  CHORUS_ASSIGN_OR_RETURN(const int32_t window, read_window(config));
  if (window < 1) return data_loss(config.name_of("attention.sliding_window"), "expected a window");
  CHORUS_ASSIGN_OR_RETURN(const auto windowed, read_window_pattern(config, c.sizes.num_layers, 4));
  for (const bool is_windowed : windowed) {
    c.windows.push_back(is_windowed ? window : 0);
    c.is_rotated.push_back(is_windowed);
  }
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.sizes.head_dim));
  CHORUS_ASSIGN_OR_RETURN(const double logit_scale, config.get_float("logit_scale"));
  c.logit_scale = static_cast<float>(logit_scale);
  CHORUS_ASSIGN_OR_RETURN(c.logit_softcap, read_softcap(config, "final_logit_softcapping"));
  return c;
}

// What transformers' MuseGlimmerTextConfig takes where a checkpoint says nothing.
constexpr DecoderSizes kDefaults{52, 6656, 19968, 32, 2, 128, 131072, 1e-5f};

// Layers whose base is 0 have no rope. The others share one base: transformers reads it from
// rope_parameters alone.
Status read_rotated(const HfConfig& config, double theta, Config& c) {
  CHORUS_ASSIGN_OR_RETURN(const auto bases, config.find_floats("layer_rope_theta"));
  for (int64_t i = 0; i < c.sizes.num_layers; ++i) {
    c.is_rotated.push_back((c.sizes.num_layers - 1 - i) % 4 != 0);
  }
  if (!bases) return Status();
  const std::string field = config.field("layer_rope_theta");
  if (bases->size() != c.is_rotated.size()) {
    return data_loss(field, "expected one for each of " + std::to_string(c.is_rotated.size()) +
                                " layers, found " + std::to_string(bases->size()));
  }
  for (size_t i = 0; i < bases->size(); ++i) {
    const double base = (*bases)[i];
    if (base != 0.0 && base != theta) {
      return unimplemented(field + "[" + std::to_string(i) + "]",
                           "expected 0 or the rope_theta " + std::to_string(theta) + ", found " +
                               std::to_string(base));
    }
    c.is_rotated[i] = base != 0.0;
  }
  return Status();
}

Result<Config> read_config(const HfConfig& config) {
  Config c;
  CHORUS_ASSIGN_OR_RETURN(c.sizes, read_decoder_sizes(config, kDefaults));
  CHORUS_RETURN_IF_ERROR(config.expect_string("hidden_activation", "silu"));
  CHORUS_ASSIGN_OR_RETURN(const int32_t window, read_window(config, 2048));
  std::vector<bool> windowed;
  for (int64_t i = 0; i < c.sizes.num_layers; ++i) {
    windowed.push_back((c.sizes.num_layers - 1 - i) % 4 != 0);
  }
  CHORUS_ASSIGN_OR_RETURN(windowed, read_layer_types(config, std::move(windowed)));
  for (const bool is_windowed : windowed) c.windows.push_back(is_windowed ? window : 0);
  CHORUS_ASSIGN_OR_RETURN(const RopeSettings rope, read_rope(config, 10000.0, c.sizes.context));
  c.rope = make_rope_table(rope.theta, static_cast<int32_t>(c.sizes.head_dim), rope.scaling);
  c.attention_factor = rope.scaling.attention_factor;
  CHORUS_RETURN_IF_ERROR(read_rotated(config, rope.theta, c));
  c.pairing = RopePairing::kHalf;
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.sizes.head_dim));
  CHORUS_ASSIGN_OR_RETURN(const double q_scale, config.float_or("qk_scale_factor", 3.87));
  c.q_scale = static_cast<float>(q_scale);
  CHORUS_ASSIGN_OR_RETURN(const double epsilon, config.float_or("post_norm_eps", 1e-8));
  if (!std::isfinite(epsilon) || epsilon < 0.0) {
    return data_loss(config.field("post_norm_eps"), "expected a number of at least 0");
  }
  c.post_norm_epsilon = static_cast<float>(epsilon);
  c.norm_offset = 1.0f;
  CHORUS_ASSIGN_OR_RETURN(const double logit_scale,
                          config.float_or("output_multiplier", 0.19611613513818404));
  c.logit_scale = static_cast<float>(logit_scale);
  CHORUS_ASSIGN_OR_RETURN(c.logit_softcap, read_softcap(config, "final_logit_softcapping", 20.0));
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
    ValueId x = b_.rms_norm(b_.embed(table), kNoWeight, c_.epsilon);
    for (int64_t i = 0; i < c_.num_layers; ++i) {
      CHORUS_ASSIGN_OR_RETURN(x, layer(i, x));
    }
    x = b_.select_rows(x);
    CHORUS_ASSIGN_OR_RETURN(x, lowering_.rms_norm(names_.final_norm, {c_.width, c_.epsilon}, x));
    CHORUS_ASSIGN_OR_RETURN(x, lowering_.head(names_, c_.width, table, x));
    x = b_.scale(x, config_.logit_scale);
    if (config_.logit_softcap > 0.0f) b_.tanh_softcap(x, config_.logit_softcap);
    return lowering_.check_all_used();
  }

 private:
  Result<ValueId> layer(int64_t index, ValueId x) {
    const std::string prefix = names_.layer(index);
    const NormShape before{c_.width, c_.epsilon, config_.norm_offset};
    const NormShape behind{c_.width, config_.post_norm_epsilon, config_.norm_offset};
    const auto normed = [&](std::string_view name, const NormShape& shape, ValueId value) {
      return lowering_.rms_norm(prefix + std::string(name), shape, value);
    };
    CHORUS_ASSIGN_OR_RETURN(ValueId y, normed(names_.attention_norm, before, x));
    CHORUS_ASSIGN_OR_RETURN(y, attention(index, prefix, y));
    CHORUS_ASSIGN_OR_RETURN(y, normed(names_.attention_post_norm, behind, y));
    x = b_.add(x, y);
    CHORUS_ASSIGN_OR_RETURN(y, normed(names_.ff_norm, before, x));
    CHORUS_ASSIGN_OR_RETURN(y, lowering_.feed_forward(names_, prefix, c_, OpKind::kSilu, y));
    CHORUS_ASSIGN_OR_RETURN(y, normed(names_.ff_post_norm, behind, y));
    return b_.add(x, y);
  }

  Result<ValueId> attention(int64_t index, const std::string& prefix, ValueId x) {
    AttentionShape shape =
        lowering_.add_attention(group_of(config_.windows[static_cast<size_t>(index)]), c_);
    shape.scale = config_.attention_scale;
    std::vector<LinearPart> parts = qkv_parts(names_, prefix, c_);
    // transformers' attention_bias is not the gate's.
    const Bias gate_bias =
        names_.attention_bias == Bias::kWhereGiven ? Bias::kWhereGiven : Bias::kNone;
    parts.push_back({prefix + std::string(names_.gate), c_.q_width(), gate_bias});
    CHORUS_ASSIGN_OR_RETURN(const auto qkvg, lowering_.linear(parts, c_.width, x));
    CHORUS_ASSIGN_OR_RETURN(ValueId q, head_norm(prefix, names_.q_norm, qkvg[0]));
    if (config_.q_scale) q = b_.scale(q, *config_.q_scale);
    CHORUS_ASSIGN_OR_RETURN(ValueId k, head_norm(prefix, names_.k_norm, qkvg[1]));
    if (config_.is_rotated[static_cast<size_t>(index)]) {
      if (rope_ < 0) rope_ = b_.add_rope(config_.rope);
      q = b_.rope(q, rope_, shape.head_dim, config_.pairing);
      k = b_.rope(k, rope_, shape.head_dim, config_.pairing);
      shape.scale *= static_cast<float>(config_.attention_factor * config_.attention_factor);
    }
    ValueId attended = b_.update_and_attend(q, k, qkvg[2], shape);
    attended = b_.mul(attended, b_.sigmoid(qkvg[3]));
    return lowering_.linear(
        {prefix + std::string(names_.attention_output), c_.width, names_.attention_bias},
        c_.q_width(), attended);
  }

  // Without a weight where the checkpoint's kind has none.
  Result<ValueId> head_norm(const std::string& prefix, std::string_view name, ValueId x) {
    if (name.empty()) {
      return b_.rms_norm(x, kNoWeight, c_.epsilon, static_cast<int32_t>(c_.head_dim));
    }
    return lowering_.rms_norm(prefix + std::string(name), {c_.head_dim, c_.epsilon, 0.0f, true}, x);
  }

  // Made with its first layer.
  int32_t group_of(int32_t window) {
    for (const auto& [known, group] : groups_) {
      if (known == window) return group;
    }
    groups_.emplace_back(window, b_.add_group(WindowPolicy{window}));
    return groups_.back().second;
  }

  Lowering& lowering_;
  ProgramBuilder& b_;
  const Config& config_;
  const DecoderSizes& c_;
  const DecoderNames& names_;
  std::vector<std::pair<int32_t, int32_t>> groups_;  // by window
  int32_t rope_ = -1;                                // made with the first layer that needs it
};

}  // namespace

Status lower_muse_glimmer(GgufConfig& gguf, Lowering& lowering) {
  CHORUS_ASSIGN_OR_RETURN(const Config config, read_config(gguf));
  const DecoderNames names = gguf_names();
  CHORUS_RETURN_IF_ERROR(Builder(lowering, config, names).build());
  CHORUS_RETURN_IF_ERROR(check_vocabulary(gguf, lowering.builder().facts.vocabulary));
  return gguf.check_all_used();
}

Status lower_muse_glimmer(const HfConfig& hf, Lowering& lowering) {
  CHORUS_ASSIGN_OR_RETURN(const HfConfig text, text_config(hf, kVisionKeys));
  CHORUS_ASSIGN_OR_RETURN(const Config config, read_config(text));
  DecoderNames names = hf_names(lowering.checkpoint());
  names.gate = "self_attn.gate_proj";
  names.attention_post_norm = "post_attention_layernorm";
  names.ff_norm = "pre_feedforward_layernorm";
  names.ff_post_norm = "post_feedforward_layernorm";
  CHORUS_RETURN_IF_ERROR(lowering.apply_bias_and_tie(hf, text, false, names));
  for (const std::string_view prefix : kVisionTensors) lowering.skip(prefix);
  CHORUS_RETURN_IF_ERROR(Builder(lowering, config, names).build());
  CHORUS_RETURN_IF_ERROR(check_vocabulary(text, lowering.builder().facts.vocabulary));
  return hf.check_all_used();
}

}  // namespace chorus
