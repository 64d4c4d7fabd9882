// What goes to the terminal: results to stdout, errors and progress to stderr.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "flags.h"
#include "json/value.h"

namespace chorus::cli {

// Exit codes of the command line contract.
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,        // something failed while running
  kUsage = 2,         // the command line is wrong
  kBadModel = 3,      // the model is not acceptable
  kInterrupted = 130  // results so far were printed
};

enum class Colour : uint8_t { kPlain, kDim, kGreen, kYellow, kRed };

struct StatusLine {
  std::string text;  // ASCII
  Colour colour = Colour::kPlain;
};

struct TerminalSize {
  int rows = 24;
  int columns = 80;
};

class Console {
 public:
  explicit Console(const CommonFlags& flags);

  bool json() const { return json_; }
  Log& log() { return log_; }

  // One line of JSON, or text as it is, on stdout.
  void line(const json::Value& value);
  void text(std::string_view text);

  // The error on stderr, and with --json also as a line on stdout. Returns `code`.
  int error(const Status& status, ExitCode code);

  // A message for people on stderr unless --quiet.
  void note(std::string_view message);

  // Replaces what is shown below all other output, by lines that are cut to the terminal's width;
  // none to clear it, which any other output does, too. The cursor stays behind the last line, and
  // nothing else of the terminal is changed. Only with shows_progress().
  void status(const std::vector<StatusLine>& lines);
  // The same with one line; an empty text clears.
  void progress(std::string_view text);
  // Whether stderr is a terminal that can do that, and no --quiet was given.
  bool shows_progress() const { return shows_progress_; }
  // Of the terminal on stderr. It may change at any time.
  static TerminalSize terminal_size();

 private:
  Log log_;
  bool json_;
  bool quiet_;
  bool shows_progress_;
  bool has_colours_;           // NO_COLOR is not set
  std::vector<size_t> shown_;  // the lengths of the lines that are shown
};

// {"code":…,"field":…,"message":…}
json::Value error_json(const Status& status);

}  // namespace chorus::cli
