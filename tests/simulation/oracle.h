// What the model says after a history, computed without anything that is under test.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "exec/fake_module.h"

namespace chorus::simulation {

// The arithmetic of a FakeModule whose numbers do not depend on where cells lie.
struct Model {
  std::vector<WindowPolicy> groups;
  int32_t vocabulary = 64;
  TokenId nan_kv_token = -1;      // as in FakeModuleOptions
  TokenId nan_logits_token = -1;  // as in FakeModuleOptions
};

// A token as an engine reports it.
struct Scored {
  TokenScore token;                     // likeliest_begin counts into `likeliest`: it is 0
  std::vector<TokenLogprob> likeliest;  // in order of rank
};

// A FakeModule of its own, with one cell for every history it was asked about: a cell's block table
// is the path to it in the tree of histories. So nothing is ever freed, copied, shared by mistake
// or read at the wrong place, and neither kv nor batching takes part.
// A new history costs O(window) for each token of it that is new; a known one O(length) lookups.
class Oracle {
 public:
  explicit Oracle(const Model& model);

  int32_t vocabulary() const { return module_.info().vocabulary; }

  // The row of the last token of `history`, reduced as `spec` asks (its row is not read). Nothing
  // when an engine could not have computed it: the row, or the KV of any before it, is not finite.
  // Requires: history is not empty.
  std::optional<Scored> reduce(std::span<const TokenId> history, RowSpec spec);

 private:
  void follow(std::span<const TokenId> history);
  void run_row(std::span<const TokenId> history, size_t position, bool is_wanted);

  FakeModule module_;
  const TokenId nan_kv_token_;
  const int32_t num_groups_;
  std::unordered_map<uint64_t, BlockId> children_;  // by parent's block + 1, and token
  BlockId next_block_ = 0;
  std::vector<BlockId> path_;  // of the history being asked about
  Step step_;
  std::vector<RowResult> results_;
  std::vector<TokenLogprob> likeliest_;
};

}  // namespace chorus::simulation
