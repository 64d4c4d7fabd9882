#include "exporter/lowering.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "program/limits.h"
#include "program/packing/half.h"

namespace chorus {

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::optional<WeightType> packed_type(uint32_t ggml_type) {
  switch (ggml_type) {
    case kGgmlF32:
      return WeightType::kF32;
    case kGgmlQ4_0:
      return WeightType::kQ4_0;
    case kGgmlQ4_1:
      return WeightType::kQ4_1;
    case kGgmlQ8_0:
      return WeightType::kQ8_0;
    case kGgmlQ5_0:
      return WeightType::kQ5_0;
    case kGgmlQ5_1:
      return WeightType::kQ5_1;
    case kGgmlQ4_K:
      return WeightType::kQ4_K;
    case kGgmlQ5_K:
      return WeightType::kQ5_K;
    case kGgmlQ6_K:
      return WeightType::kQ6_K;
    case kGgmlBF16:
      return WeightType::kBF16;
    case kGgmlF16:
      return WeightType::kF16;
    default:
      return std::nullopt;
  }
}

Status check_shape(const CheckpointTensor& tensor, const std::vector<int64_t>& expected) {
  if (tensor.shape == expected) return Status();
  return data_loss(std::string(tensor.name), "expected shape " + shape_text(expected) + ", found " +
                                                 shape_text(tensor.shape));
}

Status missing_tensor(const std::string& name) {
  return data_loss(name, "expected this tensor, found none");
}

// The values of a tensor of floats; nullopt for another type.
std::optional<std::vector<float>> floats_of(const CheckpointTensor& tensor) {
  const std::byte* data = tensor.data.data();
  std::vector<float> values;
  if (tensor.type == kGgmlF32) {
    values.resize(tensor.data.size() / sizeof(float));
    std::memcpy(values.data(), data, values.size() * sizeof(float));
  } else if (tensor.type == kGgmlF16 || tensor.type == kGgmlBF16) {
    for (size_t i = 0; i + 2 <= tensor.data.size(); i += 2) {
      uint16_t bits;
      std::memcpy(&bits, data + i, sizeof bits);
      values.push_back(tensor.type == kGgmlF16 ? half_to_float(bits)
                                               : std::bit_cast<float>(uint32_t{bits} << 16));
    }
  } else {
    return std::nullopt;
  }
  return values;
}

// Whether the checkpoint has a head that is not the embedding table stored again.
bool has_own_head(const Checkpoint& checkpoint, const DecoderNames& names) {
  const CheckpointTensor* head = checkpoint.find(names.head + ".weight");
  const CheckpointTensor* table = checkpoint.find(names.embedding + ".weight");
  if (head == nullptr || table == nullptr) return false;
  return head->type != table->type || head->shape != table->shape ||
         !std::equal(head->data.begin(), head->data.end(), table->data.begin(), table->data.end());
}

}  // namespace

DecoderNames gguf_names() {
  return {.embedding = "token_embd",
          .layers = "blk.",
          .final_norm = "output_norm",
          .head = "output",
          .attention_norm = "attn_norm",
          .q = "attn_q",
          .k = "attn_k",
          .v = "attn_v",
          .gate = "attn_gate",
          .attention_output = "attn_output",
          .q_norm = "attn_q_norm",
          .k_norm = "attn_k_norm",
          .attention_post_norm = "post_attention_norm",
          .ff_norm = "ffn_norm",
          .ff_gate = "ffn_gate",
          .ff_up = "ffn_up",
          .ff_down = "ffn_down",
          .ff_post_norm = "post_ffw_norm"};
}

DecoderNames hf_names(const Checkpoint& checkpoint) {
  std::string prefix;
  for (const char* candidate : {"model.language_model.", "language_model.model.", "model."}) {
    if (checkpoint.find(candidate + std::string("embed_tokens.weight")) == nullptr) continue;
    prefix = candidate;
    break;
  }
  const bool nested_head = checkpoint.find("language_model.lm_head.weight") != nullptr;
  return {.embedding = prefix + "embed_tokens",
          .layers = prefix + "layers.",
          .final_norm = prefix + "norm",
          .head = nested_head ? "language_model.lm_head" : "lm_head",
          .attention_norm = "input_layernorm",
          .q = "self_attn.q_proj",
          .k = "self_attn.k_proj",
          .v = "self_attn.v_proj",
          .gate = "",
          .attention_output = "self_attn.o_proj",
          .q_norm = "",
          .k_norm = "",
          .attention_post_norm = "",
          .ff_norm = "post_attention_layernorm",
          .ff_gate = "mlp.gate_proj",
          .ff_up = "mlp.up_proj",
          .ff_down = "mlp.down_proj",
          .ff_post_norm = "",
          .head_may_be_tied = false,
          .attention_bias = Bias::kNone,
          .ff_bias = Bias::kNone};
}

