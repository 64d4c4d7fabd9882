#include "program/builder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/sha256.h"
#include "program/check_graph.h"
#include "program/image.h"
#include "program/limits.h"
#include "program/packing/r16k4.h"

namespace chorus {

// ---- Weights -----------------------------------------------------------------------------------

WeightId ProgramBuilder::add_weight(Weight weight, Source source) {
  if (source.owned != nullptr) source.bytes = *source.owned;
  weights_.push_back(std::move(weight));
  sources_.push_back(std::move(source));
  return static_cast<WeightId>(weights_.size() - 1);
}

WeightId ProgramBuilder::add_matrix(std::string name, WeightType type, int32_t rows,
                                    int32_t columns, std::span<const std::byte> source) {
  return add_weight({std::move(name), type, Packing::kR16K4, kR16K4Version, rows, columns, 0, 0},
                    {nullptr, source});
}

WeightId ProgramBuilder::add_matrix(std::string name, WeightType type, int32_t rows,
                                    int32_t columns, std::vector<std::byte> source) {
  return add_weight({std::move(name), type, Packing::kR16K4, kR16K4Version, rows, columns, 0, 0},
                    {std::make_shared<const std::vector<std::byte>>(std::move(source)), {}});
}

WeightId ProgramBuilder::add_vector(std::string name, std::span<const std::byte> source) {
  const auto columns = static_cast<int32_t>(std::min<size_t>(source.size() / 4, kMaxWidth));
  return add_weight({std::move(name), WeightType::kF32, Packing::kRowMajor, 1, 1, columns, 0, 0},
                    {nullptr, source});
}

WeightId ProgramBuilder::add_vector(std::string name, const std::vector<float>& source) {
  const auto bytes = std::as_bytes(std::span(source));
  const WeightId id = add_vector(std::move(name), bytes);
  auto owned = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  sources_.back() = {owned, *owned};
  return id;
}

// ---- Graph -------------------------------------------------------------------------------------

int32_t ProgramBuilder::width(ValueId id) const {
  CHORUS_CHECK(id >= 0 && static_cast<size_t>(id) < graph_.values.size());
  return graph_.values[static_cast<size_t>(id)].width;
}

ValueId ProgramBuilder::new_value(Rows rows, int32_t width) {
  graph_.values.push_back({rows, width});
  return static_cast<ValueId>(graph_.values.size() - 1);
}

ValueId ProgramBuilder::append(Op op, int32_t width) {
  Rows rows = Rows::kTokens;
  for (const ValueId id : op.inputs) {
    CHORUS_CHECK(id >= 0 && static_cast<size_t>(id) < graph_.values.size());
  }
  if (!op.inputs.empty()) rows = graph_.values[static_cast<size_t>(op.inputs[0])].rows;
  if (op.kind == OpKind::kSelectRows) rows = Rows::kWanted;
  const ValueId output = new_value(rows, width);
  op.outputs = {output};
  graph_.ops.push_back(std::move(op));
  return output;
}

ValueId ProgramBuilder::append_elementwise(OpKind kind, std::vector<ValueId> inputs, float factor) {
  Op op;
  op.kind = kind;
  op.inputs = std::move(inputs);
  op.scale = factor;
  const int32_t columns = width(op.inputs[0]);
  return append(std::move(op), columns);
}

int32_t ProgramBuilder::add_rope(RopeTable rope) {
  graph_.ropes.push_back(std::move(rope));
  return static_cast<int32_t>(graph_.ropes.size() - 1);
}

int32_t ProgramBuilder::add_group(WindowPolicy policy) {
  graph_.groups.push_back({policy, {}});
  return static_cast<int32_t>(graph_.groups.size() - 1);
}

int32_t ProgramBuilder::add_kv_layer(int32_t group, KvLayer layer) {
  CHORUS_CHECK(group >= 0 && static_cast<size_t>(group) < graph_.groups.size());
  const auto index = static_cast<int32_t>(graph_.kv_layers.size());
  graph_.kv_layers.push_back(layer);
  graph_.groups[static_cast<size_t>(group)].layers.push_back(index);
  return index;
}

ValueId ProgramBuilder::embed(WeightId table) {
  CHORUS_CHECK(table >= 0 && static_cast<size_t>(table) < weights_.size());
  Op op;
  op.kind = OpKind::kEmbed;
  op.weights = {table};
  return append(std::move(op), weights_[static_cast<size_t>(table)].columns);
}

ValueId ProgramBuilder::rms_norm(ValueId x, WeightId weight, float epsilon, int32_t group_width) {
  Op op;
  op.kind = OpKind::kRmsNorm;
  op.inputs = {x};
  if (weight != kNoWeight) op.weights = {weight};
  op.epsilon = epsilon;
  op.group_width = group_width;
  return append(std::move(op), width(x));
}

std::vector<ValueId> ProgramBuilder::linear(ValueId x, const std::vector<WeightId>& weights,
                                            const std::vector<WeightId>& biases) {
  CHORUS_CHECK(width(x) > 0 && !weights.empty());
  Op op;
  op.kind = OpKind::kLinear;
  op.inputs = {x};
  op.weights = weights;
  if (std::any_of(biases.begin(), biases.end(), [](WeightId id) { return id != kNoWeight; })) {
    op.biases = biases;
  }
  for (const WeightId id : weights) {
    CHORUS_CHECK(id >= 0 && static_cast<size_t>(id) < weights_.size());
    op.outputs.push_back(new_value(graph_.values[static_cast<size_t>(x)].rows,
                                   weights_[static_cast<size_t>(id)].rows));
  }
  std::vector<ValueId> outputs = op.outputs;
  graph_.ops.push_back(std::move(op));
  return outputs;
}

ValueId ProgramBuilder::rope(ValueId x, int32_t rope, int32_t head_dim, RopePairing pairing) {
  Op op;
  op.kind = OpKind::kRope;
  op.inputs = {x};
  op.rope = rope;
  op.head_dim = head_dim;
  op.pairing = pairing;
  return append(std::move(op), width(x));
}

ValueId ProgramBuilder::update_and_attend(ValueId q, ValueId k, ValueId v,
                                          const AttentionShape& shape) {
  Op op;
  op.kind = OpKind::kUpdateAndAttend;
  op.inputs = {q, k, v};
  op.layer = shape.layer;
  op.num_heads = shape.num_heads;
  op.num_kv_heads = shape.num_kv_heads;
  op.head_dim = shape.head_dim;
  op.scale = shape.scale;
  op.softcap = shape.softcap;
  op.sinks = shape.sinks;
  return append(std::move(op), width(q));
}

ValueId ProgramBuilder::add(ValueId a, ValueId b) {
  return append_elementwise(OpKind::kAdd, {a, b});
}
ValueId ProgramBuilder::mul(ValueId a, ValueId b) {
  return append_elementwise(OpKind::kMul, {a, b});
}
ValueId ProgramBuilder::scale(ValueId x, float factor) {
  return append_elementwise(OpKind::kScale, {x}, factor);
}
ValueId ProgramBuilder::silu(ValueId x) { return append_elementwise(OpKind::kSilu, {x}); }
ValueId ProgramBuilder::gelu(ValueId x) { return append_elementwise(OpKind::kGelu, {x}); }
ValueId ProgramBuilder::sigmoid(ValueId x) { return append_elementwise(OpKind::kSigmoid, {x}); }
ValueId ProgramBuilder::tanh_softcap(ValueId x, float cap) {
  return append_elementwise(OpKind::kTanhSoftcap, {x}, cap);
}
ValueId ProgramBuilder::select_rows(ValueId x) {
  return append_elementwise(OpKind::kSelectRows, {x});
}

// ---- Image -------------------------------------------------------------------------------------

namespace {

// Gives the next segment its place; `end` is where the segments end so far.
void place(uint64_t bytes, uint64_t& offset, uint64_t& end) {
  offset = align_segment(end);
  end = offset + bytes;
}

Segment place_text(std::span<const std::byte> bytes, uint64_t& end) {
  Segment segment;
  if (bytes.empty()) return segment;
  segment.bytes = bytes.size();
  segment.sha256 = sha256(bytes);
  place(segment.bytes, segment.offset, end);
  return segment;
}

void copy_text(std::span<const std::byte> bytes, const Segment& segment,
               std::span<std::byte> image) {
  if (!bytes.empty()) std::memcpy(image.data() + segment.offset, bytes.data(), bytes.size());
}

}  // namespace

Status ProgramBuilder::check_sources() const {
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Weight& weight = weights_[i];
    const auto expected = canonical_bytes(weight.type, weight.rows, weight.columns);
    if (expected && sources_[i].bytes.size() == *expected) continue;
    return invalid_argument("weights[" + weight.name + "].source",
                            "expected " + std::to_string(expected.value_or(0)) + " bytes, found " +
                                std::to_string(sources_[i].bytes.size()));
  }
  return Status();
}

