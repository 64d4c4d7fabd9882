#include "exporter/safetensors.h"

#include <algorithm>
#include <cstring>

#include "program/names.h"

namespace chorus {

namespace {

// Bounds that keep a damaged file from costing memory; real files are far below.
constexpr uint64_t kMaxHeaderBytes = uint64_t{32} << 20;
constexpr size_t kMaxTensors = 1 << 17;
constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMaxDims = 8;
constexpr int kMaxHeaderDepth = 4;

constexpr uint64_t kLengthBytes = 8;

struct TypeSize {
  std::string_view name;
  uint32_t bits;
  SafetensorsType type = SafetensorsType::kOther;
};

constexpr TypeSize kTypeSizes[] = {
    {"F32", 32, SafetensorsType::kF32},
    {"F16", 16, SafetensorsType::kF16},
    {"BF16", 16, SafetensorsType::kBF16},
    {"F64", 64},
    {"C64", 64},
    {"I64", 64},
    {"U64", 64},
    {"I32", 32},
    {"U32", 32},
    {"I16", 16},
    {"U16", 16},
    {"I8", 8},
    {"U8", 8},
    {"BOOL", 8},
    {"F8_E4M3", 8},
    {"F8_E5M2", 8},
    {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8},
    {"F6_E2M3", 6},
    {"F6_E3M2", 6},
    {"F4", 4},
};

const TypeSize* type_size(std::string_view name) {
  for (const TypeSize& each : kTypeSizes) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

std::string range_text(uint64_t begin, uint64_t end) {
  return std::to_string(begin) + " to " + std::to_string(end);
}

}  // namespace

int64_t SafetensorsTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;  // checked by the parser
  return count;
}

// ---- Parsing -----------------------------------------------------------------------------------

class SafetensorsFile::Parser {
 public:
  Parser(std::span<const std::byte> bytes, SafetensorsFile& file) : bytes_(bytes), file_(file) {}

  Status parse() {
    CHORUS_ASSIGN_OR_RETURN(const json::Value header, read_header());
    const json::Object& members = header.as_object();
    if (members.size() > kMaxTensors) {
      return data_loss("header", "expected at most " + std::to_string(kMaxTensors) +
                                     " tensors, found " + std::to_string(members.size()));
    }
    for (size_t i = 0; i < members.size(); ++i) {
      const auto& [name, value] = members[i];
      if (name == "__metadata__") {
        CHORUS_RETURN_IF_ERROR(read_metadata(value));
      } else {
        CHORUS_RETURN_IF_ERROR(read_tensor(i, name, value));
      }
    }
    CHORUS_RETURN_IF_ERROR(check_contiguous());
    for (size_t i = 0; i < file_.tensors_.size(); ++i) {
      file_.index_.emplace(file_.tensors_[i].name, i);  // the JSON reader refused repeated names
    }
    return Status();
  }

 private:
  Result<json::Value> read_header() {
    uint64_t length = 0;
    if (bytes_.size() < kLengthBytes) {
      return data_loss("header.length", "the file ends before it");
    }
    std::memcpy(&length, bytes_.data(), kLengthBytes);
    const uint64_t left = bytes_.size() - kLengthBytes;
    if (length > std::min(left, kMaxHeaderBytes)) {
      return data_loss("header.length", "expected at most " +
                                            std::to_string(std::min(left, kMaxHeaderBytes)) +
                                            ", found " + std::to_string(length));
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes,
                                length);
    data_ = bytes_.subspan(kLengthBytes + length);
    // The format asks for it, so that a file of another kind is noticed at once.
    if (text.empty() || text.front() != '{') {
      return data_loss("header", "expected JSON that begins with {");
    }
    auto header =
        json::parse(text, "header", {.max_bytes = kMaxHeaderBytes, .max_depth = kMaxHeaderDepth});
    if (!header.ok()) return data_loss(header.status().field(), header.status().message());
    return header;
  }

  Status read_metadata(const json::Value& value) {
    static constexpr char kField[] = "header.__metadata__";
    if (!value.is_object()) {
      return data_loss(kField, "expected an object, found " + std::string(value.type_name()));
    }
    for (const auto& [key, text] : value.as_object()) {
      if (!text.is_string()) {
        return data_loss(kField, "expected strings, found " + std::string(text.type_name()));
      }
      file_.metadata_.emplace_back(key, text.as_string());
    }
    return Status();
  }

  Status read_tensor(size_t index, const std::string& name, const json::Value& value) {
    if (name.empty() || name.size() > kMaxNameBytes || !is_printable_utf8(name)) {
      return data_loss("header.tensors[" + std::to_string(index) + "]",
                       "expected a name of 1 to 512 bytes of UTF-8 without control characters");
    }
    if (!value.is_object()) {
      return data_loss(name, "expected an object, found " + std::string(value.type_name()));
    }
    for (const auto& [key, unused] : value.as_object()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        return data_loss(name, "expected dtype, shape and data_offsets, found " + quoted(key));
      }
    }
    SafetensorsTensor tensor;
    tensor.name = name;
    CHORUS_RETURN_IF_ERROR(read_type(value, tensor));
    CHORUS_RETURN_IF_ERROR(read_shape(value, tensor));
    CHORUS_RETURN_IF_ERROR(read_data(value, tensor));
    file_.tensors_.push_back(std::move(tensor));
    return Status();
  }

