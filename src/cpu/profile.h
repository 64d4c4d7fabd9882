// Time, calls, bytes and MACs by kind of operator.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "cpu/plan.h"
#include "exec/module.h"
#include "program/program.h"

namespace chorus::cpu {

// Follows the engine thread through the operators of a step; OperatorUsage says what is counted.
// Nothing is allocated after construction but by usage(). Thread: engine.
class Profile {
 public:
  // The program outlives this object. `kv_type`: a KvIndex.
  Profile(const Program& program, int kv_type);

  // Counts the cells that the rows of a slice see, for its attention; starts the clock.
  void begin_slice(const Step& step, const Slice& slice);
  // Starts the clock.
  void start() { mark_ns_ = clock_.now_ns(); }
  // What ran since the clock was started or time was added was a part of this operator; `is_tail`:
  // behind select_rows.
  void add_time(const Instruction& instruction, bool is_tail) {
    add_time(entry(instruction, is_tail));
  }
  // It ran, over so many rows.
  void count(const Instruction& instruction, int32_t rows, bool is_tail);
  // The same for parts of an operator that are no instruction, and for the choice of tokens.
  void add_rope_angles() { add_time(entry(OpKind::kRope)); }
  void add_select_rows();
  void add_reduction();

  std::vector<OperatorUsage> usage() const;

 private:
  // By OpKind; then linear layers behind select_rows, and the reduction of logits to tokens.
  static constexpr size_t kNumKinds = static_cast<size_t>(OpKind::kSelectRows) + 1;
  static constexpr size_t kHead = kNumKinds;
  static constexpr size_t kReduce = kNumKinds + 1;
  struct Entry {
    int64_t calls = 0;
    int64_t ns = 0;
    int64_t bytes = 0;
    int64_t int8_macs = 0;
    int64_t float_macs = 0;
  };
  struct Cells {
    int64_t seen = 0;  // by all rows together
    int64_t read = 0;  // each once, where the step says that sequences share them
  };

  Entry& entry(OpKind kind) { return entries_[static_cast<size_t>(kind)]; }
  Entry& entry(const Instruction& instruction, bool is_tail) {
    const OpKind kind = instruction.op->kind;
    return kind == OpKind::kLinear && is_tail ? entries_[kHead] : entry(kind);
  }
  void add_time(Entry& entry);
  static void add_linear(const Instruction& instruction, int32_t rows, Entry& entry);
  void add_attention(const Op& op, Entry& entry) const;

  const Program& program_;
  const int kv_type_;
  const SteadyClock clock_;
  int64_t mark_ns_ = 0;
  std::array<Entry, kNumKinds + 2> entries_;
  std::vector<Cells> cells_;       // by layer group; of the slice at work
  std::vector<int32_t> group_of_;  // by KV layer
};

}  // namespace chorus::cpu