Result<HfConfig> text_config(const HfConfig& config, std::span<const std::string_view> vision) {
  CHORUS_ASSIGN_OR_RETURN(const auto section, config.find_section("text_config"));
  if (!section) return config;
  for (const std::string_view key : vision) config.skip(key);
  return *section;
}

std::vector<LinearPart> qkv_parts(const DecoderNames& names, const std::string& prefix,
                                  const DecoderSizes& sizes) {
  return {{prefix + std::string(names.q), sizes.q_width(), names.attention_bias},
          {prefix + std::string(names.k), sizes.kv_width(), names.attention_bias},
          {prefix + std::string(names.v), sizes.kv_width(), names.attention_bias}};
}

const CheckpointTensor* Lowering::take(const std::string& name) {
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor != nullptr) used_.insert(tensor->name);
  return tensor;
}

Result<WeightId> Lowering::matrix(const std::string& name, int64_t rows, int64_t columns) {
  const CheckpointTensor* tensor = take(name);
  if (tensor == nullptr) return missing_tensor(name);
  CHORUS_RETURN_IF_ERROR(check_shape(*tensor, {rows, columns}));
  const auto type = packed_type(tensor->type);
  if (!type) {
    return unimplemented(name,
                         "expected type F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K "
                         "or Q6_K, found " +
                             tensor->type_name);
  }
  const auto row_count = static_cast<int32_t>(rows);
  const auto column_count = static_cast<int32_t>(columns);
  const auto to = quantize_to_ ? quantized_type(*type, *quantize_to_, column_count) : std::nullopt;
  if (to) return quantized_matrix(name, *type, *to, row_count, column_count, tensor->data);
  return builder_.add_matrix(name, *type, row_count, column_count, tensor->data);
}

void Lowering::quantize_to(WeightType target, QuantizeReport report) {
  CHORUS_CHECK(can_quantize_to(target));
  quantize_to_ = target;
  report_ = std::move(report);
}

Result<WeightId> Lowering::quantized_matrix(const std::string& name, WeightType from, WeightType to,
                                            int32_t rows, int32_t columns,
                                            std::span<const std::byte> source) {
  auto matrix = quantize_matrix(from, to, rows, columns, source);
  if (!matrix.ok()) return data_loss(name, matrix.status().message());
  if (report_) report_({name, from, to, matrix->error});
  return builder_.add_matrix(name, to, rows, columns, std::move(matrix->bytes));
}

Result<std::vector<float>> Lowering::take_floats(const std::string& name, int64_t columns) {
  const CheckpointTensor* tensor = take(name);
  if (tensor == nullptr) return std::vector<float>();
  CHORUS_RETURN_IF_ERROR(check_shape(*tensor, {columns}));
  auto values = floats_of(*tensor);
  if (!values) {
    return unimplemented(name, "expected type F32, F16 or BF16, found " + tensor->type_name);
  }
  return std::move(*values);
}

Result<WeightId> Lowering::optional_vector(const std::string& name, int64_t columns, float offset) {
  if (!has(name)) return kNoWeight;
  CHORUS_ASSIGN_OR_RETURN(std::vector<float> values, take_floats(name, columns));
  for (float& value : values) value += offset;
  return builder_.add_vector(name, values);
}

Result<WeightId> Lowering::vector(const std::string& name, int64_t columns, float offset) {
  if (!has(name)) return missing_tensor(name);
  return optional_vector(name, columns, offset);
}

std::vector<std::string_view> Lowering::take_all(std::string_view prefix) {
  std::vector<std::string_view> names;
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (tensor.name.substr(0, prefix.size()) != prefix) continue;
    used_.insert(tensor.name);
    names.push_back(tensor.name);
  }
  return names;
}

void Lowering::skip(std::string_view prefix) {
  const auto names = take_all(prefix);
  left_out_.insert(left_out_.end(), names.begin(), names.end());
}

Result<WeightId> Lowering::bias_of(const LinearPart& part) {
  if (part.bias == Bias::kNone) return kNoWeight;
  const std::string name = part.name + ".bias";
  return part.bias == Bias::kAlways ? vector(name, part.rows) : optional_vector(name, part.rows);
}

