#include "exporter/checkpoint.h"

#include <utility>

namespace chorus {

namespace {

uint32_t ggml_type_of(SafetensorsType type) {
  switch (type) {
    case SafetensorsType::kF32:
      return kGgmlF32;
    case SafetensorsType::kF16:
      return kGgmlF16;
    case SafetensorsType::kBF16:
      return kGgmlBF16;
    case SafetensorsType::kOther:
      break;
  }
  return kNoGgmlType;
}

}  // namespace

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
    tensors.push_back({tensor.name,
                       tensor.type,
                       ggml_type_name(tensor.type),
                       {tensor.dims.rbegin(), tensor.dims.rend()},
                       tensor.data});
  }
  return Checkpoint(std::move(tensors));
}

Checkpoint checkpoint_of(const HfFolder& folder) {
  std::vector<CheckpointTensor> tensors;
  tensors.reserve(folder.tensors().size());
  for (const SafetensorsTensor* tensor : folder.tensors()) {
    tensors.push_back(
        {tensor->name, ggml_type_of(tensor->type), tensor->type_name, tensor->shape, tensor->data});
  }
  return Checkpoint(std::move(tensors));
}

}  // namespace chorus
