#include "cpu/plan.h"

#include <algorithm>
#include <string>

#include "cpu/kernels/kernels.h"
#include "program/packing/r16k4.h"

namespace chorus::cpu {

namespace {

// A stretch of each row of an arena or scratch that holds one value, or the values of a joined
// linear side by side.
struct Buffer {
  int32_t width = 0;
  size_t chain = 0;       // of its operator
  bool is_local = false;  // only that chain reads it, before its second phase
  // Its life: in phases; and in operators, which is what counts for one in the scratch.
  int32_t first_phase = 0;
  int32_t last_phase = 0;
  int32_t first_op = 0;
  int32_t last_op = 0;
  int64_t column = 0;
};

struct Placement {
  size_t buffer = 0;
  int32_t column = 0;  // in the buffer
};

// Lays out the values of one stage.
class Layout {
 public:
  Layout(const Graph& graph, bool fused)
      : graph_(graph), fused_(fused), placements_(graph.values.size()) {}

  // A value that stands before the stage starts.
  void add_input(ValueId value) { place({value}, false); }
  // Takes the stage's operators in order.
  void add(const Op& op) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      // A linear layer reads its input in its first phase, attention K and V in its first phase and
      // q in its second.
      const bool late = op.kind == OpKind::kUpdateAndAttend && i == 0;
      Buffer& buffer = buffers_[placement(op.inputs[i]).buffer];
      buffer.last_phase = std::max(buffer.last_phase, phase_ + (late ? 1 : 0));
      buffer.last_op = num_ops_;
      if (late || buffer.chain != chains_.size()) buffer.is_local = false;
    }
    const bool two_phases = has_two_phases(op.kind);
    if (two_phases) ++phase_;
    if (op.kind != OpKind::kSelectRows) place(op.outputs, fused_ && !two_phases);
    if (two_phases) ++phase_;
    ++num_ops_;
    if (two_phases || !fused_) end_chain();
  }
  // A value that is read after the stage.
  void keep(ValueId value) {
    Buffer& buffer = buffers_[placement(value).buffer];
    buffer.last_phase = phase_ + 1;
    buffer.is_local = false;
  }
  // After all operators.
  void finish() {
    if (chain_begin_ < static_cast<size_t>(num_ops_)) end_chain();
    floats_per_row_ = assign_columns(false);
    local_floats_per_row_ = assign_columns(true);
  }

  const std::vector<Chain>& chains() const { return chains_; }
  int64_t floats_per_row() const { return floats_per_row_; }
  int64_t local_floats_per_row() const { return local_floats_per_row_; }
  View view(ValueId value, int32_t arena_rows) const {
    const Placement& place = placement(value);
    const Buffer& buffer = buffers_[place.buffer];
    const int32_t rows = buffer.is_local ? kQuad : arena_rows;
    return {buffer.column * rows + place.column, buffer.width, width(value), buffer.is_local};
  }

 private:
  static int64_t padded(int32_t width) { return (int64_t{width} + 15) / 16 * 16; }
  int32_t width(ValueId value) const { return graph_.values[static_cast<size_t>(value)].width; }
  const Placement& placement(ValueId value) const {
    return placements_[static_cast<size_t>(value)];
  }
  void end_chain() {
    chains_.push_back({chain_begin_, static_cast<size_t>(num_ops_)});
    chain_begin_ = static_cast<size_t>(num_ops_);
  }
  void place(const std::vector<ValueId>& values, bool is_local) {
    Buffer buffer;
    buffer.chain = chains_.size();
    buffer.is_local = is_local;
    buffer.first_phase = buffer.last_phase = phase_;
    buffer.first_op = buffer.last_op = num_ops_;
    for (const ValueId value : values) {
      placements_[static_cast<size_t>(value)] = {buffers_.size(), buffer.width};
      buffer.width += width(value);
    }
    buffers_.push_back(buffer);
  }
  // Gives every buffer of either kind its columns: first fit in the order of creation. Returns how
  // many there are.
  int64_t assign_columns(bool is_local) {
    int64_t end = 0;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      Buffer& buffer = buffers_[i];
      if (buffer.is_local != is_local) continue;
      buffer.column = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t j = 0; j < i; ++j) {
          const Buffer& other = buffers_[j];
          if (other.is_local != is_local) continue;
          const bool alive =
              is_local ? other.last_op >= buffer.first_op : other.last_phase >= buffer.first_phase;
          const bool overlaps = buffer.column < other.column + padded(other.width) &&
                                other.column < buffer.column + padded(buffer.width);
          if (alive && overlaps) {
            buffer.column = other.column + padded(other.width);
            moved = true;
          }
        }
      }
      end = std::max(end, buffer.column + padded(buffer.width));
    }
    return end;
  }

  const Graph& graph_;
  const bool fused_;
  std::vector<Placement> placements_;
  std::vector<Buffer> buffers_;
  std::vector<Chain> chains_;
  size_t chain_begin_ = 0;
  int32_t phase_ = 0;
  int32_t num_ops_ = 0;
  int64_t floats_per_row_ = 0;
  int64_t local_floats_per_row_ = 0;
};

