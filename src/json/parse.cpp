// The only place where exceptions are caught below main: the parser of nlohmann-json may throw
// std::bad_alloc or its own errors. Its SAX interface reports syntax errors without throwing.
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "json/value.h"

namespace chorus::json {

namespace {

using Source = nlohmann::json;

// Builds a Value from parse events and stops at the first limit that is exceeded.
class Builder final : public nlohmann::json_sax<Source> {
 public:
  explicit Builder(const Limits& limits) : limits_(limits) {}

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(Value(value)); }
  bool number_integer(number_integer_t value) override { return add(Value(int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(INT64_MAX)) return add(Value(static_cast<int64_t>(value)));
    return add(Value(uint64_t{value}));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(Value(value)); }
  bool string(string_t& value) override { return add(Value(std::move(value))); }
  bool binary(binary_t&) override { return fail("binary values are not JSON"); }
  bool start_object(std::size_t) override { return open(Value(Object())); }
  bool start_array(std::size_t) override { return open(Value(Array())); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Level& level = open_.back();
    level.name = std::move(name);
    return !is_repeated(level, level.name) || fail("repeated member " + level.name);
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const bool out_of_range = error.id == 406;
    return fail((out_of_range ? "number out of range at byte " : "not valid JSON at byte ") +
                std::to_string(position));
  }

  const std::string& error() const { return error_; }
  // Where the text is at: "messages[3].content", or nothing outside of members and elements.
  std::string path() const {
    std::string path;
    for (const Level& level : open_) {
      if (level.value.is_array()) {
        path += '[' + std::to_string(level.value.as_array().size()) + ']';
      } else if (!level.name.empty()) {
        path += (path.empty() ? "" : ".") + level.name;
      }
    }
    return path;
  }
  Value take() { return std::move(root_); }

 private:
  struct Level {
    Value value;
    std::string name;                       // of the member whose value comes next
    std::unordered_set<std::string> names;  // of all members; empty while there are few
  };

  // Objects may have a hundred thousand members, and comparing each with each takes minutes.
  static bool is_repeated(Level& level, const std::string& name) {
    constexpr size_t kFew = 16;
    const Object& members = level.value.as_object();
    if (members.size() < kFew) return level.value.find(name) != nullptr;
    if (members.size() == kFew) {
      for (const Member& member : members) level.names.insert(member.first);
    }
    return !level.names.insert(name).second;
  }

  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }

  bool open(Value value) {
    if (open_.size() >= static_cast<size_t>(limits_.max_depth)) {
      return fail("nested deeper than " + std::to_string(limits_.max_depth));
    }
    open_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    Value value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.push(std::move(value));
    } else {
      open_.back().value.set(std::exchange(open_.back().name, {}), std::move(value));
    }
    return true;
  }

  const Limits& limits_;
  std::vector<Level> open_;
  Value root_;
  std::string error_;
};

// `field`: of errors; unset: where they are.
Result<Value> parse_text(std::string_view text, std::optional<std::string_view> field,
                         const Limits& limits) {
  if (text.size() > limits.max_bytes) {
    return invalid_argument(std::string(field.value_or("")),
                            "expected at most " + std::to_string(limits.max_bytes) +
                                " bytes of JSON, found " + std::to_string(text.size()));
  }
  // The library takes this byte for the end of the text, and would pass over what follows.
  if (const size_t at = text.find('\0'); at != text.npos) {
    return invalid_argument(std::string(field.value_or("")),
                            "not valid JSON at byte " + std::to_string(at + 1));
  }
  Builder builder(limits);
  try {
    if (Source::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  } catch (const std::exception& error) {
    return invalid_argument(std::string(field.value_or("")),
                            std::string("not valid JSON: ") + error.what());
  }
  return invalid_argument(field ? std::string(*field) : builder.path(), builder.error());
}

}  // namespace

Result<Value> parse(std::string_view text, std::string_view field, const Limits& limits) {
  return parse_text(text, field, limits);
}

Result<Value> parse_with_paths(std::string_view text, const Limits& limits) {
  return parse_text(text, std::nullopt, limits);
}

}  // namespace chorus::json
