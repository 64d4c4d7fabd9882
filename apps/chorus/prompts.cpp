#include "prompts.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <unistd.h>

#include "arguments.h"
#include "base/memory_map.h"

namespace chorus::cli {

namespace {

struct Line {
  std::string_view text;  // without its line end
  size_t number = 0;      // from 1
};

// The lines that are not blank.
std::vector<Line> split_lines(std::string_view text) {
  std::vector<Line> lines;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) lines.push_back({line, number});
  }
  return lines;
}

void set_text(std::string text, const PromptSources& sources, Prompt& prompt) {
  if (!sources.chat) {
    prompt.text = std::move(text);
    return;
  }
  if (sources.system) prompt.messages.push_back({"system", *sources.system});
  prompt.messages.push_back({"user", std::move(text)});
}

Result<std::vector<text::ChatMessage>> read_messages(const json::Value& value) {
  if (!value.is_array() || value.as_array().empty()) {
    return invalid_argument("messages",
                            "expected an array of messages, found " +
                                std::string(value.is_array() ? "an empty one" : value.type_name()));
  }
  std::vector<text::ChatMessage> messages;
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    const json::Value& entry = value.as_array()[i];
    const std::string field = "messages[" + std::to_string(i) + "]";
    const json::Value* role = entry.find("role");
    const json::Value* content = entry.find("content");
    if (role == nullptr || content == nullptr || entry.as_object().size() != 2) {
      return invalid_argument(field, "expected an object with role and content");
    }
    text::ChatMessage message;
    CHORUS_ASSIGN_OR_RETURN(message.role, role->to_text(field + ".role"));
    CHORUS_ASSIGN_OR_RETURN(message.content, content->to_text(field + ".content"));
    messages.push_back(std::move(message));
  }
  return messages;
}

// `name`: of the value, for errors.
Result<std::vector<TokenId>> read_ids(const json::Value& value, const std::string& name) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    CHORUS_ASSIGN_OR_RETURN(
        const int64_t id,
        value.as_array()[i].to_integer(name + "[" + std::to_string(i) + "]", INT32_MIN, INT32_MAX));
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

// What a prompt is, beside its parameters.
constexpr std::string_view kOwnMembers[] = {"id", "prompt", "messages"};

// What the command line says for all prompts.
constexpr RefusedField kRefused[] = {
    {"n", "-n says it for all prompts"},
    {"best_of", "--best-of says it for all prompts"},
    {"logprobs", "--logprobs says it for all prompts"},
    {"top_logprobs", "--logprobs says it for all prompts"},
    {"prompt_logprobs", "--logprobs with --echo says it for all prompts"},
};

Status check_name(const std::string& name) {
  if (is_generation_field(name) || std::ranges::find(kOwnMembers, name) != std::end(kOwnMembers))
    return Status();
  std::vector<std::string> names(std::begin(kOwnMembers), std::end(kOwnMembers));
  for (const std::string_view each : generation_field_names()) names.emplace_back(each);
  return invalid_argument(name, "unknown member" + suggestion(name, names));
}

// Of prompt and messages the one that is there.
Status read_given(const json::Value& value, const PromptSources& sources, Prompt& prompt) {
  const json::Value* given = value.find("prompt");
  if ((given == nullptr) == (value.find("messages") == nullptr)) {
    return invalid_argument("prompt", "expected either prompt or messages");
  }
  if (given == nullptr) {
    CHORUS_ASSIGN_OR_RETURN(prompt.messages, read_messages(*value.find("messages")));
  } else if (given->is_array()) {
    CHORUS_ASSIGN_OR_RETURN(prompt.tokens, read_ids(*given, "prompt"));
  } else {
    CHORUS_ASSIGN_OR_RETURN(std::string text, given->to_text("prompt"));
    set_text(std::move(text), sources, prompt);
  }
  return Status();
}

Status read_members(const json::Value& value, const PromptSources& sources, Prompt& prompt) {
  CHORUS_RETURN_IF_ERROR(read_given(value, sources, prompt));
  for (const auto& [name, member] : value.as_object()) CHORUS_RETURN_IF_ERROR(check_name(name));
  CHORUS_ASSIGN_OR_RETURN(prompt.settings,
                          read_generation_fields(value, prompt.settings, {.refused = kRefused}));
  return Status();
}

