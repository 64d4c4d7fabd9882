#include "batching/step_plan.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace chorus {
namespace {

std::string expected_found(const std::string& expected, int64_t found) {
  return "expected " + expected + ", found " + std::to_string(found);
}

Status check_bounds(const MethodInfo& method) {
  const std::string field = "methods." + method.name + ".";
  if (method.max_tokens < 1) {
    return invalid_argument(field + "max_tokens", expected_found("at least 1", method.max_tokens));
  }
  if (method.min_tokens < 1 || method.min_tokens > method.max_tokens) {
    return invalid_argument(
        field + "min_tokens",
        expected_found("1 to " + std::to_string(method.max_tokens), method.min_tokens));
  }
  if (method.min_wanted < 0 || method.min_wanted > method.min_tokens) {
    return invalid_argument(
        field + "min_wanted",
        expected_found("0 to " + std::to_string(method.min_tokens), method.min_wanted));
  }
  if (method.name != "decode" && !method.widths.empty()) {
    return invalid_argument(field + "widths", "expected none");
  }
  return {};
}

Status check_forward(const MethodInfo& forward) {
  CHORUS_RETURN_IF_ERROR(check_bounds(forward));
  if (forward.min_tokens == 1) return {};
  return unimplemented("methods.forward.min_tokens", expected_found("1", forward.min_tokens));
}

Status check_widths(const MethodInfo& decode, const MethodInfo& prefill) {
  const std::vector<int32_t>& widths = decode.widths;
  const auto fail = [](std::string message) {
    return invalid_argument("methods.decode.widths", std::move(message));
  };
  if (widths.empty()) return fail("expected at least 1 width, found none");
  for (size_t i = 1; i < widths.size(); ++i) {
    if (widths[i] <= widths[i - 1]) {
      return fail("expected them to ascend, found " + std::to_string(widths[i]) + " after " +
                  std::to_string(widths[i - 1]));
    }
  }
  if (widths.front() != decode.min_tokens || widths.back() != decode.max_tokens) {
    return fail("expected widths from " + std::to_string(decode.min_tokens) + " to " +
                std::to_string(decode.max_tokens) + ", found " + std::to_string(widths.front()) +
                " to " + std::to_string(widths.back()));
  }
  if (widths.back() > prefill.max_tokens) {
    return fail(
        expected_found("at most " + std::to_string(prefill.max_tokens) + ", the rows of a prefill",
                       widths.back()));
  }
  if (prefill.min_tokens > 1 && widths.front() != 1) {
    return fail(expected_found(
        "1 among them, as a prefill has at least " + std::to_string(prefill.min_tokens) + " rows",
        widths.front()));
  }
  return {};
}

}  // namespace

Result<StepPlanner> StepPlanner::create(std::span<const MethodInfo> methods) {
  StepPlanner planner;
  if (methods.size() == 1 && methods[0].name == "forward") {
    CHORUS_RETURN_IF_ERROR(check_forward(methods[0]));
    planner.max_rows_ = methods[0].max_tokens;
    return planner;
  }
  if (methods.size() != 2 || methods[0].name != "decode" || methods[1].name != "prefill") {
    std::string found;
    for (const MethodInfo& method : methods) found += (found.empty() ? "" : ", ") + method.name;
    return unimplemented("methods", "expected forward, or decode and prefill, found " +
                                        (found.empty() ? "none" : found));
  }
  for (const MethodInfo& method : methods) CHORUS_RETURN_IF_ERROR(check_bounds(method));
  CHORUS_RETURN_IF_ERROR(check_widths(methods[0], methods[1]));
  planner.min_rows_ = methods[1].min_tokens;
  planner.max_rows_ = methods[1].max_tokens;
  planner.prefill_ = 1;
  planner.widths_ = methods[0].widths;
  for (const int32_t width : planner.widths_) {
    if (width < planner.min_rows_) planner.short_widths_.push_back(width);
  }
  planner.tabulate_decodes();
  return planner;
}

