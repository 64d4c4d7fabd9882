// What /set changes in a chat.
#pragma once

#include <string>

#include "base/result.h"
#include "chorus/generation_fields.h"

namespace chorus::cli {

// Sets the parameter of that name, of those that a chat has; an empty value takes the one of
// `defaults`. Errors: kInvalidArgument with the name as field, nothing changed.
Status change_setting(const std::string& name, const std::string& value,
                      const GenerationFields& defaults, GenerationFields& settings);

// All of them, a line each.
std::string settings_text(const GenerationFields& settings);

}  // namespace chorus::cli