Result<Manifest> ProgramBuilder::plan(const TextSegments& text, uint64_t& manifest_offset) const {
  Manifest manifest;
  manifest.architecture = facts.architecture;
  manifest.name = facts.name;
  manifest.context = facts.context;
  manifest.vocabulary = facts.vocabulary;
  manifest.methods = facts.methods;
  manifest.tokenizer = facts.tokenizer;
  manifest.graph = graph_;
  manifest.weights = weights_;
  manifest.weight_hashes.resize(weights_.size());
  constexpr uint64_t kFarEnd = static_cast<uint64_t>(INT64_MAX) / 2;
  uint64_t end = kImageHeaderBytes;
  for (Weight& weight : manifest.weights) {
    const auto bytes = weight.packing == Packing::kR16K4
                           ? packed_bytes(weight.type, weight.rows, weight.columns)
                           : canonical_bytes(weight.type, weight.rows, weight.columns);
    if (!bytes || *bytes > kFarEnd || end > kFarEnd) {
      return data_loss("weights[" + weight.name + "]", "the shape cannot be packed");
    }
    weight.bytes = *bytes;
    place(weight.bytes, weight.offset, end);
  }
  manifest.tokens = place_text(text.tokens, end);
  manifest.merges = place_text(text.merges, end);
  manifest.definition = place_text(text.definition, end);
  manifest.chat_template = place_text(text.chat_template, end);
  manifest_offset = align_segment(end);
  CHORUS_RETURN_IF_ERROR(check_manifest(manifest, kImageHeaderBytes, manifest_offset));
  CHORUS_RETURN_IF_ERROR(check_graph(manifest.graph, manifest.weights, manifest.vocabulary));
  CHORUS_RETURN_IF_ERROR(check_sources());
  return manifest;
}

