// The flags of `export` that choose a program's methods.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "command_line.h"
#include "program/manifest.h"

namespace chorus::cli {

class MethodFlags {
 public:
  void declare(CommandLine& line);
  // Refuses words that are no lists, bounds or counts.
  Status parse();
  bool is_given() const;
  // The methods asked for, of a program that has `methods`: what no flag names stays as it is, or
  // follows from the rest. Errors name the flag: kInvalidArgument.
  Result<std::vector<Method>> apply(const std::vector<Method>& methods) const;

 private:
  Status parse_methods();
  Status parse_widths();
  Status parse_prefill();

  std::string methods_text_, widths_text_, prefill_text_, max_step_text_;
  bool has_forward_ = false;  // of --methods
  std::vector<int32_t> widths_;
  int32_t min_prefill_ = 0;  // 0: not given
  int32_t max_prefill_ = 0;
  int32_t max_step_ = 0;  // 0: not given
};

}  // namespace chorus::cli
