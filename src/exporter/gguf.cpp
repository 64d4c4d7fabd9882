#include "exporter/gguf.h"

#include <array>
#include <cstring>
#include <utility>

#include "program/names.h"

namespace chorus {

namespace {

// Bounds that keep a damaged file from costing memory; real files are far below.
constexpr uint64_t kMaxValues = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 17;
constexpr uint64_t kMaxNameBytes = 512;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;

// Bytes of one element; 0 for strings and arrays, whose size varies, and for unknown types.
uint64_t element_bytes(uint32_t type) {
  constexpr std::array<uint8_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < kBytes.size() ? kBytes[type] : 0;
}

struct TensorType {
  uint32_t number;
  const char* name;
  uint32_t block_elements;
  uint32_t block_bytes;
};

constexpr TensorType kTensorTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17}};

const TensorType* tensor_type(uint32_t number) {
  for (const TensorType& type : kTensorTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

// Takes values off the front of the file. A failed read leaves everything as it was.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  bool read(T& value) {
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }
  bool read_string(std::string_view& text) {
    const auto before = rest_;
    uint64_t length = 0;
    std::span<const std::byte> bytes;
    if (!read(length) || !take(length, bytes)) {
      rest_ = before;
      return false;
    }
    text = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    return true;
  }
  bool take(uint64_t count, std::span<const std::byte>& bytes) {
    if (count > rest_.size()) return false;
    bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return true;
  }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

Status type_error(const GgufValue& value, const char* expected) {
  constexpr std::array<const char*, 13> kNames = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                  "i32", "f32", "bool", "string", "array",
                                                  "u64", "i64", "f64"};
  const char* found = kNames[static_cast<size_t>(value.type)];
  return data_loss(std::string(value.key), std::string("expected ") + expected + ", found " +
                                               (value.is_array ? "an array of " : "") + found);
}

template <typename T>
T element(const GgufValue& value, uint64_t index) {
  T result;
  std::memcpy(&result, value.bytes.data() + index * sizeof(T), sizeof(T));
  return result;
}

// Element `index` of an integer value; nullopt for other types and for what int64 cannot hold.
std::optional<int64_t> int_element(const GgufValue& value, uint64_t index) {
  switch (value.type) {
    case GgufType::kU8:
      return element<uint8_t>(value, index);
    case GgufType::kI8:
      return element<int8_t>(value, index);
    case GgufType::kU16:
      return element<uint16_t>(value, index);
    case GgufType::kI16:
      return element<int16_t>(value, index);
    case GgufType::kU32:
      return element<uint32_t>(value, index);
    case GgufType::kI32:
      return element<int32_t>(value, index);
    case GgufType::kI64:
      return element<int64_t>(value, index);
    case GgufType::kU64: {
      const auto number = element<uint64_t>(value, index);
      if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(number);
    }
    default:
      return std::nullopt;
  }
}

Status missing(std::string_view key) {
  return data_loss(std::string(key), "expected this key, found none");
}

}  // namespace

std::string ggml_type_name(uint32_t type) {
  const TensorType* known = tensor_type(type);
  return known != nullptr ? known->name : "type " + std::to_string(type);
}

int64_t GgufTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;  // checked by the parser
  return count;
}

// ---- Parsing -----------------------------------------------------------------------------------

class GgufFile::Parser {
 public:
  Parser(std::span<const std::byte> bytes, GgufFile& file)
      : bytes_(bytes), cursor_(bytes), file_(file) {}

  Status parse() {
    uint64_t num_tensors = 0;
    uint64_t num_values = 0;
    CHORUS_RETURN_IF_ERROR(parse_header(num_tensors, num_values));
    for (uint64_t i = 0; i < num_values; ++i) CHORUS_RETURN_IF_ERROR(parse_value(i));
    CHORUS_RETURN_IF_ERROR(read_alignment());
    for (uint64_t i = 0; i < num_tensors; ++i) CHORUS_RETURN_IF_ERROR(parse_tensor(i));
    return find_data();
  }

 private:
  static Status cut_off(std::string field) {
    return data_loss(std::move(field), "the file ends before it");
  }

  Status parse_header(uint64_t& num_tensors, uint64_t& num_values) {
    char magic[4];
    if (!cursor_.read(magic) || std::memcmp(magic, "GGUF", 4) != 0) {
      return data_loss("header.magic", "not a GGUF file");
    }
    if (!cursor_.read(file_.version_)) return cut_off("header.version");
    if (file_.version_ == 1) return unimplemented("header.version", "expected 2 or 3, found 1");
    if ((file_.version_ & 0xffff) == 0 && file_.version_ != 0) {
      return unimplemented("header.version",
                           "expected a little endian file, found a big endian one");
    }
    if (file_.version_ != 2 && file_.version_ != 3) {
      return data_loss("header.version",
                       "expected 2 or 3, found " + std::to_string(file_.version_));
    }
    if (!cursor_.read(num_tensors)) return cut_off("header.tensor_count");
    if (!cursor_.read(num_values)) return cut_off("header.metadata_kv_count");
    if (num_tensors > kMaxTensors) {
      return data_loss("header.tensor_count", "expected at most " + std::to_string(kMaxTensors) +
                                                  ", found " + std::to_string(num_tensors));
    }
    if (num_values > kMaxValues) {
      return data_loss("header.metadata_kv_count", "expected at most " +
                                                       std::to_string(kMaxValues) + ", found " +
                                                       std::to_string(num_values));
    }
    return Status();
  }

