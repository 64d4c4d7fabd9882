// Sessions on disk.
#pragma once

#include <functional>
#include <string>

#include "chorus/base/result.h"
#include "chorus/engine/runner.h"

namespace chorus {

// Writes a session beside `path` and renames it when whole. `stop` as in write_file_atomically.
// Errors: those of Session::save, and of the file with field `path`.
Status save_session(const Session& session, const std::string& path,
                    const std::function<bool()>& stop = {});

// What a file holds, for Runner::load. Errors: kNotFound and kInvalidArgument for the file (field
// `path`), else those of decode_session.
Result<SavedSession> read_session(const std::string& path);

// A session of a file that save_session wrote, in this process or another, on any block size or
// context that holds it. Errors: those of read_session and of Runner::load.
Result<Session> load_session(Runner& runner, const std::string& path, bool recompute = false,
                             const SessionOptions& options = {});

}  // namespace chorus