Result<std::vector<ValueId>> Lowering::linear(const std::vector<LinearPart>& parts, int64_t columns,
                                              ValueId x) {
  std::vector<WeightId> weights;
  std::vector<WeightId> biases;
  for (const LinearPart& part : parts) {
    CHORUS_ASSIGN_OR_RETURN(const WeightId weight,
                            matrix(part.name + ".weight", part.rows, columns));
    CHORUS_ASSIGN_OR_RETURN(const WeightId bias, bias_of(part));
    weights.push_back(weight);
    biases.push_back(bias);
  }
  return builder_.linear(x, weights, biases);
}

Result<ValueId> Lowering::linear(const LinearPart& part, int64_t columns, ValueId x) {
  CHORUS_ASSIGN_OR_RETURN(const auto values, linear(std::vector{part}, columns, x));
  return values[0];
}

Result<ValueId> Lowering::rms_norm(const std::string& name, const NormShape& shape, ValueId x) {
  CHORUS_ASSIGN_OR_RETURN(const WeightId weight,
                          vector(name + ".weight", shape.width, shape.offset));
  return builder_.rms_norm(x, weight, shape.epsilon,
                           shape.per_head ? static_cast<int32_t>(shape.width) : 0);
}

Status Lowering::apply_bias_and_tie(const HfConfig& config, const HfConfig& text,
                                    bool tied_otherwise, DecoderNames& names) {
  CHORUS_ASSIGN_OR_RETURN(const bool bias, text.bool_or("attention_bias", false));
  if (bias) names.attention_bias = Bias::kAlways;
  CHORUS_ASSIGN_OR_RETURN(const bool inner, text.bool_or("tie_word_embeddings", tied_otherwise));
  CHORUS_ASSIGN_OR_RETURN(const bool tied, config.bool_or("tie_word_embeddings", inner));
  if (!tied || has_own_head(checkpoint_, names)) return Status();
  (void)take(names.head + ".weight");
  names.head.clear();
  return Status();
}

Result<WeightId> Lowering::embedding(const DecoderNames& names, int64_t width) {
  const std::string name = names.embedding + ".weight";
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor == nullptr) return missing_tensor(name);
  if (tensor->shape.size() != 2 || tensor->shape[0] > kMaxVocabulary) {
    return data_loss(name, "expected a matrix of at most " + std::to_string(kMaxVocabulary) +
                               " rows, found shape " + shape_text(tensor->shape));
  }
  builder_.facts.vocabulary = static_cast<int32_t>(tensor->shape[0]);
  return matrix(name, tensor->shape[0], width);
}

Result<ValueId> Lowering::head(const DecoderNames& names, int64_t width, WeightId table,
                               ValueId x) {
  const bool tied = names.head.empty() || (names.head_may_be_tied && !has(names.head + ".weight"));
  if (tied) return builder_.linear(x, {table})[0];
  const Bias bias = names.head_may_be_tied ? Bias::kWhereGiven : Bias::kNone;
  return linear({names.head, builder_.facts.vocabulary, bias}, width, x);
}

AttentionShape Lowering::add_attention(int32_t group, const DecoderSizes& sizes) {
  AttentionShape shape;
  shape.num_heads = static_cast<int32_t>(sizes.num_heads);
  shape.num_kv_heads = static_cast<int32_t>(sizes.num_kv_heads);
  shape.head_dim = static_cast<int32_t>(sizes.head_dim);
  shape.layer = builder_.add_kv_layer(group, {shape.num_kv_heads, shape.head_dim});
  return shape;
}

Result<ValueId> Lowering::feed_forward(const DecoderNames& names, const std::string& prefix,
                                       const DecoderSizes& sizes, OpKind activation, ValueId x) {
  const auto part = [&](std::string_view name, int64_t rows) {
    return LinearPart{prefix + std::string(name), rows, names.ff_bias};
  };
  CHORUS_ASSIGN_OR_RETURN(const auto gate_up, linear({part(names.ff_gate, sizes.ff_width),
                                                      part(names.ff_up, sizes.ff_width)},
                                                     sizes.width, x));
  const ValueId gate =
      activation == OpKind::kGelu ? builder_.gelu(gate_up[0]) : builder_.silu(gate_up[0]);
  return linear(part(names.ff_down, sizes.width), sizes.ff_width, builder_.mul(gate, gate_up[1]));
}

Status Lowering::check_all_used() const {
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (used_.count(tensor.name) == 0) {
      return unimplemented(std::string(tensor.name), "expected a tensor that this lowering knows");
    }
  }
  return Status();
}

}  // namespace chorus
