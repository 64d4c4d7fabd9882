#include "text/chat_template.h"

#include <utility>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/rust_border.h"

namespace chorus::text {
namespace {

// Appends `text`, which is valid UTF-8, as a JSON string.
void append_json_string(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out.push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out.push_back(kHex[static_cast<size_t>(c) >> 4]);
      out.push_back(kHex[static_cast<size_t>(c) & 15]);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

ChorusTextTemplateLimits border_limits(const ChatTemplateLimits& limits) {
  const auto whole = [](int64_t value) {
    CHORUS_CHECK(value >= 0);
    return static_cast<uint64_t>(value);
  };
  return {
      .source_bytes = whole(limits.source_bytes),
      .tag_tokens = whole(limits.tag_tokens),
      .time_ms = whole(limits.time_ms),
      .steps = whole(limits.steps),
      .steps_per_byte = whole(limits.steps_per_byte),
      .max_steps = whole(limits.max_steps),
      .recursion = whole(limits.recursion),
      .live_bytes = whole(limits.live_bytes),
      .live_bytes_per_byte = whole(limits.live_bytes_per_byte),
      .output_bytes = whole(limits.output_bytes),
      .output_bytes_per_byte = whole(limits.output_bytes_per_byte),
      .stack_bytes = whole(limits.stack_bytes),
  };
}

}  // namespace

void ChatTemplate::Deleter::operator()(ChorusTextTemplate* chat_template) const {
  chorus_text_template_destroy(chat_template);
}

ChatTemplate::ChatTemplate(Handle handle) : handle_(std::move(handle)) {}

ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::create(std::string_view source,
                                                           const ChatTemplateLimits& limits) {
  const ChorusTextTemplateLimits view = border_limits(limits);
  ChorusTextTemplate* created = nullptr;
  CHORUS_RETURN_IF_ERROR(
      call_rust(chorus_text_template_create, border_bytes(source), &view, &created));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(Handle(created)));
}

Result<std::string> ChatTemplate::render(std::span<const ChatMessage> messages,
                                         const RenderOptions& options) const {
  std::string json = "[";
  for (size_t index = 0; index < messages.size(); ++index) {
    const ChatMessage& message = messages[index];
    if (!is_valid_utf8(message.role) || !is_valid_utf8(message.content)) {
      return invalid_argument("messages[" + std::to_string(index) + "]",
                              "expected UTF-8, found other bytes");
    }
    json += index == 0 ? "{\"role\":" : ",{\"role\":";
    append_json_string(message.role, json);
    json += ",\"content\":";
    append_json_string(message.content, json);
    json.push_back('}');
  }
  json.push_back(']');
  return render_json(json, options);
}

Result<std::string> ChatTemplate::render_json(std::string_view messages_json,
                                              const RenderOptions& options) const {
  const ChorusTextRenderOptions view{
      .add_generation_prompt = options.add_generation_prompt,
      .has_now = options.now.has_value(),
      .now = options.now.value_or(0),
      .bos_token = border_bytes(options.bos_token),
      .eos_token = border_bytes(options.eos_token),
      .unk_token = border_bytes(options.unk_token),
      .pad_token = border_bytes(options.pad_token),
      .variables_json = border_bytes(options.variables_json),
  };
  std::string prompt;
  const ChorusTextSink sink = border_sink(prompt);
  CHORUS_RETURN_IF_ERROR(call_rust(chorus_text_template_render, handle_.get(),
                                   border_bytes(messages_json), &view, &sink));
  return prompt;
}

}  // namespace chorus::text
