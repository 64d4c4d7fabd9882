#include "kv/books.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"

namespace chorus {

CellId KvPlan::cell(int32_t demand, int32_t group, Position position) const {
  CHORUS_DCHECK(position >= demands_[static_cast<size_t>(demand)].start);
  const Part& range = part(demand, group);
  const auto index = static_cast<size_t>(position / block_size_ - range.first_block);
  return blocks_[range.begin + index] * block_size_ + position % block_size_;
}

Result<std::unique_ptr<KvBooks>> KvBooks::create(const KvOptions& options) {
  if (options.block_size < 1) {
    return invalid_argument("block_size",
                            "expected at least 1, found " + std::to_string(options.block_size));
  }
  if (options.max_sequence_tokens < 1) {
    return invalid_argument("max_sequence_tokens", "expected at least 1, found " +
                                                       std::to_string(options.max_sequence_tokens));
  }
  if (options.groups.empty()) return invalid_argument("groups", "expected at least 1, found 0");
  const int32_t most_blocks = std::numeric_limits<CellId>::max() / options.block_size;
  for (size_t group = 0; group < options.groups.size(); ++group) {
    const KvGroupOptions& each = options.groups[group];
    const std::string field = "groups[" + std::to_string(group) + "].";
    if (each.num_blocks < 1 || each.num_blocks > most_blocks) {
      return invalid_argument(field + "num_blocks", "expected 1 to " + std::to_string(most_blocks) +
                                                        ", found " +
                                                        std::to_string(each.num_blocks));
    }
    if (each.policy.window < 0) {
      return invalid_argument(field + "window",
                              "expected at least 0, found " + std::to_string(each.policy.window));
    }
  }
  return std::unique_ptr<KvBooks>(new KvBooks(options));
}

namespace {

std::vector<BlockPool> make_pools(const KvOptions& options) {
  std::vector<BlockPool> pools;
  for (const KvGroupOptions& group : options.groups) pools.emplace_back(group.num_blocks);
  return pools;
}

std::vector<WindowPolicy> policies_of(const KvOptions& options) {
  std::vector<WindowPolicy> policies;
  for (const KvGroupOptions& group : options.groups) policies.push_back(group.policy);
  return policies;
}

}  // namespace

KvBooks::KvBooks(const KvOptions& options)
    : options_(options),
      policies_(policies_of(options)),
      pools_(make_pools(options)),
      index_(options.block_size, policies_, pools_),
      peaks_(options.groups.size(), 0) {}

const KvSequence& KvBooks::find(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  CHORUS_CHECK(found != sequences_.end());
  return *found->second;
}

// Tables get their final capacity here, so that steps do not allocate.
KvSequence KvBooks::make_sequence() const {
  KvSequence sequence;
  sequence.tables.resize(pools_.size());
  for (size_t group = 0; group < pools_.size(); ++group) {
    const int32_t most = std::min(blocks_for(options_.max_sequence_tokens), pools_[group].total());
    sequence.tables[group].blocks.reserve(static_cast<size_t>(most));
  }
  return sequence;
}

SequenceId KvBooks::insert(KvSequence sequence) {
  ++version_;
  const SequenceId id{next_sequence_++};
  sequences_.emplace(id, std::make_unique<KvSequence>(std::move(sequence)));
  return id;
}

SequenceId KvBooks::open() { return insert(make_sequence()); }

void KvBooks::close(SequenceId sequence) {
  truncate(sequence, 0);
  const KvSequence& state = find(sequence);
  if (state.is_indexed()) index_.unpin(state.last_node());
  sequences_.erase(sequence);
}

SequenceId KvBooks::clone(SequenceId source, Position upto) {
  const KvSequence& from = find(source);
  CHORUS_CHECK(can_rewind(from, upto));
  KvSequence sequence = make_sequence();
  sequence.length = upto;
  for (size_t group = 0; upto > 0 && group < pools_.size(); ++group) {
    const KvSequence::Table& table = from.tables[group];
    const int32_t first_block = table.first_position / options_.block_size;
    const auto shared =
        std::span(table.blocks).first(static_cast<size_t>(blocks_for(upto) - first_block));
    sequence.tables[group].first_position = table.first_position;
    sequence.tables[group].blocks.assign(shared.begin(), shared.end());
    for (const BlockId block : shared) pools_[group].retain(block);
    sequence.tables[group].index_left = table.index_left;
  }
  if (from.is_indexed()) {
    sequence.root = from.root;
    sequence.path.reserve(from.path.capacity());
    sequence.tail.reserve(static_cast<size_t>(options_.block_size));
    sequence.path = from.path;
    sequence.tail = from.tail;
    index_.pin(sequence.last_node());
    shorten_path(sequence, upto);
  }
  return insert(std::move(sequence));
}

std::optional<KvShortage> KvBooks::restore(Position length,
                                           std::span<const Position> first_positions,
                                           SequenceId& sequence) {
  CHORUS_CHECK(length >= 1 && length <= options_.max_sequence_tokens);
  CHORUS_CHECK_EQ(first_positions.size(), pools_.size());
  for (int32_t group = 0; group < num_groups(); ++group) {
    const Position first = first_positions[static_cast<size_t>(group)];
    const WindowPolicy policy = options_.groups[static_cast<size_t>(group)].policy;
    CHORUS_CHECK(first >= 0 && first <= first_visible(length, policy));
    const int32_t needed = blocks_for(length) - first / options_.block_size;
    const int32_t available = pool(group).available();
    if (needed > available) return KvShortage{group, needed, available};
  }
  KvSequence restored = make_sequence();
  restored.length = length;
  for (int32_t group = 0; group < num_groups(); ++group) {
    KvSequence::Table& table = restored.tables[static_cast<size_t>(group)];
    table.first_position = first_positions[static_cast<size_t>(group)];
    const int32_t count = blocks_for(length) - table.first_position / options_.block_size;
    BlockPool& blocks = pools_[static_cast<size_t>(group)];
    index_.evict(group, std::max(0, count - blocks.free()));
    for (int32_t i = 0; i < count; ++i) table.blocks.push_back(blocks.allocate());
    note_peak(group, 0);
  }
  sequence = insert(std::move(restored));
  return std::nullopt;
}

void KvBooks::truncate(SequenceId sequence, Position length) {
  KvSequence& state = find(sequence);
  CHORUS_CHECK(can_rewind(state, length));
  ++version_;
  for (int32_t group = 0; group < num_groups(); ++group) {
    KvSequence::Table& table = state.tables[static_cast<size_t>(group)];
    size_t kept = 0;
    if (length > 0) {
      kept = static_cast<size_t>(blocks_for(length) - table.first_position / options_.block_size);
    } else {
      table.first_position = table.index_left = 0;
    }
    release(group, std::span(table.blocks).subspan(kept));
    table.blocks.resize(kept);
    if (length % options_.block_size == 0) continue;
    // The partial block: a sequence that is alone in the pool must be able to go on in it.
    const BlockPool& blocks = pool(group);
    const BlockId partial = table.blocks.back();
    if (blocks.in_cache(partial) && blocks.ref_count(partial) == 2) index_.forget(group, partial);
  }
  if (state.is_indexed()) shorten_path(state, length);
  state.length = length;
}

// The last one first, so that of the blocks released together the later ones are used again first.
void KvBooks::release(int32_t group, std::span<const BlockId> blocks) {
  BlockPool& blocks_pool = pools_[static_cast<size_t>(group)];
  for (size_t i = blocks.size(); i > 0; --i) blocks_pool.release(blocks[i - 1]);
}

Position KvBooks::length(SequenceId sequence) const { return find(sequence).length; }

BlockTable KvBooks::table(SequenceId sequence, int32_t group) const {
  const KvSequence::Table& table = find(sequence).tables[static_cast<size_t>(group)];
  return {table.first_position, table.first_position / options_.block_size, table.blocks};
}

bool KvBooks::can_rewind(SequenceId sequence, Position length) const {
  return can_rewind(find(sequence), length);
}

Position KvBooks::first_rewind(SequenceId sequence) const { return first_rewind(find(sequence)); }

// An empty sequence needs no key; any other one of length L is continued by a query that sees
// [L - window + 1, L).
bool KvBooks::can_rewind(const KvSequence& sequence, Position length) const {
  return length == 0 ||
         (length >= first_rewind(sequence) && length > 0 && length <= sequence.length);
}

Position KvBooks::first_rewind(const KvSequence& sequence) const {
  Position first = 0;
  for (size_t group = 0; group < pools_.size(); ++group) {
    const Position held = sequence.tables[group].first_position;
    if (held > 0) first = std::max(first, held + options_.groups[group].policy.window - 1);
  }
  return first;
}

int32_t KvBooks::exclusive_blocks(SequenceId sequence, int32_t group) const {
  const auto blocks = table(sequence, group).blocks;
  return static_cast<int32_t>(std::count_if(
      blocks.begin(), blocks.end(), [&](BlockId block) { return num_holders(block, group) == 1; }));
}

int32_t KvBooks::exclusive_blocks(std::span<const SequenceId> sequences, int32_t group) const {
  std::vector<BlockId> held;
  for (const SequenceId sequence : sequences) {
    const auto blocks = table(sequence, group).blocks;
    held.insert(held.end(), blocks.begin(), blocks.end());
  }
  std::sort(held.begin(), held.end());
  int32_t exclusive = 0;
  for (auto run = held.begin(); run != held.end();) {
    const auto end = std::upper_bound(run, held.end(), *run);
    if (end - run == num_holders(*run, group)) ++exclusive;
    run = end;
  }
  return exclusive;
}

bool KvBooks::shares_last_block(SequenceId sequence) const {
  const KvSequence& state = find(sequence);
  if (state.length % options_.block_size == 0) return false;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const BlockId last = state.tables[static_cast<size_t>(group)].blocks.back();
    if (pool(group).ref_count(last) > 1) return true;
  }
  return false;
}

