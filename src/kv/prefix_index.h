// Which blocks of KV hold which tokens: full blocks by the tokens before and in them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/block_pool.h"
#include "kv/types.h"

namespace chorus {

// A full block of tokens behind a path of such blocks, from a root on. Ids are used again.
using PrefixNode = int32_t;
inline constexpr PrefixNode kNoNode = -1;

// A forest over full blocks of tokens: a node is (parent, its block_size tokens), found by hash and
// compared in full. A root stands for a key: everything besides the tokens that decides KV bytes,
// or that keeps users apart. A node names at most one block per layer group, of which the index is
// an owner like any other; it costs no sequence.
//
// A block that only the index owns is *cached*: it is given back, the one released last coming
// last, as soon as somebody needs it. Sequences release their last block first, so children are
// given back before their parents.
//
// With full history, a prefix of n blocks is usable when all n nodes name a block. With a window, a
// node is worth a block only near the end of a prefix that somebody will look up: so the caller
// adds the blocks of the window that a sequence stands in, and says when a sequence has left one
// behind. Unless that block is marked it is given up when nobody else owns it. Marks are for the
// windows before places to which sequences return (where generations started).
//
// Nodes without a block, a child and a pin vanish. Whoever keeps a node (a sequence: the last one
// of its path) pins it.
//
// Thread: engine. Cost: O(1) for each node and group touched, hashing of its tokens included.
// Memory grows with the nodes; once grown, nothing allocates but new roots. Source: vLLM's prefix
// caching, for blocks keyed by their parent and an order by time of release.
class PrefixIndex {
 public:
  // `pools`, one for each policy, outlive the index. Hashes keep the bits of `hash_mask`: few of
  // them make collisions common, for tests.
  PrefixIndex(int32_t block_size, std::vector<WindowPolicy> policies, std::span<BlockPool> pools,
              uint64_t hash_mask = ~uint64_t{0});

  // ---- Nodes ----

  PrefixNode find_root(std::string_view key) const;
  // Made when it is not there. Pin it before anything else.
  PrefixNode add_root(std::string_view key);
  // The child with these block_size tokens.
  PrefixNode find(PrefixNode parent, std::span<const int32_t> tokens) const;
  // Made when it is not there. Pin it, or give it a block or a child, before anything else.
  PrefixNode add(PrefixNode parent, std::span<const int32_t> tokens);
  std::span<const int32_t> tokens(PrefixNode node) const;
  void pin(PrefixNode node) { ++at(node).pins; }
  void unpin(PrefixNode node);

  // ---- Blocks ----

  // kNoBlock where it names none.
  BlockId block(PrefixNode node, int32_t group) const { return slot(node, group).block; }
  // Names a block that somebody owns and no node names. Requires: block(node, group) == kNoBlock.
  void put(PrefixNode node, int32_t group, BlockId block);
  // Keeps the node's block, if it names one, until it is evicted. Requires: a group with a window.
  void mark(PrefixNode node, int32_t group);
  // A sequence's window has left the node behind.
  void leave(PrefixNode node, int32_t group);
  // Gives up a block that a node names. With full history no prefix through that node is usable
  // then, so its other blocks go as well.
  void forget(int32_t group, BlockId block);
  // Forgets so many blocks of a group that the index alone owns: they are free. Requires: the pool
  // has as many.
  void evict(int32_t group, int32_t num_blocks);

  // ---- Lookup ----

  // The longest usable prefix of `tokens`, at most `cap` positions; 0 for none. It ends with a
  // block or at `cap`. `path` becomes the nodes that hold it; the last one in part where it ends
  // inside.
  Position longest_prefix(std::string_view key, std::span<const int32_t> tokens, Position cap,
                          std::vector<PrefixNode>& path) const;

  int64_t num_nodes() const { return static_cast<int64_t>(nodes_.size() - free_nodes_.size()); }
  // Ids are below this; those not in use are no nodes.
  PrefixNode end() const { return static_cast<PrefixNode>(nodes_.size()); }
  bool is_node(PrefixNode node) const { return at(node).is_used; }
  PrefixNode parent(PrefixNode node) const { return at(node).parent; }  // kNoNode of a root

  // O(nodes). Adds one owner to owners[group][block] for each block named; `pins` holds the number
  // of pins of each node that has any.
  void check_invariants(const std::unordered_map<PrefixNode, int32_t>& pins,
                        std::span<std::vector<int32_t>> owners) const;

 private:
  struct Node {
    PrefixNode parent = kNoNode;
    int32_t children = 0;
    int32_t pins = 0;
    bool is_used = false;
    uint64_t hash = 0;
  };
  struct Slot {
    BlockId block = kNoBlock;
    bool marked = false;
  };

  Node& at(PrefixNode node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(PrefixNode node) const { return nodes_[static_cast<size_t>(node)]; }
  Slot& slot(PrefixNode node, int32_t group) {
    return slots_[static_cast<size_t>(node) * pools_.size() + static_cast<size_t>(group)];
  }
  const Slot& slot(PrefixNode node, int32_t group) const {
    return slots_[static_cast<size_t>(node) * pools_.size() + static_cast<size_t>(group)];
  }
  int32_t num_groups() const { return static_cast<int32_t>(pools_.size()); }
  uint64_t hash_of(PrefixNode parent, std::span<const int32_t> tokens) const;
  size_t probe(uint64_t hash, PrefixNode parent, std::span<const int32_t> tokens) const;
  PrefixNode make_node(PrefixNode parent);
  void drop(PrefixNode node, int32_t group);
  void remove_if_idle(PrefixNode node);
  void remove_from_table(PrefixNode node);
  void grow_table();

  int32_t block_size_;
  uint64_t hash_mask_;
  std::vector<WindowPolicy> policies_;  // [num_groups]
  std::span<BlockPool> pools_;          // [num_groups]
  std::vector<Node> nodes_;
  std::vector<Slot> slots_;      // [nodes, num_groups]
  std::vector<int32_t> tokens_;  // [nodes, block_size]
  std::vector<PrefixNode> free_nodes_;
  std::vector<std::vector<PrefixNode>> node_of_;  // [num_groups][block]
  std::map<std::string, PrefixNode, std::less<>> roots_;
  std::unordered_map<PrefixNode, std::string> root_keys_;
  // Open addressing with linear probing over the nodes that are no roots; a power of two, at most
  // half full.
  std::vector<PrefixNode> table_;
  size_t table_used_ = 0;
  mutable std::vector<int32_t> runs_;  // scratch of longest_prefix: [num_groups]
};

}  // namespace chorus
