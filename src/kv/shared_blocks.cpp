#include "kv/shared_blocks.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace chorus {
namespace {

// How many entries two lists have in common from their front.
size_t common_front(std::span<const BlockId> a, std::span<const BlockId> b) {
  const size_t most = std::min(a.size(), b.size());
  constexpr size_t kStride = 32;
  size_t same = 0;
  while (same + kStride <= most &&
         std::memcmp(a.data() + same, b.data() + same, kStride * sizeof(BlockId)) == 0) {
    same += kStride;
  }
  while (same < most && a[same] == b[same]) ++same;
  return same;
}

// By the first block's index, then block by block.
bool is_before(const BlockTable& a, const BlockTable& b) {
  if (a.first_block != b.first_block) return a.first_block < b.first_block;
  const size_t same = common_front(a.blocks, b.blocks);
  if (same == std::min(a.blocks.size(), b.blocks.size())) return a.blocks.size() < b.blocks.size();
  return a.blocks[same] < b.blocks[same];
}

SharedRange shared_range(const BlockTable& a, const BlockTable& b, int32_t block_size) {
  const int32_t first_block = std::max(a.first_block, b.first_block);
  const auto from = [&](const BlockTable& table) {
    const auto skipped = static_cast<size_t>(first_block - table.first_block);
    return table.blocks.subspan(std::min(skipped, table.blocks.size()));
  };
  const size_t same = common_front(from(a), from(b));
  if (same == 0) return {};
  return {std::max(a.first_position, b.first_position),
          (first_block + static_cast<int32_t>(same)) * block_size};
}

}  // namespace

void find_shared_blocks(std::span<const BlockTable> tables, std::span<const WindowPolicy> groups,
                        int32_t block_size, SharedBlocks& shared) {
  const size_t num_groups = groups.size();
  const size_t num_sequences = tables.size() / num_groups;
  shared.order.resize(num_sequences);
  shared.ranges.clear();
  std::iota(shared.order.begin(), shared.order.end(), 0);
  const auto full = std::find(groups.begin(), groups.end(), WindowPolicy{});
  const auto by = full == groups.end() ? 0 : static_cast<size_t>(full - groups.begin());
  const auto table = [&](int32_t sequence, size_t group) -> const BlockTable& {
    return tables[static_cast<size_t>(sequence) * num_groups + group];
  };
  std::sort(shared.order.begin(), shared.order.end(),
            [&](int32_t a, int32_t b) { return is_before(table(a, by), table(b, by)); });
  bool any = false;
  for (size_t i = 0; i < num_sequences; ++i) {
    for (size_t group = 0; group < num_groups; ++group) {
      SharedRange range;
      if (i > 0) {
        range = shared_range(table(shared.order[i - 1], group), table(shared.order[i], group),
                             block_size);
      }
      any |= !range.is_empty();
      shared.ranges.push_back(range);
    }
  }
  if (any) return;
  shared.order.clear();
  shared.ranges.clear();
}

}  // namespace chorus
