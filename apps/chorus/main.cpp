// The command line tool: reads the line, chooses the verb, and turns errors into exit codes.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "arguments.h"
#include "verbs.h"
#include "version.h"

namespace chorus::cli {

namespace {

using Verbs = std::vector<std::unique_ptr<Verb>>;

constexpr const char* kProgramSummary =
    "Runs many conversations with one language model in one forward pass, each exactly as if it "
    "ran alone.";

Verbs all_verbs() {
  Verbs verbs;
  verbs.push_back(make_export());
  verbs.push_back(make_inspect());
  verbs.push_back(make_tokenize());
  verbs.push_back(make_run());
  verbs.push_back(make_chat());
  verbs.push_back(make_perplexity());
  verbs.push_back(make_serve());
  verbs.push_back(make_bench());
  return verbs;
}

std::string program_help(const Verbs& verbs) {
  std::string text = std::string(kProgramSummary) + "\n\nUsage: chorus VERB [FLAGS] [ARGUMENTS]\n";
  text += "\nVerbs (chorus VERB --help lists the flags of each):\n";
  for (const auto& verb : verbs) {
    text += "  " + verb->name() + std::string(14 - verb->name().size(), ' ') + verb->summary();
    text += "\n";
  }
  text += "\nFlags:\n  -h, --help    this text\n";
  text += "  --version     version, commit, compiler, instruction sets\n";
  return text;
}

Status unknown_verb(const Verbs& verbs, const std::string& name) {
  if (name.empty()) {
    return invalid_argument("VERB", "expected a verb, found \"\" (chorus --help lists them)");
  }
  std::vector<std::string> names;
  for (const auto& verb : verbs) names.push_back(verb->name());
  return invalid_argument(
      name, "unknown verb" + suggestion(name, names) + " (chorus --help lists the verbs)");
}

bool has_word(std::span<const std::string> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool asks_for_help(std::span<const std::string> words) {
  return has_word(words, "--help") || has_word(words, "-h");
}

int run_verb(Verb& verb, std::span<const std::string> words, Interrupt& interrupt) {
  CommandLine line("chorus " + verb.name(), verb.summary());
  bool help = false;
  verb.declare(line);
  verb.common().declare(line, verb.has_json());
  line.flag("-h,--help", help, "this text");
  const auto flag_words = before_separator(words);
  CommonFlags early;
  early.json = has_word(flag_words, "--json");
  if (asks_for_help(flag_words)) {
    Console(early).text(line.help());
    return kDone;
  }
  Status status = line.read(words);
  if (status.ok()) status = verb.common().parse();
  if (!status.ok()) return Console(early).error(status, kUsage);
  Console console(verb.common());
  if (status = verb.parse(); !status.ok()) return console.error(status, kUsage);
  return verb.run(console, interrupt);
}

// The line without a verb: --help, --version, or wrong.
int run_program(const Verbs& verbs, std::span<const std::string> words) {
  CommonFlags flags;
  flags.json = has_word(words, "--json");
  Console console(flags);
  if (asks_for_help(words)) {
    console.text(program_help(verbs));
    return kDone;
  }
  for (const std::string& word : words) {
    if (word == "--version") continue;
    return console.error(word.starts_with("-") ? misplaced_flag(word)
                                               : invalid_argument(word, "expected no argument"),
                         kUsage);
  }
  if (!has_word(words, "--version")) {
    return console.error(invalid_argument("VERB", "expected a verb (chorus --help lists them)"),
                         kUsage);
  }
  const auto text = version_text();
  if (!text.ok()) return console.error(text.status(), kUsage);
  console.text(*text);
  return kDone;
}

int run(int argc, char** argv) {
  Interrupt interrupt;
  // A file that outgrows the process's limit is an error of the write.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const Verbs verbs = all_verbs();
  if (words.empty() || words[0].starts_with("-")) return run_program(verbs, words);
  for (const auto& verb : verbs) {
    if (verb->name() == words[0]) return run_verb(*verb, std::span(words).subspan(1), interrupt);
  }
  CommonFlags flags;
  flags.json = has_word(before_separator(words), "--json");
  return Console(flags).error(unknown_verb(verbs, words[0]), kUsage);
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
