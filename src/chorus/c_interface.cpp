// The C interface over Engine, Session and Generation. What its functions do is in noexcept ones,
// so that an exception (of an allocation) ends the process rather than cross into C.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chorus/c_border.h"
#include "chorus/chorus.h"
#include "chorus/engine.h"
#include "chorus/session_file.h"

using chorus::Result;
using chorus::Status;
using namespace chorus::c;

struct chorus_engine {
  std::shared_ptr<chorus::Engine> engine;  // owners: this and the sessions' handles
};

struct chorus_session {
  std::shared_ptr<chorus::Engine> engine;  // as above
  chorus::Session session;
};

struct chorus_generation {
  chorus::Generation generation;
  const char* prompt;                // the parameter that was the prompt; a literal
  std::vector<chorus_token> tokens;  // as far as they were asked for
  std::vector<chorus_likeliest> likeliest;
};

namespace {

chorus_finish finish_of(const chorus::Generation& generation) {
  if (!generation.finished()) return CHORUS_FINISH_NONE;
  switch (generation.finish_reason()) {
    case chorus::FinishReason::kStop:
      return CHORUS_FINISH_STOP;
    case chorus::FinishReason::kLength:
      return CHORUS_FINISH_LENGTH;
    case chorus::FinishReason::kCancelled:
      return CHORUS_FINISH_CANCELLED;
    case chorus::FinishReason::kError:
      break;
  }
  return CHORUS_FINISH_ERROR;
}

chorus_latency latency_of(const chorus::LatencySummary& from) {
  return {from.count, from.mean_ms, from.p50_ms, from.p90_ms, from.p99_ms, from.max_ms};
}

// Adds what the generation has and its C copies lack.
void copy_tokens(chorus_generation& handle) {
  const auto tokens = handle.generation.tokens();
  for (size_t i = handle.tokens.size(); i < tokens.size(); ++i) {
    const chorus::TokenScore& score = tokens[i];
    handle.tokens.push_back(
        {score.id, score.rank, score.logprob, score.likeliest_begin, score.likeliest_count});
  }
  const auto likeliest = handle.generation.likeliest();
  for (size_t i = handle.likeliest.size(); i < likeliest.size(); ++i) {
    handle.likeliest.push_back({likeliest[i].id, likeliest[i].logprob});
  }
}

// What the last read or poll added.
chorus_update update_of(chorus_generation& handle) {
  copy_tokens(handle);
  chorus_update update{};
  update.size = sizeof update;
  update.finish = finish_of(handle.generation);
  const std::string_view text = handle.generation.new_text();
  const size_t num_new = handle.generation.new_tokens().size();
  update.text = text.data();
  update.text_size = text.size();
  update.tokens = handle.tokens.data() + (handle.tokens.size() - num_new);
  update.num_tokens = num_new;
  return update;
}

Status give_session(std::shared_ptr<chorus::Engine> engine, Result<chorus::Session> session,
                    chorus_session** out) {
  if (!session.ok()) return session.status();
  *out = new chorus_session{std::move(engine), std::move(session).value()};
  return Status();
}

// `prompt` is the parameter that was the prompt.
Status give_generation(Result<chorus::Generation> generation, const char* prompt,
                       chorus_generation** out) {
  if (!generation.ok()) return of_generation(generation.status(), prompt);
  *out = new chorus_generation{std::move(generation).value(), prompt, {}, {}};
  return Status();
}

// ---- The functions, with errors as values ----

Status open_engine(const char* model, const chorus_engine_options* given,
                   chorus_engine** out) noexcept {
  CHORUS_RETURN_IF_ERROR(require_path(model, "model"));
  CHORUS_RETURN_IF_ERROR(require({{out, "engine"}}));
  CHORUS_ASSIGN_OR_RETURN(const chorus::EngineOptions options, engine_options(given));
  CHORUS_ASSIGN_OR_RETURN(auto engine, chorus::Engine::open(model, options));
  *out = new chorus_engine{std::move(engine)};
  return Status();
}

Status get_settings(const chorus_engine* engine, chorus_engine_settings* out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{engine, "engine"}}));
  const chorus::EngineSettings& from = engine->engine->settings();
  chorus_engine_settings settings{};
  settings.threads = from.threads;
  settings.context = from.context;
  settings.block_size = from.block_size;
  settings.max_sessions = from.max_sessions;
  settings.max_batch_tokens = from.max_batch_tokens;
  settings.prefill_chunk = from.prefill_chunk;
  settings.max_decode_sequences = from.max_decode_sequences;
  settings.target_step_ms = from.target_step_ms;
  settings.priority_age_ms = from.priority_age_ms;
  settings.shortest_first_ms = from.shortest_first_ms;
  settings.vocabulary = engine->engine->runner().effective().executor.vocabulary;
  settings.kv_bytes = from.kv_bytes;
  settings.isa = chorus::isa_name(from.isa).data();  // a literal
  return fill(settings, out, "settings");
}

