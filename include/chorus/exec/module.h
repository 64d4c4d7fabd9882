// The seam below: a program loaded on a device, and the step it is handed. Backends see block
// tables only as the integers in a Step.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chorus/base/result.h"
#include "chorus/exec/types.h"
#include "chorus/kv/types.h"

namespace chorus {

// An entry of a program: what one forward of it accepts.
struct MethodInfo {
  std::string name;        // "forward", or "decode" and "prefill"
  int32_t min_tokens = 1;  // rows per forward, both included
  int32_t max_tokens = 0;
  int32_t min_wanted = 0;  // wanted rows that every forward must name at least
  // The numbers of rows that it takes, ascending, the first min_tokens and the last max_tokens;
  // empty: every number from min_tokens to max_tokens.
  std::vector<int32_t> widths = {};

  bool takes(int32_t rows) const {
    if (rows < min_tokens || rows > max_tokens) return false;
    return widths.empty() || std::find(widths.begin(), widths.end(), rows) != widths.end();
  }
};

// Layers that share one KV policy and one block table.
struct LayerGroupInfo {
  WindowPolicy policy;
  std::vector<int32_t> layers;  // KV layer indices of the program, ascending
  int32_t num_blocks = 0;       // in this module's pool
  int64_t bytes_per_cell = 0;   // K and V of all layers of the group
};

// What decides the bits of a session's KV: modules of the same format can read each other's.
struct KvFormat {
  std::array<uint8_t, 32> identity{};  // of the program: weights, arithmetic, layer groups
  std::string kv_type;                 // of a stored element: "bf16"
  std::string activations;             // how linear layers take their input: "int8"
  std::string isa;                     // instruction set of the kernels
  int32_t numerics_version = 0;
  friend bool operator==(const KvFormat&, const KvFormat&) = default;
};

// Plain facts about a loaded program; fixed from load on.
struct ModuleInfo {
  std::vector<MethodInfo> methods;
  std::vector<LayerGroupInfo> groups;
  int32_t vocabulary = 0;
  int32_t context = 0;  // longest sequence the program was exported for
  int32_t block_size = 16;
  KvFormat kv_format;
};

// The rows of one sequence in a step: positions [start, start + row_count).
struct StepSequence {
  int32_t row_begin = 0;  // rows of a sequence are consecutive
  int32_t row_count = 0;
  Position start = 0;
};

// One packed step. Rows are grouped by sequence, positions ascending within one. A table reaches
// from the first position that any row of its sequence sees, or an earlier one, to the last row's.
// Behind all of them may stand padded rows: token 0 at position 0 of no sequence (-1), which write
// nowhere, see nothing, and whose results nobody reads.
// Shapes: tables [num_sequences, num_groups], cells [num_rows, num_groups], row-major.
//
// Sequences that share blocks are neighbours in `order`. The range that one shares with its
// neighbour before it ends at or before the start of both, so a backend may read the cells there
// once for both. It is a hint: without it, or without heeding it, every result has the same bits.
struct Step {
  int32_t num_groups = 0;
  std::vector<StepSequence> sequences;
  std::vector<BlockTable> tables;
  std::vector<TokenId> tokens;        // [num_rows]
  std::vector<int32_t> row_sequence;  // [num_rows] index into sequences; -1 for a padded row
  std::vector<Position> positions;    // [num_rows]
  std::vector<CellId> cells;          // where the row's K and V go; kNoCell for a padded row
  std::vector<CellCopy> copies;       // to make before the first slice
  std::vector<int32_t> order;         // [num_sequences] a permutation; empty: nothing is shared
  std::vector<SharedRange> shared;    // [order, num_groups] with the one before; the first's: empty

