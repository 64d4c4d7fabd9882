#include <cstring>
#include <type_traits>

#include "program/manifest.h"

namespace chorus {

namespace {

// Bytes to be hashed: numbers in their fixed width, lists with their length in front, so that no
// two different manifests give the same bytes.
class HashInput {
 public:
  template <typename T>
  void add(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    add_bytes(&value, sizeof value);
  }
  template <typename T>
  void add_list(const std::vector<T>& values) {
    add(uint64_t{values.size()});
    add_bytes(values.data(), values.size() * sizeof(T));
  }
  void add_bytes(const void* data, size_t size) {
    if (size == 0) return;
    const auto* bytes = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), bytes, bytes + size);
  }
  Digest hash() const { return sha256(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

void add_op(HashInput& input, const Op& op) {
  input.add(op.kind);
  input.add(op.version);
  input.add_list(op.inputs);
  input.add_list(op.outputs);
  input.add_list(op.weights);
  input.add_list(op.biases);
  input.add(op.epsilon);
  input.add(op.scale);
  input.add(op.softcap);
  input.add(op.group_width);
  input.add(op.head_dim);
  input.add(op.num_heads);
  input.add(op.num_kv_heads);
  input.add(op.layer);
  input.add(op.sinks);
  input.add(op.pairing);
  input.add(op.rope);
}

}  // namespace

Digest kv_identity(const Manifest& manifest) {
  const Graph& graph = manifest.graph;
  HashInput input;
  input.add(manifest.numerics_version);
  input.add(uint64_t{graph.values.size()});
  for (const Value& value : graph.values) {
    input.add(value.rows);
    input.add(value.width);
  }
  input.add(uint64_t{graph.ops.size()});
  for (const Op& op : graph.ops) add_op(input, op);
  input.add(uint64_t{graph.ropes.size()});
  for (const RopeTable& rope : graph.ropes) {
    input.add(rope.theta);
    input.add(rope.dims);
    input.add_list(rope.factors);
  }
  input.add(uint64_t{graph.kv_layers.size()});
  for (const KvLayer& layer : graph.kv_layers) {
    input.add(layer.num_kv_heads);
    input.add(layer.head_dim);
  }
  input.add(uint64_t{graph.groups.size()});
  for (const LayerGroup& group : graph.groups) {
    input.add(group.policy.window);
    input.add_list(group.layers);
  }
  input.add(uint64_t{manifest.weights.size()});
  for (size_t i = 0; i < manifest.weights.size(); ++i) {
    const Weight& weight = manifest.weights[i];
    input.add(weight.type);
    input.add(weight.packing);
    input.add(weight.packing_version);
    input.add(weight.rows);
    input.add(weight.columns);
    input.add_bytes(manifest.weight_hashes[i].data(), manifest.weight_hashes[i].size());
  }
  return input.hash();
}

}  // namespace chorus
