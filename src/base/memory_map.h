// Files as read-only memory.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "base/result.h"

namespace chorus {

// A read-only private mapping of a whole regular file. Moves, does not copy; unmaps when destroyed.
// Thread: immutable after open, readable from any thread. A file that another process truncates
// while it is mapped raises SIGBUS on access: programs are replaced by rename, never written in
// place.
class MemoryMap {
 public:
  // Errors: kNotFound (no such file), kInvalidArgument (a folder, or no permission); the field is
  // `path`.
  static Result<MemoryMap> open(const std::string& path);

  MemoryMap() = default;
  MemoryMap(MemoryMap&& other) noexcept;
  MemoryMap& operator=(MemoryMap&& other) noexcept;
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;
  ~MemoryMap();

  // Page-aligned; valid while this object lives. Empty for an empty file.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MemoryMap(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

// Writes `parts` one after the other to a temporary file beside `path`, makes it durable, and
// renames it to `path`: a reader sees the old file or the whole new one, also where several write
// to one path at once (the last to be done stays). A symbolic link is followed: what it names is
// replaced. On failure `path` is untouched and the temporary file removed. `stop` may be empty; it
// is asked every few megabytes, and its yes ends the writing with kCancelled.
// Errors: kInvalidArgument, kNotFound, kResourceExhausted, with field `path`. Thread: any.
Status write_file_atomically(const std::string& path,
                             std::span<const std::span<const std::byte>> parts,
                             const std::function<bool()>& stop = {});

// Whether write_file_atomically could begin: for errors that are better known before the work than
// after it. Leaves nothing behind. Errors: as there.
Status check_writable(const std::string& path);

// The whole of a file as text. For small files; `max_bytes` is refused as kInvalidArgument when
// exceeded.
Result<std::string> read_text_file(const std::string& path, size_t max_bytes);

}  // namespace chorus
