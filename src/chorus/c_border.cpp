#include "chorus/c_border.h"

namespace chorus::c {

namespace {

static_assert(CHORUS_OK == static_cast<int>(Code::kOk));
static_assert(CHORUS_INVALID_ARGUMENT == static_cast<int>(Code::kInvalidArgument));
static_assert(CHORUS_NOT_FOUND == static_cast<int>(Code::kNotFound));
static_assert(CHORUS_RESOURCE_EXHAUSTED == static_cast<int>(Code::kResourceExhausted));
static_assert(CHORUS_CANCELLED == static_cast<int>(Code::kCancelled));
static_assert(CHORUS_DEADLINE_EXCEEDED == static_cast<int>(Code::kDeadlineExceeded));
static_assert(CHORUS_UNAVAILABLE == static_cast<int>(Code::kUnavailable));
static_assert(CHORUS_UNIMPLEMENTED == static_cast<int>(Code::kUnimplemented));
static_assert(CHORUS_DATA_LOSS == static_cast<int>(Code::kDataLoss));
static_assert(CHORUS_INTERNAL == static_cast<int>(Code::kInternal));

// As much as fits, without a part of a character at the end.
template <size_t N>
void copy_text(const std::string& text, char (&out)[N]) {
  size_t size = std::min(text.size(), N - 1);
  const auto continues = [&](size_t at) { return (text[at] & 0xc0) == 0x80; };
  if (size < text.size()) {
    while (size > 0 && continues(size)) --size;
  }
  std::memcpy(out, text.data(), size);
  out[size] = '\0';
}

}  // namespace

chorus_error error_of(const Status& status) {
  chorus_error error{};
  error.code = static_cast<chorus_code>(status.code());
  copy_text(status.field(), error.field);
  copy_text(status.message(), error.message);
  return error;
}

Status of_generation(const Status& status, const char* prompt) {
  std::string field = status.field();
  if (field == "prompt") field = prompt;
  if (field == "max_tokens") field = "max_new_tokens";
  if (field == "deadline_ms") field = "deadline_ns";
  if (field == "stop" || field.starts_with("stop[")) field.insert(4, "s");
  for (const std::string_view ids : {"stop_token_ids", "allowed_token_ids"}) {
    // As "stop_tokens[2]".
    if (field.starts_with(ids)) field.replace(ids.size() - 4, 4, "s");
  }
  return status.ok() ? status : Status(status.code(), std::move(field), status.message());
}

Status require_path(const char* path, const char* name) {
  CHORUS_RETURN_IF_ERROR(require({{path, name}}));
  if (*path != '\0') return Status();
  return invalid_argument(name, "expected the name of a file, found an empty one");
}

chorus_code answer(const Status& status, chorus_error* error) noexcept {
  if (!status.ok() && error != nullptr) *error = error_of(status);
  return static_cast<chorus_code>(status.code());
}

Status require(std::initializer_list<Required> all) {
  for (const Required& each : all) {
    if (each.pointer == nullptr)
      return invalid_argument(each.name, "expected a pointer, found NULL");
  }
  return Status();
}

Status require_array(const void* pointer, size_t count, const char* name) {
  if (pointer != nullptr || count == 0) return Status();
  return invalid_argument(name, "expected a pointer, found NULL");
}

Result<EngineOptions> engine_options(const chorus_engine_options* given) {
  CHORUS_ASSIGN_OR_RETURN(const chorus_engine_options from, options_of(given));
  EngineOptions options;
  const auto read = [](const char* name, auto value, auto& option) -> Status {
    if (value < 0) {
      return invalid_argument(name, "expected 0 or more, found " + std::to_string(value));
    }
    if (value > 0) option = value;
    return Status();
  };
  CHORUS_RETURN_IF_ERROR(read("threads", from.threads, options.threads));
  CHORUS_RETURN_IF_ERROR(read("context", from.context, options.context));
  CHORUS_RETURN_IF_ERROR(read("kv_memory_bytes", from.kv_memory_bytes, options.kv_memory_bytes));
  CHORUS_RETURN_IF_ERROR(read("kv_blocks", from.kv_blocks, options.kv_blocks));
  CHORUS_RETURN_IF_ERROR(read("block_size", from.block_size, options.block_size));
  CHORUS_RETURN_IF_ERROR(read("max_sessions", from.max_sessions, options.max_sessions));
  CHORUS_RETURN_IF_ERROR(read("max_batch_tokens", from.max_batch_tokens, options.max_batch_tokens));
  CHORUS_RETURN_IF_ERROR(read("prefill_chunk", from.prefill_chunk, options.prefill_chunk));
  CHORUS_RETURN_IF_ERROR(
      read("max_decode_sequences", from.max_decode_sequences, options.max_decode_sequences));
  CHORUS_RETURN_IF_ERROR(read("target_step_ms", from.target_step_ms, options.target_step_ms));
  CHORUS_RETURN_IF_ERROR(read("priority_age_ms", from.priority_age_ms, options.priority_age_ms));
  CHORUS_RETURN_IF_ERROR(
      read("shortest_first_ms", from.shortest_first_ms, options.shortest_first_ms));
  options.prefix_cache = from.no_prefix_cache == 0;
  if (from.f32_activations != 0) options.activations = Activations::kF32;
  if (from.f32_kv != 0) options.kv_type = KvType::kF32;
  if (from.force_isa != nullptr) options.force_isa = from.force_isa;
  return options;
}

Result<SessionOptions> session_options(const chorus_session_options* given) {
  CHORUS_ASSIGN_OR_RETURN(const chorus_session_options from, options_of(given));
  SessionOptions options;
  if (from.salt != nullptr) options.salt = from.salt;
  options.indexed = from.is_private == 0;
  return options;
}

namespace {

Status read_texts(const char* name, const char* const* from, size_t count,
                  std::vector<std::string>& to) {
  CHORUS_RETURN_IF_ERROR(require_array(from, count, name));
  for (size_t i = 0; i < count; ++i) {
    if (from[i] == nullptr) {
      return invalid_argument(std::string(name) + "[" + std::to_string(i) + "]",
                              "expected a pointer, found NULL");
    }
    to.emplace_back(from[i]);
  }
  return Status();
}

Status read_sampling(const chorus_generation_options& from, SamplingParams& to) {
  CHORUS_RETURN_IF_ERROR(require_array(from.logit_bias, from.num_logit_bias, "logit_bias"));
  CHORUS_RETURN_IF_ERROR(
      require_array(from.allowed_tokens, from.num_allowed_tokens, "allowed_tokens"));
  to.temperature = from.temperature;
  to.top_k = from.top_k;
  if (from.top_p != 0) to.top_p = from.top_p;
  to.min_p = from.min_p;
  if (from.typical_p != 0) to.typical_p = from.typical_p;
  to.presence_penalty = from.presence_penalty;
  to.frequency_penalty = from.frequency_penalty;
  if (from.repetition_penalty != 0) to.repetition_penalty = from.repetition_penalty;
  for (size_t i = 0; i < from.num_logit_bias; ++i)
    to.logit_bias.push_back({from.logit_bias[i].id, from.logit_bias[i].bias});
  to.allowed_tokens.assign(from.allowed_tokens, from.allowed_tokens + from.num_allowed_tokens);
  to.min_tokens = from.min_tokens;
  to.choice = from.choice;
  to.logprobs = from.logprobs != 0;
  to.num_likeliest = from.num_likeliest;
  return Status();
}

}  // namespace

Result<GenerateOptions> generation_options(const chorus_generation_options* given) {
  CHORUS_ASSIGN_OR_RETURN(const chorus_generation_options from, options_of(given));
  CHORUS_RETURN_IF_ERROR(require_array(from.stop_tokens, from.num_stop_tokens, "stop_tokens"));
  GenerateOptions to;
  GenerationOptions& options = to.options;
  options.max_new_tokens = from.max_new_tokens;
  CHORUS_RETURN_IF_ERROR(read_sampling(from, options.sampling));
  if (from.has_seed != 0) options.seed = from.seed;
  options.ignore_stop_tokens = from.ignore_stop_tokens != 0;
  options.stop_tokens.assign(from.stop_tokens, from.stop_tokens + from.num_stop_tokens);
  options.priority = from.priority;
  if (from.deadline_ns != 0) options.deadline_ns = from.deadline_ns;
  CHORUS_RETURN_IF_ERROR(read_texts("stops", from.stops, from.num_stops, to.stops));
  CHORUS_RETURN_IF_ERROR(
      read_texts("bad_words", from.bad_words, from.num_bad_words, to.text.bad_words));
  to.text.include_stop = from.include_stop != 0;
  to.text.show_special = from.show_special != 0;
  return to;
}

}  // namespace chorus::c
