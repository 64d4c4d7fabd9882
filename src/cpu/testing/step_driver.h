// Drives a Module step by step without books: a few sequences with block tables of their own, in
// scattered blocks. For tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/module.h"

namespace chorus::cpu {

// Every row is wanted and its raw logits are kept. Blocks are taken in a scrambled order; cells
// that hold nothing are NaN from the start, and again once a window has left them behind.
class StepDriver {
 public:
  // What becomes of cells that a window has left behind.
  enum class LeftBehind : uint8_t {
    kEvicted,   // whole blocks leave the table and are spoiled
    kPresent,   // the table holds all of them, as they were
    kPoisoned,  // the table holds all of them, spoiled
  };
  struct Sequence {
    std::vector<TokenId> tokens;               // the whole history to come
    Position length = 0;                       // committed
    std::vector<std::vector<BlockId>> blocks;  // per group, from block 0; kNoBlock once evicted
    std::vector<Position> first;               // per group: first position held
    std::vector<std::vector<float>> logits;    // per position
    std::vector<uint8_t> not_finite;           // per position
    std::vector<RowResult> results;            // greedy, with logprobs, per position
    bool shares = false;                       // blocks with another: these are never poisoned
  };
  // The next `count` tokens of a sequence.
  struct Part {
    int32_t sequence = 0;
    int32_t count = 0;
  };

  explicit StepDriver(Module& module, LeftBehind left_behind = LeftBehind::kEvicted);

  int32_t add(std::vector<TokenId> tokens);
  // A new sequence with the same state: whole blocks are shared, the partial one is copied by the
  // next step. Its history to come is `tokens`.
  int32_t clone(int32_t source, std::vector<TokenId> tokens);
  // Whether steps say which blocks sequences share.
  void tell_shared(bool tell) { tells_shared_ = tell; }
  Sequence& sequence(int32_t i) { return sequences_[static_cast<size_t>(i)]; }

  // Runs a packed step in slices of at most `slice_rows`.
  void step(std::span<const Part> parts, int32_t slice_rows = 1 << 20);
  // Runs a sequence to its end, alone, `chunk` tokens at a time.
  void run_alone(int32_t sequence, int32_t chunk);

  CellId cell(int32_t sequence, int32_t group, Position position) const;

 private:
  void tell_shared(Step& step) const;
  void take_blocks(Sequence& sequence, Position length);
  void evict(Sequence& sequence);
  void poison(int32_t group, BlockId block);
  void poison(int32_t group, std::span<const CellId> cells);

  Module& module_;
  LeftBehind left_behind_;
  std::vector<Sequence> sequences_;
  std::vector<std::vector<BlockId>> free_;  // per group
  std::vector<CellCopy> copies_;
  bool tells_shared_ = true;
};

}  // namespace chorus::cpu
