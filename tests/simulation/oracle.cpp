#include "tests/simulation/oracle.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace chorus::simulation {
namespace {

constexpr BlockId kMaxBlocks = 1 << 16;

FakeModuleOptions module_options(const Model& model) {
  FakeModuleOptions options;
  options.methods = {{"forward", 1, 1, 0}};
  for (const WindowPolicy policy : model.groups) options.groups.push_back({policy, kMaxBlocks});
  options.vocabulary = model.vocabulary;
  options.context = kMaxBlocks;
  options.block_size = 1;
  options.nan_kv_token = model.nan_kv_token;
  options.nan_logits_token = model.nan_logits_token;
  return options;
}

}  // namespace

Oracle::Oracle(const Model& model)
    : module_(module_options(model)),
      nan_kv_token_(model.nan_kv_token),
      num_groups_(static_cast<int32_t>(model.groups.size())) {
  results_.resize(1);
}

std::optional<Scored> Oracle::reduce(std::span<const TokenId> history, RowSpec spec) {
  CHORUS_CHECK(!history.empty());
  // Far back it may be behind every window, but its own row has failed.
  if (std::find(history.begin(), history.end(), nan_kv_token_) != history.end()) return {};
  follow(history);
  run_row(history, history.size() - 1, true);
  spec.row = 0;
  likeliest_.clear();
  CHORUS_CHECK(module_.reduce_rows(std::span(&spec, 1), results_, likeliest_).ok());
  CHORUS_CHECK_EQ(module_.bad_reads(), 0);
  if (!results_[0].finite) return std::nullopt;
  return Scored{results_[0].token, likeliest_};
}

// Fills path_, and runs the rows that no history had before.
void Oracle::follow(std::span<const TokenId> history) {
  CHORUS_CHECK_LT(history.size(), static_cast<size_t>(kMaxBlocks));
  if (next_block_ + static_cast<BlockId>(history.size()) > kMaxBlocks) {
    children_.clear();
    next_block_ = 0;
  }
  path_.clear();
  BlockId parent = -1;
  for (size_t i = 0; i < history.size(); ++i) {
    const uint64_t key =
        static_cast<uint64_t>(parent + 1) << 32 | static_cast<uint32_t>(history[i]);
    const auto [child, is_new] = children_.try_emplace(key, next_block_);
    parent = child->second;
    path_.push_back(parent);
    if (!is_new) continue;
    ++next_block_;
    run_row(history, i, false);
  }
}

void Oracle::run_row(std::span<const TokenId> history, size_t position, bool is_wanted) {
  const auto at = static_cast<Position>(position);
  step_.num_groups = num_groups_;
  step_.sequences.assign(1, {0, 1, at});
  step_.tables.assign(static_cast<size_t>(num_groups_),
                      {0, 0, std::span(path_).first(position + 1)});
  step_.tokens.assign(1, history[position]);
  step_.row_sequence.assign(1, 0);
  step_.positions.assign(1, at);
  step_.cells.assign(static_cast<size_t>(num_groups_), path_[position]);
  const int32_t row = 0;
  uint8_t not_finite = 0;
  CHORUS_CHECK(module_.begin(step_).ok());
  const Slice slice{0, 1, is_wanted ? std::span(&row, 1) : std::span<const int32_t>()};
  CHORUS_CHECK(module_.run(0, slice, std::span(&not_finite, 1)).ok());
}

}  // namespace chorus::simulation
