#include "cpu/profile.h"

#include <algorithm>
#include <string>

#include "cpu/kernels/kernels.h"
#include "program/names.h"
#include "program/packing/record_layout.h"

namespace chorus::cpu {

Profile::Profile(const Program& program, int kv_type)
    : program_(program),
      kv_type_(kv_type),
      cells_(program.graph().groups.size()),
      group_of_(program.graph().kv_layers.size()) {
  for (size_t group = 0; group < cells_.size(); ++group) {
    for (const int32_t layer : program.graph().groups[group].layers) {
      group_of_[static_cast<size_t>(layer)] = static_cast<int32_t>(group);
    }
  }
}

void Profile::begin_slice(const Step& step, const Slice& slice) {
  const size_t num_groups = cells_.size();
  const int32_t slice_end = slice.row_begin + slice.row_count;
  for (size_t group = 0; group < num_groups; ++group) {
    Cells& cells = cells_[group];
    cells = {};
    const WindowPolicy policy = program_.graph().groups[group].policy;
    Position counted_from = 0;  // of the cells that the sequences before share with the next
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      const size_t place = step.order.empty() ? i : static_cast<size_t>(step.order[i]);
      const StepSequence& sequence = step.sequences[place];
      const int32_t begin = std::max(sequence.row_begin, slice.row_begin);
      const int32_t end = std::min(sequence.row_begin + sequence.row_count, slice_end);
      if (begin >= end) continue;
      const Position first = sequence.start + begin - sequence.row_begin;
      const Position last = first + end - begin - 1;
      for (Position row = first; row <= last; ++row) {
        cells.seen += row - first_visible(row, policy) + 1;
      }
      const Position first_read = first_visible(first, policy);
      cells.read += last - first_read + 1;
      const SharedRange shared =
          step.order.empty() ? SharedRange() : step.shared[i * num_groups + group];
      if (shared.is_empty()) {
        counted_from = first_read;
        continue;
      }
      // It ends before either sequence's rows; in a window, those before may have begun later.
      counted_from = std::max(counted_from, shared.begin);
      cells.read -= std::max(0, shared.end - std::max(counted_from, first_read));
      counted_from = std::min(counted_from, first_read);
    }
  }
  start();
}

void Profile::add_time(Entry& entry) {
  const int64_t now = clock_.now_ns();
  entry.ns += now - mark_ns_;
  mark_ns_ = now;
}

void Profile::add_linear(const Instruction& instruction, int32_t rows, Entry& entry) {
  const int64_t columns = instruction.inputs[0].width;
  for (const LinearPart& part : instruction.parts) {
    const RecordLayout& layout = kRecordLayouts[part.type];
    const auto record_columns = static_cast<int64_t>(layout.columns());
    const int64_t records =
        int64_t{(part.rows + 15) / 16} * ((columns + record_columns - 1) / record_columns);
    entry.bytes += records * static_cast<int64_t>(layout.record_bytes());
    (part.input == Input::kInt8 ? entry.int8_macs : entry.float_macs) +=
        int64_t{rows} * part.rows * columns;
  }
}

void Profile::add_attention(const Op& op, Entry& entry) const {
  const Cells& cells = cells_[static_cast<size_t>(group_of_[static_cast<size_t>(op.layer)])];
  entry.bytes += 2 * cells.read * op.num_kv_heads * kv_cell_bytes(kv_type_, op.head_dim);
  entry.float_macs += 2 * cells.seen * op.num_heads * op.head_dim;
}

void Profile::count(const Instruction& instruction, int32_t rows, bool is_tail) {
  Entry& entry = this->entry(instruction, is_tail);
  ++entry.calls;
  if (instruction.op->kind == OpKind::kLinear) {
    add_linear(instruction, rows, entry);
  } else if (instruction.op->kind == OpKind::kUpdateAndAttend) {
    add_attention(*instruction.op, entry);
  }
}

void Profile::add_select_rows() {
  add_time(entry(OpKind::kSelectRows));
  ++entry(OpKind::kSelectRows).calls;
}

void Profile::add_reduction() {
  add_time(entries_[kReduce]);
  ++entries_[kReduce].calls;
}

std::vector<OperatorUsage> Profile::usage() const {
  std::vector<OperatorUsage> operators;
  for (size_t kind = 0; kind < entries_.size(); ++kind) {
    const Entry& entry = entries_[kind];
    if (entry.calls == 0) continue;
    const std::string name = kind == kHead     ? "head"
                             : kind == kReduce ? "reduce_rows"
                                               : std::string(op_name(static_cast<OpKind>(kind)));
    operators.push_back(
        {name, entry.calls, entry.ns, entry.bytes, entry.int8_macs, entry.float_macs});
  }
  return operators;
}

}  // namespace chorus::cpu
