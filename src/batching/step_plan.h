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

// Cuts steps for the methods of one program: `forward` alone, which takes any number of rows up to
// its bound, or `decode` with its widths and `prefill` with its bounds. Thread: any; it never
// changes.
//
// With decode and prefill a forward may have more rows than are left, which are padding. A step has
// the fewest forwards possible, and with these the fewest padded rows; a method never gets another
// number of rows than it takes. As fewest forwards leave less padding than any of them has rows,
// the last one holds all of it. Ties: a decode of what full prefills leave, if that is a width;
// every number of rows that is a width is a decode; forwards of few rows come first, as the
// sessions that decode stand first in a step.
class StepPlanner {
 public:
  // kInvalidArgument or kUnimplemented name "methods" or a field of one, "methods.prefill.widths".
  static Result<StepPlanner> create(std::span<const MethodInfo> methods);

  // The forwards of a step of `num_rows` rows, in ascending order, each row in one of them; the
  // last one may end behind them.
  void cut(int32_t num_rows, std::vector<Forward>& forwards) const;

  // No step has more, whatever its rows.
  int32_t most_padded_rows() const;

 private:
  StepPlanner() = default;
  void tabulate_decodes();
  int32_t choose_decodes(int64_t num_rows, int64_t num_forwards, int64_t& deficit) const;
  void add_prefills(int64_t num_rows, int64_t count, std::vector<Forward>& forwards) const;
  void add(int32_t row_count, std::vector<Forward>& forwards) const;
  bool is_decode(int32_t row_count) const;

  // In the terms of decode and prefill; `forward` is a prefill alone, from 1.
  int32_t min_rows_ = 1;  // of a prefill
  int32_t max_rows_ = 0;
  int32_t prefill_ = 0;                // its index; decode's is 0
  std::vector<int32_t> widths_;        // all of decode's
  std::vector<int32_t> short_widths_;  // those that no prefill has the rows of

  // A forward of r rows has a deficit of max_rows_ - r. For each sum of deficits below max_rows_:
  // the fewest decodes of short widths with that sum, -1 where there are none, and the width of
  // one of them. Empty where no step of several forwards can need it.
  std::vector<int32_t> fewest_decodes_;
  std::vector<int32_t> decode_width_;
};

}  // namespace chorus
