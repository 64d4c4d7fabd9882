// The words of a command line: what a verb takes, declared once, read into variables and shown as
// help.
//
//   --flag VALUE and --flag=VALUE are the same, for a short name also -oVALUE and -o=VALUE. A word
//   that begins with two dashes, or with one and a letter, is a flag: as a value it is written
//   behind an equals sign, as an argument behind a word --.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace chorus::cli {

// What one verb takes. The variables outlive this object. Thread: one.
class CommandLine {
 public:
  // `verb` as its user writes it ("chorus run"), and what it does.
  CommandLine(std::string verb, std::string summary)
      : verb_(std::move(verb)), summary_(std::move(summary)) {}

  // Flags declared after this are shown under `title`.
  void group(std::string title) { group_ = std::move(title); }

  // A flag without a value. `names`: "--json", or "-o,--output", of which errors name the first.
  void flag(std::string names, bool& given, std::string help);
  // A flag with a value, given at most once; it may not be empty, so empty means not given. `kind`
  // is how help calls the value.
  void flag(std::string names, std::string& value, std::string kind, std::string help);
  // The same for a text, which may be empty.
  void flag(std::string names, std::optional<std::string>& text, std::string kind,
            std::string help);
  // A flag that may be repeated, for texts that may be empty.
  void flag(std::string names, std::vector<std::string>& texts, std::string kind, std::string help);

  // An argument that is required and not empty, by place. `what` completes "expected ...".
  void argument(std::string name, std::string& value, std::string what);
  // All arguments after those. `shown` is its place in the usage line: "[PROMPT...]".
  void rest(std::string name, std::vector<std::string>& values, std::string shown,
            std::string help);

  // Sets the variables. Errors are kInvalidArgument, or kUnimplemented for a flag that is known and
  // not offered; the field is the flag or argument at fault.
  Status read(std::span<const std::string> words) const;

  std::string help() const;

 private:
  using Target =
      std::variant<bool*, std::string*, std::optional<std::string>*, std::vector<std::string>*>;
  struct Flag {
    std::vector<std::string> names;
    Target target;
    std::string kind;  // empty: no value
    std::string help;
    std::string group;
  };
  struct Argument {
    std::string name;
    std::string* value = nullptr;
    std::string what;
  };
  struct Rest {
    std::string name;
    std::vector<std::string>* values = nullptr;
    std::string shown;
    std::string help;
  };
  // A word taken apart: "--seed=1", "-o=file" or "-ofile".
  struct Word {
    std::string name;
    std::optional<std::string> value;
  };

  void add(std::string names, Target target, std::string kind, std::string help);
  const Flag* find(std::string_view name) const;
  Status unknown(const Word& word) const;
  Status read_flag(std::span<const std::string> words, size_t& next) const;
  static Word split(const std::string& word);
  static Status store(const Flag& flag, std::string value);

  const std::string verb_;
  const std::string summary_;
  std::string group_;
  std::vector<Flag> flags_;
  std::vector<Argument> arguments_;
  std::optional<Rest> rest_;
};

// The words in front of a --, where flags are looked for.
std::span<const std::string> before_separator(std::span<const std::string> words);

// A flag in front of every verb.
Status misplaced_flag(const std::string& word);

}  // namespace chorus::cli
