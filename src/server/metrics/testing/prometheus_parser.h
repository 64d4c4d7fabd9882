// A reader of the text format of Prometheus, version 0.0.4, that takes nothing which only some
// readers take: for tests.
#pragma once

#include <charconv>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace chorus::metrics::testing {

using LabelMap = std::map<std::string, std::string>;

struct Family {
  std::string type;
  std::string help;
  // Samples by the suffix of their name ("", "_bucket", "_sum", "_count"), and their labels.
  std::map<std::pair<std::string, LabelMap>, double> samples;
};

// Fails with the line at fault and why.
class PrometheusParser {
 public:
  // Whether the text is in order; else error() says what is not.
  bool parse(std::string_view text) {
    if (!text.empty() && text.back() != '\n') return fail("the last line has no end");
    while (!text.empty()) {
      const size_t end = text.find('\n');
      line_ = text.substr(0, end);
      text.remove_prefix(end + 1);
      if (!(line_.starts_with("#") ? comment() : sample())) return false;
    }
    return check_histograms();
  }

  const std::string& error() const { return error_; }
  const std::map<std::string, Family>& families() const { return families_; }

  // The value of a sample that is there; else NaN, which equals nothing.
  double value(const std::string& family, const LabelMap& labels = {},
               const std::string& suffix = "") const {
    const auto found = families_.find(family);
    if (found == families_.end()) return std::numeric_limits<double>::quiet_NaN();
    for (const auto& [key, number] : found->second.samples) {
      LabelMap rest = key.second;
      bool matches = key.first == suffix;
      for (const auto& [name, content] : labels) {
        matches = matches && rest.contains(name) && rest[name] == content;
        rest.erase(name);
      }
      rest.erase("model_name");
      if (matches && rest.empty()) return number;
    }
    return std::numeric_limits<double>::quiet_NaN();
  }

 private:
  bool fail(const std::string& why) {
    error_ = why + ": " + std::string(line_);
    return false;
  }

  static bool is_name(std::string_view text, bool takes_colons) {
    const auto is_good = [&](char c, bool is_first) {
      const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
      return is_letter || (takes_colons && c == ':') || (!is_first && c >= '0' && c <= '9');
    };
    for (size_t i = 0; i < text.size(); ++i) {
      if (!is_good(text[i], i == 0)) return false;
    }
    return !text.empty();
  }

  bool comment() {
    std::string_view rest = line_;
    const bool is_help = rest.starts_with("# HELP ");
    if (!is_help && !rest.starts_with("# TYPE ")) return fail("a comment that is neither");
    rest.remove_prefix(7);
    const size_t space = rest.find(' ');
    const std::string name(rest.substr(0, space));
    if (!is_name(name, true) || space == std::string_view::npos) return fail("no name and text");
    const std::string text(rest.substr(space + 1));
    if (is_help) {
      if (families_.contains(name)) return fail("a family that was there already");
      if (text.empty()) return fail("no help");
      current_ = name;
      families_[name].help = text;
      return true;
    }
    if (name != current_ || !families_[name].type.empty() || !families_[name].samples.empty())
      return fail("TYPE belongs between HELP and the samples, once");
    if (text != "counter" && text != "gauge" && text != "histogram") return fail("no type");
    if (text == "counter" && !name.ends_with("_total")) return fail("a counter without _total");
    families_[name].type = text;
    return true;
  }

  // {name="text",...} in front of `rest`.
  bool labels(std::string_view& rest, LabelMap& found) {
    if (!rest.starts_with("{")) return true;
    do {
      rest.remove_prefix(1);
      const size_t equals = rest.find("=\"");
      const std::string name(rest.substr(0, equals));
      if (equals == std::string_view::npos || !is_name(name, false)) return fail("no label");
      rest.remove_prefix(equals + 2);
      std::string content;
      while (!rest.empty() && rest[0] != '"') {
        char c = rest[0];
        if (c == '\\') {
          rest.remove_prefix(1);
          if (rest.empty() || (rest[0] != '\\' && rest[0] != '"' && rest[0] != 'n'))
            return fail("no such escape");
          c = rest[0] == 'n' ? '\n' : rest[0];
        }
        content += c;
        rest.remove_prefix(1);
      }
      if (rest.empty()) return fail("a label without end");
      rest.remove_prefix(1);
      if (!found.emplace(name, content).second) return fail("a label twice");
    } while (rest.starts_with(","));
    if (!rest.starts_with("}")) return fail("labels without end");
    rest.remove_prefix(1);
    return true;
  }

  bool number(std::string_view text, double& value) {
    if (text == "+Inf") {
      value = std::numeric_limits<double>::infinity();
      return true;
    }
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_digit = !text.empty() && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'));
    return (error == std::errc() && end == text.data() + text.size() && is_digit) ||
           fail("no number");
  }

  bool sample() {
    const size_t name_end = line_.find_first_of("{ ");
    if (name_end == std::string_view::npos) return fail("no sample");
    const std::string name(line_.substr(0, name_end));
    Family& family = families_[current_];
    if (current_.empty() || family.type.empty() || !name.starts_with(current_))
      return fail("a sample outside of its family");
    const std::string suffix = name.substr(current_.size());
    const bool is_histogram = family.type == "histogram";
    if (is_histogram != (suffix == "_bucket" || suffix == "_sum" || suffix == "_count") ||
        (!is_histogram && !suffix.empty()))
      return fail("a name that its family does not have");
    std::string_view rest = line_.substr(name_end);
    LabelMap found;
    if (!labels(rest, found)) return false;
    if (!rest.starts_with(" ")) return fail("no space in front of the value");
    double value = 0;
    if (!number(rest.substr(1), value)) return false;
    if (family.type == "counter" && value < 0) return fail("a counter below 0");
    if ((suffix == "_bucket") != found.contains("le")) return fail("le belongs to buckets");
    if (!family.samples.emplace(std::pair(suffix, found), value).second)
      return fail("a sample twice");
    return true;
  }

  // Of the buckets with the same other labels: ascending, the last +Inf and equal to the count.
  bool check_histograms() {
    for (const auto& [name, family] : families_) {
      if (family.type.empty() || family.samples.empty()) {
        line_ = name;
        return fail("a family without type or samples");
      }
      if (family.type != "histogram") continue;
      std::map<LabelMap, std::map<double, double>> histograms;
      for (const auto& [key, value] : family.samples) {
        if (key.first != "_bucket") continue;
        LabelMap rest = key.second;
        double bound = 0;
        line_ = rest["le"];
        if (!number(line_, bound)) return false;
        rest.erase("le");
        histograms[rest][bound] = value;
      }
      line_ = name;
      for (const auto& [rest, buckets] : histograms) {
        double before = 0;
        for (const auto& [bound, value] : buckets) {
          if (value < before) return fail("buckets that do not add up");
          before = value;
        }
        const auto count = family.samples.find({"_count", rest});
        if (buckets.rbegin()->first != std::numeric_limits<double>::infinity())
          return fail("no bucket +Inf");
        if (count == family.samples.end() || count->second != before ||
            !family.samples.contains({"_sum", rest}))
          return fail("no sum, or a count that is not that of +Inf");
      }
    }
    return true;
  }

  std::string_view line_;
  std::string current_;
  std::string error_;
  std::map<std::string, Family> families_;
};

}  // namespace chorus::metrics::testing
