// Writes GGUF files for tests: small, in memory, and wrong where a test wants it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exporter/gguf.h"
#include "program/testing/tiny_program.h"

namespace chorus {

// Fields are public so that a test can change any of them before finish().
class GgufWriter {
 public:
  using Bytes = std::vector<std::byte>;

  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type = 0;
    Bytes data;
  };

  uint32_t version = 3;
  uint64_t alignment = 32;
  std::vector<std::pair<std::string, Bytes>> values;  // key, type and payload
  std::vector<Tensor> tensors;

  void set_u32(const std::string& key, uint32_t value) { set(key, GgufType::kU32, value); }
  void set_f32(const std::string& key, float value) { set(key, GgufType::kF32, value); }
  void set_bool(const std::string& key, bool value) {
    set(key, GgufType::kBool, static_cast<uint8_t>(value ? 1 : 0));
  }
  void set_string(const std::string& key, std::string_view value) {
    Bytes bytes;
    append(bytes, GgufType::kString);
    append_string(bytes, value);
    replace(key, std::move(bytes));
  }
  void set_strings(const std::string& key, const std::vector<std::string>& list) {
    Bytes bytes = array_head(GgufType::kString, list.size());
    for (const std::string& text : list) append_string(bytes, text);
    replace(key, std::move(bytes));
  }
  void set_i32s(const std::string& key, const std::vector<int32_t>& list) {
    Bytes bytes = array_head(GgufType::kI32, list.size());
    for (const int32_t number : list) append(bytes, number);
    replace(key, std::move(bytes));
  }
  void set_f32s(const std::string& key, const std::vector<float>& list) {
    Bytes bytes = array_head(GgufType::kF32, list.size());
    for (const float number : list) append(bytes, number);
    replace(key, std::move(bytes));
  }
  void remove(const std::string& key) {
    std::erase_if(values, [&](const auto& value) { return value.first == key; });
  }
  void remove_tensor(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
  }
  Tensor& tensor(const std::string& name) {
    for (Tensor& each : tensors) {
      if (each.name == name) return each;
    }
    tensors.push_back({name, {}, 0, {}});
    return tensors.back();
  }

  Bytes finish() const {
    Bytes bytes;
    for (const char c : std::string_view("GGUF")) append(bytes, c);
    append(bytes, version);
    append(bytes, uint64_t{tensors.size()});
    append(bytes, uint64_t{values.size()});
    for (const auto& [key, payload] : values) {
      append_string(bytes, key);
      bytes.insert(bytes.end(), payload.begin(), payload.end());
    }
    uint64_t offset = 0;
    for (const Tensor& each : tensors) {
      append_string(bytes, each.name);
      append(bytes, static_cast<uint32_t>(each.dims.size()));
      for (const uint64_t dim : each.dims) append(bytes, dim);
      append(bytes, each.type);
      append(bytes, offset);
      offset += (each.data.size() + alignment - 1) / alignment * alignment;
    }
    for (const Tensor& each : tensors) {
      bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
      bytes.insert(bytes.end(), each.data.begin(), each.data.end());
    }
    return bytes;
  }

  template <typename T>
  static void append(Bytes& bytes, T value) {
    const size_t at = bytes.size();
    bytes.resize(at + sizeof value);
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
  static void append_string(Bytes& bytes, std::string_view text) {
    append(bytes, uint64_t{text.size()});
    for (const char c : text) append(bytes, c);
  }
  // Replaces the value of a key, or adds it.
  void replace(const std::string& key, Bytes payload) {
    for (auto& value : values) {
      if (value.first == key) {
        value.second = std::move(payload);
        return;
      }
    }
    values.emplace_back(key, std::move(payload));
  }

 private:
  template <typename T>
  void set(const std::string& key, GgufType type, T value) {
    Bytes bytes;
    append(bytes, type);
    append(bytes, value);
    replace(key, std::move(bytes));
  }
  static Bytes array_head(GgufType type, size_t count) {
    Bytes bytes;
    append(bytes, GgufType::kArray);
    append(bytes, type);
    append(bytes, uint64_t{count});
    return bytes;
  }
};

// A llama checkpoint of one layer with random weights: width 32, 2 heads of 16, 1 KV head, ff 64,
// vocabulary 20, matrices Q4_0 and Q8_0, tied head, a small tokenizer.
inline GgufWriter tiny_gguf() {
  GgufWriter w;
  w.set_string("general.architecture", "llama");
  w.set_string("general.name", "tiny");
  w.set_u32("llama.block_count", 1);
  w.set_u32("llama.context_length", 128);
  w.set_u32("llama.embedding_length", 32);
  w.set_u32("llama.feed_forward_length", 64);
  w.set_u32("llama.attention.head_count", 2);
  w.set_u32("llama.attention.head_count_kv", 1);
  w.set_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  w.set_u32("llama.rope.dimension_count", 16);
  w.set_string("tokenizer.ggml.model", "gpt2");
  std::vector<std::string> tokens;
  for (int i = 0; i < 20; ++i) tokens.push_back(std::string(1, static_cast<char>('a' + i)));
  tokens[19] = "<|im_end|>";
  std::vector<int32_t> types(20, 1);
  types[19] = 3;
  w.set_strings("tokenizer.ggml.tokens", tokens);
  w.set_i32s("tokenizer.ggml.token_type", types);
  w.set_strings("tokenizer.ggml.merges", {"a b"});
  w.set_u32("tokenizer.ggml.eos_token_id", 0);
  w.set_string("tokenizer.chat_template", "{{ messages }}");
  uint64_t seed = 1;
  const auto matrix = [&](const char* name, WeightType type, int32_t rows, int32_t columns) {
    const uint32_t ggml_type = type == WeightType::kQ4_0   ? kGgmlQ4_0
                               : type == WeightType::kQ8_0 ? kGgmlQ8_0
                                                           : kGgmlF32;
    w.tensors.push_back({name,
                         {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)},
                         ggml_type,
                         random_matrix(type, rows, columns, seed++)});
  };
  const auto norm = [&](const char* name) {
    w.tensors.push_back({name, {32}, kGgmlF32, random_matrix(WeightType::kF32, 1, 32, seed++)});
  };
  matrix("token_embd.weight", WeightType::kQ8_0, 20, 32);
  norm("blk.0.attn_norm.weight");
  matrix("blk.0.attn_q.weight", WeightType::kQ4_0, 32, 32);
  matrix("blk.0.attn_k.weight", WeightType::kQ8_0, 16, 32);
  matrix("blk.0.attn_v.weight", WeightType::kF32, 16, 32);
  matrix("blk.0.attn_output.weight", WeightType::kQ4_0, 32, 32);
  norm("blk.0.ffn_norm.weight");
  matrix("blk.0.ffn_gate.weight", WeightType::kQ4_0, 64, 32);
  matrix("blk.0.ffn_up.weight", WeightType::kQ4_0, 64, 32);
  matrix("blk.0.ffn_down.weight", WeightType::kQ4_0, 32, 64);
  norm("output_norm.weight");
  return w;
}

}  // namespace chorus
