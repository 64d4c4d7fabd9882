// What the interpreter runs: the operators of a program with the places of their values in memory
// and the places of barriers, fixed when the program is loaded.
//
// Rows are split over threads in the same way for every operator that works row by row, so that
// these need no barrier among themselves. linear and update_and_attend have two phases with a
// barrier before and behind the second: activations are prepared (K and V stored) row by row, then
// weights (heads) are split. Phases number the stretches between barriers; memory of a value is
// reused only in a later phase than that of its last reader.
//
// Operators are fused into chains: what works row by row up to the first phase of the next linear
// or update_and_attend is done for one quad of rows before the next, so that norm, activation,
// residual and the quantising of the input meet their values in the first caches. A value that only
// its own chain reads has no place in the arena at all, but one in a scratch of a quad that each
// thread has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "program/graph.h"
#include "program/program.h"

namespace chorus::cpu {

// A value in an arena of floats: row r at offset + r * stride; or in a thread's scratch of one
// quad, where row r is at offset + r % kQuad * stride.
struct View {
  int64_t offset = 0;
  int32_t stride = 0;
  int32_t width = 0;
  bool is_local = false;  // in the scratch
};

// The kinds of preparation of a linear layer's input, each made once for all parts that take it.
enum class Input : uint8_t {
  kInt8 = 0,  // quantised: quantised weights
  kBf16 = 1,  // rounded: BF16 weights
  kF32 = 2,   // as it is: F32 and F16 weights, and all others where int8 is not wanted
};
inline constexpr size_t kNumInputs = 3;

// One weight segment of a linear layer.
struct LinearPart {
  const std::byte* weights = nullptr;
  const float* bias = nullptr;
  int32_t type = 0;  // WeightIndex
  int32_t rows = 0;
  int64_t bytes = 0;  // of the weights
  Input input = Input::kF32;
  View out;
};

struct Instruction {
  const Op* op = nullptr;  // in the program's graph
  View inputs[3];
  View output;                              // of kinds other than linear
  const std::byte* weights = nullptr;       // embed: packed rows; rms_norm: floats, or null
  int32_t weight_type = 0;                  // embed
  std::vector<LinearPart> parts;            // linear
  std::array<bool, kNumInputs> takes = {};  // linear: what its parts need
  size_t tiles = 0;  // update_and_attend: whose tiles it uses, for the interpreter to say
};

constexpr bool has_two_phases(OpKind kind) {
  return kind == OpKind::kLinear || kind == OpKind::kUpdateAndAttend;
}

// Instructions [begin, end) that run quad by quad: all but the second phase of the last, if that
// has two phases.
struct Chain {
  size_t begin = 0;
  size_t end = 0;
};

// A run of instructions over one arena.
struct Stage {
  std::vector<Instruction> instructions;
  std::vector<Chain> chains;         // all instructions, in order
  int64_t floats_per_row = 0;        // of the arena
  int64_t local_floats_per_row = 0;  // of a thread's scratch
  int32_t max_columns = 0;           // widest input of a linear layer
};

struct Plan {
  Stage body;       // up to select_rows; its arena has `body_rows` rows
  View selected;    // of the body's arena: the input of select_rows
  Stage tail;       // the operators after it; its arena has `tail_rows` rows
  View tail_input;  // of the tail's arena
  View logits;      // of the tail's arena
};

struct PlanOptions {
  // Quantise activations wherever the weights are quantised, and round them to bf16 where the
  // weights are; else they stay f32 everywhere.
  bool int8 = true;
  bool fused = true;  // else each chain is one instruction; changes no bit
  int32_t body_rows = 0;
  int32_t tail_rows = 0;
};

// Errors: kUnimplemented, with the operator as field, for what this backend does not offer.
Result<Plan> make_plan(const Program& program, const PlanOptions& options);

}  // namespace chorus::cpu
