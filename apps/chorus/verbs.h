// The verbs of the command line, each a class of its own.
#pragma once

#include <memory>
#include <string>

#include "command_line.h"
#include "console.h"
#include "flags.h"
#include "interrupt.h"

namespace chorus::cli {

// One verb on one command line: declare(), then CommandLine::read(), then parse(), then run().
// Thread: main.
class Verb {
 public:
  Verb(std::string name, std::string summary)
      : name_(std::move(name)), summary_(std::move(summary)) {}
  virtual ~Verb() = default;
  Verb(const Verb&) = delete;
  Verb& operator=(const Verb&) = delete;

  const std::string& name() const { return name_; }
  const std::string& summary() const { return summary_; }
  CommonFlags& common() { return common_; }

  // Its arguments and flags; the common ones are main's part.
  virtual void declare(CommandLine& line) = 0;

  // Whether --json is one of the common flags.
  virtual bool has_json() const { return true; }

  // Turns the words into values. An error means that the command line is wrong.
  virtual Status parse() { return Status(); }

  // Returns the exit code.
  virtual int run(Console& console, Interrupt& interrupt) = 0;

 protected:
  CommonFlags common_;

 private:
  const std::string name_;
  const std::string summary_;
};

std::unique_ptr<Verb> make_export();
std::unique_ptr<Verb> make_inspect();
std::unique_ptr<Verb> make_tokenize();
std::unique_ptr<Verb> make_run();
std::unique_ptr<Verb> make_perplexity();
std::unique_ptr<Verb> make_chat();
std::unique_ptr<Verb> make_serve();
std::unique_ptr<Verb> make_bench();

}  // namespace chorus::cli