  int32_t num_rows() const { return static_cast<int32_t>(tokens.size()); }
  const BlockTable& table(int32_t sequence, int32_t group) const {
    return tables[static_cast<size_t>(sequence) * static_cast<size_t>(num_groups) +
                  static_cast<size_t>(group)];
  }
};

// The part of a step that one forward runs: rows [row_begin, row_begin + row_count). Slices of a
// step are run in ascending order and cover every row once.
struct Slice {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  std::span<const int32_t>
      wanted;  // rows of the step inside the slice, ascending: kept for reduce_rows
};

// What changes the logit of one token before a choice; sampling.h says how.
struct TokenAdjustment {
  TokenId id = 0;
  float bias = 0.0f;
  int32_t count = 0;      // how often the generation has chosen it
  bool is_given = false;  // it is in the prompt
  float logit = 0.0f;     // scratch of the module, while it reduces the row
};

// What reduce_rows does with one kept row.
struct RowSpec {
  int32_t row = 0;      // row of the step; it must have been wanted
  bool sample = false;  // choose a token: argmax at temperature 0, else a draw
  float temperature = 0.0f;
  int32_t top_k = 0;  // the filters of a draw, as in SamplingParams; sampling.h says exactly
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;  // the draw is keyed (seed, choice, position)
  uint32_t choice = 0;
  Position position = 0;           // of the token to be drawn
  std::span<const uint32_t> mask;  // allowed tokens, bit id % 32 of word id / 32; empty: all
  TokenId given = -1;              // score this token instead of sampling
  bool logprobs = false;           // logprob and rank of the sampled token (of a given one: always)
  int32_t num_likeliest = 0;
  std::span<float> raw;  // if not empty, [vocabulary]: receives the logits, for tests
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  // By id ascending, each once. Of one spec of a call alone; its scratch changes.
  std::span<TokenAdjustment> adjustments;
};

// What a module has spent on operators of one kind. `ns` is time of the engine thread, its waits
// for other threads included; `bytes` are those of weights and KV that the operators read, each
// once an operator and step; MACs are multiply-add operations of useful rows, on int8 and on
// floating-point inputs.
struct OperatorUsage {
  std::string name;
  int64_t calls = 0;
  int64_t ns = 0;
  int64_t bytes = 0;
  int64_t int8_macs = 0;
  int64_t float_macs = 0;
};

// What a module has done since it was loaded.
struct ModuleUsage {
  int64_t graph_ns = 0;  // of the engine thread in operators of the graph: a step without its
                         // packing, its planning and the choice of tokens
  std::vector<OperatorUsage> operators;  // empty unless it was asked to tell them apart
};

struct RowResult {
  bool finite = true;  // false: the logits hold a NaN, and nothing else is valid
  TokenScore token;    // likeliest_begin counts into `likeliest` of the call
};

// A program loaded on a device, with the KV bytes of its layer groups. Thread: engine only.
class Module {
 public:
  virtual ~Module() = default;

  virtual const ModuleInfo& info() const = 0;

  // Starts a step: makes its copies and forgets the rows kept before. `step` outlives the step.
  virtual Status begin(const Step& step) = 0;

  // Runs one forward over a slice, ends at select_rows and keeps the wanted hidden rows. Marks in
  // `not_finite` [step.num_rows()] each row of the slice whose K or V is not finite (others are
  // left as they are). An error fails the step; KV cells that held committed state are untouched.
  virtual Status run(int32_t method, const Slice& slice, std::span<uint8_t> not_finite) = 0;

  // Runs the rest of the graph (norm, head, soft cap) over the rows named, in tiles of rows, and
  // reduces each tile before the next. results.size() == specs.size(); likeliest is appended to.
  virtual Status reduce_rows(std::span<const RowSpec> specs, std::span<RowResult> results,
                             std::vector<TokenLogprob>& likeliest) = 0;

  // What has been spent so far; nothing where a module does not count. Thread: engine.
  virtual ModuleUsage usage() const { return {}; }

  // Copies cells within a group outside of a step.
  virtual Status copy_cells(const CellCopy& copy) = 0;

  // The canonical bytes of given cells: for each cell in order, for each layer of the group
  // ascending, K then V, each [kv_heads, head_dim] in the pool's type. Independent of block size
  // and layout. Requires: bytes.size() == cells.size() * bytes_per_cell.
  virtual Status read_cells(int32_t group, std::span<const CellId> cells,
                            std::span<std::byte> bytes) const = 0;
  virtual Status write_cells(int32_t group, std::span<const CellId> cells,
                             std::span<const std::byte> bytes) = 0;
};

}  // namespace chorus
