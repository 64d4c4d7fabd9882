#include "server/api/messages.h"

#include <algorithm>
#include <array>

#include "server/api/fields.h"

namespace chorus::api {

namespace {

Result<std::string> read_part(const json::Value& part, const std::string& name) {
  Fields fields(part, name);
  std::string type;
  std::optional<std::string> text;
  fields.read("type", type);
  CHORUS_RETURN_IF_ERROR(fields.status());
  if (type != "text") {
    return unimplemented(name + ".type", "expected text: the model takes no other parts, found " +
                                             (type.empty() ? "none" : type));
  }
  fields.read("text", text);
  CHORUS_RETURN_IF_ERROR(fields.status());
  if (!text) return invalid_argument(name + ".text", "expected a text");
  return std::move(*text);
}

Result<std::string> read_content(const json::Value* value, const std::string& name,
                                 bool may_be_none) {
  if (value == nullptr && may_be_none) return std::string();
  if (value == nullptr) return invalid_argument(name, "expected a text or a list of parts");
  if (!value->is_array()) return value->to_text(name);
  std::string content;
  for (size_t i = 0; i < value->as_array().size(); ++i) {
    CHORUS_ASSIGN_OR_RETURN(const std::string text,
                            read_part(value->as_array()[i], name + "[" + std::to_string(i) + "]"));
    content += (i == 0 ? "" : "\n") + text;
  }
  return content;
}

// Templates write arguments as JSON, so a text that holds some becomes a value.
Result<json::Value> read_tool_call(const json::Value& call, const std::string& name) {
  Fields fields(call, name);
  CHORUS_RETURN_IF_ERROR(fields.status());
  const json::Value* function = fields.find("function");
  if (function == nullptr) return invalid_argument(name + ".function", "expected a function");
  Fields inner(*function, name + ".function");
  std::string function_name;
  inner.read("name", function_name);
  CHORUS_RETURN_IF_ERROR(inner.status());
  json::Value arguments;
  if (const json::Value* given = inner.find("arguments"); given != nullptr && given->is_string()) {
    auto parsed = json::parse(given->as_string(), name + ".function.arguments");
    arguments = parsed.ok() ? std::move(parsed).value() : *given;
  } else if (given != nullptr) {
    arguments = *given;
  }
  json::Value out_function;
  out_function.set("name", function_name);
  out_function.set("arguments", std::move(arguments));
  json::Value out;
  if (const json::Value* id = fields.find("id"); id != nullptr) out.set("id", *id);
  out.set("type", "function");
  out.set("function", std::move(out_function));
  return out;
}

Result<json::Value> read_tool_calls(const json::Value& value, const std::string& name) {
  if (!value.is_array()) {
    return invalid_argument(name, "expected an array, found " + std::string(value.type_name()));
  }
  json::Array calls;
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    CHORUS_ASSIGN_OR_RETURN(json::Value call, read_tool_call(value.as_array()[i],
                                                             name + "[" + std::to_string(i) + "]"));
    calls.push_back(std::move(call));
  }
  return json::Value(std::move(calls));
}

Result<json::Value> read_message(const json::Value& value, const std::string& name) {
  static constexpr std::array<std::string_view, 5> kRoles = {"developer", "system", "user",
                                                             "assistant", "tool"};
  Fields fields(value, name);
  std::string role;
  fields.read("role", role);
  CHORUS_RETURN_IF_ERROR(fields.status());
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    return invalid_argument(name + ".role",
                            "expected developer, system, user, assistant or tool, found " +
                                (role.empty() ? "none" : role));
  }
  const json::Value* calls = fields.find("tool_calls");
  CHORUS_ASSIGN_OR_RETURN(std::string content,
                          read_content(fields.find("content"), name + ".content",
                                       role == "assistant" && calls != nullptr));
  json::Value message;
  message.set("role", role == "developer" ? "system" : role);
  message.set("content", std::move(content));
  for (const char* text : {"name", "tool_call_id"}) {
    std::optional<std::string> given;
    fields.read(text, given);
    if (given) message.set(text, std::move(*given));
  }
  CHORUS_RETURN_IF_ERROR(fields.status());
  if (calls != nullptr) {
    CHORUS_ASSIGN_OR_RETURN(json::Value read, read_tool_calls(*calls, name + ".tool_calls"));
    message.set("tool_calls", std::move(read));
  }
  return message;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace

Result<json::Array> read_messages(const json::Value& value, const std::string& name) {
  if (!value.is_array() || value.as_array().empty()) {
    return invalid_argument(name,
                            "expected an array of messages, found " +
                                std::string(value.is_array() ? "an empty one" : value.type_name()));
  }
  json::Array messages;
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    CHORUS_ASSIGN_OR_RETURN(
        json::Value message,
        read_message(value.as_array()[i], name + "[" + std::to_string(i) + "]"));
    messages.push_back(std::move(message));
  }
  return messages;
}

std::string_view content_of(const json::Value& message) {
  return message.find("content")->as_string();
}

std::string_view role_of(const json::Value& message) { return message.find("role")->as_string(); }

Result<std::string> cut_behind_content(std::string rendered, std::string_view content) {
  // Templates may trim what they show.
  for (const std::string_view shown : {content, trimmed(content)}) {
    const size_t at = rendered.rfind(shown);
    if (at == rendered.npos || shown.empty()) continue;
    rendered.resize(at + shown.size());
    return rendered;
  }
  return invalid_argument("continue_final_message",
                          "expected a last message that the chat template shows");
}

}  // namespace chorus::api
