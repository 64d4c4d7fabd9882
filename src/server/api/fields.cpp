#include "server/api/fields.h"

#include "chorus/generation_fields.h"

namespace chorus::api {

Fields::Fields(const json::Value& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    fail(invalid_argument(path_, "expected an object, found " + std::string(object.type_name())));
  }
}

const json::Value* Fields::find(std::string_view name) const {
  const json::Value* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string Fields::name_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

void Fields::fail(Status error) {
  if (status_.ok()) status_ = std::move(error);
}

void Fields::read(std::string_view name, bool& target) {
  const json::Value* value = find(name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_bool()) {
    return fail(invalid_argument(name_of(name),
                                 "expected a boolean, found " + std::string(value->type_name())));
  }
  target = value->as_bool();
}

void Fields::read(std::string_view name, std::string& target) {
  std::optional<std::string> text;
  read(name, text);
  if (text) target = std::move(*text);
}

void Fields::read(std::string_view name, std::optional<std::string>& target) {
  const json::Value* value = find(name);
  if (value == nullptr || !status_.ok()) return;
  auto text = value->to_text(name_of(name));
  if (!text.ok()) return fail(text.status());
  target = std::move(text).value();
}

void Fields::read(std::string_view name, std::optional<std::vector<TokenId>>& target) {
  const json::Value* value = find(name);
  if (value == nullptr || !status_.ok()) return;
  auto tokens = read_token_ids(*value, name_of(name));
  if (!tokens.ok()) return fail(tokens.status());
  target = std::move(tokens).value();
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) {
  const json::Value* value = find(name);
  if (value == nullptr || !status_.ok()) return std::nullopt;
  const auto number = value->to_integer(name_of(name), low, high);
  if (number.ok()) return *number;
  fail(number.status());
  return std::nullopt;
}

Result<std::vector<TokenId>> read_token_ids(const json::Value& value, const std::string& name) {
  if (!value.is_array()) {
    return invalid_argument(name,
                            "expected an array of ids, found " + std::string(value.type_name()));
  }
  if (value.as_array().size() > kMaxIds) {
    return invalid_argument(name, "expected at most " + std::to_string(kMaxIds) + " ids, found " +
                                      std::to_string(value.as_array().size()));
  }
  std::vector<TokenId> tokens;
  tokens.reserve(value.as_array().size());
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    CHORUS_ASSIGN_OR_RETURN(
        const int64_t id,
        value.as_array()[i].to_integer(name + "[" + std::to_string(i) + "]", INT32_MIN, INT32_MAX));
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

}  // namespace chorus::api
