// Reads GGUF checkpoints, versions 2 and 3, little endian: metadata and where the tensors lie.
// Source of the format: ggml's docs/gguf.md.
//
// A checkpoint that is split into several files, as llama-gguf-split and gguf-py do, is one here:
// its first part is opened, and the others lie beside it.
//
// Everything is checked before it is used: counts against the bytes that are left, strings, types,
// offsets and sizes with overflow-safe arithmetic, names for being unique and printable. Tensors of
// types that no lowering takes are listed all the same, so that a file can be described.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/memory_map.h"
#include "base/result.h"

namespace chorus {

// The numbers are the format's.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One metadata value: the bytes of its payload, checked. Views into the file.
struct GgufValue {
  std::string_view key;
  GgufType type = GgufType::kU8;  // of the elements, for an array
  bool is_array = false;
  uint64_t count = 1;                // elements
  std::span<const std::byte> bytes;  // without type and count
};

// Tensor types by number; the names are ggml's ("Q4_K").
inline constexpr uint32_t kGgmlF32 = 0;
inline constexpr uint32_t kGgmlF16 = 1;
inline constexpr uint32_t kGgmlQ4_0 = 2;
inline constexpr uint32_t kGgmlQ4_1 = 3;
inline constexpr uint32_t kGgmlQ5_0 = 6;
inline constexpr uint32_t kGgmlQ5_1 = 7;
inline constexpr uint32_t kGgmlQ8_0 = 8;
inline constexpr uint32_t kGgmlQ4_K = 12;
inline constexpr uint32_t kGgmlQ5_K = 13;
inline constexpr uint32_t kGgmlQ6_K = 14;
inline constexpr uint32_t kGgmlBF16 = 30;
inline constexpr uint32_t kNoGgmlType = UINT32_MAX;

// "Q4_0"; "type 77" for a number that is not known.
std::string ggml_type_name(uint32_t type);

struct GgufTensor {
  std::string_view name;
  uint32_t type = 0;
  std::vector<int64_t> dims;        // as stored: dims[0] is contiguous; 1 to 4, each at least 1
  uint64_t offset = 0;              // from the start of its part's data section
  std::span<const std::byte> data;  // empty when the type's size is not known

  int64_t num_elements() const;
};

// Thread: immutable after creation. Moves, does not copy; views stay valid across moves.
class GgufFile {
 public:
  // Maps the file, and where it is the first of NAME-00001-of-0000N.gguf all parts. Errors: as
  // MemoryMap::open and parse_parts; kDataLoss with the name of a part that is missing as field.
  static Result<GgufFile> open(const std::string& path);
  // `bytes` must outlive the result. Errors: kDataLoss; the field is "header.NAME", a metadata key,
  // a tensor's name, or the index of either where it has none. kUnimplemented for version 1 and big
  // endian files, field "header.version".
  static Result<GgufFile> parse(std::span<const std::byte> bytes);
  // The same of all parts in order; of one part, when the file is not split. Errors: kDataLoss also
  // for parts that do not belong together, with a tensor's name or a key of "split." as field.
  static Result<GgufFile> parse_parts(std::span<const std::span<const std::byte>> parts);

  // Those of the first part.
  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  const std::vector<GgufValue>& values() const { return values_; }
  // Of all parts.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  int64_t num_parts() const { return num_parts_; }

  // nullptr when there is none.
  const GgufValue* find(std::string_view key) const;
  const GgufTensor* find_tensor(std::string_view name) const;

  // Typed access. nullopt when the key is absent. Errors: kDataLoss with the key as field, when the
  // value has another type or does not fit. Integers of every width and sign are taken; floats are
  // F32 or F64.
  Result<std::optional<int64_t>> find_int(std::string_view key, int64_t low, int64_t high) const;
  Result<std::optional<double>> find_float(std::string_view key) const;
  Result<std::optional<bool>> find_bool(std::string_view key) const;
  Result<std::optional<std::string_view>> find_string(std::string_view key) const;
  Result<std::optional<std::vector<std::string_view>>> find_strings(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> find_ints(std::string_view key) const;
  Result<std::optional<std::vector<float>>> find_floats(std::string_view key) const;
  // As find_int and find_float for a key that must be there.
  Result<int64_t> get_int(std::string_view key, int64_t low, int64_t high) const;
  Result<double> get_float(std::string_view key) const;

 private:
  class Parser;
  // What a part says of the whole.
  struct Split {
    int64_t number = 0;  // from 0
    int64_t count = 1;
    std::optional<int64_t> num_tensors;  // of all parts
  };
  GgufFile() = default;

  static Result<GgufFile> parse_part(std::span<const std::byte> bytes);
  Result<Split> split() const;
  // Takes over what the next part holds. Requires: this is the first part, with those before.
  Status append(GgufFile part);
  // Once all parts are here.
  Status check_complete() const;

  std::vector<MemoryMap> maps_;  // of the parts; empty for parse()
  int64_t num_parts_ = 1;
  uint32_t version_ = 0;
  uint64_t alignment_ = 0;
  std::vector<GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> value_index_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace chorus
