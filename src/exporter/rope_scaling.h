// How checkpoints stretch the wavelengths of rope for contexts longer than they were trained on.
//
// Each kind divides the frequency theta^(-2i/dims) of a pair by a factor, so that a rope table
// holds all of them. Sources: transformers' modeling_rope_utils.py, llama.cpp's ggml_rope_ext; the
// two agree. YaRN: Peng, Quesnelle, Fan, Shippole (2023).
#pragma once

#include <cstdint>

#include "program/graph.h"

namespace chorus {

enum class RopeScalingKind : uint8_t { kNone, kLinear, kLlama3, kYarn };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1.0;                 // all but kNone
  double original_context = 0.0;       // kLlama3, kYarn: what the model was trained on
  double low_frequency_factor = 1.0;   // kLlama3
  double high_frequency_factor = 4.0;  // kLlama3
  double beta_fast = 32.0;             // kYarn: rotations within the original context
  double beta_slow = 1.0;              // kYarn
  bool truncate = true;                // kYarn: the bounds of the ramp are whole dimensions
  double attention_factor = 1.0;       // kYarn: of q and of k, after their rotation
};

// 0.1 * mscale * ln(factor) + 1: YaRN's attention factor where a checkpoint gives none.
double yarn_attention_factor(double factor, double mscale = 1.0);

// The table of `scaling` over frequencies of base `theta` for `dims` columns of a head. Requires:
// all of them positive and finite, dims even; for kYarn theta above 1, for kLlama3 the high factor
// above the low one.
RopeTable make_rope_table(double theta, int32_t dims, const RopeScaling& scaling);

}  // namespace chorus
