#include "kv/prefix_index.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace chorus {
namespace {

constexpr size_t kFirstTableSize = 1024;

}  // namespace

PrefixIndex::PrefixIndex(int32_t block_size, std::vector<WindowPolicy> policies,
                         std::span<BlockPool> pools, uint64_t hash_mask)
    : block_size_(block_size),
      hash_mask_(hash_mask),
      policies_(std::move(policies)),
      pools_(pools),
      table_(kFirstTableSize, kNoNode),
      runs_(pools.size()) {
  CHORUS_CHECK_EQ(policies_.size(), pools_.size());
  for (const BlockPool& pool : pools_) {
    node_of_.emplace_back(static_cast<size_t>(pool.total()), kNoNode);
  }
}

// ---- Nodes ----

PrefixNode PrefixIndex::make_node(PrefixNode parent) {
  PrefixNode node = static_cast<PrefixNode>(nodes_.size());
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
    slots_.resize(slots_.size() + pools_.size());
    tokens_.resize(tokens_.size() + static_cast<size_t>(block_size_));
    free_nodes_.reserve(nodes_.capacity());
  } else {
    node = free_nodes_.back();
    free_nodes_.pop_back();
  }
  at(node) = {parent, 0, 0, true, 0};
  if (parent != kNoNode) ++at(parent).children;
  return node;
}

PrefixNode PrefixIndex::find_root(std::string_view key) const {
  const auto found = roots_.find(key);
  return found == roots_.end() ? kNoNode : found->second;
}

PrefixNode PrefixIndex::add_root(std::string_view key) {
  const PrefixNode found = find_root(key);
  if (found != kNoNode) return found;
  const PrefixNode root = make_node(kNoNode);
  roots_.emplace(key, root);
  root_keys_.emplace(root, key);
  return root;
}

std::span<const int32_t> PrefixIndex::tokens(PrefixNode node) const {
  const auto size = static_cast<size_t>(block_size_);
  return std::span(tokens_).subspan(static_cast<size_t>(node) * size, size);
}

// Any fixed function will do that spreads well. Source: the finaliser of SplitMix64.
uint64_t PrefixIndex::hash_of(PrefixNode parent, std::span<const int32_t> tokens) const {
  uint64_t hash = static_cast<uint64_t>(parent) * 0x9E3779B97F4A7C15;
  for (const int32_t token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0xBF58476D1CE4E5B9;
    hash ^= hash >> 29;
  }
  hash *= 0x94D049BB133111EB;
  return (hash ^ (hash >> 31)) & hash_mask_;
}

// Where the node is in the table, or the empty place where it would be.
size_t PrefixIndex::probe(uint64_t hash, PrefixNode parent, std::span<const int32_t> tokens) const {
  const size_t mask = table_.size() - 1;
  size_t place = static_cast<size_t>(hash) & mask;
  for (; table_[place] != kNoNode; place = (place + 1) & mask) {
    const PrefixNode node = table_[place];
    if (at(node).hash == hash && at(node).parent == parent &&
        std::equal(tokens.begin(), tokens.end(), this->tokens(node).begin())) {
      break;
    }
  }
  return place;
}

PrefixNode PrefixIndex::find(PrefixNode parent, std::span<const int32_t> tokens) const {
  CHORUS_DCHECK(static_cast<int32_t>(tokens.size()) == block_size_);
  return table_[probe(hash_of(parent, tokens), parent, tokens)];
}

PrefixNode PrefixIndex::add(PrefixNode parent, std::span<const int32_t> tokens) {
  CHORUS_CHECK_EQ(static_cast<int32_t>(tokens.size()), block_size_);
  if (2 * (table_used_ + 1) > table_.size()) grow_table();
  const uint64_t hash = hash_of(parent, tokens);
  const size_t place = probe(hash, parent, tokens);
  if (table_[place] != kNoNode) return table_[place];
  const PrefixNode node = make_node(parent);
  at(node).hash = hash;
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + std::ptrdiff_t{node} * std::ptrdiff_t{block_size_});
  table_[place] = node;
  ++table_used_;
  return node;
}

