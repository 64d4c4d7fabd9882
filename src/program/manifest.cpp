#include "program/manifest.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "program/limits.h"
#include "program/names.h"
#include "program_generated.h"

namespace chorus {

namespace {

namespace fb = flatbuffers;

// An operator has at most this many inputs.
constexpr uint32_t kMaxInputs = 8;

// ---- Writing -----------------------------------------------------------------------------------

file::Sha256 encode_digest(const Digest& digest) {
  return file::Sha256(fb::span<const uint8_t, 32>(digest.data(), digest.size()));
}

file::Segment encode_segment(const Segment& segment) {
  return file::Segment(segment.offset, segment.bytes, encode_digest(segment.sha256));
}

fb::Offset<fb::String> encode_name(fb::FlatBufferBuilder& builder, std::string_view name) {
  return builder.CreateSharedString(name.data(), name.size());
}

fb::Offset<fb::Vector<int32_t>> encode_ids(fb::FlatBufferBuilder& builder,
                                           const std::vector<int32_t>& ids) {
  return ids.empty() ? fb::Offset<fb::Vector<int32_t>>() : builder.CreateVector(ids);
}

fb::Offset<file::Op> encode_op(fb::FlatBufferBuilder& builder, const Op& op) {
  const auto kind = encode_name(builder, op_name(op.kind));
  const auto pairing = op.kind == OpKind::kRope ? encode_name(builder, pairing_name(op.pairing))
                                                : fb::Offset<fb::String>();
  const auto inputs = encode_ids(builder, op.inputs);
  const auto outputs = encode_ids(builder, op.outputs);
  const auto weights = encode_ids(builder, op.weights);
  const auto biases = encode_ids(builder, op.biases);
  return file::CreateOp(builder, kind, op.version, inputs, outputs, weights, biases, op.epsilon,
                        op.scale, op.softcap, op.group_width, op.head_dim, op.num_heads,
                        op.num_kv_heads, op.layer, op.sinks, pairing, op.rope);
}

fb::Offset<file::Weight> encode_weight(fb::FlatBufferBuilder& builder, const Weight& weight,
                                       const Digest& hash) {
  const auto name = encode_name(builder, weight.name);
  const auto type = encode_name(builder, weight_type_name(weight.type));
  const auto packing = encode_name(builder, packing_name(weight.packing));
  const file::Segment segment(weight.offset, weight.bytes, encode_digest(hash));
  return file::CreateWeight(builder, name, type, packing, weight.packing_version, weight.rows,
                            weight.columns, &segment);
}

fb::Offset<file::Tokenizer> encode_tokenizer(fb::FlatBufferBuilder& builder,
                                             const Manifest& manifest) {
  const TokenizerFacts& facts = manifest.tokenizer;
  const auto model = encode_name(builder, facts.model);
  const auto pre = encode_name(builder, facts.pre);
  const auto end_ids = encode_ids(builder, facts.end_ids);
  const file::Segment tokens = encode_segment(manifest.tokens);
  const file::Segment merges = encode_segment(manifest.merges);
  const file::Segment definition = encode_segment(manifest.definition);
  return file::CreateTokenizer(builder, model, pre, facts.bos, facts.eos, facts.eot, facts.pad,
                               facts.unk, end_ids, facts.add_bos, facts.add_eos,
                               facts.add_space_prefix, &tokens, &merges, &definition);
}

// Calls `encode(builder, item)` for each item; the vector of the results.
template <typename Table, typename Item, typename Encode>
fb::Offset<fb::Vector<fb::Offset<Table>>> encode_tables(fb::FlatBufferBuilder& builder,
                                                        const std::vector<Item>& items,
                                                        Encode encode) {
  std::vector<fb::Offset<Table>> tables;
  for (const Item& item : items) tables.push_back(encode(builder, item));
  return builder.CreateVector(tables);
}

// ---- Reading -----------------------------------------------------------------------------------

std::string indexed(std::string_view list, uint32_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

template <typename List>
Result<uint32_t> count_of(const List* list, uint32_t max, std::string_view field) {
  const uint32_t count = list == nullptr ? 0 : list->size();
  if (count <= max) return count;
  return data_loss(std::string(field),
                   "expected at most " + std::to_string(max) + ", found " + std::to_string(count));
}

template <typename T>
Status decode_list(const fb::Vector<T>* from, uint32_t max, std::string_view field,
                   std::vector<T>& to) {
  CHORUS_ASSIGN_OR_RETURN(const uint32_t count, count_of(from, max, field));
  if (count > 0) to.assign(from->data(), from->data() + count);
  return Status();
}

Status decode_string(const fb::String* from, std::string_view field, std::string& to) {
  CHORUS_ASSIGN_OR_RETURN(const uint32_t count, count_of(from, kMaxNameBytes, field));
  if (count > 0) to.assign(from->c_str(), count);
  return Status();
}

// A name out of a closed set: `parse` gives nullopt for an unknown one.
template <typename Enum>
Status decode_name(const fb::String* from, std::string_view field,
                   std::optional<Enum> (*parse)(std::string_view), Enum& to) {
  std::string name;
  CHORUS_RETURN_IF_ERROR(decode_string(from, field, name));
  const std::optional<Enum> value = parse(name);
  if (!value) {
    return data_loss(std::string(field),
                     "expected a name that this version knows, found " + quoted(name));
  }
  to = *value;
  return Status();
}

Segment decode_segment(const file::Segment* from) {
  Segment segment;
  if (from == nullptr) return segment;
  segment.offset = from->offset();
  segment.bytes = from->bytes();
  std::memcpy(segment.sha256.data(), from->sha256().bytes()->Data(), segment.sha256.size());
  return segment;
}

Status decode_op(const file::Op* from, Op& op) {
  CHORUS_RETURN_IF_ERROR(decode_name(from->kind(), "kind", parse_op_kind, op.kind));
  if (from->pairing() != nullptr) {
    CHORUS_RETURN_IF_ERROR(decode_name(from->pairing(), "pairing", parse_pairing, op.pairing));
  }
  CHORUS_RETURN_IF_ERROR(decode_list(from->inputs(), kMaxInputs, "inputs", op.inputs));
  CHORUS_RETURN_IF_ERROR(
      decode_list(from->outputs(), kMaxSegmentsPerLinear, "outputs", op.outputs));
  CHORUS_RETURN_IF_ERROR(
      decode_list(from->weights(), kMaxSegmentsPerLinear, "weights", op.weights));
  CHORUS_RETURN_IF_ERROR(decode_list(from->biases(), kMaxSegmentsPerLinear, "biases", op.biases));
  op.version = from->version();
  op.epsilon = from->epsilon();
  op.scale = from->scale();
  op.softcap = from->softcap();
  op.group_width = from->group_width();
  op.head_dim = from->head_dim();
  op.num_heads = from->num_heads();
  op.num_kv_heads = from->num_kv_heads();
  op.layer = from->layer();
  op.sinks = from->sinks();
  op.rope = from->rope();
  return Status();
}

Status decode_weight(const file::Weight* from, Weight& weight, Digest& hash) {
  CHORUS_RETURN_IF_ERROR(decode_string(from->name(), "name", weight.name));
  CHORUS_RETURN_IF_ERROR(decode_name(from->type(), "type", parse_weight_type, weight.type));
  CHORUS_RETURN_IF_ERROR(decode_name(from->packing(), "packing", parse_packing, weight.packing));
  weight.packing_version = from->packing_version();
  weight.rows = from->rows();
  weight.columns = from->columns();
  const Segment segment = decode_segment(from->segment());
  weight.offset = segment.offset;
  weight.bytes = segment.bytes;
  hash = segment.sha256;
  return Status();
}

Status decode_rope(const file::RopeTable* from, RopeTable& rope) {
  rope.theta = from->theta();
  rope.dims = from->dims();
  return decode_list(from->factors(), static_cast<uint32_t>(kMaxHeadDim), "factors", rope.factors);
}

Status decode_group(const file::LayerGroup* from, LayerGroup& group) {
  group.policy.window = from->window();
  return decode_list(from->layers(), kMaxKvLayers, "layers", group.layers);
}

Status decode_method(const file::Method* from, Method& method) {
  method.min_tokens = from->min_tokens();
  method.max_tokens = from->max_tokens();
  method.min_wanted = from->min_wanted();
  CHORUS_RETURN_IF_ERROR(decode_list(from->widths(), kMaxWidths, "widths", method.widths));
  return decode_string(from->name(), "name", method.name);
}

// Calls `decode(table, item)` for each table of a list.
template <typename Table, typename Item, typename Decode>
Status decode_tables(const fb::Vector<fb::Offset<Table>>* from, uint32_t max,
                     std::string_view field, std::vector<Item>& to, Decode decode) {
  CHORUS_ASSIGN_OR_RETURN(const uint32_t count, count_of(from, max, field));
  to.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    const Status status = decode(from->Get(i), to[i]);
    if (!status.ok()) return status.within(indexed(field, i));
  }
  return Status();
}

Status decode_graph(const file::Program* from, Graph& graph) {
  CHORUS_ASSIGN_OR_RETURN(const uint32_t num_values,
                          count_of(from->values(), kMaxValues, "values"));
  for (uint32_t i = 0; i < num_values; ++i) {
    const file::Value* value = from->values()->Get(i);
    graph.values.push_back({value->wanted() ? Rows::kWanted : Rows::kTokens, value->width()});
  }
  CHORUS_ASSIGN_OR_RETURN(const uint32_t num_layers,
                          count_of(from->kv_layers(), kMaxKvLayers, "kv_layers"));
  for (uint32_t i = 0; i < num_layers; ++i) {
    const file::KvLayer* layer = from->kv_layers()->Get(i);
    graph.kv_layers.push_back({layer->num_kv_heads(), layer->head_dim()});
  }
  CHORUS_RETURN_IF_ERROR(decode_tables(from->ops(), kMaxOps, "ops", graph.ops, decode_op));
  CHORUS_RETURN_IF_ERROR(
      decode_tables(from->ropes(), kMaxRopes, "ropes", graph.ropes, decode_rope));
  return decode_tables(from->groups(), kMaxGroups, "groups", graph.groups, decode_group);
}

Status decode_tokenizer(const file::Tokenizer* from, Manifest& manifest) {
  TokenizerFacts& facts = manifest.tokenizer;
  CHORUS_RETURN_IF_ERROR(decode_string(from->model(), "model", facts.model));
  CHORUS_RETURN_IF_ERROR(decode_string(from->pre(), "pre", facts.pre));
  CHORUS_RETURN_IF_ERROR(decode_list(from->end_ids(), kMaxEndIds, "end_ids", facts.end_ids));
  facts.bos = from->bos();
  facts.eos = from->eos();
  facts.eot = from->eot();
  facts.pad = from->pad();
  facts.unk = from->unk();
  facts.add_bos = from->add_bos();
  facts.add_eos = from->add_eos();
  facts.add_space_prefix = from->add_space_prefix();
  manifest.tokens = decode_segment(from->vocabulary());
  manifest.merges = decode_segment(from->merges());
  manifest.definition = decode_segment(from->definition());
  return Status();
}

}  // namespace

std::vector<std::byte> encode_manifest(const Manifest& manifest) {
  CHORUS_CHECK_EQ(manifest.weights.size(), manifest.weight_hashes.size());
  fb::FlatBufferBuilder builder(size_t{1} << 16);
  const Graph& graph = manifest.graph;
  const auto methods = encode_tables<file::Method>(
      builder, manifest.methods, [](fb::FlatBufferBuilder& b, const Method& method) {
        const auto name = encode_name(b, method.name);
        const auto widths = encode_ids(b, method.widths);
        return file::CreateMethod(b, name, method.min_tokens, method.max_tokens, method.min_wanted,
                                  widths);
      });
  std::vector<file::Value> value_structs;
  for (const Value& value : graph.values) {
    value_structs.emplace_back(value.width, value.rows == Rows::kWanted);
  }
  const auto values = builder.CreateVectorOfStructs(value_structs);
  const auto ops = encode_tables<file::Op>(builder, graph.ops, encode_op);
  const auto ropes = encode_tables<file::RopeTable>(
      builder, graph.ropes, [](fb::FlatBufferBuilder& b, const RopeTable& rope) {
        const auto factors =
            rope.factors.empty() ? fb::Offset<fb::Vector<float>>() : b.CreateVector(rope.factors);
        return file::CreateRopeTable(b, rope.theta, rope.dims, factors);
      });
  std::vector<file::KvLayer> layer_structs;
  for (const KvLayer& layer : graph.kv_layers) {
    layer_structs.emplace_back(layer.num_kv_heads, layer.head_dim);
  }
  const auto kv_layers = builder.CreateVectorOfStructs(layer_structs);
  const auto groups = encode_tables<file::LayerGroup>(
      builder, graph.groups, [](fb::FlatBufferBuilder& b, const LayerGroup& group) {
        const auto layers = encode_ids(b, group.layers);
        return file::CreateLayerGroup(b, group.policy.window, layers);
      });
  size_t next_hash = 0;
  const auto weights = encode_tables<file::Weight>(
      builder, manifest.weights, [&](fb::FlatBufferBuilder& b, const Weight& weight) {
        return encode_weight(b, weight, manifest.weight_hashes[next_hash++]);
      });
  const auto tokenizer = encode_tokenizer(builder, manifest);
  const auto architecture = encode_name(builder, manifest.architecture);
  const auto name = encode_name(builder, manifest.name);
  const file::Segment chat_template = encode_segment(manifest.chat_template);
  builder.Finish(file::CreateProgram(builder, manifest.numerics_version, architecture, name,
                                     manifest.context, manifest.vocabulary, methods, values, ops,
                                     ropes, kv_layers, groups, weights, tokenizer, &chat_template));
  const auto* bytes = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {bytes, bytes + builder.GetSize()};
}

Result<Manifest> decode_manifest(std::span<const std::byte> bytes) {
  fb::Verifier::Options options;
  options.max_depth = 8;
  options.max_tables = kMaxOps + kMaxWeights + kMaxRopes + kMaxGroups + kMaxMethods + 16;
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  if (bytes.size() > kMaxManifestBytes) return data_loss("manifest", "the manifest is too large");
  fb::Verifier verifier(data, bytes.size(), options);
  if (!file::VerifyProgramBuffer(verifier)) {
    return data_loss("manifest", "the manifest is malformed");
  }
  const file::Program* from = file::GetProgram(data);
  Manifest manifest;
  manifest.numerics_version = from->numerics_version();
  manifest.context = from->context();
  manifest.vocabulary = from->vocabulary();
  CHORUS_RETURN_IF_ERROR(
      decode_string(from->architecture(), "architecture", manifest.architecture));
  CHORUS_RETURN_IF_ERROR(decode_string(from->name(), "name", manifest.name));
  CHORUS_RETURN_IF_ERROR(
      decode_tables(from->methods(), kMaxMethods, "methods", manifest.methods, decode_method));
  CHORUS_RETURN_IF_ERROR(decode_graph(from, manifest.graph));
  CHORUS_ASSIGN_OR_RETURN(const uint32_t num_weights,
                          count_of(from->weights(), kMaxWeights, "weights"));
  manifest.weight_hashes.resize(num_weights);
  size_t next_hash = 0;
  CHORUS_RETURN_IF_ERROR(decode_tables(from->weights(), kMaxWeights, "weights", manifest.weights,
                                       [&](const file::Weight* table, Weight& weight) {
                                         return decode_weight(table, weight,
                                                              manifest.weight_hashes[next_hash++]);
                                       }));
  if (from->tokenizer() != nullptr) {
    const Status status = decode_tokenizer(from->tokenizer(), manifest);
    if (!status.ok()) return status.within("tokenizer");
  }
  manifest.chat_template = decode_segment(from->chat_template());
  return manifest;
}

}  // namespace chorus
