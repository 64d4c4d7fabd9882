// The canonical graph of a program: unfused operators over values, as plain data.
//
// A value is a matrix of f32 with a symbolic number of rows: T (every row of the slice) or K (the
// wanted rows, after select_rows). Values are numbered from 0 in the order in which operators
// produce them; an operator reads only values of earlier operators, so a graph cannot be cyclic.
// Numerics of each operator: docs/formats.md. Fusion and memory planning are a backend's business.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kv/types.h"

namespace chorus {

using ValueId = int32_t;
using WeightId = int32_t;
inline constexpr WeightId kNoWeight = -1;

enum class Rows : uint8_t { kTokens, kWanted };  // T and K

// Files hold their names (program/names.h), not the numbers.
enum class OpKind : uint8_t {
  kEmbed = 0,  // tokens -> [T, width]; weights: table
  kRmsNorm =
      1,  // x -> same shape; groups of `group_width` columns (0: the whole row); weight optional
  kLinear = 2,           // x -> one value per weight segment, [rows(x), segment rows]
  kRope = 3,             // x -> same shape; heads of `head_dim` columns, rotated by position
  kUpdateAndAttend = 4,  // q, k, v -> [T, width(q)]; writes k, v to KV layer `layer`, then attends
  kAdd = 5,              // a, b -> same shape
  kMul = 6,              // a, b -> same shape
  kScale = 7,            // x -> x * scale
  kSilu = 8,             // x -> x * sigmoid(x)
  kGelu = 9,             // tanh form
  kSigmoid = 10,
  kTanhSoftcap = 11,  // x -> scale * tanh(x / scale)
  kSelectRows = 12,   // [T, w] -> [K, w]
};

enum class RopePairing : uint8_t {
  kAdjacent = 0,
  kHalf = 1
};  // (2i, 2i+1), or (i, i + head_dim/2)

// One operator. Fields that its kind does not use have their defaults, and the reader checks that.
struct Op {
  OpKind kind = OpKind::kAdd;
  int32_t version = 1;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<WeightId> weights;  // kEmbed: 1; kRmsNorm: 0 or 1; kLinear: one per output
  std::vector<WeightId> biases;   // kLinear: empty, or one per output (kNoWeight: none)
  float epsilon = 0.0f;           // kRmsNorm
  float scale = 0.0f;             // kScale, kTanhSoftcap; kUpdateAndAttend: of q k^T
  float softcap = 0.0f;           // kUpdateAndAttend: 0 = none
  int32_t group_width = 0;        // kRmsNorm
  int32_t head_dim = 0;           // kRope, kUpdateAndAttend
  int32_t num_heads = 0;          // kUpdateAndAttend: query heads
  int32_t num_kv_heads = 0;       // kUpdateAndAttend
  int32_t layer = -1;             // kUpdateAndAttend: KV layer index
  WeightId sinks = kNoWeight;     // kUpdateAndAttend: one f32 per query head
  RopePairing pairing = RopePairing::kAdjacent;
  int32_t rope = -1;  // kRope: index into Graph::ropes
};

struct Value {
  Rows rows = Rows::kTokens;
  int32_t width = 0;
};

// Rotation angles: angle(position, i) = position * theta^(-2 i / dims) / factor_i, i < dims / 2.
struct RopeTable {
  double theta = 0.0;
  int32_t dims = 0;            // leading columns of a head that are rotated
  std::vector<float> factors;  // [dims / 2], or empty: all 1
};

// Layers that share one KV policy.
struct LayerGroup {
  WindowPolicy policy;
  std::vector<int32_t> layers;  // ascending; every KV layer is in exactly one group
};

// K and V of one layer.
struct KvLayer {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
};

// [T tokens] in, logits [K, vocabulary] out: the last operator's output.
struct Graph {
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<RopeTable> ropes;
  std::vector<KvLayer> kv_layers;
  std::vector<LayerGroup> groups;
};

// Stored form of a weight's elements.
enum class WeightType : uint8_t {
  kF32 = 0,
  kQ4_0 = 1,
  kQ4_1 = 2,
  kQ8_0 = 3,
  kQ5_0 = 4,
  kQ5_1 = 5,
  kQ4_K = 6,
  kQ5_K = 7,
  kQ6_K = 8,
  kBF16 = 9,
  kF16 = 10,
};
inline constexpr int kNumWeightTypes = 11;

// How a weight's bytes are laid out.
enum class Packing : uint8_t {
  kRowMajor = 0,  // [rows, columns] f32; vectors, norms, biases
  kR16K4 = 1,     // program/packing: records of 16 rows x 32 columns (K-quants: 256)
};

// One entry of the weight table. A matrix is kR16K4; its rows are padded to 16 and its columns to
// 32, with zeros.
struct Weight {
  std::string name;  // the checkpoint's name, for people
  WeightType type = WeightType::kF32;
  Packing packing = Packing::kRowMajor;
  int32_t packing_version = 1;
  int32_t rows = 0;  // as the graph uses them, without padding
  int32_t columns = 0;
  uint64_t offset = 0;  // of its segment in the file, 64-byte aligned
  uint64_t bytes = 0;
};

}  // namespace chorus