// Tables that name the block.
int32_t KvBooks::num_holders(BlockId block, int32_t group) const {
  return pool(group).ref_count(block) - (pool(group).in_cache(block) ? 1 : 0);
}

int32_t KvBooks::blocks_for(Position length) const {
  return length / options_.block_size + (length % options_.block_size != 0 ? 1 : 0);
}

// How many blocks at the front of the table a step goes on using, and how many it needs in all. A
// partial block stays only where all cells from `start` on are nobody's: appending, and no other
// owner.
KvPlan::Part KvBooks::make_part(const KvSequence& sequence, const KvDemand& demand,
                                int32_t group) const {
  KvPlan::Part part;
  part.num_blocks = blocks_for(demand.start + demand.count);
  if (demand.start == 0) return part;
  const KvSequence::Table& table = sequence.tables[static_cast<size_t>(group)];
  part.first_position = table.first_position;
  part.first_block = table.first_position / options_.block_size;
  part.num_blocks -= part.first_block;
  part.kept_blocks = demand.start / options_.block_size - part.first_block;
  if (demand.start % options_.block_size == 0 || demand.start < sequence.length) return part;
  const BlockId partial = table.blocks[static_cast<size_t>(part.kept_blocks)];
  if (pool(group).ref_count(partial) == 1) ++part.kept_blocks;
  return part;
}

