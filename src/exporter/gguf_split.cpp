// GGUF checkpoints in several files. Source of the keys and names: llama.cpp's gguf-split.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "exporter/gguf.h"
#include "program/names.h"

namespace chorus {

namespace {

constexpr int64_t kMaxParts = 9999;
constexpr char kNumberKey[] = "split.no";
constexpr char kCountKey[] = "split.count";
constexpr char kTensorsKey[] = "split.tensors.count";

// What stands at the end of the name of part `number`, counted from 0.
std::string part_ending(int64_t number, int64_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05lld-of-%05lld.gguf", static_cast<long long>(number + 1),
                static_cast<long long>(count));
  return text;
}

// Which file to open in the place of this one, for a message.
std::string first_part_hint(const std::string& name, int64_t number, int64_t count) {
  const std::string ending = part_ending(number, count);
  if (!name.ends_with(ending) || !is_printable_utf8(name)) return "";
  return ": open " + name.substr(0, name.size() - ending.size()) + part_ending(0, count);
}

Status number_error(int64_t expected, int64_t found, const std::string& hint = "") {
  return data_loss(kNumberKey, "expected part " + std::to_string(expected + 1) + ", found part " +
                                   std::to_string(found + 1) + hint);
}

bool same_value(const GgufValue& a, const GgufValue& b) {
  return a.type == b.type && a.is_array == b.is_array && a.count == b.count &&
         std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

}  // namespace

Result<GgufFile::Split> GgufFile::split() const {
  Split split;
  CHORUS_ASSIGN_OR_RETURN(const auto count, find_int(kCountKey, 0, kMaxParts));
  // Some writers leave a count of 0 or 1 in files that are whole.
  if (!count || *count <= 1) return split;
  split.count = *count;
  CHORUS_ASSIGN_OR_RETURN(split.number, get_int(kNumberKey, 0, split.count - 1));
  CHORUS_ASSIGN_OR_RETURN(split.num_tensors, find_int(kTensorsKey, 0, INT32_MAX));
  return split;
}

Status GgufFile::append(GgufFile part) {
  CHORUS_ASSIGN_OR_RETURN(const Split whole, split());
  CHORUS_ASSIGN_OR_RETURN(const Split own, part.split());
  if (own.count != whole.count) {
    return data_loss(kCountKey, "expected " + std::to_string(whole.count) +
                                    ", as in the first part, found " + std::to_string(own.count));
  }
  if (own.number != num_parts_) return number_error(num_parts_, own.number);
  if (own.num_tensors && own.num_tensors != whole.num_tensors) {
    return data_loss(kTensorsKey, "expected the number that the first part has, found " +
                                      std::to_string(*own.num_tensors));
  }
  for (const GgufValue& value : part.values_) {
    if (value.key == kNumberKey) continue;
    const GgufValue* first = find(value.key);
    if (first == nullptr || !same_value(*first, value)) {
      return data_loss(std::string(value.key), "expected the value of the first part");
    }
  }
  for (GgufTensor& tensor : part.tensors_) {
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return data_loss(std::string(tensor.name),
                       "expected each tensor once, found it in two parts");
    }
    tensors_.push_back(std::move(tensor));
  }
  std::move(part.maps_.begin(), part.maps_.end(), std::back_inserter(maps_));
  num_parts_ += 1;
  return Status();
}

Status GgufFile::check_complete() const {
  CHORUS_ASSIGN_OR_RETURN(const Split whole, split());
  if (whole.number != 0) return number_error(0, whole.number);
  if (num_parts_ != whole.count) {
    return data_loss(kCountKey, "expected " + std::to_string(whole.count) + " parts, found " +
                                    std::to_string(num_parts_));
  }
  const int64_t found = std::ssize(tensors_);
  if (whole.num_tensors && *whole.num_tensors != found) {
    return data_loss(kTensorsKey, "expected " + std::to_string(*whole.num_tensors) +
                                      " tensors in all parts, found " + std::to_string(found));
  }
  return Status();
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  CHORUS_ASSIGN_OR_RETURN(MemoryMap map, MemoryMap::open(path));
  CHORUS_ASSIGN_OR_RETURN(GgufFile file, parse_part(map.bytes()));
  file.maps_.push_back(std::move(map));
  CHORUS_ASSIGN_OR_RETURN(const Split split, file.split());
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::string name = std::filesystem::path(path).filename().string();
  if (split.number != 0) {
    return number_error(0, split.number, first_part_hint(name, split.number, split.count));
  }
  const std::string ending = part_ending(0, split.count);
  if (split.count > 1 && !name.ends_with(ending)) {
    return data_loss(kCountKey, "expected a file name that ends with " + ending +
                                    ", beside which the other parts are found");
  }
  for (int64_t i = 1; i < split.count; ++i) {
    const std::string part_name =
        name.substr(0, name.size() - ending.size()) + part_ending(i, split.count);
    auto part_map = MemoryMap::open((folder / part_name).string());
    if (!part_map.ok()) {
      return data_loss(part_name,
                       "expected this part beside the first: " + part_map.status().message());
    }
    auto part = parse_part(part_map->bytes());
    Status status = part.status();
    if (part.ok()) {
      part->maps_.push_back(std::move(part_map).value());
      status = file.append(std::move(part).value());
    }
    if (status.field().starts_with("header")) return status.within(part_name);
    if (!status.ok()) {
      return Status(status.code(), status.field(), status.message() + ", in " + part_name);
    }
  }
  CHORUS_RETURN_IF_ERROR(file.check_complete());
  return file;
}

Result<GgufFile> GgufFile::parse_parts(std::span<const std::span<const std::byte>> parts) {
  if (parts.empty()) return data_loss(kCountKey, "expected at least one part, found none");
  CHORUS_ASSIGN_OR_RETURN(GgufFile file, parse_part(parts[0]));
  for (const auto bytes : parts.subspan(1)) {
    CHORUS_ASSIGN_OR_RETURN(GgufFile part, parse_part(bytes));
    CHORUS_RETURN_IF_ERROR(file.append(std::move(part)));
  }
  CHORUS_RETURN_IF_ERROR(file.check_complete());
  return file;
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes) {
  return parse_parts(std::span(&bytes, 1));
}

}  // namespace chorus
