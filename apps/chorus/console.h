// What goes to the terminal: results to stdout, errors and progress to stderr.
#pragma once

#include <string>
#include <string_view>

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

  // Replaces the progress line; only on a terminal and without --quiet. An empty text clears it.
  void progress(std::string_view text);
  bool shows_progress() const { return shows_progress_; }

 private:
  Log log_;
  bool json_;
  bool quiet_;
  bool shows_progress_;
  bool line_shown_ = false;
};

// {"code":…,"field":…,"message":…}
json::Value error_json(const Status& status);

}  // namespace chorus::cli