  // A key or tensor name that can be shown.
  Status read_name(const std::string& field, std::string_view& name) {
    if (!cursor_.read_string(name)) return cut_off(field);
    if (name.empty() || name.size() > kMaxNameBytes || !is_printable_utf8(name)) {
      return data_loss(field, "expected 1 to 512 bytes of UTF-8 without control characters");
    }
    return Status();
  }

  Status parse_value(uint64_t index) {
    GgufValue value;
    CHORUS_RETURN_IF_ERROR(read_name("metadata[" + std::to_string(index) + "].key", value.key));
    const std::string field(value.key);
    uint32_t type = 0;
    if (!cursor_.read(type)) return cut_off(field);
    if (type == static_cast<uint32_t>(GgufType::kArray)) {
      value.is_array = true;
      if (!cursor_.read(type) || !cursor_.read(value.count)) return cut_off(field);
    }
    if (type == static_cast<uint32_t>(GgufType::kArray)) {
      return data_loss(field, "expected an array of plain elements, found an array of arrays");
    }
    if (type > static_cast<uint32_t>(GgufType::kF64)) {
      return data_loss(field, "expected a type from 0 to 12, found " + std::to_string(type));
    }
    value.type = static_cast<GgufType>(type);
    CHORUS_RETURN_IF_ERROR(take_payload(field, value));
    if (!file_.value_index_.emplace(value.key, file_.values_.size()).second) {
      return data_loss(field, "expected each key once, found it twice");
    }
    file_.values_.push_back(value);
    return Status();
  }

  Status take_payload(const std::string& field, GgufValue& value) {
    const auto before = cursor_.rest();
    if (value.type == GgufType::kString) {
      std::string_view text;
      for (uint64_t i = 0; i < value.count; ++i) {
        if (!cursor_.read_string(text)) return cut_off(field);
      }
      value.bytes = before.first(before.size() - cursor_.rest().size());
      return Status();
    }
    uint64_t size = 0;
    if (__builtin_mul_overflow(value.count, element_bytes(static_cast<uint32_t>(value.type)),
                               &size) ||
        !cursor_.take(size, value.bytes)) {
      return cut_off(field);
    }
    if (value.type == GgufType::kBool) {
      for (const std::byte byte : value.bytes) {
        if (byte > std::byte{1}) return data_loss(field, "expected a bool of 0 or 1");
      }
    }
    return Status();
  }

  Status read_alignment() {
    CHORUS_ASSIGN_OR_RETURN(
        const auto alignment,
        file_.find_int("general.alignment", 1, static_cast<int64_t>(kMaxAlignment)));
    file_.alignment_ = alignment ? static_cast<uint64_t>(*alignment) : kDefaultAlignment;
    if ((file_.alignment_ & (file_.alignment_ - 1)) != 0) {
      return data_loss("general.alignment",
                       "expected a power of two, found " + std::to_string(file_.alignment_));
    }
    return Status();
  }

