// What several generations are doing, as lines for a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "console.h"

namespace chorus::cli {

// One generation.
struct JobView {
  enum class State : uint8_t { kWaiting, kPrefill, kGenerating, kDone, kFailed };
  std::string label;
  State state = State::kWaiting;
  size_t prompt_tokens = 0;
  size_t consumed_tokens = 0;  // of the prompt
  size_t tokens = 0;           // generated
  double tokens_per_s = 0;
};

// All of them.
struct TotalView {
  size_t tokens = 0;
  double tokens_per_s = 0;
  int64_t blocks_used = 0;
  int64_t blocks_total = 0;
};

// A line for each and one of totals; where that is more than the terminal has, the active ones and
// a count of the others. One line stays free for the cursor.
std::vector<StatusLine> live_view(const std::vector<JobView>& jobs, const TotalView& total,
                                  const TerminalSize& size);

}  // namespace chorus::cli
