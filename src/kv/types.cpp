#include "kv/types.h"

namespace chorus {

static_assert(is_block_size(16) && !is_block_size(8));
static_assert(first_visible(5, {0}) == 0 && first_visible(5, {3}) == 3 &&
              first_visible(1, {3}) == 0);
static_assert(touched_blocks(1, 16) == 1 && touched_blocks(2, 16) == 2 &&
              touched_blocks(17, 16) == 2 && touched_blocks(18, 16) == 3 &&
              touched_blocks(7, 1) == 7);

}  // namespace chorus
