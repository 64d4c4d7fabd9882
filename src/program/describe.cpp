#include "program/describe.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "program/names.h"

namespace chorus {

namespace {

constexpr int64_t kBf16Bytes = 2;
constexpr int64_t kF32Bytes = 4;

void add_groups(const Graph& graph, ProgramDescription& description) {
  for (const LayerGroup& group : graph.groups) {
    GroupDescription described;
    described.window = group.policy.window;
    described.layers = group.layers;
    int64_t elements = 0;  // of K and V, per token
    for (const int32_t layer : group.layers) {
      const KvLayer& kv = graph.kv_layers[static_cast<size_t>(layer)];
      elements += 2 * int64_t{kv.num_kv_heads} * kv.head_dim;
    }
    described.kv_bytes_per_token_bf16 = elements * kBf16Bytes;
    described.kv_bytes_per_token_f32 = elements * kF32Bytes;
    description.kv_bytes_per_token_bf16 += described.kv_bytes_per_token_bf16;
    description.kv_bytes_per_token_f32 += described.kv_bytes_per_token_f32;
    description.groups.push_back(std::move(described));
  }
}

void add_weights(const Program& program, ProgramDescription& description) {
  for (size_t i = 0; i < program.weights().size(); ++i) {
    const Weight& weight = program.weights()[i];
    const std::string type = shown_type_name(weight.type);
    const int64_t parameters = int64_t{weight.rows} * weight.columns;
    description.num_parameters += parameters;
    description.weight_bytes += weight.bytes;
    auto& totals = description.weights_by_type;
    auto total = std::find_if(totals.begin(), totals.end(),
                              [&](const TypeTotal& each) { return each.type == type; });
    if (total == totals.end()) total = totals.insert(totals.end(), {type, 0, 0, 0});
    total->num_weights += 1;
    total->num_parameters += parameters;
    total->bytes += weight.bytes;
    description.weights.push_back({weight.name, type, std::string(packing_name(weight.packing)),
                                   weight.rows, weight.columns, weight.offset, weight.bytes,
                                   to_hex(program.weight_hash(static_cast<WeightId>(i)))});
  }
  std::sort(description.weights_by_type.begin(), description.weights_by_type.end(),
            [](const TypeTotal& a, const TypeTotal& b) {
              return a.bytes != b.bytes ? a.bytes > b.bytes : a.type < b.type;
            });
}

// The shortest text that reads back to the same number.
template <typename Number>
std::string number_text(Number number) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, number);
  return std::string(buffer, result.ptr);
}

class OpLine {
 public:
  OpLine(const Program& program, const Op& op) : program_(program), op_(op) {}

  std::string text() {
    for (const ValueId id : op_.outputs) line_.append("%").append(number_text(id)).append(" ");
    line_.append("= ").append(op_name(op_.kind)).append("(");
    for (size_t i = 0; i < op_.inputs.size(); ++i) {
      if (i > 0) line_.append(", ");
      line_.append("%").append(number_text(op_.inputs[i]));
    }
    line_.append(")");
    add_fields();
    add_weights("", op_.weights);
    add_weights(" + ", op_.biases);
    if (op_.sinks != kNoWeight) add_weights(" sinks ", {op_.sinks});
    const Value& value = program_.graph().values[static_cast<size_t>(op_.outputs[0])];
    line_.append(value.rows == Rows::kTokens ? " -> T x " : " -> K x ");
    for (size_t i = 0; i < op_.outputs.size(); ++i) {
      const auto id = static_cast<size_t>(op_.outputs[i]);
      if (i > 0) line_.append(" | ");
      line_.append(number_text(program_.graph().values[id].width));
    }
    return std::move(line_);
  }

 private:
  template <typename Number>
  void add(const char* name, Number number) {
    line_.append(" ").append(name).append("=").append(number_text(number));
  }

  void add_fields() {
    switch (op_.kind) {
      case OpKind::kRmsNorm:
        add("epsilon", op_.epsilon);
        if (op_.group_width != 0) add("group_width", op_.group_width);
        break;
      case OpKind::kRope: {
        const RopeTable& rope = program_.graph().ropes[static_cast<size_t>(op_.rope)];
        line_.append(" pairing=").append(pairing_name(op_.pairing));
        add("head_dim", op_.head_dim);
        add("dims", rope.dims);
        add("theta", rope.theta);
        if (!rope.factors.empty()) add("factors", rope.factors.size());
        break;
      }
      case OpKind::kUpdateAndAttend:
        add("layer", op_.layer);
        add("heads", op_.num_heads);
        add("kv_heads", op_.num_kv_heads);
        add("head_dim", op_.head_dim);
        add("scale", op_.scale);
        if (op_.softcap > 0.0f) add("softcap", op_.softcap);
        break;
      case OpKind::kScale:
      case OpKind::kTanhSoftcap:
        add("scale", op_.scale);
        break;
      default:
        break;
    }
  }

  void add_weights(const char* before, const std::vector<WeightId>& weights) {
    if (weights.empty()) return;
    line_.append(before).append(before[0] == '\0' ? " [" : "[");
    for (size_t i = 0; i < weights.size(); ++i) {
      if (i > 0) line_.append(", ");
      if (weights[i] == kNoWeight) {
        line_.append("-");
        continue;
      }
      const Weight& weight = program_.weights()[static_cast<size_t>(weights[i])];
      line_.append(weight.name).append(":").append(shown_type_name(weight.type));
    }
    line_.append("]");
  }

  const Program& program_;
  const Op& op_;
  std::string line_;
};

}  // namespace

ProgramDescription describe(const Program& program) {
  ProgramDescription description;
  description.architecture = program.architecture();
  description.name = program.name();
  description.numerics_version = program.numerics_version();
  description.context = program.context();
  description.vocabulary = program.vocabulary();
  description.num_layers = static_cast<int32_t>(program.graph().kv_layers.size());
  description.width = program.graph().values.front().width;
  description.file_bytes = program.image().size();
  description.methods = program.methods();
  add_groups(program.graph(), description);
  add_weights(program, description);
  description.tokenizer_model = program.tokenizer().facts.model;
  description.tokenizer_pre = program.tokenizer().facts.pre;
  description.num_tokens = program.tokenizer().definition.empty()
                               ? std::ssize(program.tokenizer().tokens)
                               : program.vocabulary();
  description.num_merges = std::ssize(program.tokenizer().merges);
  description.has_chat_template = !program.chat_template().empty();
  description.content = to_hex(program.content());
  description.kv_identity = to_hex(program.kv_identity());
  return description;
}

std::vector<std::string> graph_lines(const Program& program) {
  std::vector<std::string> lines;
  for (const Op& op : program.graph().ops) lines.push_back(OpLine(program, op).text());
  return lines;
}

}  // namespace chorus
