// What a GGUF file is, for people and for JSON; also for files that no lowering takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exporter/gguf.h"

namespace chorus {

struct GgufTypeTotal {
  std::string type;  // ggml's name: "Q4_K"
  int64_t num_tensors = 0;
  int64_t num_parameters = 0;
  uint64_t bytes = 0;  // 0 for a type whose size is not known
};

struct GgufTensorDescription {
  std::string name;
  std::string type;
  std::vector<int64_t> dims;  // as stored: dims[0] is contiguous
  uint64_t bytes = 0;
};

struct GgufDescription {
  uint32_t version = 0;
  std::string architecture;  // empty where the file does not say
  std::string name;
  int64_t num_parameters = 0;
  int64_t num_values = 0;                      // metadata
  int64_t num_parts = 1;                       // files
  std::vector<GgufTypeTotal> tensors_by_type;  // most bytes first
  std::vector<GgufTensorDescription> tensors;  // in the order of the file
  std::string tokenizer_model;                 // empty: none
  std::string tokenizer_pre;
  bool has_chat_template = false;
};

// Texts that cannot be shown are left out.
GgufDescription describe(const GgufFile& file);

}  // namespace chorus
