#include "program/check_graph.h"

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "program/limits.h"
#include "program/names.h"

namespace chorus {

namespace {

Status mismatch(std::string field, const std::string& expected, int64_t found) {
  return data_loss(std::move(field), "expected " + expected + ", found " + std::to_string(found));
}

Status check_range(std::string field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return mismatch(std::move(field), std::to_string(low) + " to " + std::to_string(high), value);
}

Status check_equal(std::string field, int64_t value, int64_t expected) {
  if (value == expected) return Status();
  return mismatch(std::move(field), std::to_string(expected), value);
}

// How many inputs, outputs and weights an operator has, and which of its fields it uses.
struct Signature {
  size_t inputs = 1;
  size_t min_weights = 0;
  size_t max_weights = 0;
  bool epsilon = false;
  bool scale = false;
  bool softcap = false;
  bool group_width = false;
  bool head_dim = false;
  bool attention = false;  // num_heads, num_kv_heads, layer, sinks
  bool rope = false;       // rope, pairing
};

Signature signature(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed:
      return {.inputs = 0, .min_weights = 1, .max_weights = 1};
    case OpKind::kRmsNorm:
      return {.max_weights = 1, .epsilon = true, .group_width = true};
    case OpKind::kLinear:
      return {.min_weights = 1, .max_weights = kMaxSegmentsPerLinear};
    case OpKind::kRope:
      return {.head_dim = true, .rope = true};
    case OpKind::kUpdateAndAttend:
      return {.inputs = 3, .scale = true, .softcap = true, .head_dim = true, .attention = true};
    case OpKind::kAdd:
    case OpKind::kMul:
      return {.inputs = 2};
    case OpKind::kScale:
    case OpKind::kTanhSoftcap:
      return {.scale = true};
    case OpKind::kSilu:
    case OpKind::kGelu:
    case OpKind::kSigmoid:
    case OpKind::kSelectRows:
      return {};
  }
  return {};
}

// Walks the operators in order. Fields of its errors are relative to the operator.
class GraphChecker {
 public:
  GraphChecker(const Graph& graph, std::span<const Weight> weights, int32_t vocabulary)
      : graph_(graph), weights_(weights), vocabulary_(vocabulary) {}

  Status check() {
    CHORUS_RETURN_IF_ERROR(check_tables());
    CHORUS_RETURN_IF_ERROR(check_groups());
    layer_written_.assign(graph_.kv_layers.size(), false);
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      const Status status = check_op(op);
      if (!status.ok()) {
        return status.within("ops[" + std::to_string(i) + "] (" + std::string(op_name(op.kind)) +
                             ")");
      }
    }
    return check_end();
  }

 private:
  const Value& value(ValueId id) const { return graph_.values[static_cast<size_t>(id)]; }
  const Value& input(const Op& op, size_t i) const { return value(op.inputs[i]); }
  const Value& output(const Op& op, size_t i = 0) const { return value(op.outputs[i]); }

