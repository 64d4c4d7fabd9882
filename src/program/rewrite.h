// The same model as another program: other methods or another context, the weights copied.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "program/program.h"

namespace chorus {

struct ProgramChanges {
  int32_t context = 0;          // 0: as it is; no more than it is
  std::vector<Method> methods;  // empty: as they are
};

// The image of a program file with these changes. Segments keep their bytes and places, and
// kv_identity stays; content changes where anything does. Errors: kInvalidArgument, fields
// "context", "methods" and "methods[i].NAME".
Result<AlignedBuffer> rewrite_image(const Program& program, const ProgramChanges& changes);

}  // namespace chorus
