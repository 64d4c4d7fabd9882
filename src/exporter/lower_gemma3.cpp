// The gemma3 architecture: windowed and full attention layers with their own bases of rope, norms
// of q and k per head, norms before and behind attention and feed-forward, a scaled embedding.
//
// GGUF names and defaults: llama.cpp (src/models/gemma3.cpp).
#include <cmath>
#include <string>
#include <vector>

#include "exporter/decoder_config.h"
#include "exporter/lowering.h"
#include "program/limits.h"

namespace chorus {

namespace {

constexpr int64_t kLayersOf27B = 62;  // whose attention is scaled by its width

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
    return lowering_.linear({prefix + std::string(names_.attention_output), c_.width}, c_.q_width(),
                            attended);
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

}  // namespace chorus
