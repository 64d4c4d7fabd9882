#include "cpu/testing/step_driver.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "kv/shared_blocks.h"

namespace chorus::cpu {

StepDriver::StepDriver(Module& module, LeftBehind left_behind)
    : module_(module), left_behind_(left_behind) {
  RandomStream random(11);
  for (const LayerGroupInfo& group : module.info().groups) {
    std::vector<BlockId> blocks;
    for (BlockId b = 0; b < group.num_blocks; ++b) blocks.push_back(b);
    for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random.below(i)]);
    free_.push_back(blocks);
    for (const BlockId b : blocks) poison(static_cast<int32_t>(free_.size()) - 1, b);
  }
}

void StepDriver::poison(int32_t group, BlockId block) {
  const int32_t size = module_.info().block_size;
  std::vector<CellId> cells;
  for (int32_t i = 0; i < size; ++i) cells.push_back(block * size + i);
  poison(group, cells);
}

void StepDriver::poison(int32_t group, std::span<const CellId> cells) {
  const auto bytes =
      static_cast<size_t>(module_.info().groups[static_cast<size_t>(group)].bytes_per_cell);
  const std::vector<std::byte> nan(cells.size() * bytes, std::byte{0xff});
  CHORUS_CHECK(module_.write_cells(group, cells, nan).ok());
}

int32_t StepDriver::add(std::vector<TokenId> tokens) {
  Sequence sequence;
  sequence.tokens = std::move(tokens);
  sequence.blocks.resize(free_.size());
  sequence.first.resize(free_.size());
  sequences_.push_back(std::move(sequence));
  return static_cast<int32_t>(sequences_.size()) - 1;
}

int32_t StepDriver::clone(int32_t source, std::vector<TokenId> tokens) {
  sequence(source).shares = true;
  Sequence copy = sequence(source);
  copy.tokens = std::move(tokens);
  const int32_t size = module_.info().block_size;
  const int32_t partial = copy.length % size;
  for (size_t g = 0; g < free_.size() && partial != 0; ++g) {
    BlockId& last = copy.blocks[g][static_cast<size_t>(copy.length / size)];
    copies_.push_back({static_cast<int32_t>(g), last, free_[g].back(), partial});
    last = free_[g].back();
    free_[g].pop_back();
  }
  sequences_.push_back(std::move(copy));
  return static_cast<int32_t>(sequences_.size()) - 1;
}

void StepDriver::take_blocks(Sequence& sequence, Position length) {
  const int32_t size = module_.info().block_size;
  for (size_t g = 0; g < free_.size(); ++g) {
    while (static_cast<Position>(sequence.blocks[g].size()) * size < length) {
      CHORUS_CHECK(!free_[g].empty());
      sequence.blocks[g].push_back(free_[g].back());
      free_[g].pop_back();
    }
  }
}

void StepDriver::evict(Sequence& sequence) {
  const int32_t size = module_.info().block_size;
  for (size_t g = 0; g < free_.size(); ++g) {
    const int32_t window = module_.info().groups[g].policy.window;
    if (window == 0) continue;
    const Position first = chorus::first_visible(sequence.length, {window});
    if (left_behind_ == LeftBehind::kPoisoned) {
      std::vector<CellId> cells;
      for (Position p = 0; p < first; ++p) {
        cells.push_back(sequence.blocks[g][static_cast<size_t>(p / size)] * size + p % size);
      }
      poison(static_cast<int32_t>(g), cells);
    }
    if (left_behind_ != LeftBehind::kEvicted) continue;
    sequence.first[g] = std::max(sequence.first[g], first);
    for (Position block = 0; block < sequence.first[g] / size; ++block) {
      BlockId& id = sequence.blocks[g][static_cast<size_t>(block)];
      if (id == kNoBlock) continue;
      if (!sequence.shares) poison(static_cast<int32_t>(g), id);
      id = kNoBlock;
    }
  }
}

