// Which tokens end a generation, for lowerings of tokenizers.
#pragma once

#include <cstdint>
#include <string_view>

#include "program/manifest.h"

namespace chorus {

// Whether a control token of this text ends a turn, by the conventions of model families.
bool ends_a_turn(std::string_view text);

// Makes `id` end a generation; nothing changes when it does already. What is above kMaxEndIds is
// left out.
void add_end_id(TokenizerFacts& facts, int32_t id);

}  // namespace chorus
