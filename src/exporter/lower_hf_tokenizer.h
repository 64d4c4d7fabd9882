// The tokenizer of a Hugging Face folder.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "exporter/hf_settings.h"
#include "program/builder.h"

namespace chorus {

// facts.tokenizer, definition and chat_template, from a tokenizer.json and the folder's settings;
// both must outlive the builder's build(). A folder without tokenizer.json (no bytes) gives a
// program that ends generations and takes ids alone. Special tokens are those of the tokenizer's
// own texts, else of the ids that a configuration gives; one that the embedding has no row for is
// left out. BOS and EOS are added as tokenizer_config.json says, else as the tokenizer's
// post-processor does. Requires: facts.vocabulary is set. Errors: kDataLoss, field "tokenizer.json"
// or a member of it.
Status lower_hf_tokenizer(std::span<const std::byte> tokenizer_json, const HfSettings& settings,
                          ProgramFacts& facts);

}  // namespace chorus