void KvBooks::check_demand(const KvSequence& sequence, const KvDemand& demand) const {
  CHORUS_CHECK(can_rewind(sequence, demand.start));
  CHORUS_CHECK_GT(demand.count, 0);
  CHORUS_CHECK_LE(demand.count, options_.max_sequence_tokens - demand.start);
}

std::optional<KvShortage> KvBooks::shortage(std::span<const KvDemand> demands) const {
  for (int32_t group = 0; group < num_groups(); ++group) {
    int64_t needed = 0;
    for (const KvDemand& demand : demands) {
      const KvSequence& sequence = find(demand.sequence);
      check_demand(sequence, demand);
      const KvPlan::Part part = make_part(sequence, demand, group);
      needed += part.num_blocks - part.kept_blocks;
    }
    const int32_t available = pool(group).available();
    if (needed > available) return KvShortage{group, needed, available};
  }
  return std::nullopt;
}

bool KvBooks::plan(std::span<const KvDemand> demands, KvPlan& plan) {
  plan.books_ = nullptr;
  plan.sorted_.clear();
  for (const KvDemand& demand : demands) plan.sorted_.push_back(demand.sequence);
  std::sort(plan.sorted_.begin(), plan.sorted_.end());
  CHORUS_CHECK(std::adjacent_find(plan.sorted_.begin(), plan.sorted_.end()) == plan.sorted_.end());
  if (!can_admit(demands)) return false;
  for (int32_t group = 0; group < num_groups(); ++group) {
    int32_t missing = -pool(group).free();
    for (const KvDemand& demand : demands) {
      const KvPlan::Part part = make_part(find(demand.sequence), demand, group);
      missing += part.num_blocks - part.kept_blocks;
    }
    if (missing > 0) {
      ++version_;
      index_.evict(group, missing);
    }
  }

  plan.books_ = this;
  plan.version_ = version_;
  plan.block_size_ = options_.block_size;
  plan.demands_.assign(demands.begin(), demands.end());
  plan.sequences_.clear();
  plan.parts_.clear();
  plan.blocks_.clear();
  plan.copies_.clear();
  plan.new_blocks_.assign(pools_.size(), 0);
  for (const KvDemand& demand : demands) {
    plan.sequences_.push_back(sequences_.find(demand.sequence)->second.get());
    for (int32_t group = 0; group < num_groups(); ++group) {
      plan_part(*plan.sequences_.back(), demand, group, plan);
    }
  }
  plan.tables_.clear();
  for (const KvPlan::Part& part : plan.parts_) {
    plan.tables_.push_back({part.first_position, part.first_block,
                            std::span<const BlockId>(plan.blocks_)
                                .subspan(part.begin, static_cast<size_t>(part.num_blocks))});
  }
  find_shared_blocks(plan.tables_, policies_, options_.block_size, plan.shared_);
  return true;
}

