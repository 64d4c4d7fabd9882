// How a Generation begins.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chorus/generation.h"
#include "chorus/model.h"
#include "engine/session.h"

namespace chorus {

// Generates in the session. Without `text` the generation has tokens only, and takes no stops.
// Errors: those of Session::generate and StopMatcher::create.
Result<Generation> start_generation(Session& session, std::vector<TokenId> prompt,
                                    const GenerationOptions& options,
                                    std::shared_ptr<const TextModel> text,
                                    std::vector<std::string> stops);

// Consumes tokens. Errors: those of Session::append.
Result<Generation> start_append(Session& session, std::vector<TokenId> tokens,
                                const GenerationOptions& options);

}  // namespace chorus
