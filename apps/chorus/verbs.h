// The verbs of the command line. Each declares its flags on the program and, when its name is on
// the line, becomes the chosen action.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

#include "interrupt.h"

namespace chorus::cli {

struct CommandLine {
  CLI::App& app;
  Interrupt& interrupt;
  // Set by the verb that was named; returns the exit code.
  std::function<int()> action;
};

void add_export(CommandLine& line);
void add_inspect(CommandLine& line);
void add_tokenize(CommandLine& line);
void add_run(CommandLine& line);
void add_perplexity(CommandLine& line);

}  // namespace chorus::cli