void KvBooks::plan_part(const KvSequence& sequence, const KvDemand& demand, int32_t group,
                        KvPlan& plan) const {
  const std::vector<BlockId>& held = sequence.tables[static_cast<size_t>(group)].blocks;
  KvPlan::Part part = make_part(sequence, demand, group);
  part.begin = plan.blocks_.size();
  plan.blocks_.insert(plan.blocks_.end(), held.begin(), held.begin() + part.kept_blocks);
  int32_t& taken = plan.new_blocks_[static_cast<size_t>(group)];
  for (int32_t index = part.kept_blocks; index < part.num_blocks; ++index) {
    plan.blocks_.push_back(pool(group).peek(taken++));
  }
  const int32_t copied_cells =
      demand.start - (part.first_block + part.kept_blocks) * options_.block_size;
  if (copied_cells > 0) {
    const auto first_new = static_cast<size_t>(part.kept_blocks);
    plan.copies_.push_back(
        {group, held[first_new], plan.blocks_[part.begin + first_new], copied_cells});
  }
  plan.parts_.push_back(part);
}

void KvBooks::check_current(const KvPlan& plan) const {
  CHORUS_CHECK(plan.books_ == this);
  CHORUS_CHECK_EQ(plan.version_, version_);
}

void KvBooks::note_peak(int32_t group, int32_t extra_blocks) {
  int32_t& peak = peaks_[static_cast<size_t>(group)];
  peak = std::max(peak, pool(group).used() + extra_blocks);
}

void KvBooks::commit(KvPlan& plan, std::span<const Position> accepted,
                     std::span<const KvRows> rows) {
  check_current(plan);
  CHORUS_CHECK_EQ(accepted.size(), plan.demands_.size());
  CHORUS_CHECK(rows.empty() || rows.size() == accepted.size());
  for (int32_t group = 0; group < num_groups(); ++group) {
    const int32_t num_new = plan.new_blocks_[static_cast<size_t>(group)];
    note_peak(group, num_new);
    for (int32_t i = 0; i < num_new; ++i) pools_[static_cast<size_t>(group)].allocate();
  }
  for (int32_t i = 0; i < plan.num_demands(); ++i) {
    const Position new_length = accepted[static_cast<size_t>(i)];
    const KvDemand& demand = plan.demand(i);
    CHORUS_CHECK(new_length == kRejected ||
                 (new_length >= demand.start && new_length - demand.start <= demand.count));
    KvSequence& sequence = *plan.sequences_[static_cast<size_t>(i)];
    for (int32_t group = 0; group < num_groups(); ++group) {
      commit_part(plan.part(i, group), plan.table(i, group).blocks, new_length, group,
                  sequence.tables[static_cast<size_t>(group)]);
    }
    if (new_length == kRejected) continue;
    const auto index = static_cast<size_t>(i);
    CHORUS_CHECK(!sequence.is_indexed() || index < rows.size());
    if (sequence.is_indexed()) index_rows(demand, new_length, rows[index], sequence);
    sequence.length = new_length;
    for (int32_t group = 0; group < num_groups(); ++group) {
      leave_behind(group, new_length, sequence.tables[static_cast<size_t>(group)]);
    }
    if (sequence.is_indexed()) tell_windows(rows[index].mark, sequence);
  }
  copied_blocks_ += static_cast<int64_t>(plan.copies_.size());
  ++version_;
  plan.books_ = nullptr;
}