Status get_metrics(const chorus_engine* engine, chorus_engine_metrics* out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{engine, "engine"}}));
  const chorus::RunnerMetrics from = engine->engine->metrics();
  chorus_engine_metrics metrics{};
  metrics.steps = from.steps;
  metrics.prompt_tokens = from.prompt_tokens;
  metrics.generated_tokens = from.generated_tokens;
  metrics.cached_tokens = from.cached_tokens;
  metrics.recomputed_tokens = from.recomputed_tokens;
  metrics.preemptions = from.preemptions;
  metrics.completed = from.completed;
  metrics.failed = from.failed;
  metrics.cancelled = from.cancelled;
  for (const chorus::GroupUsage& group : from.usage.groups) {
    metrics.kv_blocks += group.blocks_total;
    metrics.kv_blocks_free += group.blocks_free;
  }
  metrics.sessions = from.sessions;
  metrics.running = from.running;
  metrics.waiting = from.waiting;
  metrics.queue = latency_of(from.queue);
  metrics.ttft = latency_of(from.ttft);
  metrics.itl = latency_of(from.itl);
  metrics.tpot = latency_of(from.tpot);
  metrics.total = latency_of(from.total);
  metrics.step = latency_of(from.step);
  return fill(metrics, out, "metrics");
}

Status tokenize(const chorus_engine* engine, const char* text, size_t text_size, uint32_t flags,
                int32_t* tokens, size_t capacity, size_t* count) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{engine, "engine"}, {count, "count"}}));
  CHORUS_RETURN_IF_ERROR(require_array(text, text_size, "text"));
  constexpr uint32_t kAllFlags = CHORUS_PARSE_SPECIAL | CHORUS_ADD_SPECIAL;
  if ((flags & ~kAllFlags) != 0) {
    return chorus::invalid_argument("flags",
                                    "expected a sum of CHORUS_PARSE_SPECIAL and "
                                    "CHORUS_ADD_SPECIAL, found " +
                                        std::to_string(flags));
  }
  CHORUS_ASSIGN_OR_RETURN(
      const std::vector<int32_t> ids,
      engine->engine->tokenize({text, text_size},
                               {.parse_special = (flags & CHORUS_PARSE_SPECIAL) != 0,
                                .add_special = (flags & CHORUS_ADD_SPECIAL) != 0}));
  return write_buffer<int32_t>(ids, tokens, capacity, count);
}

Status detokenize(const chorus_engine* engine, const int32_t* tokens, size_t num_tokens, char* text,
                  size_t capacity, size_t* count) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{engine, "engine"}, {count, "count"}}));
  CHORUS_RETURN_IF_ERROR(require_array(tokens, num_tokens, "tokens"));
  CHORUS_ASSIGN_OR_RETURN(const std::string out, engine->engine->detokenize({tokens, num_tokens}));
  return write_buffer<char>(out, text, capacity, count);
}

Status render_chat(const chorus_engine* engine, const chorus_chat_message* messages,
                   size_t num_messages, char* text, size_t capacity, size_t* count) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{engine, "engine"}, {count, "count"}}));
  CHORUS_RETURN_IF_ERROR(require_array(messages, num_messages, "messages"));
  std::vector<chorus::text::ChatMessage> list;
  for (size_t i = 0; i < num_messages; ++i) {
    const Status whole = require({{messages[i].role, "role"}, {messages[i].content, "content"}});
    if (!whole.ok()) return whole.within("messages[" + std::to_string(i) + "]");
    list.push_back({messages[i].role, messages[i].content});
  }
  CHORUS_ASSIGN_OR_RETURN(const std::string out, engine->engine->render_chat(list));
  return write_buffer<char>(out, text, capacity, count);
}

Status open_session(chorus_engine* engine, const chorus_session_options* given,
                    chorus_session** out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{engine, "engine"}, {out, "session"}}));
  CHORUS_ASSIGN_OR_RETURN(const chorus::SessionOptions options, session_options(given));
  return give_session(engine->engine, engine->engine->open_session(options), out);
}

Status load_session(chorus_engine* engine, const char* path, bool recompute,
                    const chorus_session_options* given, chorus_session** out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{engine, "engine"}, {out, "session"}}));
  CHORUS_RETURN_IF_ERROR(require_path(path, "path"));
  CHORUS_ASSIGN_OR_RETURN(const chorus::SessionOptions options, session_options(given));
  return give_session(engine->engine,
                      chorus::load_session(engine->engine->runner(), path, recompute, options),
                      out);
}

Status clone_session(const chorus_session* session, int32_t upto, chorus_session** out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{session, "session"}, {out, "clone"}}));
  return give_session(session->engine, session->session.clone(upto), out);
}

