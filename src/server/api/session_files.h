// Held sessions on disk, by name, in one folder.
#pragma once

#include <functional>
#include <string>

#include "engine/runner.h"
#include "server/api/held_sessions.h"

namespace chorus::api {

// The file of a name: letters, digits, dots, underscores and hyphens, no dot in front, at most 100.
// With an owner the file is that owner's alone. kInvalidArgument (name), kUnimplemented (name)
// where there is no folder.
Result<std::string> session_path(const std::string& directory, const std::string& owner,
                                 const std::string& name);

// Writes it beside `path` and renames it when whole, with its messages as notes. Errors: those of
// Session::save and of the file. Requires: nothing is pending.
Status save_held(const HeldSession& held, const std::string& path);

// `salt_of` makes the session's salt of its client's cache_salt. Errors: those of read_session and
// Runner::load. `held` is empty before, and on failure.
Status load_held(Runner& runner, const std::string& path, bool recompute,
                 const std::function<std::string(const std::string&)>& salt_of, HeldSession& held);

}  // namespace chorus::api
