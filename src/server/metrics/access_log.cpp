#include "server/metrics/access_log.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "json/value.h"

namespace chorus::metrics {

namespace {

constexpr int64_t kMicro = 1'000'000;

std::string time_text(int64_t unix_us) {
  const auto seconds = static_cast<std::time_t>(unix_us / kMicro);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::array<char, 40> text{};
  size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  length += static_cast<size_t>(std::snprintf(text.data() + length, text.size() - length, ".%03dZ",
                                              static_cast<int>(unix_us % kMicro / 1000)));
  return {text.data(), length};
}

int64_t unix_time_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

void write_fully(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return;  // nobody is left to be told
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::string access_line(const http::AccessRecord& record) {
  json::Value line;
  line.set("time", time_text(record.time_us));
  line.set("request_id", record.id);
  line.set("peer", record.peer);
  line.set("method", record.method);
  line.set("path", record.path);
  line.set("status", record.status);
  line.set("ms", static_cast<double>(record.duration_us) / 1000);
  line.set("request_bytes", record.request_bytes);
  line.set("bytes", record.sent_bytes);
  if (record.client_left) line.set("client_left", true);
  for (const http::LogField& field : record.fields)
    std::visit([&](const auto& value) { line.set(field.name, value); }, field.value);
  return line.dump();
}

Result<std::unique_ptr<AccessLog>> AccessLog::open(const std::string& path) {
  const bool is_stdout = path == "-";
  const int fd = is_stdout ? STDOUT_FILENO
                           : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                                    S_IRUSR | S_IWUSR | S_IRGRP);
  if (fd < 0)
    return invalid_argument("access_log", "expected a file that can be written, found " + path +
                                              ": " + std::strerror(errno));
  std::unique_ptr<AccessLog> log(new AccessLog(fd, !is_stdout));
  CHORUS_ASSIGN_OR_RETURN(log->thread_, Thread::start([raw = log.get()] { raw->run(); }));
  return log;
}

AccessLog::~AccessLog() {
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  thread_ = nullptr;
  if (owns_fd_) close(fd_);
}

void AccessLog::add(const http::AccessRecord& record) {
  std::string line = access_line(record) + "\n";
  const MutexLock lock(mutex_);
  if (lines_.size() >= kMostLines) {
    ++num_dropped_;
    return;
  }
  lines_.push_back(std::move(line));
  changed_.notify_all();
}

// Waits for lines, or for the end.
std::vector<std::string> AccessLog::take(bool& is_ending) {
  const MutexLock lock(mutex_);
  while (lines_.empty() && !is_ending_) changed_.wait(mutex_);
  is_ending = is_ending_;
  if (num_dropped_ > 0) {
    json::Value line;
    line.set("time", time_text(unix_time_us()));
    line.set("dropped_lines", std::exchange(num_dropped_, 0));
    lines_.push_back(line.dump() + "\n");
  }
  return std::exchange(lines_, {});
}

void AccessLog::run() {
  bool is_ending = false;
  while (!is_ending) {
    std::string text;
    for (const std::string& line : take(is_ending)) text += line;
    write_fully(fd_, text);
  }
}

}  // namespace chorus::metrics
