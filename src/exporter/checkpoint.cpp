#include "exporter/checkpoint.h"

#include <utility>

namespace chorus {

Checkpoint::Checkpoint(std::vector<CheckpointTensor> tensors) : tensors_(std::move(tensors)) {
  index_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

Checkpoint checkpoint_of(const GgufFile& file) {
  std::vector<CheckpointTensor> tensors;
  tensors.reserve(file.tensors().size());
  for (const GgufTensor& tensor : file.tensors()) {
    tensors.push_back(
        {tensor.name, tensor.type, {tensor.dims.rbegin(), tensor.dims.rend()}, tensor.data});
  }
  return Checkpoint(std::move(tensors));
}

}  // namespace chorus