Status check_offered(const Op& op, size_t index, bool selected) {
  const std::string field = "ops[" + std::to_string(index) + "]";
  const bool attends = op.kind == OpKind::kUpdateAndAttend;
  if (attends && op.sinks != kNoWeight) {
    return unimplemented(field + " (update_and_attend).sinks",
                         "attention sinks are not offered by the cpu backend");
  }
  if (selected && (attends || op.kind == OpKind::kRope)) {
    return unimplemented(field,
                         "rope and attention behind select_rows are not offered by the cpu "
                         "backend");
  }
  return Status();
}

Input input_of(WeightType type, bool int8) {
  if (!int8) return Input::kF32;
  if (is_quantised(type)) return Input::kInt8;
  return type == WeightType::kBF16 ? Input::kBf16 : Input::kF32;
}

Instruction make_instruction(const Program& program, const Op& op, const Layout& layout,
                             int32_t rows, bool int8) {
  Instruction instruction;
  instruction.op = &op;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    instruction.inputs[i] = layout.view(op.inputs[i], rows);
  }
  if (op.kind != OpKind::kLinear) {
    instruction.output = layout.view(op.outputs[0], rows);
    if (!op.weights.empty()) {
      instruction.weights = program.weight_bytes(op.weights[0]).data();
      instruction.weight_type =
          static_cast<int32_t>(program.weights()[static_cast<size_t>(op.weights[0])].type);
    }
    return instruction;
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const Weight& weight = program.weights()[static_cast<size_t>(op.weights[i])];
    LinearPart part;
    part.weights = program.weight_bytes(op.weights[i]).data();
    part.bytes = std::ssize(program.weight_bytes(op.weights[i]));
    if (!op.biases.empty() && op.biases[i] != kNoWeight) {
      part.bias = reinterpret_cast<const float*>(program.weight_bytes(op.biases[i]).data());
    }
    part.type = static_cast<int32_t>(weight.type);
    part.rows = weight.rows;
    part.input = input_of(weight.type, int8);
    part.out = layout.view(op.outputs[i], rows);
    instruction.takes[static_cast<size_t>(part.input)] = true;
    instruction.parts.push_back(part);
  }
  return instruction;
}

Stage make_stage(const Program& program, std::span<const Op> ops, const Layout& layout,
                 int32_t rows, bool int8) {
  Stage stage;
  stage.chains = layout.chains();
  stage.floats_per_row = layout.floats_per_row();
  stage.local_floats_per_row = layout.local_floats_per_row();
  for (const Op& op : ops) {
    stage.instructions.push_back(make_instruction(program, op, layout, rows, int8));
    if (op.kind == OpKind::kLinear) {
      stage.max_columns = std::max(stage.max_columns, stage.instructions.back().inputs[0].width);
    }
  }
  return stage;
}

}  // namespace

Result<Plan> make_plan(const Program& program, const PlanOptions& options) {
  const Graph& graph = program.graph();
  const std::span<const Op> ops = graph.ops;
  size_t select = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    CHORUS_RETURN_IF_ERROR(check_offered(ops[i], i, select != 0));
    if (ops[i].kind == OpKind::kSelectRows) select = i;
  }
  const std::span<const Op> body = ops.first(select);
  const std::span<const Op> tail = ops.subspan(select + 1);
  Plan plan;

  Layout body_layout(graph, options.fused);
  for (const Op& op : body) body_layout.add(op);
  body_layout.keep(ops[select].inputs[0]);
  body_layout.finish();
  plan.body = make_stage(program, body, body_layout, options.body_rows, options.int8);
  plan.selected = body_layout.view(ops[select].inputs[0], options.body_rows);

  Layout tail_layout(graph, options.fused);
  tail_layout.add_input(ops[select].outputs[0]);
  for (const Op& op : tail) tail_layout.add(op);
  const ValueId logits = ops.back().outputs[0];
  tail_layout.keep(logits);
  tail_layout.finish();
  plan.tail = make_stage(program, tail, tail_layout, options.tail_rows, options.int8);
  plan.tail_input = tail_layout.view(ops[select].outputs[0], options.tail_rows);
  plan.logits = tail_layout.view(logits, options.tail_rows);
  return plan;
}

}  // namespace chorus::cpu