void PrefixIndex::grow_table() {
  std::vector<PrefixNode> old(2 * table_.size(), kNoNode);
  std::swap(old, table_);
  for (const PrefixNode node : old) {
    if (node != kNoNode) table_[probe(at(node).hash, at(node).parent, tokens(node))] = node;
  }
}

// Shifts back whatever would no longer be found behind the gap.
// Source: Knuth, The Art of Computer Programming, volume 3, 6.4, algorithm R.
void PrefixIndex::remove_from_table(PrefixNode node) {
  const size_t mask = table_.size() - 1;
  size_t gap = probe(at(node).hash, at(node).parent, tokens(node));
  CHORUS_CHECK_EQ(table_[gap], node);
  for (size_t place = (gap + 1) & mask; table_[place] != kNoNode; place = (place + 1) & mask) {
    const size_t home = static_cast<size_t>(at(table_[place]).hash) & mask;
    if (((place - home) & mask) < ((place - gap) & mask)) continue;
    table_[gap] = table_[place];
    gap = place;
  }
  table_[gap] = kNoNode;
  --table_used_;
}

void PrefixIndex::unpin(PrefixNode node) {
  CHORUS_CHECK_GT(at(node).pins, 0);
  --at(node).pins;
  remove_if_idle(node);
}

// And its parents, as far as they have become idle.
void PrefixIndex::remove_if_idle(PrefixNode node) {
  while (node != kNoNode && at(node).children == 0 && at(node).pins == 0) {
    for (int32_t group = 0; group < num_groups(); ++group) {
      if (block(node, group) != kNoBlock) return;
    }
    const PrefixNode parent = at(node).parent;
    if (parent != kNoNode) {
      remove_from_table(node);
      --at(parent).children;
    } else {
      const auto key = root_keys_.find(node);
      roots_.erase(key->second);
      root_keys_.erase(key);
    }
    at(node) = {};
    free_nodes_.push_back(node);
    node = parent;
  }
}

// ---- Blocks ----

void PrefixIndex::put(PrefixNode node, int32_t group, BlockId block) {
  CHORUS_CHECK_EQ(slot(node, group).block, kNoBlock);
  PrefixNode& owner = node_of_[static_cast<size_t>(group)][static_cast<size_t>(block)];
  CHORUS_CHECK_EQ(owner, kNoNode);
  owner = node;
  slot(node, group) = {block, false};
  pools_[static_cast<size_t>(group)].cache(block);
}

void PrefixIndex::mark(PrefixNode node, int32_t group) {
  CHORUS_CHECK_GT(policies_[static_cast<size_t>(group)].window, 0);
  Slot& each = slot(node, group);
  if (each.block != kNoBlock) each.marked = true;
}

void PrefixIndex::leave(PrefixNode node, int32_t group) {
  const Slot& each = slot(node, group);
  if (each.block == kNoBlock || each.marked) return;
  if (pools_[static_cast<size_t>(group)].ref_count(each.block) > 1) return;
  drop(node, group);
  remove_if_idle(node);
}

void PrefixIndex::drop(PrefixNode node, int32_t group) {
  Slot& each = slot(node, group);
  if (each.block == kNoBlock) return;
  node_of_[static_cast<size_t>(group)][static_cast<size_t>(each.block)] = kNoNode;
  pools_[static_cast<size_t>(group)].uncache(each.block);
  each = {};
}

void PrefixIndex::forget(int32_t group, BlockId block) {
  const PrefixNode node = node_of_[static_cast<size_t>(group)][static_cast<size_t>(block)];
  CHORUS_CHECK(node != kNoNode);
  if (policies_[static_cast<size_t>(group)].window > 0) {
    drop(node, group);
  } else {
    for (int32_t each = 0; each < num_groups(); ++each) drop(node, each);
  }
  remove_if_idle(node);
}

