// The access log: one line of JSON for each request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/thread.h"
#include "server/http/server.h"

namespace chorus::metrics {

// {"time":"2026-01-31T12:00:00.123Z","request_id":…,"peer":…,"method":…,"path":…,"status":…,"ms":…,
// "request_bytes":…,"bytes":…,"client_left":true, and the fields that whoever answered has added},
// without a line end. The query is not logged: it may hold anything.
std::string access_line(const http::AccessRecord& record);

// Appends to a file from a thread of its own, so that a slow disk or pipe keeps nobody. Lines that
// come faster than they can be written are counted and dropped, which a line says:
// {"time":…,"dropped_lines":12}. Thread: any.
class AccessLog {
 public:
  // `path`: "-" is stdout. kInvalidArgument (field access_log), kResourceExhausted (threads).
  static Result<std::unique_ptr<AccessLog>> open(const std::string& path);
  ~AccessLog();  // writes what is left
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  void add(const http::AccessRecord& record);

 private:
  AccessLog(int fd, bool owns_fd) : fd_(fd), owns_fd_(owns_fd) {}
  void run();
  std::vector<std::string> take(bool& is_ending);

  static constexpr size_t kMostLines = 8192;

  const int fd_;
  const bool owns_fd_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> lines_ CHORUS_GUARDED_BY(mutex_);
  int64_t num_dropped_ CHORUS_GUARDED_BY(mutex_) = 0;
  bool is_ending_ CHORUS_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace chorus::metrics