  static Status read_type(const json::Value& value, SafetensorsTensor& tensor) {
    const json::Value* type = value.find("dtype");
    if (type == nullptr || !type->is_string() || type->as_string().empty() ||
        type->as_string().size() > kMaxNameBytes || !is_printable_utf8(type->as_string())) {
      return data_loss(tensor.name, "expected a dtype, which is a printable string");
    }
    tensor.type_name = type->as_string();
    const TypeSize* known = type_size(tensor.type_name);
    if (known != nullptr) tensor.type = known->type;
    return Status();
  }

  static Status read_shape(const json::Value& value, SafetensorsTensor& tensor) {
    const json::Value* shape = value.find("shape");
    if (shape == nullptr || !shape->is_array() || shape->as_array().size() > kMaxDims) {
      return data_loss(tensor.name,
                       "expected a shape of at most " + std::to_string(kMaxDims) + " dimensions");
    }
    int64_t num_elements = 1;
    for (const json::Value& each : shape->as_array()) {
      const auto dim = each.to_integer("shape", 0, INT32_MAX);
      if (!dim.ok() || __builtin_mul_overflow(num_elements, *dim, &num_elements)) {
        return data_loss(tensor.name,
                         "expected a shape of whole numbers from 0 to 2^31 - 1 whose product is "
                         "below 2^63, found " +
                             shape->dump().substr(0, 100));
      }
      tensor.shape.push_back(*dim);
    }
    return Status();
  }

  Status read_data(const json::Value& value, SafetensorsTensor& tensor) {
    const json::Value* offsets = value.find("data_offsets");
    if (offsets == nullptr || !offsets->is_array() || offsets->as_array().size() != 2) {
      return data_loss(tensor.name, "expected data_offsets, which are two whole numbers");
    }
    const auto begin = offsets->as_array()[0].to_unsigned("data_offsets");
    const auto end = offsets->as_array()[1].to_unsigned("data_offsets");
    if (!begin.ok() || !end.ok() || *begin > *end || *end > data_.size()) {
      return data_loss(tensor.name, "expected data_offsets that rise within the " +
                                        std::to_string(data_.size()) +
                                        " bytes after the header, found " +
                                        offsets->dump().substr(0, 100));
    }
    CHORUS_RETURN_IF_ERROR(check_size(tensor, *end - *begin));
    tensor.data = data_.subspan(*begin, *end - *begin);
    ranges_.push_back({*begin, *end, file_.tensors_.size()});
    return Status();
  }

  // What a type of unknown size has cannot be checked.
  static Status check_size(const SafetensorsTensor& tensor, uint64_t size) {
    const TypeSize* known = type_size(tensor.type_name);
    if (known == nullptr) return Status();
    uint64_t bits = 0;
    const bool overflow = __builtin_mul_overflow(static_cast<uint64_t>(tensor.num_elements()),
                                                 uint64_t{known->bits}, &bits);
    if (!overflow && bits % 8 == 0 && bits / 8 == size) return Status();
    return data_loss(tensor.name,
                     "expected " + (overflow ? "more than 2^61" : std::to_string((bits + 7) / 8)) +
                         " bytes for " + tensor.type_name + " of its shape, found " +
                         std::to_string(size));
  }

  Status check_contiguous() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    uint64_t at = 0;
    for (const Range& range : ranges_) {
      if (range.begin != at) {
        return data_loss(file_.tensors_[range.tensor].name,
                         std::string("expected data that begin at byte ") + std::to_string(at) +
                             ", where the tensor before ends, found bytes " +
                             range_text(range.begin, range.end));
      }
      at = range.end;
    }
    if (at != data_.size()) {
      return data_loss("header", "expected tensors up to the end of the file at byte " +
                                     std::to_string(data_.size()) + ", found them up to " +
                                     std::to_string(at));
    }
    return Status();
  }

  struct Range {
    uint64_t begin;
    uint64_t end;
    size_t tensor;
  };

  std::span<const std::byte> bytes_;
  std::span<const std::byte> data_;
  SafetensorsFile& file_;
  std::vector<Range> ranges_;
};

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  CHORUS_ASSIGN_OR_RETURN(MemoryMap map, MemoryMap::open(path));
  CHORUS_ASSIGN_OR_RETURN(SafetensorsFile file, parse(map.bytes()));
  file.map_ = std::move(map);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes) {
  SafetensorsFile file;
  CHORUS_RETURN_IF_ERROR(Parser(bytes, file).parse());
  return file;
}

const SafetensorsTensor* SafetensorsFile::find_tensor(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace chorus
