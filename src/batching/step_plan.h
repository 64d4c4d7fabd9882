// How the rows of a packed step are cut into forwards of a program's methods.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "exec/module.h"

namespace chorus {

// One forward: rows [row_begin, row_begin + row_count) of the step, run by a method.
struct Forward {
  int32_t method = 0;
  int32_t row_begin = 0;
  int32_t row_count = 0;
  friend bool operator==(const Forward&, const Forward&) = default;
};

// Whether step_plan can serve a program with these methods: as yet, one that takes any number of
// rows from 1 to its bound. kUnimplemented or kInvalidArgument name methods or a field of one.
Status check_step_plan(std::span<const MethodInfo> methods);

// Cuts `num_rows` rows into the fewest forwards, in ascending order, each row in one of them.
// Requires: check_step_plan(methods).ok().
void step_plan(std::span<const MethodInfo> methods, int32_t num_rows,
               std::vector<Forward>& forwards);

}  // namespace chorus
