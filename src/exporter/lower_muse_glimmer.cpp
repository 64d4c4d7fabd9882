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

struct Config {
  DecoderSizes sizes;
  std::vector<int32_t> windows;    // of each layer; 0: full
  std::vector<double> rope_bases;  // of each layer; 0: no rope
  RopePairing pairing = RopePairing::kAdjacent;
  float attention_scale = 0.0f;
  std::optional<float> q_scale;  // of the normed q, where it has no weight for that
  float post_norm_epsilon = kPostNormEpsilon;
  float norm_offset = 0.0f;  // of the layers' norms
  bool normalises_embedding = true;
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
  CHORUS_RETURN_IF_ERROR(config.expect_string("rope.scaling.type", "none"));
  CHORUS_ASSIGN_OR_RETURN(const int32_t window, read_window(config));
  if (window < 1) return data_loss(config.name_of("attention.sliding_window"), "expected a window");
  CHORUS_ASSIGN_OR_RETURN(const auto windowed, read_window_pattern(config, c.sizes.num_layers, 4));
  for (const bool is_windowed : windowed) {
    c.windows.push_back(is_windowed ? window : 0);
    c.rope_bases.push_back(is_windowed ? window_base : 0.0);
  }
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.sizes.head_dim));
  CHORUS_ASSIGN_OR_RETURN(const double logit_scale, config.get_float("logit_scale"));
  c.logit_scale = static_cast<float>(logit_scale);
  CHORUS_ASSIGN_OR_RETURN(c.logit_softcap, read_softcap(config, "final_logit_softcapping"));
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
    ValueId x = b_.embed(table);
    if (config_.normalises_embedding) x = b_.rms_norm(x, kNoWeight, c_.epsilon);
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
    if (!names_.gate.empty()) parts.push_back({prefix + std::string(names_.gate), c_.q_width()});
    CHORUS_ASSIGN_OR_RETURN(const auto qkvg, lowering_.linear(parts, c_.width, x));
    CHORUS_ASSIGN_OR_RETURN(ValueId q, head_norm(prefix, names_.q_norm, qkvg[0]));
    if (config_.q_scale) q = b_.scale(q, *config_.q_scale);
    CHORUS_ASSIGN_OR_RETURN(ValueId k, head_norm(prefix, names_.k_norm, qkvg[1]));
    const double base = config_.rope_bases[static_cast<size_t>(index)];
    if (base > 0.0) {
      q = b_.rope(q, rope_of(base), shape.head_dim, config_.pairing);
      k = b_.rope(k, rope_of(base), shape.head_dim, config_.pairing);
    }
    ValueId attended = b_.update_and_attend(q, k, qkvg[2], shape);
    if (qkvg.size() > 3) attended = b_.mul(attended, b_.sigmoid(qkvg[3]));
    return lowering_.linear({prefix + std::string(names_.attention_output), c_.width}, c_.q_width(),
                            attended);
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
  int32_t rope_of(double base) {
    for (const auto& [known, rope] : ropes_) {
      if (known == base) return rope;
    }
    const auto dims = static_cast<int32_t>(c_.head_dim);
    ropes_.emplace_back(base, b_.add_rope(make_rope_table(base, dims, {})));
    return ropes_.back().second;
  }

  Lowering& lowering_;
  ProgramBuilder& b_;
  const Config& config_;
  const DecoderSizes& c_;
  const DecoderNames& names_;
  std::vector<std::pair<int32_t, int32_t>> groups_;  // by window
  std::vector<std::pair<double, int32_t>> ropes_;    // by base
};

}  // namespace

Status lower_muse_glimmer(GgufConfig& gguf, Lowering& lowering) {
  CHORUS_ASSIGN_OR_RETURN(const Config config, read_config(gguf));
  const DecoderNames names = gguf_names();
  CHORUS_RETURN_IF_ERROR(Builder(lowering, config, names).build());
  CHORUS_RETURN_IF_ERROR(check_vocabulary(gguf, lowering.builder().facts.vocabulary));
  return gguf.check_all_used();
}

}  // namespace chorus
