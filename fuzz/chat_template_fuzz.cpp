// A chat template, messages and further variables (both JSON; none where empty), with a zero byte
// between. What renders gives the same text again, within its limit; what does not is the fault of
// one of the three, and never one of ours.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"

namespace {

using namespace chorus;
using namespace chorus::text;

// So small that most of what would run on ends by its steps, and that one which has to be stopped
// for memory, and stays until the end of the process, holds little.
constexpr ChatTemplateLimits kLimits = {
    .source_bytes = 4096,
    .tag_tokens = 500,
    .time_ms = 2000,
    .steps = 1000,
    .steps_per_byte = 4,
    .max_steps = 5000,
    .recursion = 100,
    .live_bytes = 2 << 20,
    .live_bytes_per_byte = 64,
    .output_bytes = 4096,
    .output_bytes_per_byte = 8,
    .stack_bytes = 2 << 20,
};

std::string_view take_text(std::string_view& input) {
  const size_t size = input.find('\0');
  const std::string_view text = input.substr(0, size);
  input.remove_prefix(size == input.npos ? input.size() : size + 1);
  return text;
}

void check_error(const Status& status) {
  CHORUS_CHECK(!status.message().empty() && is_valid_utf8(status.message()));
  switch (status.code()) {
    case Code::kDataLoss:
    case Code::kResourceExhausted:
      CHORUS_CHECK(status.field() == "chat_template");
      break;
    default:
      CHORUS_CHECK(status.code() == Code::kInvalidArgument);
      CHORUS_CHECK(status.field() == "chat_template" || status.field() == "messages" ||
                   status.field() == "variables");
  }
}

}  // namespace

// -1 keeps an input out of the corpus: that of a template which left a stopped thread behind.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto created = ChatTemplate::create(take_text(input), kLimits);
  if (!created.ok()) {
    check_error(created.status());
    return created.status().code() == Code::kResourceExhausted ? -1 : 0;
  }
  std::string_view messages = take_text(input);
  if (messages.empty()) messages = "[]";
  const RenderOptions options = {.bos_token = "<s>",
                                 .eos_token = "</s>",
                                 .variables_json = std::string(take_text(input)),
                                 .now = 1'700'000'000};
  const auto rendered = (*created)->render_json(messages, options);
  const auto again = (*created)->render_json(messages, options);
  if (!rendered.ok()) {
    check_error(rendered.status());
    CHORUS_CHECK(!again.ok());
    const bool was_stopped = again.status().message() != rendered.status().message();
    return was_stopped ? -1 : 0;
  }
  CHORUS_CHECK(is_valid_utf8(*rendered));
  const auto input_bytes = static_cast<int64_t>(messages.size() + options.variables_json.size());
  CHORUS_CHECK(std::ssize(*rendered) <=
               kLimits.output_bytes + kLimits.output_bytes_per_byte * input_bytes);
  CHORUS_CHECK(again.ok() && *again == *rendered);
  return 0;
}
