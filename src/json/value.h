// JSON values: parsed with limits, written so that numbers read back to the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace chorus::json {

class Value;
using Array = std::vector<Value>;
using Member = std::pair<std::string, Value>;
using Object = std::vector<Member>;  // in order of insertion or of the text

// A JSON value. Copies deep. Thread: as a plain value.
class Value {
 public:
  Value() = default;                                       // null
  Value(bool value) : data_(value) {}                      // NOLINT: implicit by design
  Value(int value) : data_(int64_t{value}) {}              // NOLINT
  Value(unsigned value) : data_(int64_t{value}) {}         // NOLINT
  Value(int64_t value) : data_(value) {}                   // NOLINT
  Value(uint64_t value) : data_(value) {}                  // NOLINT
  Value(float value) : data_(value) {}                     // NOLINT: written with a float's digits
  Value(double value) : data_(value) {}                    // NOLINT
  Value(const char* value) : data_(std::string(value)) {}  // NOLINT
  Value(std::string_view value) : data_(std::string(value)) {}  // NOLINT
  Value(std::string value) : data_(std::move(value)) {}         // NOLINT
  Value(Array value) : data_(std::move(value)) {}               // NOLINT
  Value(Object value) : data_(std::move(value)) {}              // NOLINT

  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_string() const { return std::holds_alternative<std::string>(data_); }
  bool is_array() const { return std::holds_alternative<Array>(data_); }
  bool is_object() const { return std::holds_alternative<Object>(data_); }
  bool is_number() const;

  // "a string", "an array" and so on, for error messages.
  std::string_view type_name() const;

  // Requires the matching is_*().
  bool as_bool() const { return std::get<bool>(data_); }
  const std::string& as_string() const { return std::get<std::string>(data_); }
  const Array& as_array() const { return std::get<Array>(data_); }
  const Object& as_object() const { return std::get<Object>(data_); }

  // A number that is a whole one within [low, high], or kInvalidArgument for `field`.
  Result<int64_t> to_integer(std::string_view field, int64_t low, int64_t high) const;
  Result<uint64_t> to_unsigned(std::string_view field) const;
  Result<double> to_number(std::string_view field) const;
  Result<std::string> to_text(std::string_view field) const;

  // The member of that name, or nullptr (also when this is no object).
  const Value* find(std::string_view name) const;
  // Appends an element. Requires: null (becomes an array) or an array.
  Value& push(Value value);
  // Appends a member. Requires: null (becomes an object) or an object.
  Value& set(std::string name, Value value);

  // One line of text. Strings are written as valid UTF-8 (invalid bytes as U+FFFD); NaN and
  // infinities, which JSON does not have, as null.
  std::string dump() const;

 private:
  std::variant<std::monostate, bool, int64_t, uint64_t, float, double, std::string, Array, Object>
      data_;
};

struct Limits {
  size_t max_bytes = size_t{64} << 20;
  int max_depth = 64;
};

// The one value that `text` holds. Errors: kInvalidArgument for `field` with the byte offset; also
// for a repeated member name, a number out of range, and more than the limits.
Result<Value> parse(std::string_view text, std::string_view field, const Limits& limits = {});
// The same, with the member at which the text went wrong as field: "messages[3].content".
Result<Value> parse_with_paths(std::string_view text, const Limits& limits = {});

}  // namespace chorus::json
