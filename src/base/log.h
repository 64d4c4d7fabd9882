// Log lines for people who run the program. Results never go here.
#pragma once

#include <string_view>

#include "base/mutex.h"
#include "base/result.h"

namespace chorus {

enum class LogLevel : uint8_t { kError, kWarning, kInfo, kDebug };

// kInvalidArgument (field --log-level) for a name that is not error, warning, info or debug.
Result<LogLevel> parse_log_level(std::string_view name);

// Writes one line a message to stderr. Thread: any. Owned by main and handed to whoever logs.
class Log {
 public:
  explicit Log(LogLevel level) : level_(level) {}
  bool enabled(LogLevel level) const { return level <= level_; }
  void error(std::string_view message) { write(LogLevel::kError, message); }
  void warning(std::string_view message) { write(LogLevel::kWarning, message); }
  void info(std::string_view message) { write(LogLevel::kInfo, message); }
  void debug(std::string_view message) { write(LogLevel::kDebug, message); }

 private:
  void write(LogLevel level, std::string_view message);

  const LogLevel level_;
  Mutex mutex_;  // keeps lines whole
};

}  // namespace chorus
