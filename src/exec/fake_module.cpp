#include "exec/fake_module.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "exec/sampling.h"

namespace chorus {
namespace {

// Any fixed function will do whose outputs look independent. Source: the finaliser of SplitMix64.
uint64_t mix(uint64_t hash, uint64_t value) {
  uint64_t bits = hash * 0x9E3779B97F4A7C15 + value + 0xD1B54A32D192ED03;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  return bits ^ (bits >> 31);
}

uint64_t place(TokenId token, Position position) {
  return static_cast<uint64_t>(static_cast<uint32_t>(token)) << 32 |
         static_cast<uint32_t>(position);
}

// What the canonical bytes of a cell hold.
struct StoredCell {
  TokenId token;
  Position position;
  uint64_t hash;
};

}  // namespace

FakeModule::FakeModule(FakeModuleOptions options) : options_(std::move(options)) {
  CHORUS_CHECK(!options_.groups.empty());
  info_.methods = options_.methods;
  info_.vocabulary = options_.vocabulary;
  info_.context = options_.context;
  info_.block_size = options_.block_size;
  info_.kv_format = {{}, "fake", "fake", "fake", 1};
  for (size_t group = 0; group < options_.groups.size(); ++group) {
    const FakeModuleOptions::Group& each = options_.groups[group];
    info_.groups.push_back({each.policy,
                            {static_cast<int32_t>(group)},
                            each.num_blocks,
                            static_cast<int64_t>(sizeof(StoredCell))});
    cells_.emplace_back(static_cast<size_t>(each.num_blocks) *
                        static_cast<size_t>(options_.block_size));
  }
  logits_.resize(static_cast<size_t>(options_.vocabulary));
  order_.resize(logits_.size());
}

FakeModule::Cell& FakeModule::cell(int32_t group, CellId id) {
  return const_cast<Cell&>(std::as_const(*this).cell(group, id));
}

const FakeModule::Cell& FakeModule::cell(int32_t group, CellId id) const {
  CHORUS_CHECK(group >= 0 && group < static_cast<int32_t>(cells_.size()));
  const std::vector<Cell>& cells = cells_[static_cast<size_t>(group)];
  CHORUS_CHECK(id >= 0 && id < static_cast<CellId>(cells.size()));
  return cells[static_cast<size_t>(id)];
}

bool FakeModule::is_padded(int32_t row) const {
  return step_->cells[static_cast<size_t>(row) * cells_.size()] == kNoCell;
}

// Everything that types.h and module.h say of a step.
void FakeModule::check_step(const Step& step) const {
  const auto num_groups = static_cast<int32_t>(cells_.size());
  const auto num_rows = static_cast<size_t>(step.num_rows());
  CHORUS_CHECK_EQ(step.num_groups, num_groups);
  CHORUS_CHECK_EQ(step.tables.size(), step.sequences.size() * cells_.size());
  CHORUS_CHECK_EQ(step.row_sequence.size(), num_rows);
  CHORUS_CHECK_EQ(step.positions.size(), num_rows);
  CHORUS_CHECK_EQ(step.cells.size(), num_rows * cells_.size());
  int32_t row = 0;
  for (size_t s = 0; s < step.sequences.size(); ++s) {
    const StepSequence& sequence = step.sequences[s];
    CHORUS_CHECK_EQ(sequence.row_begin, row);
    CHORUS_CHECK_GT(sequence.row_count, 0);
    for (int32_t group = 0; group < num_groups; ++group) {
      const BlockTable& table = step.table(static_cast<int32_t>(s), group);
      const WindowPolicy policy = info_.groups[static_cast<size_t>(group)].policy;
      CHORUS_CHECK(table.first_position >= 0);
      CHORUS_CHECK_LE(table.first_position, first_visible(sequence.start, policy));
      CHORUS_CHECK_EQ(table.first_block, table.first_position / options_.block_size);
    }
    for (int32_t i = 0; i < sequence.row_count; ++i, ++row) {
      const auto index = static_cast<size_t>(row);
      const Position position = sequence.start + i;
      CHORUS_CHECK_EQ(step.row_sequence[index], static_cast<int32_t>(s));
      CHORUS_CHECK_EQ(step.positions[index], position);
      CHORUS_CHECK(step.tokens[index] >= 0 && step.tokens[index] < options_.vocabulary);
      for (int32_t group = 0; group < num_groups; ++group) {
        const BlockTable& table = step.table(static_cast<int32_t>(s), group);
        const auto block = static_cast<size_t>(position / options_.block_size - table.first_block);
        CHORUS_CHECK_LT(block, table.blocks.size());
        CHORUS_CHECK_EQ(step.cells[index * cells_.size() + static_cast<size_t>(group)],
                        table.blocks[block] * options_.block_size + position % options_.block_size);
      }
    }
  }
  for (; row < step.num_rows(); ++row) {
    CHORUS_CHECK_EQ(step.row_sequence[static_cast<size_t>(row)], -1);
    CHORUS_CHECK_EQ(step.tokens[static_cast<size_t>(row)], 0);
    CHORUS_CHECK_EQ(step.positions[static_cast<size_t>(row)], 0);
    for (size_t group = 0; group < cells_.size(); ++group) {
      CHORUS_CHECK_EQ(step.cells[static_cast<size_t>(row) * cells_.size() + group], kNoCell);
    }
  }
}

// That the blocks said to be shared are: committed before the step, and the same in both tables.
void FakeModule::check_shared(const Step& step) const {
  const size_t num_groups = cells_.size();
  CHORUS_CHECK(step.order.empty() || step.order.size() == step.sequences.size());
  CHORUS_CHECK_EQ(step.shared.size(), step.order.size() * num_groups);
  for (size_t i = 0; i < step.order.size(); ++i) {
    CHORUS_CHECK_EQ(std::count(step.order.begin(), step.order.end(), static_cast<int32_t>(i)), 1);
    for (size_t group = 0; group < num_groups; ++group) {
      const SharedRange& range = step.shared[i * num_groups + group];
      if (range.is_empty()) continue;
      CHORUS_CHECK_GT(i, size_t{0});
      CHORUS_CHECK_EQ(range.end % options_.block_size, 0);
      const auto checked_block = [&](int32_t sequence, Position position) {
        const BlockTable& table = step.table(sequence, static_cast<int32_t>(group));
        CHORUS_CHECK_LE(table.first_position, range.begin);
        CHORUS_CHECK_LE(range.end, step.sequences[static_cast<size_t>(sequence)].start);
        const auto block = static_cast<size_t>(position / options_.block_size - table.first_block);
        CHORUS_CHECK_LT(block, table.blocks.size());
        return table.blocks[block];
      };
      for (Position position = range.begin; position < range.end; position += options_.block_size) {
        CHORUS_CHECK_EQ(checked_block(step.order[i - 1], position),
                        checked_block(step.order[i], position));
      }
    }
  }
}

Status FakeModule::begin(const Step& step) {
  check_step(step);
  check_shared(step);
  step_ = &step;
  next_row_ = 0;
  kept_.clear();
  const bool fails = is_due(faults_.begin);
  const size_t num_copies = fails ? step.copies.size() / 2 : step.copies.size();
  for (size_t i = 0; i < num_copies; ++i) CHORUS_RETURN_IF_ERROR(copy_cells(step.copies[i]));
  return fails ? internal_error("begin", "failed as scripted") : Status();
}

void FakeModule::check_slice(const MethodInfo& method, const Slice& slice) const {
  CHORUS_CHECK_EQ(slice.row_begin, next_row_);
  CHORUS_CHECK(method.takes(slice.row_count));
  CHORUS_CHECK_LE(slice.row_begin + slice.row_count, step_->num_rows());
  CHORUS_CHECK_GE(static_cast<int32_t>(slice.wanted.size()), method.min_wanted);
  int32_t previous = slice.row_begin - 1;
  for (const int32_t row : slice.wanted) {
    CHORUS_CHECK_GT(row, previous);
    CHORUS_CHECK_LT(row, slice.row_begin + slice.row_count);
    previous = row;
  }
}

Status FakeModule::run(int32_t method, const Slice& slice, std::span<uint8_t> not_finite) {
  CHORUS_CHECK(step_ != nullptr);
  CHORUS_CHECK(method >= 0 && method < static_cast<int32_t>(info_.methods.size()));
  CHORUS_CHECK_EQ(static_cast<int32_t>(not_finite.size()), step_->num_rows());
  check_slice(info_.methods[static_cast<size_t>(method)], slice);
  const bool fails = is_due(faults_.run);
  const int32_t end = slice.row_begin + (fails ? (slice.row_count + 1) / 2 : slice.row_count);
  auto wanted = slice.wanted.begin();
  for (int32_t row = slice.row_begin; row < end; ++row) {
    Row value;
    if (!is_padded(row)) {
      value = attend(row);
      if (fails) value.hidden = ~value.hidden;  // what a failed forward leaves is worth nothing
      write_row(row, value);
      if (!value.finite) not_finite[static_cast<size_t>(row)] = 1;
    }
    if (wanted != slice.wanted.end() && *wanted == row) {
      kept_.push_back({row, value, step_->tokens[static_cast<size_t>(row)]});
      ++wanted;
    }
  }
  ++num_runs_;
  num_rows_run_ += end - slice.row_begin;
  next_row_ = slice.row_begin + slice.row_count;
  return fails ? internal_error("forward", "failed as scripted") : Status();
}

FakeModule::Row FakeModule::attend(int32_t row) {
  const auto index = static_cast<size_t>(row);
  const TokenId token = step_->tokens[index];
  const Position position = step_->positions[index];
  Row value{mix(1, place(token, position)), token != options_.nan_kv_token};
  for (int32_t group = 0; group < step_->num_groups; ++group) {
    const BlockTable& table = step_->table(step_->row_sequence[index], group);
    const WindowPolicy policy = info_.groups[static_cast<size_t>(group)].policy;
    for (Position seen = first_visible(position, policy); seen < position; ++seen) {
      const auto block = static_cast<size_t>(seen / options_.block_size - table.first_block);
      const Cell& read =
          cell(group, table.blocks[block] * options_.block_size + seen % options_.block_size);
      if (read.state == CellState::kEmpty || read.state == CellState::kPoisoned ||
          read.position != seen) {
        ++bad_reads_;
      }
      if (read.state != CellState::kWritten) value.finite = false;
      value.hidden = mix(mix(value.hidden, place(read.token, read.position)), read.hash);
    }
  }
  return value;
}

void FakeModule::write_row(int32_t row, const Row& value) {
  const auto index = static_cast<size_t>(row);
  for (int32_t group = 0; group < step_->num_groups; ++group) {
    cell(group, step_->cells[index * cells_.size() + static_cast<size_t>(group)]) = {
        step_->tokens[index], step_->positions[index],
        mix(value.hidden, static_cast<uint64_t>(group)),
        value.finite ? CellState::kWritten : CellState::kNotFinite};
  }
}

Status FakeModule::reduce_rows(std::span<const RowSpec> specs, std::span<RowResult> results,
                               std::vector<TokenLogprob>& likeliest) {
  CHORUS_CHECK(step_ != nullptr);
  CHORUS_CHECK_EQ(specs.size(), results.size());
  CHORUS_CHECK_EQ(next_row_, step_->num_rows());
  const bool fails = is_due(faults_.reduce);
  const size_t count = fails ? specs.size() / 2 : specs.size();
  for (size_t i = 0; i < count; ++i) results[i] = reduce(specs[i], likeliest);
  return fails ? internal_error("reduce_rows", "failed as scripted") : Status();
}

// Logits in [-6, 6).
void FakeModule::fill_logits(uint64_t hidden) {
  for (size_t id = 0; id < logits_.size(); ++id) {
    logits_[id] = static_cast<float>(mix(hidden, id) >> 40) * (12.0f / 16777216.0f) - 6.0f;
  }
}

RowResult FakeModule::reduce(const RowSpec& spec, std::vector<TokenLogprob>& likeliest) {
  const auto kept =
      std::lower_bound(kept_.begin(), kept_.end(), spec.row,
                       [](const KeptRow& each, int32_t row) { return each.row < row; });
  CHORUS_CHECK(kept != kept_.end() && kept->row == spec.row);
  CHORUS_CHECK(spec.sample || spec.given >= 0 || !spec.raw.empty());
  RowResult result;
  result.finite = kept->value.finite && kept->token != options_.nan_logits_token;
  fill_logits(kept->value.hidden);
  if (!spec.raw.empty()) {
    CHORUS_CHECK_EQ(spec.raw.size(), logits_.size());
    std::copy(logits_.begin(), logits_.end(), spec.raw.begin());
  }
  if (!result.finite || (!spec.sample && spec.given < 0)) return result;
  CHORUS_CHECK_LT(spec.given, options_.vocabulary);
  result.token.id = spec.given >= 0 ? spec.given : choose_token(logits_, spec, order_);
  CHORUS_CHECK_GE(result.token.id, 0);
  score(spec, result.token);
  append_likeliest(spec, result.token, likeliest);
  return result;
}

void FakeModule::score(const RowSpec& spec, TokenScore& token) const {
  token.logprob = std::numeric_limits<float>::quiet_NaN();
  if (!spec.logprobs && spec.given < 0) return;
  const float own = logits_[static_cast<size_t>(token.id)];
  double sum = 0;
  for (const float logit : logits_) sum += std::exp(static_cast<double>(logit));
  token.logprob = static_cast<float>(own - std::log(sum));
  token.rank = 1;
  for (size_t id = 0; id < logits_.size(); ++id) {
    const bool before =
        logits_[id] > own || (logits_[id] == own && id < static_cast<size_t>(token.id));
    if (before) ++token.rank;
  }
}

void FakeModule::append_likeliest(const RowSpec& spec, TokenScore& token,
                                  std::vector<TokenLogprob>& likeliest) {
  CHORUS_CHECK_GE(spec.num_likeliest, 0);
  const auto count = std::min(static_cast<size_t>(spec.num_likeliest), logits_.size());
  if (count == 0) return;
  double sum = 0;
  for (const float logit : logits_) sum += std::exp(static_cast<double>(logit));
  order_.resize(logits_.size());
  for (size_t id = 0; id < order_.size(); ++id) order_[id] = static_cast<TokenId>(id);
  std::sort(order_.begin(), order_.end(), [&](TokenId a, TokenId b) {
    const float logit_a = logits_[static_cast<size_t>(a)];
    const float logit_b = logits_[static_cast<size_t>(b)];
    return logit_a != logit_b ? logit_a > logit_b : a < b;
  });
  token.likeliest_begin = static_cast<int32_t>(likeliest.size());
  token.likeliest_count = static_cast<int32_t>(count);
  for (size_t i = 0; i < count; ++i) {
    likeliest.push_back(
        {order_[i], static_cast<float>(logits_[static_cast<size_t>(order_[i])] - std::log(sum))});
  }
}

Status FakeModule::copy_cells(const CellCopy& copy) {
  CHORUS_CHECK(copy.num_cells > 0 && copy.num_cells <= options_.block_size);
  for (int32_t i = 0; i < copy.num_cells; ++i) {
    cell(copy.group, copy.to * options_.block_size + i) =
        cell(copy.group, copy.from * options_.block_size + i);
  }
  return {};
}

Status FakeModule::read_cells(int32_t group, std::span<const CellId> cells,
                              std::span<std::byte> bytes) const {
  CHORUS_CHECK_EQ(bytes.size(), cells.size() * sizeof(StoredCell));
  for (size_t i = 0; i < cells.size(); ++i) {
    const Cell& from = cell(group, cells[i]);
    const StoredCell stored{from.token, from.position, from.hash};
    std::memcpy(bytes.data() + i * sizeof(StoredCell), &stored, sizeof(StoredCell));
  }
  return {};
}

Status FakeModule::write_cells(int32_t group, std::span<const CellId> cells,
                               std::span<const std::byte> bytes) {
  CHORUS_CHECK_EQ(bytes.size(), cells.size() * sizeof(StoredCell));
  for (size_t i = 0; i < cells.size(); ++i) {
    StoredCell stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(StoredCell), sizeof(StoredCell));
    cell(group, cells[i]) = {stored.token, stored.position, stored.hash, CellState::kWritten};
  }
  return {};
}

void FakeModule::poison(int32_t group, std::span<const CellId> cells) {
  for (const CellId id : cells) {
    cell(group, id) = {-1, -1, 0xBADBADBADBADBAD, CellState::kPoisoned};
  }
}

}  // namespace chorus
