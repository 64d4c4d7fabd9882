// Which sequences of a step hold the same blocks, so that a backend can read them once for several.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/types.h"

namespace chorus {

// Sequences in an order in which those that share blocks are neighbours, and what each shares with
// the one before it. Any three in a row that share a position share one and the same block there.
struct SharedBlocks {
  std::vector<int32_t> order;       // a permutation of the sequences; empty: nothing is shared
  std::vector<SharedRange> ranges;  // [order, num_groups]; those of the first are empty
};

// Fills `shared` for the tables [num_sequences, num_groups] of a step. Sequences are ordered by
// their blocks in a group of full history, where forks of one prefix begin alike. Where there is
// none, the first group orders them, by where their tables begin and then by their blocks: what two
// share whose windows begin in different blocks is missed when another stands between them. The
// range of a group goes from the first position that both hold to the first block that differs.
// Reused, `shared` is filled without allocating.
// Cost: O(sequences log(sequences) * blocks shared), compared at memory speed.
void find_shared_blocks(std::span<const BlockTable> tables, std::span<const WindowPolicy> groups,
                        int32_t block_size, SharedBlocks& shared);

}  // namespace chorus
