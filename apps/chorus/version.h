// What this binary is: version, commit, compiler, instruction sets.
#pragma once

#include <string>

#include "base/result.h"
#include "json/value.h"

namespace chorus::cli {

// For people, a few lines. kInvalidArgument when CHORUS_FORCE_ISA names no set that can be used.
Result<std::string> version_text();

// {"version","commit","compiler"}
json::Value version_json();

}  // namespace chorus::cli
