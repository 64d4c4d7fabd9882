#include "command_line.h"

#include <algorithm>
#include <cctype>

#include "arguments.h"

namespace chorus::cli {

namespace {

constexpr size_t kHelpColumn = 30;
constexpr size_t kHelpWidth = 100;

// "-5" and "- item" are texts, not flags.
bool is_flag(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return false;
  return word[1] == '-' ? word.size() > 2 : std::isalpha(static_cast<unsigned char>(word[1])) != 0;
}

// One entry of a help text: what is described, and its description in a column of its own.
std::string entry(const std::string& left, const std::string& right) {
  std::string text = "  " + left;
  size_t column = text.size();
  if (column + 1 > kHelpColumn) {
    text += "\n";
    column = 0;
  }
  text.append(kHelpColumn - column, ' ');
  column = kHelpColumn;
  for (size_t begin = 0; begin < right.size();) {
    const size_t end = std::min(right.find(' ', begin), right.size());
    const size_t length = end - begin;
    if (column > kHelpColumn && column + 1 + length > kHelpWidth) {
      text += "\n" + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (column > kHelpColumn) {
      text += " ";
      ++column;
    }
    text.append(right, begin, length);
    column += length;
    begin = end + 1;
  }
  return text + "\n";
}

}  // namespace

std::span<const std::string> before_separator(std::span<const std::string> words) {
  const auto end = std::find(words.begin(), words.end(), "--");
  return words.first(static_cast<size_t>(end - words.begin()));
}

Status misplaced_flag(const std::string& word) {
  const std::string name =
      word.starts_with("--") ? word.substr(0, word.find('=')) : word.substr(0, 2);
  return invalid_argument(name, "expected a verb before the flags" +
                                    suggestion(name, {"--help", "--version"}) +
                                    " (chorus --help lists the verbs)");
}

void CommandLine::add(std::string names, Target target, std::string kind, std::string help) {
  Flag flag{{}, target, std::move(kind), std::move(help), group_};
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    flag.names.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  flags_.push_back(std::move(flag));
}

void CommandLine::flag(std::string names, bool& given, std::string help) {
  add(std::move(names), &given, "", std::move(help));
}
void CommandLine::flag(std::string names, std::string& value, std::string kind, std::string help) {
  add(std::move(names), &value, std::move(kind), std::move(help));
}
void CommandLine::flag(std::string names, std::optional<std::string>& text, std::string kind,
                       std::string help) {
  add(std::move(names), &text, std::move(kind), std::move(help));
}
void CommandLine::flag(std::string names, std::vector<std::string>& texts, std::string kind,
                       std::string help) {
  add(std::move(names), &texts, std::move(kind), std::move(help));
}

void CommandLine::argument(std::string name, std::string& value, std::string what) {
  arguments_.push_back({std::move(name), &value, std::move(what)});
}

void CommandLine::rest(std::string name, std::vector<std::string>& values, std::string shown,
                       std::string help) {
  rest_ = Rest{std::move(name), &values, std::move(shown), std::move(help)};
}

const CommandLine::Flag* CommandLine::find(std::string_view name) const {
  for (const Flag& flag : flags_) {
    if (std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end()) return &flag;
  }
  return nullptr;
}

CommandLine::Word CommandLine::split(const std::string& word) {
  if (!word.starts_with("--")) {
    if (word.size() == 2) return {word, std::nullopt};
    return {word.substr(0, 2), word.substr(word[2] == '=' ? 3 : 2)};
  }
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return {word, std::nullopt};
  return {word.substr(0, equals), word.substr(equals + 1)};
}

Status CommandLine::unknown(const Word& word) const {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) names.insert(names.end(), flag.names.begin(), flag.names.end());
  const std::string hint =
      arguments_.empty() ? "" : "; a text that begins with a dash comes after --";
  return invalid_argument(word.name, "unknown flag" + suggestion(word.name, names) + " (" + verb_ +
                                         " --help lists the flags" + hint + ")");
}

Status CommandLine::store(const Flag& flag, std::string value) {
  const std::string& name = flag.names[0];
  const auto again = [&] {
    return invalid_argument(name, "expected once, found again with \"" + value + "\"");
  };
  if (auto* const* texts = std::get_if<std::vector<std::string>*>(&flag.target)) {
    (*texts)->push_back(std::move(value));
  } else if (auto* const* text = std::get_if<std::optional<std::string>*>(&flag.target)) {
    if ((*text)->has_value()) return again();
    **text = std::move(value);
  } else if (auto* const* word = std::get_if<std::string*>(&flag.target)) {
    if (value.empty()) return invalid_argument(name, "expected a value, found \"\"");
    if (!(*word)->empty()) return again();
    **word = std::move(value);
  }
  return Status();
}

Status CommandLine::read_flag(std::span<const std::string> words, size_t& next) const {
  Word word = split(words[next++]);
  const Flag* flag = find(word.name);
  if (flag == nullptr) return unknown(word);
  const std::string& name = flag->names[0];
  if (auto* const* given = std::get_if<bool*>(&flag->target)) {
    if (word.value) {
      return invalid_argument(name, "expected no value, found \"" + *word.value + "\"");
    }
    **given = true;
    return Status();
  }
  if (!word.value) {
    if (next == words.size() || words[next] == "--") {
      return invalid_argument(name, "expected a value, found none");
    }
    if (is_flag(words[next])) {
      return invalid_argument(name, "expected a value, found " + words[next] + " (" +
                                        flag->names.back() + "=" + words[next] +
                                        " if that is the value)");
    }
    word.value = words[next++];
  }
  return store(*flag, std::move(*word.value));
}

Status CommandLine::read(std::span<const std::string> words) const {
  size_t num_arguments = 0;
  bool flags_may_follow = true;
  for (size_t next = 0; next < words.size();) {
    const std::string& word = words[next];
    if (flags_may_follow && word == "--") {
      flags_may_follow = false;
      ++next;
    } else if (flags_may_follow && is_flag(word)) {
      CHORUS_RETURN_IF_ERROR(read_flag(words, next));
    } else {
      ++next;
      if (num_arguments < arguments_.size()) {
        *arguments_[num_arguments++].value = word;
      } else if (rest_) {
        rest_->values->push_back(word);
      } else {
        return invalid_argument(word, "expected no further argument");
      }
    }
  }
  for (const Argument& argument : arguments_) {
    if (argument.value->empty())
      return invalid_argument(argument.name, "expected " + argument.what);
  }
  return Status();
}

std::string CommandLine::help() const {
  std::string text = verb_ + ": " + summary_ + "\n\nUsage: " + verb_ + " [FLAGS]";
  for (const Argument& argument : arguments_) text += " " + argument.name;
  if (rest_) text += " " + rest_->shown;
  text += "\n\n";
  for (const Argument& argument : arguments_) text += entry(argument.name, argument.what);
  if (rest_) text += entry(rest_->name, rest_->help);
  std::vector<std::string> titles;
  for (const Flag& flag : flags_) {
    if (std::find(titles.begin(), titles.end(), flag.group) == titles.end()) {
      titles.push_back(flag.group);
    }
  }
  for (const std::string& title : titles) {
    text += "\n" + title + ":\n";
    for (const Flag& flag : flags_) {
      if (flag.group != title) continue;
      std::string left;
      for (const std::string& name : flag.names) left += (left.empty() ? "" : ", ") + name;
      if (!flag.kind.empty()) left += " " + flag.kind;
      text += entry(left, flag.help);
    }
  }
  return text;
}

}  // namespace chorus::cli