Status generate(chorus_session* session, const int32_t* tokens, size_t num_tokens,
                const chorus_generation_options* given, chorus_generation** out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{session, "session"}, {out, "generation"}}));
  CHORUS_RETURN_IF_ERROR(require_array(tokens, num_tokens, "tokens"));
  CHORUS_ASSIGN_OR_RETURN(GenerateOptions options, generation_options(given));
  return give_generation(
      session->engine->generate(session->session, std::vector<int32_t>(tokens, tokens + num_tokens),
                                std::move(options.options), std::move(options.stops), options.text),
      "tokens", out);
}

Status generate_text(chorus_session* session, const char* text, size_t text_size,
                     const chorus_generation_options* given, chorus_generation** out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{session, "session"}, {out, "generation"}}));
  CHORUS_RETURN_IF_ERROR(require_array(text, text_size, "text"));
  CHORUS_ASSIGN_OR_RETURN(GenerateOptions options, generation_options(given));
  return give_generation(
      session->engine->generate(session->session, std::string_view(text, text_size),
                                std::move(options.options), std::move(options.stops), options.text),
      "text", out);
}

Status append(chorus_session* session, const int32_t* tokens, size_t num_tokens,
              const chorus_generation_options* given, chorus_generation** out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{session, "session"}, {out, "generation"}}));
  CHORUS_RETURN_IF_ERROR(require_array(tokens, num_tokens, "tokens"));
  CHORUS_ASSIGN_OR_RETURN(const GenerateOptions options, generation_options(given));
  return give_generation(
      session->engine->append(session->session, std::vector<int32_t>(tokens, tokens + num_tokens),
                              options.options),
      "tokens", out);
}

Status get_result(chorus_generation* generation, chorus_result* out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{generation, "generation"}}));
  copy_tokens(*generation);
  chorus_result result{};
  const std::string& text = generation->generation.text();
  result.text = text.data();
  result.text_size = text.size();
  result.tokens = generation->tokens.data();
  result.num_tokens = generation->tokens.size();
  result.likeliest = generation->likeliest.data();
  result.num_likeliest = generation->likeliest.size();
  result.finish = finish_of(generation->generation);
  result.error = error_of(of_generation(generation->generation.error(), generation->prompt));
  return fill(result, out, "result");
}

Status get_metrics(const chorus_generation* generation, chorus_generation_metrics* out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{generation, "generation"}}));
  const chorus::GenerationMetrics from = generation->generation.metrics();
  chorus_generation_metrics metrics{};
  metrics.queue_ms = from.queue_ms;
  metrics.ttft_ms = from.ttft_ms;
  metrics.tpot_ms = from.tpot_ms;
  metrics.total_ms = from.total_ms;
  metrics.prompt_tokens = from.prompt_tokens;
  metrics.generated_tokens = from.generated_tokens;
  metrics.cached_tokens = from.cached_tokens;
  metrics.recomputed_tokens = from.recomputed_tokens;
  metrics.preemptions = from.preemptions;
  metrics.seed = from.seed;
  metrics.itl = latency_of(from.itl);
  return fill(metrics, out, "metrics");
}

Status run(chorus_generation* generation, chorus_callback callback, void* context) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{generation, "generation"}}));
  while (generation->generation.read()) {
    if (callback == nullptr) continue;
    const chorus_update update = update_of(*generation);
    if (callback(context, &update) == 0) continue;
    callback = nullptr;
    generation->generation.cancel();
  }
  return Status();
}

Status rewind(chorus_session* session, int32_t length) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{session, "session"}}));
  return session->session.rewind(length);
}

Status save(const chorus_session* session, const char* path) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{session, "session"}}));
  CHORUS_RETURN_IF_ERROR(require_path(path, "path"));
  return chorus::save_session(session->session, path);
}

void close(chorus_session& session) noexcept { session.session.close(); }

Status get_position(const chorus_session* session, int32_t* out) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{session, "session"}, {out, "position"}}));
  *out = session->session.position();
  return Status();
}

Status read(chorus_generation* generation, chorus_update* update, bool waits) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{generation, "generation"}}));
  // A struct that cannot be filled costs no tokens.
  CHORUS_RETURN_IF_ERROR(fill(chorus_update{}, update, "update"));
  if (waits) {
    generation->generation.read();
  } else {
    generation->generation.poll();
  }
  return fill(update_of(*generation), update, "update");
}

Status cancel(chorus_generation* generation) noexcept {
  CHORUS_RETURN_IF_ERROR(require({{generation, "generation"}}));
  generation->generation.cancel();
  return Status();
}

}  // namespace

