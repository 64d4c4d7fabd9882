#include "console.h"

#include <cstdio>
#include <unistd.h>

namespace chorus::cli {

Console::Console(const CommonFlags& flags)
    : log_(flags.log_level),
      json_(flags.json),
      quiet_(flags.quiet),
      shows_progress_(!flags.quiet && isatty(2) == 1) {}

void Console::line(const json::Value& value) { text(value.dump() + "\n"); }

void Console::text(std::string_view text) {
  progress("");
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

json::Value error_json(const Status& status) {
  json::Value value;
  value.set("code", code_name(status.code()));
  value.set("field", status.field());
  value.set("message", status.message());
  return value;
}

int Console::error(const Status& status, ExitCode code) {
  progress("");
  std::fprintf(stderr, "chorus: %s\n", status.to_string().c_str());
  if (json_) {
    json::Value value;
    value.set("type", "error");
    value.set("code", code_name(status.code()));
    value.set("field", status.field());
    value.set("message", status.message());
    line(value);
  }
  return code;
}

void Console::note(std::string_view message) {
  if (quiet_) return;
  progress("");
  std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
}

void Console::progress(std::string_view text) {
  if (!shows_progress_ || (text.empty() && !line_shown_)) return;
  std::fprintf(stderr, "\r\x1b[K%.*s", static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
  line_shown_ = !text.empty();
}

}  // namespace chorus::cli
