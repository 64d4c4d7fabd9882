// KvBooks: what has to do with the prefix index.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/books.h"

namespace chorus {

SequenceId KvBooks::open_prefix(std::string_view key, std::span<const int32_t> tokens,
                                Position cap) {
  KvSequence sequence = make_sequence();
  start_path(key, sequence);
  const Position length =
      index_.longest_prefix(key, tokens, std::min(cap, options_.max_sequence_tokens), found_);
  for (int32_t group = 0; length > 0 && group < num_groups(); ++group) {
    KvSequence::Table& table = sequence.tables[static_cast<size_t>(group)];
    const WindowPolicy policy = options_.groups[static_cast<size_t>(group)].policy;
    table.index_left = first_visible(length, policy) / options_.block_size;
    table.first_position = table.index_left * options_.block_size;
    for (auto i = static_cast<size_t>(table.index_left); i < found_.size(); ++i) {
      table.blocks.push_back(index_.block(found_[i], group));
      pools_[static_cast<size_t>(group)].retain(table.blocks.back());
    }
  }
  follow(sequence, found_, length);
  return insert(std::move(sequence));
}

Position KvBooks::longest_prefix(std::string_view key, std::span<const int32_t> tokens,
                                 Position cap) const {
  return index_.longest_prefix(key, tokens, std::min(cap, options_.max_sequence_tokens), found_);
}

void KvBooks::start_path(std::string_view key, KvSequence& sequence) {
  sequence.root = index_.add_root(key);
  index_.pin(sequence.root);
  sequence.path.reserve(static_cast<size_t>(blocks_for(options_.max_sequence_tokens)));
  sequence.tail.reserve(static_cast<size_t>(options_.block_size));
}

// Makes a sequence whose path is empty stand at `length`, in part of the path's last node perhaps.
void KvBooks::follow(KvSequence& sequence, std::span<const PrefixNode> path, Position length) {
  const auto num_full = static_cast<size_t>(length / options_.block_size);
  const auto num_tail = static_cast<size_t>(length % options_.block_size);
  sequence.path.assign(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(num_full));
  if (num_tail > 0) {
    const auto tokens = index_.tokens(path[num_full]).first(num_tail);
    sequence.tail.assign(tokens.begin(), tokens.end());
  }
  sequence.length = length;
  index_.pin(sequence.last_node());
  index_.unpin(sequence.root);
}

void KvBooks::shorten_path(KvSequence& sequence, Position length) {
  const auto num_full = static_cast<size_t>(length / options_.block_size);
  const auto num_tail = static_cast<size_t>(length % options_.block_size);
  const PrefixNode old_last = sequence.last_node();
  if (num_full < sequence.path.size()) {
    const auto tokens = index_.tokens(sequence.path[num_full]).first(num_tail);
    sequence.tail.assign(tokens.begin(), tokens.end());
    sequence.path.resize(num_full);
  }
  sequence.tail.resize(num_tail);
  index_.pin(sequence.last_node());
  index_.unpin(old_last);
}

// The first block of a window that ends at `length`, or with the last full block before it, or one
// token earlier (so that a token is left to run): what must be there to be found again.
int32_t KvBooks::first_indexed(int32_t group, Position length) const {
  const Position full = length / options_.block_size * options_.block_size;
  const WindowPolicy policy = options_.groups[static_cast<size_t>(group)].policy;
  return first_visible(std::max(0, full - 1), policy) / options_.block_size;
}

void KvBooks::add_to_path(std::span<const int32_t> tokens, KvSequence& sequence) {
  const auto size = static_cast<size_t>(options_.block_size);
  const PrefixNode old_last = sequence.last_node();
  while (!tokens.empty()) {
    const auto taken = tokens.first(std::min(tokens.size(), size - sequence.tail.size()));
    sequence.tail.insert(sequence.tail.end(), taken.begin(), taken.end());
    tokens = tokens.subspan(taken.size());
    if (sequence.tail.size() < size) break;
    sequence.path.push_back(index_.add(sequence.last_node(), sequence.tail));
    sequence.tail.clear();
  }
  index_.pin(sequence.last_node());
  index_.unpin(old_last);
}

// Puts what a step has filled into the index; `sequence` has its new tables and old length.
void KvBooks::index_rows(const KvDemand& demand, Position accepted, const KvRows& rows,
                         KvSequence& sequence) {
  CHORUS_CHECK_EQ(static_cast<int32_t>(rows.tokens.size()), demand.count);
  shorten_path(sequence, demand.start);
  add_to_path(rows.tokens.first(static_cast<size_t>(accepted - demand.start)), sequence);
  for (int32_t i = demand.start / options_.block_size; i < std::ssize(sequence.path); ++i) {
    index_block(i, accepted, sequence);
  }
}

// Names the sequence's block in its node, or takes the node's block in its place: in groups that
// hold it as a whole, and where a sequence of `length` tokens has not left it behind.
void KvBooks::index_block(int32_t index, Position length, KvSequence& sequence) {
  const PrefixNode node = sequence.path[static_cast<size_t>(index)];
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (index < first_indexed(group, length)) continue;
    KvSequence::Table& table = sequence.tables[static_cast<size_t>(group)];
    if (index * options_.block_size < table.first_position) continue;
    const int32_t place = index - table.first_position / options_.block_size;
    BlockId& own = table.blocks[static_cast<size_t>(place)];
    const BlockId named = index_.block(node, group);
    if (named == kNoBlock) {
      index_.put(node, group, own);
    } else if (named != own) {
      pools_[static_cast<size_t>(group)].retain(named);
      pools_[static_cast<size_t>(group)].release(own);
      own = named;
    }
  }
}

void KvBooks::tell_windows(bool mark, KvSequence& sequence) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (options_.groups[static_cast<size_t>(group)].policy.window == 0) continue;
    KvSequence::Table& table = sequence.tables[static_cast<size_t>(group)];
    const int32_t first = first_indexed(group, sequence.length);
    for (auto i = static_cast<size_t>(first); mark && i < sequence.path.size(); ++i) {
      index_.mark(sequence.path[i], group);
    }
    for (; table.index_left < first; ++table.index_left) {
      index_.leave(sequence.path[static_cast<size_t>(table.index_left)], group);
    }
  }
}

// An indexed sequence holds the very blocks that its path names; with a window, all that are named.
void KvBooks::check_path(const KvSequence& sequence) const {
  const int32_t size = options_.block_size;
  CHORUS_CHECK_EQ(static_cast<int32_t>(sequence.path.size()), sequence.length / size);
  CHORUS_CHECK_EQ(static_cast<int32_t>(sequence.tail.size()), sequence.length % size);
  for (int32_t group = 0; group < num_groups(); ++group) {
    const KvSequence::Table& table = sequence.tables[static_cast<size_t>(group)];
    const int32_t first = table.first_position / size;
    CHORUS_CHECK_LE(table.index_left, first);
    for (int32_t i = blocks_for(table.first_position); i < std::ssize(sequence.path); ++i) {
      CHORUS_CHECK_EQ(index_.block(sequence.path[static_cast<size_t>(i)], group),
                      table.blocks[static_cast<size_t>(i - first)]);
    }
  }
}

}  // namespace chorus
