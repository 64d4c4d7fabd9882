// Runs the stages of a plan on the threads of a pool.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/stealing_ranges.h"
#include "base/thread_pool.h"
#include "cpu/attention_tiles.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kv_memory.h"
#include "cpu/plan.h"
#include "cpu/profile.h"
#include "exec/module.h"
#include "program/program.h"

namespace chorus::cpu {

// Owns the memory of activations, sized for the most rows of a slice, and that of the kept rows.
// Nothing is allocated after construction. Thread: engine; inside, the pool's.
class Interpreter {
 public:
  // Rows that run through the tail together: the head is read once for so many, and the logits of
  // so many are in memory.
  static constexpr int32_t kTailRows = 32;

  // The references outlive this object. `plan` was made for body_rows and kTailRows. `profile`:
  // null, or what is told of each operator.
  Interpreter(const Program& program, Plan plan, const Kernels& kernels, KvMemory& kv,
              ThreadPool& pool, Profile* profile, int32_t body_rows, int32_t kept_rows);
  // Of the buffers that grow with rows.
  static int64_t bytes_needed(const Plan& plan, int32_t body_rows, int32_t kept_rows);

  // Runs the body over a slice of at most body_rows rows and copies the wanted rows to kept rows
  // [first_kept, first_kept + slice.wanted.size()). Marks rows as Module::run does.
  void run_body(const Step& step, const Slice& slice, int32_t first_kept,
                std::span<uint8_t> not_finite);

  // Runs the tail over kept rows (at most kTailRows) on the calling thread of a pool job: every
  // thread of the pool calls it with the same rows. Behind it stands a barrier.
  void run_tail(std::span<const int32_t> kept_rows, int thread);

  // Row i of the last run_tail; valid until the next. The caller may change it.
  float* logits(int32_t i);
  int32_t vocabulary() const { return plan_.logits.width; }

 private:
  // What one stage works on: local rows [0, rows) of an arena.
  struct Work {
    float* arena = nullptr;
    int32_t rows = 0;
    const Step* step = nullptr;  // of the body
    int32_t first_row = 0;       // of the step
    uint8_t* not_finite = nullptr;
  };
  // One thread's part of the row-wise operators: whole quads, or one of them.
  struct Share {
    int thread = 0;
    int32_t begin = 0;
    int32_t rows = 0;
    float* local = nullptr;  // the thread's scratch
  };

  void make_tiles(int32_t body_rows);
  static float* at(const Work& work, const Share& share, const View& view, int32_t row);
  Share share_rows(int32_t rows, int thread);
  void run_stage(const Stage& stage, const Work& work, const Share& share);
  // A chain without the second phase of its last instruction.
  void run_quads(std::span<const Instruction> chain, const Work& work, const Share& share,
                 bool is_tail);
  // One instruction of them, but of one with two phases the first only.
  void run_first(const Instruction& instruction, const Work& work, const Share& share);
  void run_row_wise(const Instruction& instruction, const Work& work, const Share& share);
  void embed(const Instruction& instruction, const Work& work, const Share& share);
  void rope(const Instruction& instruction, const Work& work, const Share& share);
  void linear(const Instruction& instruction, const Work& work, const Share& share);
  // Row groups [groups.begin, groups.end) of all parts together.
  void multiply(const Instruction& instruction, const Work& work, Range groups);
  void prepare(const Instruction& instruction, const Work& work, const Share& share);
  void store_kv(const Instruction& instruction, const Work& work, const Share& share);
  void update_and_attend(const Instruction& instruction, const Work& work, const Share& share);
  // A tile of attention, or a piece of one, with what its arguments point to.
  struct AttentionCall {
    AttentionQuery queries[kMaxTileQueries];
    AttentionPart parts[kMaxTileQueries];
    AttentionArgs args;
    const AttentionPiece* piece = nullptr;
  };
  void attend(const Instruction& instruction, const Work& work, const Share& share);
  void fill_call(AttentionCall& call, const Instruction& instruction, const Work& work,
                 const Share& share, int32_t kv_head, const AttentionTile& tile);
  void attend_piece(AttentionArgs args, const AttentionTiles& tiles, const AttentionPiece& piece);
  void compute_angles(const Work& work, const Share& share);

  const Program& program_;
  Plan plan_;
  const Kernels& kernels_;
  KvMemory& kv_;
  ThreadPool& pool_;
  StealingRanges linear_work_;  // row groups of the linear layer at work, all its parts together
  // By split of the attention at work: its pieces that are done; 0 between layers.
  const std::unique_ptr<std::atomic<int32_t>[]> pieces_done_;
  AlignedBuffer partials_;  // of split attention tiles
  Profile* const profile_;
  AlignedBuffer body_arena_;
  AlignedBuffer tail_arena_;
  AlignedBuffer kept_;                              // f32 [kept_rows, width of the selected value]
  std::array<AlignedBuffer, kNumInputs> prepared_;  // of one linear layer, by Input
  AlignedBuffer scratch_;                           // attention's, per thread
  size_t scratch_bytes_ = 0;
  AlignedBuffer local_;  // what views call the scratch of a quad, per thread
  int64_t local_floats_ = 0;
  struct Rope {
    std::vector<double> frequencies;
    AlignedBuffer angles;  // f32 [body_rows, dims], of the slice at work
  };
  std::vector<Rope> ropes_;
  std::vector<AttentionTiles> tiles_;  // by Instruction::tiles; of the slice at work
};

}  // namespace chorus::cpu
