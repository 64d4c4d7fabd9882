// How a Generation begins.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chorus/generation.h"
#include "chorus/model.h"
#include "engine/session.h"

namespace chorus {

// Generates in the session. Without `text` the generation has tokens only, and takes neither stops
// nor bad words. Errors: those of Session::generate and StopMatcher::create; kInvalidArgument
// (stop, bad_words, bad_words[i]).
Result<Generation> start_generation(Session& session, std::vector<TokenId> prompt,
                                    GenerationOptions options,
                                    std::shared_ptr<const TextModel> text,
                                    std::vector<std::string> stops,
                                    const TextOptions& text_options = {});

// Consumes tokens. Errors: those of Session::append.
Result<Generation> start_append(Session& session, std::vector<TokenId> tokens,
                                const GenerationOptions& options);

}  // namespace chorus
