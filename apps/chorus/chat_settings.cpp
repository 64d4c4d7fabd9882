#include "chat_settings.h"

#include <algorithm>
#include <vector>

#include "arguments.h"
#include "json/value.h"

namespace chorus::cli {

namespace {

// Parameters that mean nothing to a chat, which has one answer at a time and shows its text, or
// that go by another name there.
constexpr std::string_view kAbsent[] = {"max_completion_tokens",
                                        "n",
                                        "best_of",
                                        "logprobs",
                                        "top_logprobs",
                                        "prompt_logprobs",
                                        "truncate_prompt_tokens",
                                        "priority",
                                        "deadline_ms",
                                        "cache_salt"};

std::vector<std::string> names_of_settings() {
  std::vector<std::string> names;
  for (const std::string_view name : generation_field_names()) {
    if (std::ranges::find(kAbsent, name) == std::end(kAbsent)) names.emplace_back(name);
  }
  return names;
}

// A list without brackets; what is unset by what it then is.
std::string shown(const std::string& name, const GenerationFields& settings) {
  const json::Value value = generation_field(name, settings);
  if (value.is_null()) return name == "seed" ? "random" : "default";
  std::string text;
  if (value.is_object()) {
    for (const auto& [id, bias] : value.as_object()) {
      text += (text.empty() ? "" : " ") + id + "=" + bias.dump();
    }
    return text.empty() ? "none" : text;
  }
  if (!value.is_array()) return value.dump();
  if (value.as_array().empty()) return name == "allowed_token_ids" ? "all" : "none";
  for (const json::Value& element : value.as_array()) {
    text += (text.empty() ? "" : " ") + element.dump();
  }
  return text;
}

}  // namespace

Status change_setting(const std::string& name, const std::string& value,
                      const GenerationFields& defaults, GenerationFields& settings) {
  const std::vector<std::string> names = names_of_settings();
  if (std::ranges::find(names, name) == names.end()) {
    return invalid_argument(
        name, "unknown setting" + suggestion(name, names) + " (/set without a name lists them)");
  }
  const Status status = set_generation_field(
      name,
      value.empty() ? generation_field(name, defaults) : generation_field_of_word(name, value),
      settings);
  return status.ok() ? status : Status(status.code(), name, status.message());
}

std::string settings_text(const GenerationFields& settings) {
  const std::vector<std::string> names = names_of_settings();
  size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  std::string text;
  for (const std::string& name : names) {
    text += name + std::string(width + 1 - name.size(), ' ') + shown(name, settings) + "\n";
  }
  return text;
}

}  // namespace chorus::cli