  Status parse_tensor(uint64_t index) {
    GgufTensor tensor;
    CHORUS_RETURN_IF_ERROR(read_name("tensors[" + std::to_string(index) + "].name", tensor.name));
    const std::string field(tensor.name);
    uint32_t num_dims = 0;
    if (!cursor_.read(num_dims)) return cut_off(field);
    if (num_dims < 1 || num_dims > kMaxDims) {
      return data_loss(field, "expected 1 to 4 dimensions, found " + std::to_string(num_dims));
    }
    int64_t num_elements = 1;
    for (uint32_t i = 0; i < num_dims; ++i) {
      uint64_t dim = 0;
      if (!cursor_.read(dim)) return cut_off(field);
      if (dim < 1 || dim > static_cast<uint64_t>(INT32_MAX) ||
          __builtin_mul_overflow(num_elements, static_cast<int64_t>(dim), &num_elements)) {
        return data_loss(field,
                         "expected dimensions of 1 to 2^31 - 1, found " + std::to_string(dim));
      }
      tensor.dims.push_back(static_cast<int64_t>(dim));
    }
    if (!cursor_.read(tensor.type) || !cursor_.read(tensor.offset)) return cut_off(field);
    if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) {
      return data_loss(field, "expected each tensor once, found it twice");
    }
    file_.tensors_.push_back(std::move(tensor));
    return Status();
  }

  // The data section starts at the next multiple of the alignment.
  Status find_data() {
    if (file_.tensors_.empty()) return Status();
    const uint64_t header = bytes_.size() - cursor_.rest().size();
    const uint64_t start = (header + file_.alignment_ - 1) & ~(file_.alignment_ - 1);
    const auto data = start < bytes_.size() ? bytes_.subspan(start) : std::span<const std::byte>();
    for (GgufTensor& tensor : file_.tensors_) {
      const std::string field(tensor.name);
      if (tensor.offset % file_.alignment_ != 0) {
        return data_loss(field, "expected an offset that is a multiple of " +
                                    std::to_string(file_.alignment_) + ", found " +
                                    std::to_string(tensor.offset));
      }
      if (tensor.offset > data.size()) return cut_off(field);
      const TensorType* type = tensor_type(tensor.type);
      if (type == nullptr) continue;
      if (tensor.dims[0] % type->block_elements != 0) {
        return data_loss(field, "expected rows of a multiple of " +
                                    std::to_string(type->block_elements) + " elements for " +
                                    type->name + ", found " + std::to_string(tensor.dims[0]));
      }
      uint64_t size = static_cast<uint64_t>(tensor.num_elements()) / type->block_elements;
      if (__builtin_mul_overflow(size, uint64_t{type->block_bytes}, &size) ||
          size > data.size() - tensor.offset) {
        return cut_off(field);
      }
      tensor.data = data.subspan(tensor.offset, size);
    }
    return Status();
  }

  std::span<const std::byte> bytes_;
  Cursor cursor_;
  GgufFile& file_;
};

Result<GgufFile> GgufFile::parse_part(std::span<const std::byte> bytes) {
  GgufFile file;
  CHORUS_RETURN_IF_ERROR(Parser(bytes, file).parse());
  return file;
}

// ---- Access ------------------------------------------------------------------------------------

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = value_index_.find(key);
  return found == value_index_.end() ? nullptr : &values_[found->second];
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Result<std::optional<int64_t>> GgufFile::find_int(std::string_view key, int64_t low,
                                                  int64_t high) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<int64_t>();
  const auto number = value->is_array ? std::nullopt : int_element(*value, 0);
  if (!number) return type_error(*value, "an integer");
  if (*number < low || *number > high) {
    return data_loss(std::string(key), "expected " + std::to_string(low) + " to " +
                                           std::to_string(high) + ", found " +
                                           std::to_string(*number));
  }
  return number;
}

Result<std::optional<double>> GgufFile::find_float(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_array && value->type == GgufType::kF32) {
    return std::optional<double>(element<float>(*value, 0));
  }
  if (!value->is_array && value->type == GgufType::kF64) {
    return std::optional<double>(element<double>(*value, 0));
  }
  return type_error(*value, "a float");
}

Result<std::optional<bool>> GgufFile::find_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->is_array || value->type != GgufType::kBool) return type_error(*value, "a bool");
  return std::optional<bool>(value->bytes[0] != std::byte{0});
}

Result<std::optional<std::string_view>> GgufFile::find_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->is_array || value->type != GgufType::kString) return type_error(*value, "a string");
  std::string_view text;
  (void)Cursor(value->bytes).read_string(text);  // checked by the parser
  return std::optional<std::string_view>(text);
}

Result<std::optional<std::vector<std::string_view>>> GgufFile::find_strings(
    std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<std::vector<std::string_view>>();
  if (!value->is_array || value->type != GgufType::kString) {
    return type_error(*value, "an array of strings");
  }
  std::vector<std::string_view> strings(value->count);
  Cursor cursor(value->bytes);
  for (std::string_view& text : strings) (void)cursor.read_string(text);  // checked by the parser
  return std::optional(std::move(strings));
}

Result<std::optional<std::vector<int64_t>>> GgufFile::find_ints(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<std::vector<int64_t>>();
  std::vector<int64_t> numbers;
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = int_element(*value, i);
    if (!number) break;
    numbers.push_back(*number);
  }
  if (!value->is_array || numbers.size() != value->count) {
    return type_error(*value, "an array of integers");
  }
  return std::optional(std::move(numbers));
}

Result<std::optional<std::vector<float>>> GgufFile::find_floats(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<std::vector<float>>();
  if (!value->is_array || value->type != GgufType::kF32) {
    return type_error(*value, "an array of f32");
  }
  std::vector<float> numbers(value->count);
  for (uint64_t i = 0; i < value->count; ++i) numbers[i] = element<float>(*value, i);
  return std::optional(std::move(numbers));
}

Result<int64_t> GgufFile::get_int(std::string_view key, int64_t low, int64_t high) const {
  CHORUS_ASSIGN_OR_RETURN(const auto value, find_int(key, low, high));
  if (!value) return missing(key);
  return *value;
}

Result<double> GgufFile::get_float(std::string_view key) const {
  CHORUS_ASSIGN_OR_RETURN(const auto value, find_float(key));
  if (!value) return missing(key);
  return *value;
}

}  // namespace chorus
