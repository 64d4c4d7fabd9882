// The kernel table: every inner loop of the CPU backend, as plain functions over plain arguments.
//
// One table per instruction set. Each operator is one .inc file in an anonymous namespace, included
// by generic.cpp (plain build flags), generic_avx2.cpp and avx512.cpp; these files use no std
// containers, so that no inline function compiled for a wider set can be picked by the linker for
// the whole program.
//
// Kernels are pure: they read and write what their arguments name and nothing else, they do not
// allocate, and the result of a row depends on nothing but that row (and, for attention, on the
// cells it sees): neither on the number of rows in the call nor on how rows were split over calls.
// Rows, columns and strides count elements, not bytes. Pointers to activations and scratch are
// 64-byte aligned unless said otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_features.h"
#include "program/packing/record_layout.h"

namespace chorus::cpu {

// ---- Linear layers -----------------------------------------------------------------------------

// Positions in the tables below; equal to WeightType of program/graph.h (checked in kernels.cpp).
enum WeightIndex : int {
  kWeightF32 = 0,
  kWeightQ4_0 = 1,
  kWeightQ4_1 = 2,
  kWeightQ8_0 = 3,
  kWeightQ5_0 = 4,
  kWeightQ5_1 = 5,
  kWeightQ4_K = 6,
  kWeightQ5_K = 7,
  kWeightQ6_K = 8,
  kWeightBF16 = 9,
  kWeightF16 = 10,
};
inline constexpr int kNumWeights = 11;

inline constexpr int kQuad = 4;       // tokens whose activations are packed together
inline constexpr int kBlock = 32;     // columns that share one scale
inline constexpr int kRowGroup = 16;  // weight rows of one record

// int8 activations of 4 tokens x 32 columns: x is about q * sx. Quads are stored quad-major:
// block b of quad t is at [t * k_blocks + b]; absent tokens of the last quad are zero.
// q = x * (127 / absmax) rounded to nearest even, sx = absmax / 127, both 0 where absmax is 0 or so
// small that 127 / absmax overflows; a token with a non-finite value among the 32 has q = 0 and
// sx = NaN. The rest is what weight types need of the exact sum of q, so that segments of different
// types share one input: quants are stored with their type's zero added, which the start of the
// integer sum takes off (8 for Q4_0: c8; the others' zeros are multiples; Q6_K has a sum for each
// half of the columns), and mins are multiplied by m. Three cache lines.
struct alignas(64) QuadBlock {
  int8_t q[kQuad][kBlock];
  float sx[kQuad];
  int32_t c8[kQuad];   // -8 * sum of q
  int32_t c32[kQuad];  // -32 * sum of the q of the first 16 columns
  float m[kQuad];      // sx * float(sum of q)
};
static_assert(sizeof(QuadBlock) == 192);

// f32 activations of 4 tokens, k-major: x of token i at column k of quad t is
// at [(t * k_blocks * 32 + k) * 4 + i]. Columns beyond the matrix and absent tokens are zero.
// bf16 activations are the same with each value rounded to bf16 (nearest even).

struct PrepareArgs {
  const float* x = nullptr;  // [tokens, columns], rows x_stride apart
  int64_t x_stride = 0;
  int32_t columns = 0;
  int32_t tokens = 0;
  void* out = nullptr;   // QuadBlock [ceil(tokens / 4)][k_blocks], or float as above
  int32_t k_blocks = 0;  // blocks between quads; the first ceil(columns / 32) of each are written
};

// y[t][n] = sum_k x[t][k] W[n][k] (+ bias[n]) for tokens t and the rows n of some row groups, in
// the chains of docs/formats.md: one fixed order per output element.
struct LinearArgs {
  const std::byte* weights = nullptr;  // R16K4 records of the whole segment, 64-byte aligned
  int32_t k_blocks = 0;                // a multiple of 8 for K-quants
  int32_t rows = 0;                    // of the segment, without padding: y has no column n >= rows
  int32_t group_begin = 0;             // row groups [group_begin, group_end) of 16 rows
  int32_t group_end = 0;
  const void* activations = nullptr;  // QuadBlock for int8, float quads for f32 and bf16
  int32_t tokens = 0;
  const float* bias = nullptr;  // [rows], or null
  float* out = nullptr;         // y[t][n] at out[t * out_stride + n]
  int64_t out_stride = 0;
};

// Dequantises rows `tokens[i]` of a packed matrix.
struct EmbedArgs {
  const std::byte* weights = nullptr;
  int32_t k_blocks = 0;
  int32_t columns = 0;
  const int32_t* tokens = nullptr;  // [rows], each a row of the matrix
  int32_t rows = 0;
  float* out = nullptr;  // [rows, columns]
  int64_t out_stride = 0;
};

// ---- Rows --------------------------------------------------------------------------------------

// y = x / sqrt(mean(x^2) + epsilon) * weight over each group of `group_width` columns. The sum of
// squares has 16 lanes (lane = column mod 16, columns ascending), added up in the tree of simd.inc.
struct RmsNormArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t rows = 0;
  int32_t width = 0;
  int32_t group_width = 0;        // divides width
  const float* weight = nullptr;  // [group_width], or null: 1
  float epsilon = 0.0f;
};

