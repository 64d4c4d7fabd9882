// model.safetensors.index.json: which of a folder's files holds which tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "exporter/safetensors.h"

namespace chorus {

inline constexpr char kHfIndexFile[] = "model.safetensors.index.json";

struct HfIndex {
  std::vector<std::string> files;  // plain names within the folder, each once, sorted
  std::vector<std::pair<std::string, size_t>> tensors;  // name and number of the file
  std::optional<uint64_t> total_size;                   // bytes of all tensors, as the index claims
};

// Errors: kDataLoss; the field is the index's name, alone or with the member's:
// "model.safetensors.index.json.weight_map.lm_head.weight".
Result<HfIndex> parse_hf_index(std::string_view text);

// Whether the files, in the order of index.files, hold exactly what the index says, each tensor
// once. Errors: kDataLoss with a tensor's name, or the index's metadata.total_size, as field.
Status check_hf_index(const HfIndex& index, std::span<const SafetensorsFile> files);

}  // namespace chorus
