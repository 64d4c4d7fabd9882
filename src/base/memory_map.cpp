#include "base/memory_map.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace chorus {

namespace {

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Status file_error(const std::string& path, const char* action) {
  const int error = errno;
  const std::string message = std::string(action) + ": " + std::strerror(error);
  if (path.empty()) return invalid_argument("path", "expected the name of a file, found none");
  if (error == ENOENT || error == ENOTDIR) return not_found(path, message);
  const bool has_no_room = error == ENOSPC || error == EDQUOT || error == EFBIG;
  if (has_no_room) return resource_exhausted(path, message);
  return invalid_argument(path, message);
}

Status check_stop(const std::function<bool()>& stop, const std::string& path) {
  if (!stop || !stop()) return Status();
  return Status(Code::kCancelled, path, "not written: stopped on request");
}

Status write_all(int fd, std::span<const std::byte> bytes, const std::string& path,
                 const std::function<bool()>& stop) {
  constexpr size_t kMostAtOnce = size_t{4} << 20;
  while (!bytes.empty()) {
    CHORUS_RETURN_IF_ERROR(check_stop(stop, path));
    const ssize_t written = ::write(fd, bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error(path, "cannot write");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return Status();
}

// What a path names once symbolic links are followed, also where the last one names nothing yet.
Result<std::string> follow_links(const std::string& path) {
  constexpr int kMostLinks = 40;
  std::filesystem::path target = path;
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    if (!std::filesystem::is_symlink(std::filesystem::symlink_status(target, error)))
      return target.string();
    const auto next = std::filesystem::read_symlink(target, error);
    if (error) return invalid_argument(path, "cannot read the link: " + error.message());
    target = target.parent_path() / next;
  }
  return invalid_argument(path, "expected fewer than " + std::to_string(kMostLinks) +
                                    " symbolic links behind each other");
}

struct TemporaryFile {
  int fd = -1;  // the caller's
  std::string name;
  std::string target;  // what it is to become
};

// A new file in the folder of what `path` names.
Result<TemporaryFile> create_beside(const std::string& path) {
  if (path.empty()) return invalid_argument("path", "expected the name of a file, found none");
  TemporaryFile file;
  CHORUS_ASSIGN_OR_RETURN(file.target, follow_links(path));
  struct stat info = {};
  if (::stat(file.target.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return invalid_argument(path, "expected a regular file or a new one");
  }
  constexpr int kMostAtOnce = 1000;
  for (int i = 0; i < kMostAtOnce; ++i) {
    file.name = file.target + ".tmp" + std::to_string(::getpid());
    if (i > 0) file.name += "." + std::to_string(i);
    file.fd = ::open(file.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file.fd >= 0) return file;
    if (errno != EEXIST) break;
  }
  return file_error(path, "cannot create");
}

}  // namespace

Result<MemoryMap> MemoryMap::open(const std::string& path) {
  // O_NONBLOCK: a named pipe would wait for its writer before it could be refused.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return file_error(path, "cannot open");
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return file_error(path, "cannot stat");
  if (!S_ISREG(info.st_mode)) return invalid_argument(path, "expected a regular file");
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return MemoryMap();
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) return file_error(path, "cannot map");
  return MemoryMap({static_cast<const std::byte*>(address), size});
}

MemoryMap::MemoryMap(MemoryMap&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MemoryMap& MemoryMap::operator=(MemoryMap&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MemoryMap::~MemoryMap() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Status write_file_atomically(const std::string& path,
                             std::span<const std::span<const std::byte>> parts,
                             const std::function<bool()>& stop) {
  CHORUS_ASSIGN_OR_RETURN(const TemporaryFile temporary, create_beside(path));
  Status status;
  {
    const Descriptor file(temporary.fd);
    for (const auto part : parts) {
      status = write_all(file.get(), part, path, stop);
      if (!status.ok()) break;
    }
    if (status.ok() && ::fsync(file.get()) != 0) status = file_error(path, "cannot write");
    if (status.ok()) status = check_stop(stop, path);
  }
  if (status.ok() && ::rename(temporary.name.c_str(), temporary.target.c_str()) != 0) {
    status = file_error(path, "cannot rename");
  }
  if (!status.ok()) ::unlink(temporary.name.c_str());
  return status;
}

Status check_writable(const std::string& path) {
  CHORUS_ASSIGN_OR_RETURN(const TemporaryFile temporary, create_beside(path));
  ::close(temporary.fd);
  ::unlink(temporary.name.c_str());
  return Status();
}

Result<std::string> read_text_file(const std::string& path, size_t max_bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return file_error(path, "cannot open");
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(path, "cannot read");
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > max_bytes) {
      return invalid_argument(path, "expected at most " + std::to_string(max_bytes) + " bytes");
    }
  }
}

}  // namespace chorus