extern "C" {

const char* chorus_code_name(chorus_code code) {
  if (code < CHORUS_OK || code > CHORUS_INTERNAL) return "unknown";
  return chorus::code_name(static_cast<chorus::Code>(code)).data();  // a literal
}

const char* chorus_version(void) { return chorus::version().data(); }  // a literal

chorus_code chorus_engine_open(const char* model, const chorus_engine_options* options,
                               chorus_engine** engine, chorus_error* error) {
  return answer(open_engine(model, options, engine), error);
}

void chorus_engine_close(chorus_engine* engine) {
  if (engine == nullptr) return;
  engine->engine->runner().shutdown();
  delete engine;
}

chorus_code chorus_engine_get_settings(const chorus_engine* engine,
                                       chorus_engine_settings* settings, chorus_error* error) {
  return answer(get_settings(engine, settings), error);
}

chorus_code chorus_engine_get_metrics(const chorus_engine* engine, chorus_engine_metrics* metrics,
                                      chorus_error* error) {
  return answer(get_metrics(engine, metrics), error);
}

chorus_code chorus_tokenize(const chorus_engine* engine, const char* text, size_t text_size,
                            uint32_t flags, int32_t* tokens, size_t capacity, size_t* count,
                            chorus_error* error) {
  return answer(tokenize(engine, text, text_size, flags, tokens, capacity, count), error);
}

chorus_code chorus_detokenize(const chorus_engine* engine, const int32_t* tokens, size_t num_tokens,
                              char* text, size_t capacity, size_t* count, chorus_error* error) {
  return answer(detokenize(engine, tokens, num_tokens, text, capacity, count), error);
}

chorus_code chorus_render_chat(const chorus_engine* engine, const chorus_chat_message* messages,
                               size_t num_messages, char* text, size_t capacity, size_t* count,
                               chorus_error* error) {
  return answer(render_chat(engine, messages, num_messages, text, capacity, count), error);
}

chorus_code chorus_session_open(chorus_engine* engine, const chorus_session_options* options,
                                chorus_session** session, chorus_error* error) {
  return answer(open_session(engine, options, session), error);
}

chorus_code chorus_session_load(chorus_engine* engine, const char* path, int32_t recompute,
                                const chorus_session_options* options, chorus_session** session,
                                chorus_error* error) {
  return answer(load_session(engine, path, recompute != 0, options, session), error);
}

void chorus_session_close(chorus_session* session) {
  if (session == nullptr) return;
  close(*session);
  delete session;
}

chorus_code chorus_session_position(const chorus_session* session, int32_t* position,
                                    chorus_error* error) {
  return answer(get_position(session, position), error);
}

chorus_code chorus_session_rewind(chorus_session* session, int32_t length, chorus_error* error) {
  return answer(rewind(session, length), error);
}

chorus_code chorus_session_clone(const chorus_session* session, int32_t upto,
                                 chorus_session** clone, chorus_error* error) {
  return answer(clone_session(session, upto, clone), error);
}

chorus_code chorus_session_save(const chorus_session* session, const char* path,
                                chorus_error* error) {
  return answer(save(session, path), error);
}

chorus_code chorus_session_generate(chorus_session* session, const int32_t* tokens,
                                    size_t num_tokens, const chorus_generation_options* options,
                                    chorus_generation** generation, chorus_error* error) {
  return answer(generate(session, tokens, num_tokens, options, generation), error);
}

chorus_code chorus_session_generate_text(chorus_session* session, const char* text,
                                         size_t text_size, const chorus_generation_options* options,
                                         chorus_generation** generation, chorus_error* error) {
  return answer(generate_text(session, text, text_size, options, generation), error);
}

chorus_code chorus_session_append(chorus_session* session, const int32_t* tokens, size_t num_tokens,
                                  const chorus_generation_options* options,
                                  chorus_generation** generation, chorus_error* error) {
  return answer(append(session, tokens, num_tokens, options, generation), error);
}

chorus_code chorus_generation_read(chorus_generation* generation, chorus_update* update,
                                   chorus_error* error) {
  return answer(read(generation, update, true), error);
}

chorus_code chorus_generation_poll(chorus_generation* generation, chorus_update* update,
                                   chorus_error* error) {
  return answer(read(generation, update, false), error);
}

chorus_code chorus_generation_run(chorus_generation* generation, chorus_callback callback,
                                  void* context, chorus_error* error) {
  return answer(run(generation, callback, context), error);
}

chorus_code chorus_generation_cancel(chorus_generation* generation, chorus_error* error) {
  return answer(cancel(generation), error);
}

chorus_code chorus_generation_get_result(chorus_generation* generation, chorus_result* result,
                                         chorus_error* error) {
  return answer(get_result(generation, result), error);
}

chorus_code chorus_generation_get_metrics(const chorus_generation* generation,
                                          chorus_generation_metrics* metrics, chorus_error* error) {
  return answer(get_metrics(generation, metrics), error);
}

void chorus_generation_close(chorus_generation* generation) { delete generation; }

}  // extern "C"
