#include "batching/step_plan.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace chorus {

Status check_step_plan(std::span<const MethodInfo> methods) {
  if (methods.size() != 1) {
    return unimplemented("methods", "expected 1 method, found " + std::to_string(methods.size()));
  }
  const MethodInfo& method = methods[0];
  const std::string field = "methods." + method.name + ".";
  if (method.min_tokens != 1) {
    return unimplemented(field + "min_tokens",
                         "expected 1, found " + std::to_string(method.min_tokens));
  }
  if (method.max_tokens < 1) {
    return invalid_argument(field + "max_tokens",
                            "expected at least 1, found " + std::to_string(method.max_tokens));
  }
  if (method.min_wanted < 0 || method.min_wanted > method.min_tokens) {
    return invalid_argument(field + "min_wanted",
                            "expected 0 to " + std::to_string(method.min_tokens) + ", found " +
                                std::to_string(method.min_wanted));
  }
  return {};
}

void step_plan(std::span<const MethodInfo> methods, int32_t num_rows,
               std::vector<Forward>& forwards) {
  CHORUS_CHECK_EQ(methods.size(), 1u);
  const int32_t most = methods[0].max_tokens;
  forwards.clear();
  int32_t row = 0;
  while (row < num_rows) {
    const int32_t count = std::min(most, num_rows - row);
    forwards.push_back({0, row, count});
    row += count;
  }
}

}  // namespace chorus
