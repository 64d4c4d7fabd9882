#include "base/log.h"

#include <cstdio>
#include <string>

namespace chorus {

namespace {
constexpr std::string_view kNames[] = {"error", "warning", "info", "debug"};
}

Result<LogLevel> parse_log_level(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  }
  return invalid_argument("--log-level",
                          "expected error, warning, info or debug, found " + std::string(name));
}

void Log::write(LogLevel level, std::string_view message) {
  if (!enabled(level)) return;
  const std::string_view name = kNames[static_cast<size_t>(level)];
  MutexLock lock(mutex_);
  std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(name.size()), name.data(),
               static_cast<int>(message.size()), message.data());
}

}  // namespace chorus
