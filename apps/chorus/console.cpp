#include "console.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sys/ioctl.h>
#include <unistd.h>

namespace chorus::cli {

namespace {

// Not one that can only write forward.
bool is_terminal(int file) {
  const char* kind = std::getenv("TERM");
  return isatty(file) == 1 && (kind == nullptr || std::string_view(kind) != "dumb");
}

// https://no-color.org
bool wants_colours() {
  const char* no_colour = std::getenv("NO_COLOR");
  return no_colour == nullptr || *no_colour == '\0';
}

std::string_view begin_of(Colour colour) {
  switch (colour) {
    case Colour::kPlain:
      return "";
    case Colour::kDim:
      return "\x1b[2m";
    case Colour::kGreen:
      return "\x1b[32m";
    case Colour::kYellow:
      return "\x1b[33m";
    case Colour::kRed:
      return "\x1b[31m";
  }
  return "";
}

}  // namespace

Console::Console(const CommonFlags& flags)
    : log_(flags.log_level),
      json_(flags.json),
      quiet_(flags.quiet),
      shows_progress_(!flags.quiet && is_terminal(2)),
      has_colours_(wants_colours()) {}

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

TerminalSize Console::terminal_size() {
  winsize found = {};
  TerminalSize size;
  if (ioctl(2, TIOCGWINSZ, &found) != 0) return size;
  if (found.ws_row > 0) size.rows = found.ws_row;
  if (found.ws_col > 0) size.columns = found.ws_col;
  return size;
}

void Console::status(const std::vector<StatusLine>& lines) {
  if (!shows_progress_ || (lines.empty() && shown_.empty())) return;
  const auto columns = static_cast<size_t>(terminal_size().columns);
  std::string out;
  // A terminal that became narrower has wrapped the lines.
  size_t rows_above = 0;
  for (const size_t length : shown_)
    rows_above += std::max<size_t>(1, (length + columns - 1) / columns);
  if (rows_above > 1) out += "\x1b[" + std::to_string(rows_above - 1) + "A";
  out += "\r\x1b[J";
  shown_.clear();
  for (const StatusLine& line : lines) {
    // The last column stays free: some terminals wrap when it is written.
    const std::string_view text = std::string_view(line.text).substr(0, columns - 1);
    const std::string_view colour = has_colours_ ? begin_of(line.colour) : "";
    if (!shown_.empty()) out += "\n";
    out += colour;
    out += text;
    if (!colour.empty()) out += "\x1b[0m";
    shown_.push_back(text.size());
  }
  std::fwrite(out.data(), 1, out.size(), stderr);
  std::fflush(stderr);
}

void Console::progress(std::string_view text) {
  if (text.empty()) {
    status({});
  } else {
    status({{std::string(text), Colour::kPlain}});
  }
}

}  // namespace chorus::cli
