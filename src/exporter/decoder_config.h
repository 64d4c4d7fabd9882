// What the configurations of decoders have in common, in each kind of checkpoint.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "exporter/gguf_config.h"
#include "exporter/hf_config.h"
#include "exporter/rope_scaling.h"

namespace chorus {

struct DecoderSizes {
  int64_t num_layers = 0;
  int64_t width = 0;
  int64_t ff_width = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_dim = 0;      // of q, k and v
  int64_t context = 0;
  float epsilon = 0.0f;  // of norms

  int64_t q_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
};

// Errors: kDataLoss with the key as field; kUnimplemented where K and V have different widths.
Result<DecoderSizes> read_decoder_sizes(GgufConfig& config);
// `defaults`: what transformers takes where a member is absent; 0 where the member must be there.
// Without head_dim and num_kv_heads, these follow from the others.
Result<DecoderSizes> read_decoder_sizes(const HfConfig& config, const DecoderSizes& defaults);

// Key attention.sliding_window; 0: none.
Result<int32_t> read_window(GgufConfig& config);
// Whether each layer is windowed, by key attention.sliding_window_pattern: a flag for each layer,
// or a period whose last layer is full (0: every layer is windowed), which is `otherwise` without
// the key.
Result<std::vector<bool>> read_window_pattern(GgufConfig& config, int64_t num_layers,
                                              int64_t otherwise);

// A cap of tanh-softcap under `key`; 0: none.
Result<float> read_softcap(GgufConfig& config, std::string_view key);

// Where the key vocab_size is there, it is the number of rows of the embedding.
Status check_vocabulary(GgufConfig& config, int64_t rows);

// The base of rope's frequencies under `key`. Errors: kDataLoss unless it is positive.
Result<double> read_rope_base(GgufConfig& config, std::string_view key, double otherwise);
Result<double> read_rope_base(const HfConfig& config, std::string_view key, double otherwise);

// The columns of a head that are rotated: an even number, at most head_dim.
Result<int32_t> read_rope_dims(GgufConfig& config, int64_t head_dim);

// The base of rope's frequencies, and how they are stretched.
struct RopeSettings {
  double theta = 0.0;
  RopeScaling scaling;
};
// rope_parameters of a Hugging Face configuration, or the older rope_theta and rope_scaling.
// Errors: kDataLoss; kUnimplemented for a rope_type that is not RopeScalingKind.
Result<RopeSettings> read_rope(const HfConfig& config, double default_theta, int64_t context);
// The same of one object of that kind.
Result<RopeSettings> read_rope_section(const HfConfig& section, double default_theta,
                                       int64_t context);

// layer_types: whether each layer is windowed; `otherwise` where it is absent. Errors: kDataLoss
// for another count, kUnimplemented for another type.
Result<std::vector<bool>> read_layer_types(const HfConfig& config, std::vector<bool> otherwise);
// sliding_window, which must be there.
Result<int32_t> read_window(const HfConfig& config, int64_t otherwise);
Result<float> read_softcap(const HfConfig& config, std::string_view key, double otherwise);
// vocab_size, if it is there, is the number of rows of the embedding.
Status check_vocabulary(const HfConfig& config, int64_t rows);

// Keys rope.scaling.*. Errors: kDataLoss; kUnimplemented for a kind that is not RopeScalingKind.
Result<RopeScaling> read_rope_scaling(GgufConfig& config, int64_t context);

}  // namespace chorus