void ProgramBuilder::write_weights(const BuildProgress& progress, std::span<std::byte> image,
                                   Manifest& manifest) const {
  uint64_t total_bytes = 0;
  for (const Weight& weight : manifest.weights) total_bytes += weight.bytes;
  uint64_t done_bytes = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Weight& weight = manifest.weights[i];
    const auto to = image.subspan(weight.offset, weight.bytes);
    const auto source = sources_[i].bytes;
    if (weight.packing == Packing::kR16K4) {
      pack_row_groups(weight.type, weight.rows, weight.columns, source, to, 0,
                      num_row_groups(weight.rows));
    } else {
      std::memcpy(to.data(), source.data(), source.size());
    }
    manifest.weight_hashes[i] = sha256(to);
    done_bytes += weight.bytes;
    if (progress) progress(done_bytes, total_bytes);
  }
}

Result<AlignedBuffer> ProgramBuilder::build_image(const BuildProgress& progress) const {
  TextSegments text;
  if (!facts.tokens.strings.empty()) text.tokens = encode_strings(facts.tokens);
  if (!facts.merges.strings.empty()) text.merges = encode_strings(facts.merges);
  text.definition = std::as_bytes(std::span(facts.definition));
  text.chat_template = std::as_bytes(std::span(facts.chat_template));
  uint64_t manifest_offset = 0;
  CHORUS_ASSIGN_OR_RETURN(Manifest manifest, plan(text, manifest_offset));

  // Hashes have a fixed width: the manifest's size does not depend on them.
  const size_t manifest_bytes = encode_manifest(manifest).size();
  CHORUS_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                          AlignedBuffer::create(manifest_offset + manifest_bytes));
  const std::span<std::byte> image = buffer.bytes();
  write_weights(progress, image, manifest);
  copy_text(text.tokens, manifest.tokens, image);
  copy_text(text.merges, manifest.merges, image);
  copy_text(text.definition, manifest.definition, image);
  copy_text(text.chat_template, manifest.chat_template, image);
  const auto encoded = encode_manifest(manifest);
  CHORUS_CHECK_EQ(encoded.size(), manifest_bytes);
  std::memcpy(image.data() + manifest_offset, encoded.data(), encoded.size());
  write_image_header(image, manifest_offset);
  return buffer;
}

Result<Program> ProgramBuilder::build(const BuildProgress& progress) const {
  CHORUS_ASSIGN_OR_RETURN(AlignedBuffer image, build_image(progress));
  return Program::from_bytes(std::move(image));
}

}  // namespace chorus
