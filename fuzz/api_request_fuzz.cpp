// Bodies of API requests: the first byte chooses the route, the rest is JSON. What is taken keeps
// its promises, what is refused is a client's error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/api/errors.h"
#include "server/api/messages.h"
#include "server/api/requests.h"

namespace {

using namespace chorus;
using namespace chorus::api;

void check_error(const Status& status) {
  const ApiError error = error_of(status);
  CHORUS_CHECK(error.status == 400);
  const json::Value body = json::parse(error_response(error).body, "body").value();
  CHORUS_CHECK(body.find("error") != nullptr && !error.message.empty());
}

void check_chat(const ChatInput& chat, bool may_be_empty = false) {
  CHORUS_CHECK(may_be_empty || !chat.messages.empty());
  for (const json::Value& message : chat.messages) {
    CHORUS_CHECK(!role_of(message).empty() && content_of(message).data() != nullptr);
  }
  CHORUS_CHECK(!(chat.add_generation_prompt && chat.continue_final_message));
  CHORUS_CHECK(chat.variables_json.empty() || json::parse(chat.variables_json, "").ok());
}

void check(const GenerateRequest& request) {
  CHORUS_CHECK(request.fields.n >= 1 && request.fields.n <= kMaxHttpChoices);
  CHORUS_CHECK(request.num_tried >= request.fields.n);
  CHORUS_CHECK(request.stream || !request.include_usage);
  CHORUS_CHECK(request.fields.sampling.top_p > 0 && request.fields.sampling.top_p <= 1);
  CHORUS_CHECK(request.prompts.size() <= kMaxPrompts);
  for (const std::string& stop : request.fields.stop) CHORUS_CHECK(!stop.empty());
  for (const PromptSource& prompt : request.prompts) {
    CHORUS_CHECK(prompt.text.has_value() != !prompt.tokens.empty());
  }
  if (request.chat) check_chat(*request.chat, true);  // in a session alone
}

void check(const TokenizeRequest& request) {
  if (request.chat) check_chat(*request.chat);
}
void check(const DetokenizeRequest&) {}
void check(const TemplateRequest& request) { check_chat(request.chat); }
void check(const OpenRequest& request) {
  CHORUS_CHECK(!(request.chat && request.prompt));
  if (request.chat) check_chat(*request.chat);
}

template <typename Request>
void check_result(const Result<Request>& request) {
  if (request.ok()) {
    check(*request);
  } else {
    check_error(request.status());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto value = json::parse_with_paths(text);
  if (!value.ok()) {
    check_error(value.status());
    return 0;
  }
  switch (data[0] % 7) {
    case 0:
      check_result(read_chat_request(*value));
      break;
    case 1:
      check_result(read_completion_request(*value));
      break;
    case 2:
      check_result(read_session_request(*value));
      break;
    case 3:
      check_result(read_tokenize_request(*value));
      break;
    case 4:
      check_result(read_detokenize_request(*value));
      break;
    case 5:
      check_result(read_template_request(*value));
      break;
    default:
      check_result(read_open_request(*value));
  }
  return 0;
}
