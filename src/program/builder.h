// Makes programs: weights are added in the checkpoint's order and packed, operators are appended to
// the graph. The exporter's lowerings and tests use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "program/manifest.h"
#include "program/program.h"
#include "program/strings.h"

namespace chorus {

// Everything of a program but its graph and weights. Views must outlive build().
struct ProgramFacts {
  std::string architecture;
  std::string name;
  int32_t context = 0;
  int32_t vocabulary = 0;
  std::vector<Method> methods;
  TokenizerFacts tokenizer;
  StringList tokens;  // with types, and scores where the model has them
  StringList merges;
  std::string_view definition;  // of kDefinedTokenizer
  std::string_view chat_template;
};

// The attention of one layer.
struct AttentionShape {
  int32_t layer = 0;  // KV layer
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 0.0f;
  float softcap = 0.0f;
  WeightId sinks = kNoWeight;
};

// Called with bytes of weights done and in all, at least once per weight.
using BuildProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Widths of results follow from inputs and weights. Calls with ids that were not handed out are
// bugs (CHORUS_CHECK); all else that is wrong is found by build(). Thread: one at a time.
class ProgramBuilder {
 public:
  // Set its fields before build().
  ProgramFacts facts;

  // A matrix [rows, columns] to be packed as R16K4; `source` is in the checkpoint's order
  // (program/packing/r16k4.h) and must outlive build().
  WeightId add_matrix(std::string name, WeightType type, int32_t rows, int32_t columns,
                      std::span<const std::byte> source);
  // A vector of floats: bytes of f32, that must outlive build().
  WeightId add_vector(std::string name, std::span<const std::byte> source);
  // As above; the builder keeps the bytes.
  WeightId add_matrix(std::string name, WeightType type, int32_t rows, int32_t columns,
                      std::vector<std::byte> source);
  WeightId add_vector(std::string name, const std::vector<float>& source);

  int32_t add_rope(RopeTable rope);
  int32_t add_group(WindowPolicy policy);
  // The KV layer's index. Requires: `group` from add_group.
  int32_t add_kv_layer(int32_t group, KvLayer layer);

  ValueId embed(WeightId table);
  // group_width 0: over the whole row. weight may be kNoWeight.
  ValueId rms_norm(ValueId x, WeightId weight, float epsilon, int32_t group_width = 0);
  // One value per weight; `biases` is empty or has one entry per weight (kNoWeight: none).
  std::vector<ValueId> linear(ValueId x, const std::vector<WeightId>& weights,
                              const std::vector<WeightId>& biases = {});
  ValueId rope(ValueId x, int32_t rope, int32_t head_dim, RopePairing pairing);
  ValueId update_and_attend(ValueId q, ValueId k, ValueId v, const AttentionShape& shape);
  ValueId add(ValueId a, ValueId b);
  ValueId mul(ValueId a, ValueId b);
  ValueId scale(ValueId x, float factor);
  ValueId silu(ValueId x);
  ValueId gelu(ValueId x);
  ValueId sigmoid(ValueId x);
  ValueId tanh_softcap(ValueId x, float cap);
  ValueId select_rows(ValueId x);

  // The file image, packed and hashed; the same calls give the same bytes. Errors: kDataLoss with
  // the field, as a reader of the file would give; kInvalidArgument for a source of the wrong size,
  // field "weights[NAME].source".
  Result<AlignedBuffer> build_image(const BuildProgress& progress = {}) const;
  // The same, loaded.
  Result<Program> build(const BuildProgress& progress = {}) const;

 private:
  struct Source {
    std::shared_ptr<const std::vector<std::byte>> owned;  // null when the caller keeps the bytes
    std::span<const std::byte> bytes;
  };
  struct TextSegments {
    std::vector<std::byte> tokens;
    std::vector<std::byte> merges;
    std::span<const std::byte> definition;
    std::span<const std::byte> chat_template;
  };

  int32_t width(ValueId id) const;
  WeightId add_weight(Weight weight, Source source);
  // Appends `op` with one output of `width` columns and rows like its first input.
  ValueId append(Op op, int32_t width);
  ValueId append_elementwise(OpKind kind, std::vector<ValueId> inputs, float factor = 0.0f);
  ValueId new_value(Rows rows, int32_t width);

  Status check_sources() const;
  // The manifest with every segment in its place and no hashes of weights yet, checked.
  Result<Manifest> plan(const TextSegments& text, uint64_t& manifest_offset) const;
  void write_weights(const BuildProgress& progress, std::span<std::byte> image,
                     Manifest& manifest) const;

  Graph graph_;
  std::vector<Weight> weights_;
  std::vector<Source> sources_;
};

}  // namespace chorus