  Status check_tables() const {
    if (graph_.ops.size() > kMaxOps) return mismatch("ops", "fewer", std::ssize(graph_.ops));
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      CHORUS_RETURN_IF_ERROR(check_range("values[" + std::to_string(i) + "].width",
                                         graph_.values[i].width, 1, kMaxWidth));
    }
    for (size_t i = 0; i < graph_.ropes.size(); ++i) {
      const Status status = check_rope_table(graph_.ropes[i]);
      if (!status.ok()) return status.within("ropes[" + std::to_string(i) + "]");
    }
    for (size_t i = 0; i < graph_.kv_layers.size(); ++i) {
      const std::string field = "kv_layers[" + std::to_string(i) + "].";
      const KvLayer& layer = graph_.kv_layers[i];
      CHORUS_RETURN_IF_ERROR(check_range(field + "num_kv_heads", layer.num_kv_heads, 1, kMaxHeads));
      CHORUS_RETURN_IF_ERROR(check_range(field + "head_dim", layer.head_dim, 1, kMaxHeadDim));
    }
    return Status();
  }

  static Status check_rope_table(const RopeTable& rope) {
    if (!std::isfinite(rope.theta) || rope.theta <= 0.0) {
      return data_loss("theta", "expected a positive number");
    }
    CHORUS_RETURN_IF_ERROR(check_range("dims", rope.dims, 2, kMaxHeadDim));
    if (rope.dims % 2 != 0) return mismatch("dims", "an even number", rope.dims);
    if (rope.factors.empty()) return Status();
    CHORUS_RETURN_IF_ERROR(check_equal("factors", std::ssize(rope.factors), rope.dims / 2));
    for (const float factor : rope.factors) {
      if (!std::isfinite(factor) || factor <= 0.0f) {
        return data_loss("factors", "expected positive numbers");
      }
    }
    return Status();
  }

  Status check_groups() const {
    std::vector<bool> grouped(graph_.kv_layers.size(), false);
    for (size_t g = 0; g < graph_.groups.size(); ++g) {
      const LayerGroup& group = graph_.groups[g];
      const std::string field = "groups[" + std::to_string(g) + "].";
      CHORUS_RETURN_IF_ERROR(check_range(field + "window", group.policy.window, 0, kMaxContext));
      if (group.layers.empty()) return mismatch(field + "layers", "at least 1", 0);
      int32_t previous = -1;
      for (const int32_t layer : group.layers) {
        CHORUS_RETURN_IF_ERROR(
            check_range(field + "layers", layer, 0, std::ssize(graph_.kv_layers) - 1));
        if (layer <= previous) return mismatch(field + "layers", "ascending layers", layer);
        if (grouped[static_cast<size_t>(layer)]) {
          return mismatch(field + "layers", "layers of no other group", layer);
        }
        grouped[static_cast<size_t>(layer)] = true;
        previous = layer;
      }
    }
    for (size_t layer = 0; layer < grouped.size(); ++layer) {
      if (!grouped[layer]) {
        return mismatch("groups", "every KV layer in a group", static_cast<int64_t>(layer));
      }
    }
    return Status();
  }

  Status check_op(const Op& op) {
    CHORUS_RETURN_IF_ERROR(check_equal("version", op.version, 1));
    CHORUS_RETURN_IF_ERROR(check_arity(op));
    CHORUS_RETURN_IF_ERROR(check_unused_fields(op));
    for (const ValueId id : op.inputs) {
      CHORUS_RETURN_IF_ERROR(check_range("inputs", id, 0, next_value_ - 1));
    }
    for (const ValueId id : op.outputs) {
      CHORUS_RETURN_IF_ERROR(check_equal("outputs", id, next_value_));
      CHORUS_RETURN_IF_ERROR(check_range("outputs", id, 0, std::ssize(graph_.values) - 1));
      ++next_value_;
    }
    for (const WeightId id : op.weights) {
      CHORUS_RETURN_IF_ERROR(check_range("weights", id, 0, std::ssize(weights_) - 1));
    }
    CHORUS_RETURN_IF_ERROR(check_rows(op));
    return check_shapes(op);
  }

  static Status check_arity(const Op& op) {
    const Signature expected = signature(op.kind);
    CHORUS_RETURN_IF_ERROR(
        check_equal("inputs", std::ssize(op.inputs), static_cast<int64_t>(expected.inputs)));
    CHORUS_RETURN_IF_ERROR(check_range("weights", std::ssize(op.weights),
                                       static_cast<int64_t>(expected.min_weights),
                                       static_cast<int64_t>(expected.max_weights)));
    const bool linear = op.kind == OpKind::kLinear;
    CHORUS_RETURN_IF_ERROR(
        check_equal("outputs", std::ssize(op.outputs), linear ? std::ssize(op.weights) : 1));
    if (!op.biases.empty()) {
      return check_equal("biases", std::ssize(op.biases), linear ? std::ssize(op.weights) : 0);
    }
    return Status();
  }

  static Status check_unused_fields(const Op& op) {
    const Signature used = signature(op.kind);
    const Op unset;
    const std::pair<const char*, bool> faults[] = {
        {"epsilon", !used.epsilon && op.epsilon != unset.epsilon},
        {"scale", !used.scale && op.scale != unset.scale},
        {"softcap", !used.softcap && op.softcap != unset.softcap},
        {"group_width", !used.group_width && op.group_width != unset.group_width},
        {"head_dim", !used.head_dim && op.head_dim != unset.head_dim},
        {"num_heads", !used.attention && op.num_heads != unset.num_heads},
        {"num_kv_heads", !used.attention && op.num_kv_heads != unset.num_kv_heads},
        {"layer", !used.attention && op.layer != unset.layer},
        {"sinks", !used.attention && op.sinks != unset.sinks},
        {"pairing", !used.rope && op.pairing != unset.pairing},
        {"rope", !used.rope && op.rope != unset.rope}};
    for (const auto& [field, fault] : faults) {
      if (fault) return data_loss(field, "this operator has no such field");
    }
    return Status();
  }

  // Rows: T up to select_rows, K after it.
  Status check_rows(const Op& op) {
    for (const ValueId id : op.inputs) {
      const bool wanted = value(id).rows == Rows::kWanted;
      if (wanted != selected_) {
        return data_loss("inputs", selected_ ? "expected values with the wanted rows only"
                                             : "expected values with a row per token");
      }
    }
    if (op.kind == OpKind::kSelectRows) {
      if (selected_) return data_loss("kind", "expected one select_rows, found a second");
      selected_ = true;
    }
    if (selected_ && (op.kind == OpKind::kEmbed || op.kind == OpKind::kUpdateAndAttend)) {
      return data_loss("kind", "this operator cannot come after select_rows");
    }
    for (const ValueId id : op.outputs) {
      if ((value(id).rows == Rows::kWanted) != selected_) {
        return data_loss("outputs",
                         selected_ ? "expected the wanted rows" : "expected a row per token");
      }
    }
    return Status();
  }

  Status check_shapes(const Op& op) {
    switch (op.kind) {
      case OpKind::kEmbed:
        return check_embed(op);
      case OpKind::kRmsNorm:
        return check_rms_norm(op);
      case OpKind::kLinear:
        return check_linear(op);
      case OpKind::kRope:
        return check_rope(op);
      case OpKind::kUpdateAndAttend:
        return check_attend(op);
      case OpKind::kScale:
        if (!std::isfinite(op.scale)) return data_loss("scale", "expected a finite number");
        break;
      case OpKind::kTanhSoftcap:
        if (!std::isfinite(op.scale) || op.scale <= 0.0f) {
          return data_loss("scale", "expected a positive number");
        }
        break;
      default:
        break;
    }
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      CHORUS_RETURN_IF_ERROR(check_equal("inputs.width", input(op, i).width, output(op).width));
    }
    return Status();
  }

  // A vector of `columns` floats.
  Status check_vector(const char* field, WeightId id, int32_t columns) const {
    CHORUS_RETURN_IF_ERROR(check_range(field, id, 0, std::ssize(weights_) - 1));
    const Weight& weight = weights_[static_cast<size_t>(id)];
    if (weight.packing != Packing::kRowMajor || weight.type != WeightType::kF32) {
      return data_loss(field, "expected a row_major f32 vector, found a matrix: " + weight.name);
    }
    CHORUS_RETURN_IF_ERROR(check_equal(std::string(field) + ".rows", weight.rows, 1));
    return check_equal(std::string(field) + ".columns", weight.columns, columns);
  }

  Status check_matrix(WeightId id, int32_t rows, int32_t columns) const {
    const Weight& weight = weights_[static_cast<size_t>(id)];
    if (weight.packing != Packing::kR16K4) {
      return data_loss("weights", "expected an r16k4 matrix, found a vector: " + weight.name);
    }
    CHORUS_RETURN_IF_ERROR(check_equal("weights.rows", weight.rows, rows));
    return check_equal("weights.columns", weight.columns, columns);
  }

  Status check_embed(const Op& op) const {
    return check_matrix(op.weights[0], vocabulary_, output(op).width);
  }

  Status check_rms_norm(const Op& op) const {
    const int32_t width = input(op, 0).width;
    CHORUS_RETURN_IF_ERROR(check_equal("outputs.width", output(op).width, width));
    if (!std::isfinite(op.epsilon) || op.epsilon < 0.0f) {
      return data_loss("epsilon", "expected a number of at least 0");
    }
    CHORUS_RETURN_IF_ERROR(check_range("group_width", op.group_width, 0, width));
    const int32_t group = op.group_width == 0 ? width : op.group_width;
    if (width % group != 0) {
      return mismatch("group_width", "a divisor of " + std::to_string(width), group);
    }
    return op.weights.empty() ? Status() : check_vector("weights", op.weights[0], group);
  }

  Status check_linear(const Op& op) const {
    for (size_t i = 0; i < op.weights.size(); ++i) {
      CHORUS_RETURN_IF_ERROR(check_matrix(op.weights[i], output(op, i).width, input(op, 0).width));
    }
    for (size_t i = 0; i < op.biases.size(); ++i) {
      if (op.biases[i] == kNoWeight) continue;
      CHORUS_RETURN_IF_ERROR(check_vector("biases", op.biases[i], output(op, i).width));
    }
    return Status();
  }

  Status check_rope(const Op& op) const {
    const int32_t width = input(op, 0).width;
    CHORUS_RETURN_IF_ERROR(check_equal("outputs.width", output(op).width, width));
    CHORUS_RETURN_IF_ERROR(check_range("rope", op.rope, 0, std::ssize(graph_.ropes) - 1));
    CHORUS_RETURN_IF_ERROR(check_range("head_dim", op.head_dim, 1, kMaxHeadDim));
    if (width % op.head_dim != 0) {
      return mismatch("head_dim", "a divisor of " + std::to_string(width), op.head_dim);
    }
    return check_range("ropes.dims", graph_.ropes[static_cast<size_t>(op.rope)].dims, 2,
                       op.head_dim);
  }

  Status check_attend(const Op& op) {
    CHORUS_RETURN_IF_ERROR(check_range("layer", op.layer, 0, std::ssize(graph_.kv_layers) - 1));
    const auto layer_index = static_cast<size_t>(op.layer);
    if (layer_written_[layer_index]) {
      return mismatch("layer", "a KV layer that no other operator writes", op.layer);
    }
    layer_written_[layer_index] = true;
    const KvLayer& layer = graph_.kv_layers[layer_index];
    CHORUS_RETURN_IF_ERROR(check_equal("num_kv_heads", op.num_kv_heads, layer.num_kv_heads));
    CHORUS_RETURN_IF_ERROR(check_equal("head_dim", op.head_dim, layer.head_dim));
    CHORUS_RETURN_IF_ERROR(check_range("num_heads", op.num_heads, 1, kMaxHeads));
    if (op.num_heads % op.num_kv_heads != 0) {
      return mismatch("num_heads", "a multiple of " + std::to_string(op.num_kv_heads),
                      op.num_heads);
    }
    // Limits keep these products far below 2^31.
    const int32_t query_width = op.num_heads * op.head_dim;
    const int32_t kv_width = op.num_kv_heads * op.head_dim;
    CHORUS_RETURN_IF_ERROR(check_equal("inputs.width", input(op, 0).width, query_width));
    CHORUS_RETURN_IF_ERROR(check_equal("inputs.width", input(op, 1).width, kv_width));
    CHORUS_RETURN_IF_ERROR(check_equal("inputs.width", input(op, 2).width, kv_width));
    CHORUS_RETURN_IF_ERROR(check_equal("outputs.width", output(op).width, query_width));
    if (!std::isfinite(op.scale)) return data_loss("scale", "expected a finite number");
    if (!std::isfinite(op.softcap) || op.softcap < 0.0f) {
      return data_loss("softcap", "expected a number of at least 0");
    }
    return op.sinks == kNoWeight ? Status() : check_vector("sinks", op.sinks, op.num_heads);
  }

  Status check_end() const {
    CHORUS_RETURN_IF_ERROR(check_equal("values", std::ssize(graph_.values), next_value_));
    for (size_t layer = 0; layer < layer_written_.size(); ++layer) {
      if (!layer_written_[layer]) {
        return mismatch("kv_layers", "every KV layer written by an operator",
                        static_cast<int64_t>(layer));
      }
    }
    if (graph_.kv_layers.empty()) return mismatch("kv_layers", "at least 1", 0);
    if (!selected_) return data_loss("ops", "expected a select_rows");
    const Op& last = graph_.ops.back();
    CHORUS_RETURN_IF_ERROR(check_equal("ops (last).outputs", std::ssize(last.outputs), 1));
    return check_equal("ops (last).outputs.width", output(last).width, vocabulary_);
  }

  static_assert(int64_t{kMaxHeads} * kMaxHeadDim < int64_t{1} << 31);

  const Graph& graph_;
  std::span<const Weight> weights_;
  int32_t vocabulary_;
  ValueId next_value_ = 0;
  bool selected_ = false;
  std::vector<bool> layer_written_;
};

}  // namespace

Status check_graph(const Graph& graph, std::span<const Weight> weights, int32_t vocabulary) {
  return GraphChecker(graph, weights, vocabulary).check();
}

}  // namespace chorus
