// Chat templates: from messages to the prompt that a model was trained on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/types.h"

struct ChorusTextTemplate;

namespace chorus::text {

struct RenderOptions {
  // End with what opens the assistant's answer.
  bool add_generation_prompt = true;
  std::string bos_token = {};  // as text; variables of the same names in the template
  std::string eos_token = {};
  std::string unk_token = {};  // these two are undefined in the template where empty
  std::string pad_token = {};
  // A JSON object with more variables (tools, documents, enable_thinking, ...); empty for none.
  // Without them tools and documents are None.
  std::string variables_json = {};
  // Seconds since 1970, for strftime_now; none: the system's clock. Shown in the local time zone.
  std::optional<int64_t> now = {};
};

// A jinja2 template in the environment of Hugging Face's apply_chat_template: trim_blocks,
// lstrip_blocks, loop controls, raise_exception, strftime_now, tojson as json.dumps, Python's
// methods of strings, lists and dictionaries, Python's way to print None, True, lists and floats.
// Known difference: there are no tuples, so they print as lists; {% generation %} is unknown.
//
// Templates come from files that nobody vetted. A rendering has limits on steps, recursion, output,
// memory and time (5 s), all of which end in kResourceExhausted on "chat_template". One that had to
// be stopped for memory or time leaves a stopped thread behind, once: the template then refuses
// further work. Invariant: immutable but for that. Thread: any, several at a time.
class ChatTemplate {
 public:
  // source: UTF-8, at most 4 MiB. Errors: kDataLoss on "chat_template" with the template's line.
  static Result<std::unique_ptr<ChatTemplate>> create(std::string_view source);

  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;
  ~ChatTemplate();

  // Errors: kInvalidArgument on "messages" (not UTF-8, or refused by the template, whose message is
  // passed on) or on "chat_template" (the template fails on these messages).
  Result<std::string> render(std::span<const ChatMessage> messages,
                             const RenderOptions& options = {}) const;

  // messages_json: a JSON array, for messages with more than role and content.
  Result<std::string> render_json(std::string_view messages_json,
                                  const RenderOptions& options = {}) const;

 private:
  struct Deleter {
    void operator()(ChorusTextTemplate* chat_template) const;
  };
  using Handle = std::unique_ptr<ChorusTextTemplate, Deleter>;

  explicit ChatTemplate(Handle handle);

  Handle handle_;
};

}  // namespace chorus::text