Status read_json_prompt(std::string_view line, const PromptSources& sources, Prompt& prompt) {
  CHORUS_ASSIGN_OR_RETURN(const json::Value value, json::parse(line, ""));
  if (!value.is_object()) {
    return invalid_argument("", "expected an object, found " + std::string(value.type_name()));
  }
  // The id and the text are reported whatever else is wrong.
  if (const json::Value* id = value.find("id"); id != nullptr) prompt.id = *id;
  const Status status = read_members(value, sources, prompt);
  const json::Value* text = value.find("prompt");
  if (!status.ok() && text != nullptr && text->is_string()) prompt.text = text->as_string();
  return status;
}

Status read_token_prompt(std::string_view line, Prompt& prompt) {
  CHORUS_ASSIGN_OR_RETURN(const json::Value value, json::parse(line, "tokens"));
  if (!value.is_array()) {
    return invalid_argument("tokens",
                            "expected an array of ids, found " + std::string(value.type_name()));
  }
  CHORUS_ASSIGN_OR_RETURN(prompt.tokens, read_ids(value, "tokens"));
  return Status();
}

Prompt prompt_at(const GenerationFields& settings, const std::string& path, const Line& line) {
  Prompt prompt;
  prompt.settings = settings;
  prompt.place = path + ": line " + std::to_string(line.number);
  return prompt;
}

Result<std::vector<Prompt>> read_text_prompts(const PromptSources& sources) {
  const std::string& path = sources.prompts_file;
  CHORUS_ASSIGN_OR_RETURN(std::string text, read_input(path));
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // a byte order mark
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && text[first] == '{';
  std::vector<Prompt> prompts;
  for (const Line& line : split_lines(text)) {
    Prompt& prompt = prompts.emplace_back(prompt_at(sources.settings, path, line));
    if (is_json) {
      prompt.status = read_json_prompt(line.text, sources, prompt).within(prompt.place);
    } else {
      set_text(std::string(line.text), sources, prompt);
    }
  }
  return prompts;
}

// Adds the prompts of the file that `flag` names.
Status add(const char* flag, Result<std::vector<Prompt>> more, std::vector<Prompt>& prompts) {
  if (!more.ok()) return at_flag(flag, more.status());
  std::move(more->begin(), more->end(), std::back_inserter(prompts));
  return Status();
}

}  // namespace

Result<std::string> read_input(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  if (path != "-") return read_text_file(path, kMaxBytes);
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count == 0) return text;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return invalid_argument("-",
                              std::string("cannot read standard input: ") + std::strerror(errno));
    }
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > kMaxBytes) {
      return invalid_argument("-", "expected at most 1 GiB on standard input");
    }
  }
}

Result<std::vector<Prompt>> read_token_prompts(const std::string& path,
                                               const GenerationFields& settings) {
  CHORUS_ASSIGN_OR_RETURN(const std::string text, read_input(path));
  std::vector<Prompt> prompts;
  for (const Line& line : split_lines(text)) {
    Prompt& prompt = prompts.emplace_back(prompt_at(settings, path, line));
    prompt.status = read_token_prompt(line.text, prompt).within(prompt.place);
  }
  return prompts;
}

Result<std::vector<Prompt>> read_prompts(const PromptSources& sources) {
  if (sources.prompts_file == "-" && sources.tokens_file == "-") {
    return invalid_argument("--tokens", "expected a file: --prompts reads standard input");
  }
  std::vector<Prompt> prompts;
  for (const std::string& text : sources.line) {
    Prompt& prompt = prompts.emplace_back();
    prompt.settings = sources.settings;
    set_text(text, sources, prompt);
  }
  if (!sources.prompts_file.empty()) {
    CHORUS_RETURN_IF_ERROR(add("--prompts", read_text_prompts(sources), prompts));
  }
  if (!sources.tokens_file.empty()) {
    CHORUS_RETURN_IF_ERROR(
        add("--tokens", read_token_prompts(sources.tokens_file, sources.settings), prompts));
  }
  return prompts;
}

}  // namespace chorus::cli
