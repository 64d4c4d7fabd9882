// Reads safetensors files: where the tensors lie, and the file's texts.
// Source of the format: the README of the safetensors project.
//
// Everything is checked before it is used: the header's length against the file, its JSON with
// limits and without repeated names, shapes and offsets with overflow-safe arithmetic, sizes
// against types and shapes, and that the tensors follow each other without overlap or hole up to
// the end of the file. Tensors of types that no lowering takes are listed all the same, so that a
// file can be described.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/memory_map.h"
#include "base/result.h"
#include "json/value.h"

namespace chorus {

// The types that weights are made of; kOther is every other one, which is listed and no more.
enum class SafetensorsType : uint8_t { kF32, kF16, kBF16, kOther };

struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kOther;
  std::string type_name;            // as the file calls it: "BF16", "F8_E4M3"
  std::vector<int64_t> shape;       // outermost first; 0 to 8 dimensions, each 0 to 2^31 - 1
  std::span<const std::byte> data;  // row-major, little endian, aligned to nothing

  int64_t num_elements() const;
};

// Thread: immutable after creation. Moves, does not copy; pointers to tensors stay valid across
// moves.
class SafetensorsFile {
 public:
  // Maps the file. Errors: as MemoryMap::open and parse.
  static Result<SafetensorsFile> open(const std::string& path);
  // `bytes` must outlive the result. Errors: kDataLoss; the field is "header", "header.length",
  // "header.__metadata__", a tensor's name, or its index where the name cannot be shown.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes);

  // In the order of the header.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  // `__metadata__`: free texts, in the order of the header.
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }

  // nullptr when there is none.
  const SafetensorsTensor* find_tensor(std::string_view name) const;

 private:
  class Parser;
  SafetensorsFile() = default;

  MemoryMap map_;  // empty for parse()
  std::vector<SafetensorsTensor> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::unordered_map<std::string_view, size_t> index_;  // views into tensors_
};

}  // namespace chorus
