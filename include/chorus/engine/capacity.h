// How many KV blocks a session needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "chorus/kv/types.h"

namespace chorus {

// The pools of an executor, as far as admission has to know them. What it says is a bound for a
// session that shares nothing; whether a step fits is the executor's to say.
struct KvCapacity {
  struct Group {
    int32_t window = 0;  // 0: full history
    int32_t blocks = 0;  // of the pool
  };
  int32_t block_size = 1;
  int32_t max_step_tokens = 1;  // of one session in one step
  std::vector<Group> groups;

  // Most blocks that a session of n tokens has held when its last step ran.
  int64_t blocks_for(const Group& group, int64_t n) const {
    const int64_t all = (n + block_size - 1) / block_size;
    if (group.window == 0) return all;
    // The window of the first row of a step, and the step, wherever they begin in a block.
    return std::min(all, touched_blocks(int64_t{group.window} + max_step_tokens - 1, block_size));
  }
  // Whether a session of n tokens fits the pools when it has them to itself.
  bool can_hold(int64_t n) const {
    return std::all_of(groups.begin(), groups.end(),
                       [&](const Group& group) { return blocks_for(group, n) <= group.blocks; });
  }
  // The longest session that can_hold, at most `limit`.
  int64_t longest(int64_t limit) const {
    int64_t low = 0;
    int64_t high = limit;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (can_hold(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

}  // namespace chorus
