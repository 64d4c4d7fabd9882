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

// What a template may use, lest one that means harm takes the process along. What is "per byte"
// grows with the input: the template's text when it is parsed, messages and variables when it is
// rendered. Invariant: nothing is negative.
struct ChatTemplateLimits {
  int64_t source_bytes = int64_t{4} << 20;  // length of the template
  // Tokens between {{ and }}, or {% and %}: as deep may an expression nest.
  int64_t tag_tokens = 10'000;
  int64_t time_ms = 5000;  // wall clock of the parse, and of each rendering
  // Instructions of one rendering: some 100 per message for the longest templates in use, plus what
  // loops over the contents need.
  int64_t steps = 200'000;
  int64_t steps_per_byte = 4;
  int64_t max_steps = 4'000'000;
  int64_t recursion = 100;  // depth of calls, counted as minijinja does, which caps it at 500
  // Bytes allocated at one time.
  int64_t live_bytes = int64_t{64} << 20;
  int64_t live_bytes_per_byte = 64;
  // Length of the rendered text.
  int64_t output_bytes = int64_t{1} << 20;
  int64_t output_bytes_per_byte = 8;
  // Stack of the thread that works, of which untouched pages take no memory. Requires: 2^18, and
  // 2 KiB for each of tag_tokens, and 64 for each of max_steps. Expressions are read recursively,
  // and values are dropped so, of which the deepest that can be made has to fit.
  int64_t stack_bytes = int64_t{256} << 20;
};

// A jinja2 template in the environment of Hugging Face's apply_chat_template: trim_blocks,
// lstrip_blocks, loop controls, raise_exception, strftime_now, tojson as json.dumps, Python's
// methods of strings, lists and dictionaries, Python's way to print None, True, lists and floats.
// Known difference: there are no tuples, so they print as lists; {% generation %} is unknown.
//
// Templates come from files that nobody vetted. What exceeds a limit ends in kResourceExhausted on
// "chat_template"; too deep recursion in kInvalidArgument, as the template's own failures do. A
// rendering that had to be stopped for memory or time leaves a stopped thread behind, once: the
// template then refuses further work. Invariant: immutable but for that. Thread: any, several at a
// time.
class ChatTemplate {
 public:
  // source: UTF-8. Errors: kDataLoss on "chat_template" with the template's line.
  static Result<std::unique_ptr<ChatTemplate>> create(std::string_view source,
                                                      const ChatTemplateLimits& limits = {});

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