// The cosines and sines of a rope table for some positions, computed in double and rounded once.
struct RopeAnglesArgs {
  const double* frequencies = nullptr;  // [dims / 2], radians per position
  int32_t dims = 0;
  const int32_t* positions = nullptr;  // [rows]
  int32_t rows = 0;
  float* out = nullptr;  // [rows][2][dims / 2]: cosines, then sines
};

// Rotates the first `dims` columns of each head; the others are copied. May run in place.
struct RopeArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t rows = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t dims = 0;
  bool half = false;              // pairs (i, i + head_dim / 2); else (2i, 2i + 1)
  const float* angles = nullptr;  // of RopeAnglesArgs, for these rows
};

// Element by element over rows; `b` for add and mul, `scale` for scale and tanh_softcap. May run in
// place.
struct ElementwiseArgs {
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int32_t rows = 0;
  int32_t width = 0;
  float scale = 0.0f;
};

// ---- KV and attention --------------------------------------------------------------------------

// The bytes of one KV layer: K and V arenas of the same shape, [head][block][cells of a block].
// With a block size of 16 or more a block is a run of units of 16 cells, lane = position mod 16
// (d = head_dim rounded up to 16; padding starts as zero and is never written):
//   K bf16 unit: d/2 vectors of 16 cells x the dims (2j, 2j + 1);   K f32 unit: [d][16 cells]
//   V bf16 unit: 8 cell pairs x d/16 vectors of 16 dims x the pair; V f32 unit: [16 cells][d]
//   K q8 unit: d/4 vectors of 16 cells x the dims 4j .. 4j + 3; V q8 unit: [16 cells][d];
//              both signed bytes, then [groups of 32 dims][16 cells] scales in f32
// With a block size of 1 a cell is [d] elements in both arenas, its scales behind them.
enum KvIndex : int { kKvF32 = 0, kKvBf16 = 1, kKvQ8 = 2 };
inline constexpr int kNumKvTypes = 3;
inline constexpr int kUnit = 16;           // cells of a unit
inline constexpr int32_t kQ8Columns = 32;  // columns of a head that share a scale
inline constexpr int kChunk = 256;         // logical positions with one maximum
inline constexpr int kMaxTileQueries = 12;

// Bytes of one element, and of what a cell has beside its elements in each arena.
constexpr int64_t kv_element_bytes(int type) {
  return type == kKvF32 ? 4 : type == kKvBf16 ? 2 : 1;
}
constexpr int64_t kv_scale_bytes(int type, int32_t head_dim) {
  return type == kKvQ8 ? (int64_t{head_dim} + kQ8Columns - 1) / kQ8Columns * 4 : 0;
}
// Of one cell of one head in one arena, padding included.
constexpr int64_t kv_cell_bytes(int type, int32_t head_dim) {
  const int64_t d = (int64_t{head_dim} + kUnit - 1) / kUnit * kUnit;
  return d * kv_element_bytes(type) + kv_scale_bytes(type, head_dim);
}

struct KvLayout {
  int32_t block_size = 16;
  int32_t head_dim = 0;
  int64_t block_bytes = 0;  // of one head in one arena: block_size * kv_cell_bytes
  int64_t head_bytes = 0;   // between heads
};

