// The command line tool: reads the line, chooses the verb, and turns errors into exit codes.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "arguments.h"
#include "console.h"
#include "verbs.h"
#include "version.h"

namespace chorus::cli {

namespace {

// Known to users of this kind of tool, and not part of this version: refused by name.
const std::vector<std::string> kAbsentFlags = {
    "-n",          "--save-session",    "--load-session",
    "--kv-layout", "--no-prefix-cache", "--target-step-ms",
    "--top-k",     "--top-p",           "--min-p",
    "--quantize",  "--methods",         "--decode-widths",
    "--prefill",   "--max-step"};
const std::vector<std::string> kAbsentVerbs = {"bench", "chat", "serve"};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
  return names;
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

Status unknown_verb(const CLI::App& app, const std::string& name) {
  if (contains(kAbsentVerbs, name)) return unimplemented(name, "not offered by this version");
  return invalid_argument(name, "unknown verb" + suggestion(name, verb_names(app)) +
                                    " (chorus --help lists the verbs)");
}

Status unknown_flag(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  if (contains(kAbsentFlags, name)) return unimplemented(name, "not offered by this version");
  const std::string verb = app.get_parent() == nullptr ? "" : " " + app.get_name();
  return invalid_argument(name, "unknown flag" + suggestion(name, flag_names(app)) + " (chorus" +
                                    verb + " --help lists the flags)");
}

// The first word that no verb or flag took.
Status check_leftovers(const CLI::App& app) {
  for (const std::string& word : app.remaining()) {
    return word.starts_with("-") ? unknown_flag(app, word) : unknown_verb(app, word);
  }
  for (const CLI::App* verb : app.get_subcommands()) {
    for (const std::string& word : verb->remaining()) {
      if (word.starts_with("-")) return unknown_flag(*verb, word);
      return invalid_argument(word, "expected no further argument");
    }
  }
  return Status();
}

// A flag given as --flag= or --flag "". Only a text may be empty.
Status check_empty_values(const CLI::App& app) {
  for (const CLI::App* verb : app.get_subcommands()) {
    for (const CLI::Option* option : verb->get_options()) {
      const bool takes_value = option->nonpositional() && option->get_expected_min() > 0;
      if (!takes_value || option->get_type_name() == "TEXT") continue;
      for (const std::string& value : option->results()) {
        if (value.empty()) return invalid_argument(option->get_name(), "expected a value");
      }
    }
  }
  return Status();
}

// The parser's own complaint, such as a flag without its value: "--seed: 1 required N missing".
Status usage_error(const CLI::ParseError& error) {
  const std::string message = error.what();
  const size_t end = message.find_first_of(": ");
  if (message.starts_with("-") && end != std::string::npos) {
    const size_t rest = message.find_first_not_of(": ", end);
    return invalid_argument(message.substr(0, end),
                            rest == std::string::npos ? "expected a value" : message.substr(rest));
  }
  return invalid_argument("", message);
}

int run(int argc, char** argv) {
  Interrupt interrupt;
  CLI::App app(
      "Runs many conversations with one language model in one forward pass, each exactly as if "
      "it ran alone.",
      "chorus");
  app.set_help_flag("-h,--help", "this text");
  app.get_formatter()->column_width(32);
  bool show_version = false;
  app.add_flag("--version", show_version, "version, commit, compiler, instruction sets");
  app.allow_extras();
  CommandLine line{app, interrupt, {}};
  add_export(line);
  add_inspect(line);
  add_tokenize(line);
  add_run(line);
  add_perplexity(line);

  CommonFlags flags;
  for (int i = 1; i < argc; ++i) flags.json |= std::string_view(argv[i]) == "--json";
  Console console(flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return console.error(usage_error(error), kUsage);
  }
  if (const Status status = check_leftovers(app); !status.ok())
    return console.error(status, kUsage);
  if (const Status status = check_empty_values(app); !status.ok())
    return console.error(status, kUsage);
  if (show_version) {
    const auto text = version_text();
    if (!text.ok()) return console.error(text.status(), kUsage);
    console.text(*text);
    return kDone;
  }
  if (!line.action) {
    return console.error(invalid_argument("", "expected a verb (chorus --help lists them)"),
                         kUsage);
  }
  return line.action();
}

}  // namespace

}  // namespace chorus::cli

int main(int argc, char** argv) {
  try {
    const int code = chorus::cli::run(argc, argv);
    std::fflush(stdout);
    if (code != chorus::cli::kDone || std::ferror(stdout) == 0) return code;
    std::fputs("chorus: stdout: cannot write the results\n", stderr);
    return chorus::cli::kFailed;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "chorus: %s\n", error.what());
    return 1;
  }
}
