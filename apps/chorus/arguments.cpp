#include "arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>

namespace chorus::cli {

namespace {

Status expected(std::string_view flag, const std::string& what, std::string_view found) {
  return invalid_argument(std::string(flag),
                          "expected " + what + ", found \"" + std::string(found) + "\"");
}

template <typename Number>
std::optional<Number> whole(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

// The least number of single-character insertions, deletions and replacements between two words.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

Result<int64_t> parse_count(std::string_view flag, std::string_view text, int64_t low,
                            int64_t high) {
  const auto value = whole<int64_t>(text);
  if (!value || *value < low || *value > high) {
    return expected(
        flag, "a whole number from " + std::to_string(low) + " to " + std::to_string(high), text);
  }
  return *value;
}

Result<int64_t> parse_size(std::string_view flag, std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  static constexpr Unit kUnits[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                                    {"TiB", 0x1p40}, {"KB", 1e3},     {"MB", 1e6},
                                    {"GB", 1e9},     {"TB", 1e12},    {"B", 1}};
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    const auto count = number(text.substr(0, text.size() - unit.name.size()));
    if (!count || *count * unit.bytes < 1 || *count * unit.bytes > 0x1p60) break;
    return static_cast<int64_t>(*count * unit.bytes);
  }
  return expected(flag, "a size such as 512MiB or 2GiB", text);
}

Result<int> parse_choice(std::string_view flag, std::string_view text,
                         const std::vector<std::string>& choices) {
  std::string list;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == text) return static_cast<int>(i);
    list += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i];
  }
  return expected(flag, list, text);
}

Status at_flag(std::string_view flag, const Status& status) {
  if (status.ok()) return status;
  return Status(status.code(), std::string(flag), status.to_string());
}

Status check_not_same(std::string_view flag, const std::string& output, const std::string& input) {
  std::error_code error;
  if (std::filesystem::equivalent(output, input, error))
    return invalid_argument(std::string(flag), "expected another file than the input " + input);
  if (!std::filesystem::is_directory(input, error) || !std::filesystem::exists(output, error))
    return Status();
  const auto folder = std::filesystem::canonical(input, error);
  const auto file = std::filesystem::canonical(output, error);
  const auto differ = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  if (error || differ.first != folder.end()) return Status();
  return invalid_argument(std::string(flag), "expected no file of the input " + input);
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  if (a.empty() || b.empty()) return false;
  if (a == b || std::filesystem::equivalent(a, b, error)) return true;
  const auto full = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  };
  return full(a) == full(b) && !error;
}

std::vector<std::string> near_matches(std::string_view word,
                                      const std::vector<std::string>& candidates) {
  std::vector<std::pair<size_t, std::string>> found;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    const size_t limit = candidate.size() < 3 ? 1 : 2;
    if (distance <= limit)
      found.emplace_back(distance, candidate);
    else if (word.size() >= 3 && candidate.starts_with(word))
      found.emplace_back(3, candidate);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& [distance, name] : found) {
    if (names.size() < 3) names.push_back(name);
  }
  return names;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& candidates) {
  const auto names = near_matches(word, candidates);
  if (names.empty()) return "";
  std::string text = "; did you mean ";
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : " or ") + names[i];
  return text + "?";
}

}  // namespace chorus::cli