// Writes K and V of some rows to their cells, rounded to the arena's type (nearest even).
struct StoreKvArgs {
  KvLayout layout;
  int32_t num_heads = 0;
  std::byte* k_arena = nullptr;  // of the layer
  std::byte* v_arena = nullptr;
  const float* k = nullptr;  // [rows, num_heads * head_dim]
  int64_t k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
  int32_t rows = 0;
  const int32_t* cells = nullptr;  // [rows], cells_stride apart; negative: not written
  int64_t cells_stride = 0;
  uint8_t* not_finite = nullptr;  // [rows]: set to 1 where a stored value is not finite
};

// One query head of one token; it sees the positions [first, last] of its sequence.
struct AttentionQuery {
  const float* q = nullptr;  // [head_dim]; rounded as the arena's type asks
  float* out = nullptr;      // [head_dim]
  int32_t first = 0;
  int32_t last = 0;
};

// The queries of one sequence in a tile. Their ranges together are one range, whose positions all
// lie in `blocks`.
struct AttentionPart {
  int32_t num_queries = 0;          // behind those of the part before
  const int32_t* blocks = nullptr;  // block of position p: blocks[p / block_size - first_block]
  int32_t first_block = 0;
  // Whole chunks [begin, end) that this part and the one before hold in the same blocks and at
  // which queries of either end no earlier; each is read once for both. Equal: none.
  int32_t shared_begin = 0;
  int32_t shared_end = 0;
};

// Attention of a tile of queries that share one KV head, of one sequence or several. Numerics:
// docs/decisions/0001-attention-numerics.md. Cells that no query of a part sees are not read into
// any sum; how queries are joined to parts and tiles changes no bit. With `partials`, only some
// chunks are computed, and what each gives is left there for merge_attention.
struct AttentionArgs {
  const AttentionQuery* queries = nullptr;
  int32_t num_queries = 0;  // 1 to kMaxTileQueries
  const AttentionPart* parts = nullptr;
  int32_t num_parts = 0;
  KvLayout layout;
  const std::byte* k = nullptr;  // of the layer and head
  const std::byte* v = nullptr;
  float scale = 0.0f;
  float softcap = 0.0f;          // 0: none
  std::byte* scratch = nullptr;  // attention_scratch_bytes(head_dim)
  float* partials = nullptr;     // null, or [chunk_end - chunk_begin][num_queries] partial results
  int32_t chunk_begin = 0;       // with partials: the chunks [chunk_begin, chunk_end); else 0
  int32_t chunk_end = 0;
  // What the same thread attends to afterwards, whose first chunk is prefetched; or null.
  const AttentionArgs* next = nullptr;
};

// Floats of the partial result of one query and chunk: the sum of weighted values, padded to whole
// vectors; then the maximum m and the sum l of the weights, -1 where the query sees nothing.
constexpr int64_t attention_partial_floats(int32_t head_dim) {
  return (int64_t{head_dim} + kUnit - 1) / kUnit * kUnit + kUnit;
}

// Merges the partial results of all chunks of a tile in their order: the bits of `attention`.
struct MergeAttentionArgs {
  const AttentionQuery* queries = nullptr;  // their outputs are written
  int32_t num_queries = 0;
  int32_t head_dim = 0;
  const float* partials = nullptr;  // [num_chunks][num_queries]
  int32_t num_chunks = 0;
  std::byte* scratch = nullptr;  // attention_scratch_bytes(head_dim)
};

constexpr size_t attention_scratch_bytes(int32_t head_dim) {
  const size_t d = (static_cast<size_t>(head_dim) + 15) / 16 * 16;
  // q and o of each query, scores of a chunk, and one chunk of K and V gathered from single cells.
  return static_cast<size_t>(kMaxTileQueries) * (2 * d + kChunk) * sizeof(float) +
         2 * static_cast<size_t>(kChunk) * d * sizeof(float);
}

// ---- Reductions over the logits of one row -----------------------------------------------------

