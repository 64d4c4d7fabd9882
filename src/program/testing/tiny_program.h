// Small random programs for tests of every layer above.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/builder.h"
#include "program/program.h"

namespace chorus {

// A llama-like model with random weights. Defaults are odd on purpose: the vocabulary is no
// multiple of 16, heads * head_dim != width.
struct TinyOptions {
  int32_t num_layers = 2;
  int32_t width = 64;
  int32_t ff_width = 96;
  int32_t num_heads = 6;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 16;
  int32_t vocabulary = 293;
  int32_t context = 512;
  int32_t max_tokens = 512;          // of the method `forward`
  std::vector<Method> methods = {};  // instead of it
  int32_t window = 0;  // > 0: odd layers (so at least 2) are in a second group with it
  WeightType qk_type = WeightType::kQ4_1;
  WeightType type = WeightType::kQ4_1;  // of all other matrices
  WeightType embed_type = WeightType::kQ8_0;
  bool tied = true;
  bool tokenizer = false;  // one token per byte and name, no merges; and a template
  uint64_t seed = 1;
};

// Random bytes of a checkpoint whose values are finite, of either sign and about 1 / sqrt(columns).
std::vector<std::byte> random_matrix(WeightType type, int32_t rows, int32_t columns, uint64_t seed);

// Requires: options that check_graph accepts; quantised columns are multiples of 32.
ProgramBuilder tiny_builder(const TinyOptions& options);
Program tiny_program(const TinyOptions& options = {});

}  // namespace chorus
