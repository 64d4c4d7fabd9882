// What the configurations of decoders have in common, in each kind of checkpoint.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "exporter/gguf_config.h"
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

// The columns of a head that are rotated: an even number, at most head_dim.
Result<int32_t> read_rope_dims(GgufConfig& config, int64_t head_dim);

// Keys rope.scaling.*. Errors: kDataLoss; kUnimplemented for a kind that is not RopeScalingKind.
Result<RopeScaling> read_rope_scaling(GgufConfig& config, int64_t context);

}  // namespace chorus
