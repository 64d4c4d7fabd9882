// Writes safetensors files for tests: small, in memory, and wrong where a test wants it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "json/value.h"

namespace chorus {

// Fields are public so that a test can change any of them before finish().
class SafetensorsWriter {
 public:
  using Bytes = std::vector<std::byte>;

  struct Tensor {
    std::string name;
    std::string type;
    std::vector<int64_t> shape;
    Bytes data;
  };

  json::Value metadata;  // null: none
  std::vector<Tensor> tensors;
  std::string padding;  // after the header's JSON

  void add(std::string name, std::string type, std::vector<int64_t> shape, Bytes data) {
    tensors.push_back({std::move(name), std::move(type), std::move(shape), std::move(data)});
  }
  // Zeros of as many bytes as F32, F16 and BF16 need.
  void add_zeros(std::string name, std::string type, std::vector<int64_t> shape) {
    size_t size = type == "F32" ? 4 : 2;
    for (const int64_t dim : shape) size *= static_cast<size_t>(dim);
    add(std::move(name), std::move(type), std::move(shape), Bytes(size));
  }
  Tensor& tensor(std::string_view name) {
    for (Tensor& each : tensors) {
      if (each.name == name) return each;
    }
    tensors.push_back({std::string(name), "F32", {}, {}});
    return tensors.back();
  }

  // The header's members, in order: a test may replace any of them and call join().
  json::Object header() const {
    json::Object members;
    if (!metadata.is_null()) members.emplace_back("__metadata__", metadata);
    uint64_t at = 0;
    for (const Tensor& each : tensors) {
      json::Value entry;
      entry.set("dtype", each.type);
      entry.set("shape", json::Array(each.shape.begin(), each.shape.end()));
      entry.set("data_offsets", json::Array{at, at + each.data.size()});
      members.emplace_back(each.name, std::move(entry));
      at += each.data.size();
    }
    return members;
  }
  Bytes data() const {
    Bytes bytes;
    for (const Tensor& each : tensors)
      bytes.insert(bytes.end(), each.data.begin(), each.data.end());
    return bytes;
  }
  Bytes finish() const {
    const json::Object members = header();
    return join(json::Value(members).dump() + padding, data());
  }

  static Bytes join(std::string_view header, const Bytes& data) {
    Bytes bytes(8 + header.size());
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, sizeof length);
    std::memcpy(bytes.data() + 8, header.data(), header.size());
    bytes.insert(bytes.end(), data.begin(), data.end());
    return bytes;
  }
};

}  // namespace chorus
