// Sessions on their way to a file and back, for the verbs that offer it.
#pragma once

#include <string>
#include <vector>

#include "engine/runner.h"
#include "engine/saved_session.h"
#include "flags.h"
#include "interrupt.h"

namespace chorus::cli {

// A session that others fork from. Thread: main.
struct LoadedSession {
  Session session;
  std::vector<TokenId> tokens;  // its context
};

// How the session's last generation drew its tokens, for flags that are not given.
GenerationFields settings_of(const SamplingParams& sampling);

// read_session and Runner::load. `name` is the flag or command that named the file: an error of the
// file itself has it as field, one of the content begins its field with it.
Result<SavedSession> read_saved(const std::string& name, const std::string& path);
Result<Session> load_saved(const std::string& name, const SavedSession& saved, bool recompute,
                           Runner& runner);

// Writes the file as write_output does. Errors have `name` as field.
Status write_saved(const std::string& name, const SavedSession& saved, const std::string& path,
                   Interrupt& interrupt);

}  // namespace chorus::cli
