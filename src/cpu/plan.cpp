#include "cpu/plan.h"

#include <algorithm>
#include <string>

#include "cpu/kernels/kernels.h"
#include "program/packing/r16k4.h"

namespace chorus::cpu {

namespace {

// A stretch of each arena row that holds one value, or the values of a joined linear side by side.
struct Buffer {
  int32_t width = 0;
  int32_t first_phase = 0;
  int32_t last_phase = 0;
  int64_t column = 0;
};

struct Placement {
  size_t buffer = 0;
  int32_t column = 0;  // in the buffer
};

bool has_two_phases(OpKind kind) {
  return kind == OpKind::kLinear || kind == OpKind::kUpdateAndAttend;
}

// Lays out the values of one stage.
class Layout {
 public:
  explicit Layout(const Graph& graph) : graph_(graph), placements_(graph.values.size()) {}

  // A value that stands before the stage starts.
  void add_input(ValueId value) { place({value}, 0); }
  // Takes the stage's operators in order.
  void add(const Op& op) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      // A linear layer reads its input in its first phase, attention K and V in its first phase and
      // q in its second.
      const bool late = op.kind == OpKind::kUpdateAndAttend && i == 0;
      Buffer& buffer = buffers_[placement(op.inputs[i]).buffer];
      buffer.last_phase = std::max(buffer.last_phase, phase_ + (late ? 1 : 0));
    }
    if (has_two_phases(op.kind)) ++phase_;
    if (op.kind != OpKind::kSelectRows) place(op.outputs, phase_);
    if (has_two_phases(op.kind)) ++phase_;
  }
  // A value that is read after the stage.
  void keep(ValueId value) { buffers_[placement(value).buffer].last_phase = phase_ + 1; }

  // Gives every buffer its columns: first fit in the order of creation.
  int64_t assign_columns() {
    int64_t end = 0;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      Buffer& buffer = buffers_[i];
      buffer.column = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t j = 0; j < i; ++j) {
          const Buffer& other = buffers_[j];
          const bool alive = other.last_phase >= buffer.first_phase;
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

  View view(ValueId value, int32_t arena_rows) const {
    const Placement& place = placement(value);
    const Buffer& buffer = buffers_[place.buffer];
    return {buffer.column * arena_rows + place.column, buffer.width, width(value)};
  }

 private:
  static int64_t padded(int32_t width) { return (int64_t{width} + 15) / 16 * 16; }
  int32_t width(ValueId value) const { return graph_.values[static_cast<size_t>(value)].width; }
  const Placement& placement(ValueId value) const {
    return placements_[static_cast<size_t>(value)];
  }
  void place(const std::vector<ValueId>& values, int32_t phase) {
    Buffer buffer;
    buffer.first_phase = buffer.last_phase = phase;
    for (const ValueId value : values) {
      placements_[static_cast<size_t>(value)] = {buffers_.size(), buffer.width};
      buffer.width += width(value);
    }
    buffers_.push_back(buffer);
  }

  const Graph& graph_;
  std::vector<Placement> placements_;
  std::vector<Buffer> buffers_;
  int32_t phase_ = 0;
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
  for (const Op& op : ops) {
    stage.instructions.push_back(make_instruction(program, op, layout, rows, int8));
    if (op.kind == OpKind::kLinear) {
      stage.max_columns = std::max(stage.max_columns, stage.instructions.back().inputs[0].width);
    }
  }
  return stage;
}

}  // namespace

Result<Plan> make_plan(const Program& program, bool int8, int32_t body_rows, int32_t tail_rows) {
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

  Layout body_layout(graph);
  for (const Op& op : body) body_layout.add(op);
  body_layout.keep(ops[select].inputs[0]);
  const int64_t body_columns = body_layout.assign_columns();
  plan.body = make_stage(program, body, body_layout, body_rows, int8);
  plan.body.floats_per_row = body_columns;
  plan.selected = body_layout.view(ops[select].inputs[0], body_rows);

  Layout tail_layout(graph);
  tail_layout.add_input(ops[select].outputs[0]);
  for (const Op& op : tail) tail_layout.add(op);
  const ValueId logits = ops.back().outputs[0];
  tail_layout.keep(logits);
  const int64_t tail_columns = tail_layout.assign_columns();
  plan.tail = make_stage(program, tail, tail_layout, tail_rows, int8);
  plan.tail.floats_per_row = tail_columns;
  plan.tail_input = tail_layout.view(ops[select].outputs[0], tail_rows);
  plan.logits = tail_layout.view(logits, tail_rows);
  return plan;
}

}  // namespace chorus::cpu
