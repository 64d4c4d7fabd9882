#include "json/value.h"

#include <charconv>
#include <cmath>

namespace chorus::json {

namespace {

std::string message_expected(std::string_view expected, const Value& found) {
  std::string text = "expected " + std::string(expected) + ", found ";
  if (found.is_number() || found.is_bool()) return text + found.dump();
  return text + std::string(found.type_name());
}

// The length of the valid UTF-8 sequence at the front of `text`, or 0.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong_or_surrogate =
      (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F) ||
      (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
  return overlong_or_surrogate ? 0 : length;
}

void write_string(std::string_view text, std::string& out) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    size_t used = 1;
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += text[0];
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else if (const size_t length = utf8_length(text); length > 0) {
      out += text.substr(0, length);
      used = length;
    } else {
      out += "\xEF\xBF\xBD";
    }
    text.remove_prefix(used);
  }
  out += '"';
}

// The shortest digits that read back to the same value of the same type.
template <typename Number>
void write_number(Number value, std::string& out) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) {
      out += "null";
      return;
    }
  }
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  out.append(buffer, end);
  // Without the point, "-0" would be read as the integer 0.
  if (std::is_floating_point_v<Number> && std::string_view(buffer, end) == "-0") out += ".0";
}

struct Writer {
  std::string& out;
  void operator()(std::monostate) const { out += "null"; }
  void operator()(bool value) const { out += value ? "true" : "false"; }
  void operator()(int64_t value) const { write_number(value, out); }
  void operator()(uint64_t value) const { write_number(value, out); }
  void operator()(float value) const { write_number(value, out); }
  void operator()(double value) const { write_number(value, out); }
  void operator()(const std::string& value) const { write_string(value, out); }
  void operator()(const Array& values) const {
    out += '[';
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) out += ',';
      out += values[i].dump();
    }
    out += ']';
  }
  void operator()(const Object& members) const {
    out += '{';
    for (size_t i = 0; i < members.size(); ++i) {
      if (i > 0) out += ',';
      write_string(members[i].first, out);
      out += ':';
      out += members[i].second.dump();
    }
    out += '}';
  }
};

}  // namespace

bool Value::is_number() const {
  return std::holds_alternative<int64_t>(data_) || std::holds_alternative<uint64_t>(data_) ||
         std::holds_alternative<float>(data_) || std::holds_alternative<double>(data_);
}

std::string_view Value::type_name() const {
  if (is_null()) return "null";
  if (is_bool()) return "a boolean";
  if (is_string()) return "a string";
  if (is_array()) return "an array";
  if (is_object()) return "an object";
  return "a number";
}

Result<int64_t> Value::to_integer(std::string_view field, int64_t low, int64_t high) const {
  const auto* whole = std::get_if<int64_t>(&data_);
  int64_t value = whole != nullptr ? *whole : 0;
  bool valid = whole != nullptr;
  if (const auto* number = std::get_if<double>(&data_)) {  // 3.0 is a whole number too
    valid = std::abs(*number) < 0x1p53 && *number == std::floor(*number);
    value = valid ? static_cast<int64_t>(*number) : 0;
  }
  if (!valid || value < low || value > high) {
    return invalid_argument(
        std::string(field),
        message_expected(
            "a whole number from " + std::to_string(low) + " to " + std::to_string(high), *this));
  }
  return value;
}

Result<uint64_t> Value::to_unsigned(std::string_view field) const {
  if (const auto* value = std::get_if<uint64_t>(&data_)) return *value;
  if (const auto* value = std::get_if<int64_t>(&data_); value != nullptr && *value >= 0) {
    return static_cast<uint64_t>(*value);
  }
  return invalid_argument(std::string(field),
                          message_expected("a whole number that is not negative", *this));
}

Result<double> Value::to_number(std::string_view field) const {
  if (const auto* value = std::get_if<int64_t>(&data_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<uint64_t>(&data_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<float>(&data_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<double>(&data_)) return *value;
  return invalid_argument(std::string(field), message_expected("a number", *this));
}

Result<std::string> Value::to_text(std::string_view field) const {
  if (is_string()) return as_string();
  return invalid_argument(std::string(field), message_expected("a string", *this));
}

const Value* Value::find(std::string_view name) const {
  if (!is_object()) return nullptr;
  for (const Member& member : as_object()) {
    if (member.first == name) return &member.second;
  }
  return nullptr;
}

Value& Value::push(Value value) {
  if (is_null()) data_ = Array();
  std::get<Array>(data_).push_back(std::move(value));
  return *this;
}

Value& Value::set(std::string name, Value value) {
  if (is_null()) data_ = Object();
  std::get<Object>(data_).emplace_back(std::move(name), std::move(value));
  return *this;
}

std::string Value::dump() const {
  std::string out;
  std::visit(Writer{out}, data_);
  return out;
}

}  // namespace chorus::json
