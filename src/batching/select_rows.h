// Which rows of a slice a forward must keep for reduce_rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace chorus {

// The rows of `wanted` (rows of the step, ascending) that lie in [row_begin, row_begin +
// row_count); none when none is wanted. When these are fewer than `min_wanted`, the method's own
// lower bound, the last other rows of the slice are added; nobody reads those.
// The result is ascending and lies in `wanted` or in `scratch`, until either changes.
// Requires: 0 <= min_wanted <= row_count.
std::span<const int32_t> select_rows(std::span<const int32_t> wanted, int32_t row_begin,
                                     int32_t row_count, int32_t min_wanted,
                                     std::vector<int32_t>& scratch);

}  // namespace chorus