CellId StepDriver::cell(int32_t sequence, int32_t group, Position position) const {
  const int32_t size = module_.info().block_size;
  const Sequence& s = sequences_[static_cast<size_t>(sequence)];
  return s.blocks[static_cast<size_t>(group)][static_cast<size_t>(position / size)] * size +
         position % size;
}

void StepDriver::tell_shared(Step& step) const {
  std::vector<WindowPolicy> policies;
  for (const LayerGroupInfo& group : module_.info().groups) policies.push_back(group.policy);
  SharedBlocks shared;
  find_shared_blocks(step.tables, policies, module_.info().block_size, shared);
  step.order = shared.order;
  step.shared = shared.ranges;
}

void StepDriver::step(std::span<const Part> parts, int32_t slice_rows) {
  const int32_t size = module_.info().block_size;
  Step step;
  step.num_groups = static_cast<int32_t>(free_.size());
  step.copies = std::move(copies_);
  copies_.clear();
  for (const Part& part : parts) {
    Sequence& s = sequence(part.sequence);
    take_blocks(s, s.length + part.count);
    const auto index = static_cast<int32_t>(step.sequences.size());
    step.sequences.push_back({step.num_rows(), part.count, s.length});
    for (size_t g = 0; g < free_.size(); ++g) {
      const int32_t first_block = s.first[g] / size;
      step.tables.push_back({s.first[g], first_block,
                             std::span(s.blocks[g]).subspan(static_cast<size_t>(first_block))});
    }
    for (Position p = s.length; p < s.length + part.count; ++p) {
      step.tokens.push_back(s.tokens[static_cast<size_t>(p)]);
      step.row_sequence.push_back(index);
      step.positions.push_back(p);
      for (int32_t g = 0; g < step.num_groups; ++g) {
        step.cells.push_back(cell(part.sequence, g, p));
      }
    }
  }
  if (tells_shared_) tell_shared(step);
  CHORUS_CHECK(module_.begin(step).ok());
  const int32_t rows = step.num_rows();
  std::vector<uint8_t> not_finite(static_cast<size_t>(rows));
  std::vector<int32_t> wanted;
  for (int32_t row = 0; row < rows; ++row) wanted.push_back(row);
  for (int32_t begin = 0; begin < rows; begin += slice_rows) {
    const int32_t count = std::min(slice_rows, rows - begin);
    const auto part = std::span<const int32_t>(wanted).subspan(static_cast<size_t>(begin),
                                                               static_cast<size_t>(count));
    CHORUS_CHECK(module_.run(0, {begin, count, part}, not_finite).ok());
  }
  const auto vocabulary = static_cast<size_t>(module_.info().vocabulary);
  std::vector<std::vector<float>> logits(static_cast<size_t>(rows), std::vector<float>(vocabulary));
  std::vector<RowSpec> specs(static_cast<size_t>(rows));
  std::vector<RowResult> results(specs.size());
  for (size_t row = 0; row < specs.size(); ++row) {
    specs[row].row = static_cast<int32_t>(row);
    specs[row].sample = specs[row].logprobs = true;
    specs[row].raw = logits[row];
  }
  std::vector<TokenLogprob> likeliest;
  CHORUS_CHECK(module_.reduce_rows(specs, results, likeliest).ok());
  size_t row = 0;
  for (const Part& part : parts) {
    Sequence& s = sequence(part.sequence);
    for (int32_t i = 0; i < part.count; ++i, ++row) {
      s.logits.push_back(std::move(logits[row]));
      s.not_finite.push_back(not_finite[row]);
      s.results.push_back(results[row]);
    }
    s.length += part.count;
    evict(s);
  }
}

void StepDriver::run_alone(int32_t index, int32_t chunk) {
  Sequence& s = sequence(index);
  while (s.length < static_cast<Position>(s.tokens.size())) {
    const Part part{index, std::min(chunk, static_cast<int32_t>(s.tokens.size()) - s.length)};
    step({&part, 1});
  }
}

}  // namespace chorus::cpu