void KvBooks::commit_part(const KvPlan::Part& part, std::span<const BlockId> blocks,
                          Position accepted, int32_t group, KvSequence::Table& table) {
  const auto kept = static_cast<size_t>(part.kept_blocks);
  if (accepted == kRejected) return release(group, blocks.subspan(kept));
  const auto used = static_cast<size_t>(blocks_for(accepted) - part.first_block);
  release(group, blocks.subspan(used));
  release(group, std::span(table.blocks).subspan(kept));
  table.blocks.resize(kept);
  table.blocks.insert(table.blocks.end(), blocks.begin() + part.kept_blocks,
                      blocks.begin() + static_cast<std::ptrdiff_t>(used));
  table.first_position = part.first_position;
  if (part.first_position == 0) table.index_left = 0;
}

// Gives up the blocks that hold nothing a query at `length` or later sees.
void KvBooks::leave_behind(int32_t group, Position length, KvSequence::Table& table) {
  const WindowPolicy policy = options_.groups[static_cast<size_t>(group)].policy;
  const int32_t first_block = first_visible(length, policy) / options_.block_size;
  const int32_t num_left = first_block - table.first_position / options_.block_size;
  if (num_left <= 0) return;
  release(group, std::span(table.blocks).first(static_cast<size_t>(num_left)));
  table.blocks.erase(table.blocks.begin(), table.blocks.begin() + num_left);
  table.first_position = first_block * options_.block_size;
}

void KvBooks::abort(KvPlan& plan) {
  check_current(plan);
  for (int32_t group = 0; group < num_groups(); ++group) {
    note_peak(group, plan.new_blocks_[static_cast<size_t>(group)]);
  }
  plan.books_ = nullptr;
}

KvGroupUsage KvBooks::usage(int32_t group) const {
  return {pool(group).total(), pool(group).free(), pool(group).cached(),
          peaks_[static_cast<size_t>(group)]};
}

void KvBooks::check_invariants() const {
  std::vector<std::vector<int32_t>> all_owners;
  for (const BlockPool& blocks : pools_) all_owners.emplace_back(blocks.total(), 0);
  std::unordered_map<PrefixNode, int32_t> pins;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->is_indexed()) continue;
    ++pins[sequence->last_node()];
    check_path(*sequence);
  }
  index_.check_invariants(pins, all_owners);
  for (int32_t group = 0; group < num_groups(); ++group) {
    std::vector<int32_t>& owners = all_owners[static_cast<size_t>(group)];
    for (const auto& [id, sequence] : sequences_) {
      const KvSequence::Table& table = sequence->tables[static_cast<size_t>(group)];
      const WindowPolicy policy = options_.groups[static_cast<size_t>(group)].policy;
      CHORUS_CHECK(sequence->length >= 0 && sequence->length <= options_.max_sequence_tokens);
      CHORUS_CHECK_GE(table.first_position, 0);
      CHORUS_CHECK_LE(table.first_position, first_visible(sequence->length, policy));
      CHORUS_CHECK_EQ(static_cast<int32_t>(table.blocks.size()),
                      blocks_for(sequence->length) - table.first_position / options_.block_size);
      for (const BlockId block : table.blocks) ++owners[static_cast<size_t>(block)];
    }
    pool(group).check_invariants(owners);
    CHORUS_CHECK_GE(peaks_[static_cast<size_t>(group)], pool(group).used());
  }
}

}  // namespace chorus
