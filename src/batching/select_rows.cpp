#include "batching/select_rows.h"

#include <algorithm>

#include "base/check.h"

namespace chorus {

std::span<const int32_t> select_rows(std::span<const int32_t> wanted, int32_t row_begin,
                                     int32_t row_count, int32_t min_wanted,
                                     std::vector<int32_t>& scratch) {
  CHORUS_CHECK(min_wanted >= 0 && min_wanted <= row_count);
  const auto begin = std::lower_bound(wanted.begin(), wanted.end(), row_begin);
  const auto end = std::lower_bound(begin, wanted.end(), row_begin + row_count);
  const std::span<const int32_t> selected(begin, end);
  const auto minimum = static_cast<size_t>(min_wanted);
  if (selected.size() >= minimum) return selected;
  scratch.assign(selected.begin(), selected.end());
  for (int32_t row = row_begin + row_count - 1; scratch.size() < minimum; --row) {
    if (!std::binary_search(selected.begin(), selected.end(), row)) scratch.push_back(row);
  }
  std::sort(scratch.begin(), scratch.end());
  return scratch;
}

}  // namespace chorus