// Bit id % 32 of word id / 32 of a mask allows a token; a null mask allows all.
struct LogitsArgs {
  const float* logits = nullptr;  // [count]
  int32_t count = 0;
  const uint32_t* mask = nullptr;
};

struct LogitsMax {
  float max = 0.0f;    // over what the mask allows; -inf where nothing is
  int32_t index = -1;  // the lowest index of the maximum; -1: nothing is allowed
  bool nan = false;    // any of the logits, allowed or not, is NaN
};

// A draw as exec/sampling.h defines it, with the weights w_i = floor(exp((x_i - max) *
// inverse_temperature) * 2^32), 0 for what the mask forbids, so that their sums are exact in 64
// bits.
struct DrawArgs {
  LogitsArgs logits;  // fewer than 2^28, none of them NaN
  float max = 0.0f;   // of what the mask allows
  float inverse_temperature = 1.0f;
  uint64_t bits = 0;                   // uniform
  int32_t top_k = 0;                   // 0: all
  uint64_t top_p = uint64_t{1} << 32;  // of a total of 2^32; 2^32: all
  uint64_t min_weight = 0;             // where the likeliest that is left has 2^32; at most 2^32
  uint64_t typical_p = uint64_t{1} << 32;  // as top_p
  uint32_t* typical = nullptr;  // scratch: the words of a mask; null where typical_p is 2^32
};

// ---- The table ---------------------------------------------------------------------------------

struct Kernels {
  // The linear kernels are indexed by weight type. linear_int8 takes QuadBlock input and is null
  // for the float types; linear_f32 takes what prepare_f32 or prepare_bf16 makes.
  void (*quantize)(const PrepareArgs&);
  void (*prepare_f32)(const PrepareArgs&);
  void (*prepare_bf16)(const PrepareArgs&);
  void (*linear_int8[kNumWeights])(const LinearArgs&);
  void (*linear_f32[kNumWeights])(const LinearArgs&);

  void (*embed[kNumWeights])(const EmbedArgs&);
  void (*rms_norm)(const RmsNormArgs&);
  // frequencies[i] = theta^(-2 i / dims) / factors[i] (factors null: 1), i < dims / 2; theta > 0.
  void (*rope_frequencies)(double theta, int32_t dims, const float* factors, double* frequencies);
  void (*rope_angles)(const RopeAnglesArgs&);
  void (*rope)(const RopeArgs&);
  void (*add)(const ElementwiseArgs&);
  void (*mul)(const ElementwiseArgs&);
  void (*scale)(const ElementwiseArgs&);
  void (*silu)(const ElementwiseArgs&);
  void (*gelu)(const ElementwiseArgs&);
  void (*sigmoid)(const ElementwiseArgs&);
  void (*tanh_softcap)(const ElementwiseArgs&);

  void (*store_kv[kNumKvTypes])(const StoreKvArgs&);
  void (*attention[kNumKvTypes])(const AttentionArgs&);
  void (*merge_attention)(const MergeAttentionArgs&);

  LogitsMax (*logits_max)(const LogitsArgs&);
  // Sum of exp(x - max) over all logits, in 16 lanes (lane = index mod 16) and the tree of
  // simd.inc.
  float (*sum_exp)(const LogitsArgs&, float max);
  // Logits greater than x, or equal to it with an index below `index`; the mask does not count.
  int32_t (*count_above)(const LogitsArgs&, float x, int32_t index);
  // The lowest index whose prefix sum of weights, itself included, exceeds
  // floor(bits * total / 2^64), over what top_k, then typical_p, top_p and min_weight leave.
  // Requires: the mask allows a token, and max is its finite maximum.
  int32_t (*draw)(const DrawArgs&);
  // The `n` greatest logits by value descending, then index ascending; returns how many there are.
  int32_t (*top_n)(const LogitsArgs&, int32_t n, int32_t* indices);
  double (*log)(double x);  // x > 0
};

// One table per instruction set. The generic one is the build of generic.h that fits the processor.
const Kernels& generic_kernels();
const Kernels& avx512_kernels();  // only where built_isas() names it
const Kernels& neon_kernels();    // likewise; the build of neon.h that fits the processor

// Requires: isa_supported(isa).
const Kernels& kernels_for(Isa isa);

}  // namespace chorus::cpu
