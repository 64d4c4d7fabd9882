#include "kv/prefix_index.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/random.h"

namespace chorus {
namespace {

using Tokens = std::vector<int32_t>;

void check(const PrefixIndex& index, const std::vector<PrefixNode>& pinned) {
  std::unordered_map<PrefixNode, int32_t> pins;
  for (const PrefixNode node : pinned) ++pins[node];
  std::vector<std::vector<int32_t>> owners(1, std::vector<int32_t>(4, 0));
  index.check_invariants(pins, owners);
}

// Nodes with pins instead of blocks, beside a map. Hashes of two bits, so that nearly all collide
// and only the tokens tell nodes apart.
TEST(PrefixIndex, NodesAreToldApartByTheirTokens) {
  for (const uint64_t hash_mask : {uint64_t{3}, ~uint64_t{0}}) {
    SCOPED_TRACE("hash mask " + std::to_string(hash_mask));
    std::vector<BlockPool> pools(1, BlockPool(4));
    PrefixIndex index(2, {{0}}, pools, hash_mask);
    RandomStream random(9);
    const PrefixNode root = index.add_root("a");
    index.pin(root);
    std::map<std::pair<PrefixNode, Tokens>, PrefixNode> model;
    std::vector<PrefixNode> pinned{root};
    const auto any_tokens = [&] {
      return Tokens{static_cast<int32_t>(random.below(5)), static_cast<int32_t>(random.below(5))};
    };
    for (int event = 0; event < 3000; ++event) {
      const auto i = static_cast<size_t>(random.below(pinned.size()));
      const Tokens tokens = any_tokens();
      const std::pair key{pinned[i], tokens};
      const auto known = model.find(key);
      ASSERT_EQ(index.find(pinned[i], tokens), known == model.end() ? kNoNode : known->second);
      if (random.below(3) != 0 || pinned.size() == 1) {
        const PrefixNode node = index.add(pinned[i], tokens);
        if (known != model.end()) {
          ASSERT_EQ(node, known->second);
          continue;
        }
        ASSERT_TRUE(model.emplace(key, node).second);
        index.pin(node);
        pinned.push_back(node);
      } else if (i > 0) {
        // One without children vanishes; others stay for their children.
        const PrefixNode node = pinned[i];
        const bool has_children = std::any_of(
            model.begin(), model.end(), [&](const auto& each) { return each.first.first == node; });
        if (has_children) continue;
        index.unpin(node);
        pinned.erase(pinned.begin() + static_cast<std::ptrdiff_t>(i));
        std::erase_if(model, [&](const auto& each) { return each.second == node; });
      }
      if (event % 100 == 0) check(index, pinned);
    }
    ASSERT_GT(model.size(), 200u);
    for (const auto& [key, node] : model) ASSERT_EQ(index.find(key.first, key.second), node);
    check(index, pinned);
  }
}

TEST(PrefixIndex, AChainWithoutBlocksVanishesWithItsLastPin) {
  std::vector<BlockPool> pools(1, BlockPool(4));
  PrefixIndex index(1, {{0}}, pools);
  PrefixNode node = index.add_root("a");
  for (int32_t i = 0; i < 5; ++i) node = index.add(node, std::span(&i, 1));
  index.pin(node);
  EXPECT_EQ(index.num_nodes(), 6);
  index.unpin(node);
  EXPECT_EQ(index.num_nodes(), 0);
  EXPECT_EQ(index.find_root("a"), kNoNode);
}

TEST(PrefixIndex, ABlockInTheMiddleThatIsForgottenHidesWhatIsBehindUntilItIsBack) {
  std::vector<BlockPool> pools(1, BlockPool(4));
  PrefixIndex index(1, {{0}}, pools);
  const Tokens tokens{7, 8, 9};
  PrefixNode node = index.add_root("a");
  std::vector<PrefixNode> nodes;
  std::vector<BlockId> blocks;
  for (const int32_t token : tokens) {
    node = index.add(node, std::span(&token, 1));
    nodes.push_back(node);
    blocks.push_back(pools[0].allocate());
    index.put(node, 0, blocks.back());
  }
  std::vector<PrefixNode> path;
  EXPECT_EQ(index.longest_prefix("a", tokens, 3, path), 3);
  EXPECT_EQ(path, nodes);
  index.forget(0, blocks[1]);
  EXPECT_EQ(index.longest_prefix("a", tokens, 3, path), 1);
  EXPECT_EQ(path, std::vector<PrefixNode>{nodes[0]});
  index.put(nodes[1], 0, blocks[1]);
  EXPECT_EQ(index.longest_prefix("a", tokens, 3, path), 3);
}

}  // namespace
}  // namespace chorus
