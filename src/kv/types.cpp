#include "kv/types.h"

namespace chorus {

static_assert(is_block_size(16) && !is_block_size(8));

}  // namespace chorus
