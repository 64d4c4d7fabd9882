// The tensors of a checkpoint, whatever its format, by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "exporter/gguf.h"
#include "exporter/hf_folder.h"

namespace chorus {

struct CheckpointTensor {
  std::string_view name;
  uint32_t type = 0;           // a ggml number (gguf.h), also where the checkpoint is no GGUF file
  std::string type_name;       // as the checkpoint calls it
  std::vector<int64_t> shape;  // outermost first: a matrix is [rows, columns]
  std::span<const std::byte> data;
};

// Views: what it was made of must outlive it. Immutable after creation.
class Checkpoint {
 public:
  // Requires: names are unique.
  explicit Checkpoint(std::vector<CheckpointTensor> tensors);

  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  // nullptr when there is none.
  const CheckpointTensor* find(std::string_view name) const;

 private:
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;
};

Checkpoint checkpoint_of(const GgufFile& file);
Checkpoint checkpoint_of(const HfFolder& folder);

}  // namespace chorus
