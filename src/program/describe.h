// What a program is, for people and for JSON: sizes, types, groups, hashes, and the graph as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace chorus {

// Weights of one type together.
struct TypeTotal {
  std::string type;  // "Q4_1", "F32"
  int64_t num_weights = 0;
  int64_t num_parameters = 0;  // elements, without padding
  uint64_t bytes = 0;          // in the file, with padding
};

struct GroupDescription {
  int32_t window = 0;  // 0: full history
  std::vector<int32_t> layers;
  int64_t kv_bytes_per_token_bf16 = 0;  // K and V of all layers of the group
  int64_t kv_bytes_per_token_f32 = 0;
};

struct WeightDescription {
  std::string name;
  std::string type;
  std::string packing;
  int32_t rows = 0;
  int32_t columns = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::string sha256;  // hexadecimal
};

struct ProgramDescription {
  std::string architecture;
  std::string name;
  int32_t numerics_version = 0;
  int32_t context = 0;
  int32_t vocabulary = 0;
  int32_t num_layers = 0;  // with KV
  int32_t width = 0;       // of the embedding
  int64_t num_parameters = 0;
  uint64_t file_bytes = 0;
  uint64_t weight_bytes = 0;
  std::vector<Method> methods;
  std::vector<GroupDescription> groups;
  int64_t kv_bytes_per_token_bf16 = 0;  // of all groups, while all of them hold the token
  int64_t kv_bytes_per_token_f32 = 0;
  std::vector<TypeTotal> weights_by_type;  // most bytes first
  std::vector<WeightDescription> weights;  // in the order of the file
  std::string tokenizer_model;             // empty: none
  std::string tokenizer_pre;
  int64_t num_tokens = 0;
  int64_t num_merges = 0;
  bool has_chat_template = false;
  std::string content;      // hexadecimal
  std::string kv_identity;  // hexadecimal
};

ProgramDescription describe(const Program& program);

// One line per operator, in order, without a line end:
//   "%2 %3 %4 = linear(%1) [blk.0.attn_q.weight, ...]"
std::vector<std::string> graph_lines(const Program& program);

}  // namespace chorus
