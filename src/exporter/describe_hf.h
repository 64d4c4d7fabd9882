// What a Hugging Face folder is, for people and for JSON; also for models that no lowering takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exporter/hf_folder.h"

namespace chorus {

struct HfTypeTotal {
  std::string type;  // as safetensors calls it: "BF16"
  int64_t num_tensors = 0;
  int64_t num_parameters = 0;
  uint64_t bytes = 0;
};

struct HfFileDescription {
  std::string name;
  int64_t num_tensors = 0;
  uint64_t bytes = 0;  // of the tensors
};

struct HfTensorDescription {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;  // outermost first
  uint64_t bytes = 0;
  std::string file;
};

struct HfDescription {
  std::string model_type;                  // empty where config.json does not say
  std::vector<std::string> architectures;  // classes of transformers
  std::string transformers_version;
  // Of config.json or its text_config; -1 where they do not say.
  int64_t num_layers = -1;
  int64_t width = -1;
  int64_t vocabulary = -1;
  int64_t context = -1;
  std::vector<std::string> other_models;  // vision_config and the like: parts beside the text model
  int64_t num_parameters = 0;
  std::vector<HfTypeTotal> tensors_by_type;  // most bytes first
  std::vector<HfFileDescription> files;
  std::vector<HfTensorDescription> tensors;  // file by file
  uint64_t tokenizer_bytes = 0;              // of tokenizer.json; 0: none
  std::string tokenizer_class;
  HfSpecialToken bos, eos, pad;  // without texts that cannot be shown
  std::vector<int32_t> eos_ids;
  std::vector<std::string> chat_templates;  // names
};

// Texts that cannot be shown are left out.
HfDescription describe(const HfFolder& folder);

}  // namespace chorus
