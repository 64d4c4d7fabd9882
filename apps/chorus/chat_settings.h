// What /set changes in a chat.
#pragma once

#include <string>

#include "base/result.h"
#include "flags.h"

namespace chorus::cli {

// Sets one of temperature, top_k, top_p, min_p, max_tokens, seed, stop and ignore_eos; an empty
// value takes the one of `defaults`. Errors: kInvalidArgument with the name as field, nothing
// changed.
Status change_setting(const std::string& name, const std::string& value,
                      const GenerationSettings& defaults, GenerationSettings& settings);

// All of them, a line each.
std::string settings_text(const GenerationSettings& settings);

}  // namespace chorus::cli