// Two prefills and more reach every number of rows above twice the least they have: the table is
// for those that have less.
void StepPlanner::tabulate_decodes() {
  if (min_rows_ <= max_rows_ / 2) return;
  fewest_decodes_.assign(static_cast<size_t>(max_rows_), -1);
  decode_width_.assign(static_cast<size_t>(max_rows_), 0);
  fewest_decodes_[0] = 0;
  for (int32_t deficit = 1; deficit < max_rows_; ++deficit) {
    int32_t& fewest = fewest_decodes_[static_cast<size_t>(deficit)];
    for (const int32_t width : short_widths_) {
      const int32_t before = deficit - (max_rows_ - width);
      if (before < 0 || fewest_decodes_[static_cast<size_t>(before)] < 0) continue;
      const int32_t count = fewest_decodes_[static_cast<size_t>(before)] + 1;
      if (fewest >= 0 && fewest <= count) continue;
      fewest = count;
      decode_width_[static_cast<size_t>(deficit)] = width;
    }
  }
}

bool StepPlanner::is_decode(int32_t row_count) const {
  return std::binary_search(widths_.begin(), widths_.end(), row_count);
}

void StepPlanner::add(int32_t row_count, std::vector<Forward>& forwards) const {
  const int32_t begin =
      forwards.empty() ? 0 : forwards.back().row_begin + forwards.back().row_count;
  forwards.push_back({is_decode(row_count) ? 0 : prefill_, begin, row_count});
}

// How many of the forwards are decodes of short widths, and the sum of their deficits. What is
// left of the step's deficit is divided among prefills, each of which takes at most
// max_rows_ - min_rows_ of it; the rest is padding.
int32_t StepPlanner::choose_decodes(int64_t num_rows, int64_t num_forwards,
                                    int64_t& deficit) const {
  const int64_t whole = num_forwards * max_rows_ - num_rows;
  const int64_t per_prefill = max_rows_ - min_rows_;
  deficit = 0;
  int64_t most = num_forwards * per_prefill;
  int32_t chosen = 0;
  for (int64_t sum = 1; sum <= whole && most < whole; ++sum) {
    const int32_t count = fewest_decodes_[static_cast<size_t>(sum)];
    if (count < 0 || count > num_forwards) continue;
    const int64_t reached = sum + (num_forwards - count) * per_prefill;
    if (reached <= most) continue;
    most = reached;
    deficit = sum;
    chosen = count;
  }
  return chosen;
}

void StepPlanner::cut(int32_t num_rows, std::vector<Forward>& forwards) const {
  CHORUS_CHECK_GE(num_rows, 0);
  forwards.clear();
  if (num_rows == 0) return;
  const int64_t num_forwards = (int64_t{num_rows} + max_rows_ - 1) / max_rows_;
  if (num_forwards == 1) {
    const auto width = std::lower_bound(widths_.begin(), widths_.end(), num_rows);
    const int32_t prefill = std::max(num_rows, min_rows_);
    return add(width == widths_.end() ? prefill : std::min(*width, prefill), forwards);
  }
  int64_t left = num_rows;
  if (prefill_ == 0) {  // `forward`: full ones first
    for (; left > 0; left -= forwards.back().row_count)
      add(static_cast<int32_t>(std::min<int64_t>(left, max_rows_)), forwards);
    return;
  }
  int64_t deficit = 0;
  int64_t num_decodes = 0;
  if (const int64_t rest = left - (num_forwards - 1) * max_rows_;
      is_decode(static_cast<int32_t>(rest))) {
    add(static_cast<int32_t>(rest), forwards);
    return add_prefills(left - rest, num_forwards - 1, forwards);
  }
  if (num_forwards * min_rows_ > left) num_decodes = choose_decodes(left, num_forwards, deficit);
  for (int64_t i = 0; i < num_decodes; ++i) {
    const int32_t width = decode_width_[static_cast<size_t>(deficit)];
    deficit -= max_rows_ - width;
    left -= width;
    add(width, forwards);
  }
  add_prefills(left, num_forwards - num_decodes, forwards);
}

// The last ones full, the first ones as few rows as that leaves.
void StepPlanner::add_prefills(int64_t num_rows, int64_t count,
                               std::vector<Forward>& forwards) const {
  for (; count > 0; --count) {
    const int64_t least = std::max(num_rows - (count - 1) * max_rows_, int64_t{min_rows_});
    num_rows -= least;
    add(static_cast<int32_t>(least), forwards);
  }
}

int32_t StepPlanner::most_padded_rows() const {
  // With more, some forward could have the next smaller number of rows, or none.
  int32_t most = 0;
  int32_t previous = 0;
  for (const int32_t width : short_widths_) {
    most = std::max(most, width - previous - 1);
    previous = width;
  }
  return std::max(most, min_rows_ - previous - 1);
}

}  // namespace chorus