void PrefixIndex::evict(int32_t group, int32_t num_blocks) {
  const BlockPool& pool = pools_[static_cast<size_t>(group)];
  for (int32_t i = 0; i < num_blocks; ++i) {
    CHORUS_CHECK_GT(pool.cached(), 0);
    forget(group, pool.oldest_cached());
  }
}

// ---- Lookup ----

Position PrefixIndex::longest_prefix(std::string_view key, std::span<const int32_t> tokens,
                                     Position cap, std::vector<PrefixNode>& path) const {
  path.clear();
  cap = std::min(cap, static_cast<Position>(tokens.size()));
  Position longest = 0;
  std::fill(runs_.begin(), runs_.end(), 0);  // blocks in a row that end with the node at hand
  PrefixNode node = find_root(key);
  const auto size = static_cast<size_t>(block_size_);
  for (int32_t index = 0; node != kNoNode; ++index) {
    const auto begin = static_cast<size_t>(index) * size;
    if (static_cast<Position>(begin) >= cap || begin + size > tokens.size()) break;
    node = find(node, tokens.subspan(begin, size));
    if (node == kNoNode) break;
    path.push_back(node);
    const auto end =
        static_cast<Position>(std::min<size_t>(begin + size, static_cast<size_t>(cap)));
    bool usable = true;
    bool goes_on = true;
    for (int32_t group = 0; group < num_groups(); ++group) {
      int32_t& run = runs_[static_cast<size_t>(group)];
      run = block(node, group) == kNoBlock ? 0 : run + 1;
      const WindowPolicy policy = policies_[static_cast<size_t>(group)];
      const int32_t needed = index + 1 - first_visible(end, policy) / block_size_;
      if (run < needed) usable = false;
      if (run < needed && policy.window == 0) goes_on = false;  // nor is any longer one
    }
    if (usable) longest = end;
    if (!goes_on) break;
  }
  path.resize(static_cast<size_t>((longest + block_size_ - 1) / block_size_));
  return longest;
}

// ---- Checks ----

void PrefixIndex::check_invariants(const std::unordered_map<PrefixNode, int32_t>& pins,
                                   std::span<std::vector<int32_t>> owners) const {
  std::vector<int32_t> children(nodes_.size(), 0);
  int64_t num_used = 0;
  size_t num_roots = 0;
  for (PrefixNode id = 0; id < static_cast<PrefixNode>(nodes_.size()); ++id) {
    const Node& node = at(id);
    if (!node.is_used) continue;
    ++num_used;
    const auto pinned = pins.find(id);
    CHORUS_CHECK_EQ(node.pins, pinned == pins.end() ? 0 : pinned->second);
    if (node.parent == kNoNode) {
      ++num_roots;
      CHORUS_CHECK_EQ(find_root(root_keys_.at(id)), id);
    } else {
      ++children[static_cast<size_t>(node.parent)];
      CHORUS_CHECK(at(node.parent).is_used);
      CHORUS_CHECK_EQ(find(node.parent, tokens(id)), id);
    }
    bool is_idle = node.children == 0 && node.pins == 0;
    for (int32_t group = 0; group < num_groups(); ++group) {
      const BlockId held = block(id, group);
      if (held == kNoBlock) continue;
      is_idle = false;
      ++owners[static_cast<size_t>(group)][static_cast<size_t>(held)];
      CHORUS_CHECK_EQ(node_of_[static_cast<size_t>(group)][static_cast<size_t>(held)], id);
      CHORUS_CHECK(pools_[static_cast<size_t>(group)].in_cache(held));
    }
    CHORUS_CHECK(!is_idle);
  }
  for (size_t id = 0; id < nodes_.size(); ++id) {
    CHORUS_CHECK_EQ(nodes_[id].children, children[id]);
  }
  CHORUS_CHECK_EQ(num_used, num_nodes());
  CHORUS_CHECK_EQ(num_roots, roots_.size());
  CHORUS_CHECK_EQ(table_used_ + num_roots, static_cast<size_t>(num_used));
}

}  // namespace chorus
