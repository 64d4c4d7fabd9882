// What `chorus run` is asked to continue: prompts from the line, from files and from standard
// input.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "chorus/generation_fields.h"
#include "exec/types.h"
#include "json/value.h"
#include "text/chat_template.h"

namespace chorus::cli {

// One thing to continue. Exactly one of text, messages and tokens is set, unless `status` says why
// the line cannot be used: such a prompt fails alone.
struct Prompt {
  Status status;      // its field begins with `place`
  std::string place;  // in a file, "FILE: line N" counted from 1; empty for the command line
  std::optional<std::string> text;
  std::vector<text::ChatMessage> messages;
  std::optional<std::vector<TokenId>> tokens;
  json::Value id;  // as given in the file, else null
  GenerationFields settings;
};

struct PromptSources {
  std::vector<std::string> line;  // from the command line
  std::string prompts_file;       // empty: none; "-": standard input
  std::string tokens_file;
  bool chat = false;  // plain prompts become a user's message
  std::optional<std::string> system;
  GenerationFields settings;  // for whatever a line of a file does not set
};

// The text of a file, or of standard input for "-".
Result<std::string> read_input(const std::string& path);

// The prompts of a file of token ids.
Result<std::vector<Prompt>> read_token_prompts(const std::string& path,
                                               const GenerationFields& settings = {});

// All prompts, those of the line first, then the prompts file, then the tokens file. Blank lines of
// a file are skipped. A prompts file whose first character is { is JSON Lines; a "prompt" there is
// a text or an array of ids. Errors: a file that cannot be read, with its flag as field.
Result<std::vector<Prompt>> read_prompts(const PromptSources& sources);

}  // namespace chorus::cli
