// The words of the command line turned into values, each refused with the flag, what was expected
// and what was found.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace chorus::cli {

// A whole number within [low, high].
Result<int64_t> parse_count(std::string_view flag, std::string_view text, int64_t low,
                            int64_t high);

// Bytes: a number with KiB, MiB, GiB, KB, MB, GB, or B; at least one byte.
Result<int64_t> parse_size(std::string_view flag, std::string_view text);

// One of `choices`, by index.
Result<int> parse_choice(std::string_view flag, std::string_view text,
                         const std::vector<std::string>& choices);

// An error in what a flag names, such as a file: the flag becomes its field, the field part of the
// message.
Status at_flag(std::string_view flag, const Status& status);

// Refuses an output that is the input, or a file of the folder that is the input: writing would
// replace it. `flag` names the output.
Status check_not_same(std::string_view flag, const std::string& output, const std::string& input);
// Whether two names are of one file, which need not exist yet. False for empty names.
bool is_same_file(const std::string& a, const std::string& b);

// Those of `candidates` that `word` may have meant: within two edits, or it is the start of one;
// nearest first, at most three.
std::vector<std::string> near_matches(std::string_view word,
                                      const std::vector<std::string>& candidates);

// "; did you mean A or B?" or nothing.
std::string suggestion(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace chorus::cli
