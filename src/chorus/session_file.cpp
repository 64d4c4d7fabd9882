#include "chorus/session_file.h"

#include <array>
#include <span>

#include "base/memory_map.h"
#include "engine/saved_session.h"

namespace chorus {

Status save_session(const Session& session, const std::string& path,
                    const std::function<bool()>& stop) {
  CHORUS_ASSIGN_OR_RETURN(const SavedSession saved, session.save());
  const std::vector<std::byte> file = encode_session(saved);
  const std::array<std::span<const std::byte>, 1> parts = {file};
  return write_file_atomically(path, parts, stop);
}

Result<SavedSession> read_session(const std::string& path) {
  CHORUS_ASSIGN_OR_RETURN(const MemoryMap file, MemoryMap::open(path));
  return decode_session(file.bytes());
}

Result<Session> load_session(Runner& runner, const std::string& path, bool recompute,
                             const SessionOptions& options) {
  CHORUS_ASSIGN_OR_RETURN(const SavedSession saved, read_session(path));
  return runner.load(saved, recompute, options);
}

}  // namespace chorus
