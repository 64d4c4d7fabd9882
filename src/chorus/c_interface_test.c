// Every function of the C interface, from C: results, errors, NULLs, sizes of structs, ownership.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chorus/chorus.h"

static const char* current = "";

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      fprintf(stderr, "%s:%d: %s: expected %s\n", __FILE__, __LINE__, current, #condition); \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)

// Runs a call that has to work; on an error, prints it.
#define OK(call)                                                              \
  do {                                                                        \
    if ((call) != CHORUS_OK) {                                                \
      fprintf(stderr, "%s:%d: %s: %s: %s: %s\n", __FILE__, __LINE__, current, \
              chorus_code_name(error.code), error.field, error.message);      \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

// Runs a call that has to fail with this code and field, and a message.
#define FAILS(expected_code, expected_field, call)                                                \
  do {                                                                                            \
    memset(&error, 0, sizeof error);                                                              \
    const chorus_code code = (call);                                                              \
    if (code != (expected_code) || error.code != code || error.message[0] == '\0' ||              \
        strcmp(error.field, (expected_field)) != 0) {                                             \
      fprintf(stderr, "%s:%d: %s: expected %s on %s, found %s on %s (%s)\n", __FILE__, __LINE__,  \
              current, chorus_code_name(expected_code), (expected_field), chorus_code_name(code), \
              error.field, error.message);                                                        \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

static chorus_error error;
static const int32_t kPrompt[] = {10, 11, 12, 13, 14, 15};
enum { kPromptSize = 6 };

static chorus_engine_options small_options(void) {
  const chorus_engine_options options = {.size = sizeof options,
                                         .threads = 1,
                                         .context = 256,
                                         .kv_blocks = 64,
                                         .max_sessions = 8,
                                         .shortest_first_ms = 7};
  return options;
}

// Draws, so that texts vary, past the end of a text.
static chorus_generation_options draws(int32_t count) {
  const chorus_generation_options options = {.size = sizeof options,
                                             .max_new_tokens = count,
                                             .temperature = 1.5f,
                                             .seed = 7,
                                             .has_seed = 1,
                                             .ignore_stop_tokens = 1};
  return options;
}

static chorus_result finished(chorus_generation* generation) {
  chorus_result result = {.size = sizeof result};
  OK(chorus_generation_run(generation, NULL, NULL, &error));
  OK(chorus_generation_get_result(generation, &result, &error));
  return result;
}

// The first `count` ids of a prompt's continuation in the session.
static void continue_with(chorus_session* session, const int32_t* prompt, size_t prompt_size,
                          int32_t count, int32_t* ids) {
  const chorus_generation_options options = draws(count);
  chorus_generation* generation = NULL;
  OK(chorus_session_generate(session, prompt, prompt_size, &options, &generation, &error));
  const chorus_result result = finished(generation);
  CHECK(result.finish == CHORUS_FINISH_LENGTH);
  CHECK(result.num_tokens == (size_t)count);
  for (int32_t i = 0; i < count; ++i) ids[i] = result.tokens[i].id;
  chorus_generation_close(generation);
}

static void test_names(void) {
  current = "names";
  CHECK(strcmp(chorus_code_name(CHORUS_OK), "ok") == 0);
  CHECK(strcmp(chorus_code_name(CHORUS_DATA_LOSS), "data_loss") == 0);
  CHECK(strcmp(chorus_code_name((chorus_code)77), "unknown") == 0);
  CHECK(strlen(chorus_version()) >= 5 && strchr(chorus_version(), '.') != NULL);
}

static void test_opening(const char* model) {
  current = "opening";
  chorus_engine_options options = small_options();
  chorus_engine* engine = NULL;
  FAILS(CHORUS_INVALID_ARGUMENT, "model", chorus_engine_open(NULL, &options, &engine, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "engine", chorus_engine_open(model, &options, NULL, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "model", chorus_engine_open("", &options, &engine, &error));
  CHECK(chorus_engine_open("/nonexistent/model", &options, &engine, NULL) == CHORUS_NOT_FOUND);
  options.max_sessions = INT32_MAX;
  FAILS(CHORUS_INVALID_ARGUMENT, "max_sessions",
        chorus_engine_open(model, &options, &engine, &error));
  options = small_options();
  options.threads = -1;
  FAILS(CHORUS_INVALID_ARGUMENT, "threads", chorus_engine_open(model, &options, &engine, &error));
  options = small_options();
  options.block_size = 5;
  FAILS(CHORUS_INVALID_ARGUMENT, "block_size",
        chorus_engine_open(model, &options, &engine, &error));
  options = small_options();
  options.force_isa = "pdp11";
  FAILS(CHORUS_INVALID_ARGUMENT, "force_isa", chorus_engine_open(model, &options, &engine, &error));
  CHECK(engine == NULL);
  chorus_engine_close(NULL);
}

// Structs of older and newer headers.
static void test_sizes(const char* model) {
  current = "sizes";
  struct {
    chorus_engine_options known;
    int64_t added;
  } newer;
  memset(&newer, 0, sizeof newer);
  newer.known = small_options();
  newer.known.size = sizeof newer;
  chorus_engine* engine = NULL;
  newer.added = 1;
  FAILS(CHORUS_INVALID_ARGUMENT, "options.size",
        chorus_engine_open(model, &newer.known, &engine, &error));
  newer.known.size = 0;
  FAILS(CHORUS_INVALID_ARGUMENT, "options.size",
        chorus_engine_open(model, &newer.known, &engine, &error));
  newer.known.size = sizeof newer;
  newer.added = 0;
  OK(chorus_engine_open(model, &newer.known, &engine, &error));
  chorus_engine_close(engine);

  // An older header that ends behind `context`: what follows is not read.
  chorus_engine_options older = small_options();
  older.size = offsetof(chorus_engine_options, context) + sizeof older.context;
  older.block_size = 5;
  older.kv_blocks = -1;
  OK(chorus_engine_open(model, &older, &engine, &error));
  chorus_engine_settings settings = {.size = offsetof(chorus_engine_settings, block_size)};
  settings.block_size = 77;
  OK(chorus_engine_get_settings(engine, &settings, &error));
  CHECK(settings.context == 256 && settings.threads == 1 && settings.block_size == 77);
  settings.size = 3;
  FAILS(CHORUS_INVALID_ARGUMENT, "settings.size",
        chorus_engine_get_settings(engine, &settings, &error));
  chorus_engine_close(engine);
}

static void test_facts(chorus_engine* engine) {
  current = "facts";
  chorus_engine_settings settings = {.size = sizeof settings};
  OK(chorus_engine_get_settings(engine, &settings, &error));
  CHECK(settings.threads == 1 && settings.context == 256 && settings.block_size == 16);
  CHECK(settings.max_sessions == 8 && settings.vocabulary == 293 && settings.kv_bytes > 0);
  CHECK(settings.max_batch_tokens > 0 && settings.prefill_chunk > 0);
  CHECK(settings.target_step_ms == 100);
  CHECK(settings.priority_age_ms == 30000 && settings.shortest_first_ms == 7);
  CHECK(settings.max_decode_sequences > 0 && strlen(settings.isa) > 0);
  FAILS(CHORUS_INVALID_ARGUMENT, "engine", chorus_engine_get_settings(NULL, &settings, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "settings", chorus_engine_get_settings(engine, NULL, &error));
  chorus_engine_metrics metrics = {.size = sizeof metrics};
  FAILS(CHORUS_INVALID_ARGUMENT, "engine", chorus_engine_get_metrics(NULL, &metrics, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "metrics", chorus_engine_get_metrics(engine, NULL, &error));
}

static void test_text(const chorus_engine* engine) {
  current = "text";
  const char* text = "the sea";
  int32_t tokens[32];
  char out[256];
  size_t count = 0;
  OK(chorus_tokenize(engine, text, strlen(text), 0, NULL, 0, &count, &error));
  const size_t needed = count;
  CHECK(needed > 0 && needed < 32);
  FAILS(CHORUS_INVALID_ARGUMENT, "capacity",
        chorus_tokenize(engine, text, strlen(text), 0, tokens, needed - 1, &count, &error));
  CHECK(count == needed);
  OK(chorus_tokenize(engine, text, strlen(text), 0, tokens, needed, &count, &error));
  OK(chorus_detokenize(engine, tokens, count, out, sizeof out, &count, &error));
  CHECK(count == strlen(text) && memcmp(out, text, count) == 0);
  const char* special = "<|im_start|>";
  OK(chorus_tokenize(engine, special, strlen(special), CHORUS_PARSE_SPECIAL, tokens, 32, &count,
                     &error));
  CHECK(count == 1);
  OK(chorus_tokenize(engine, NULL, 0, 0, tokens, 32, &count, &error));
  CHECK(count == 0);
  FAILS(CHORUS_INVALID_ARGUMENT, "flags",
        chorus_tokenize(engine, text, 1, 64, tokens, 32, &count, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "engine",
        chorus_tokenize(NULL, text, 1, 0, tokens, 32, &count, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "text",
        chorus_tokenize(engine, NULL, 1, 0, tokens, 32, &count, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "count",
        chorus_tokenize(engine, text, 1, 0, tokens, 32, NULL, &error));
  tokens[0] = 100000;
  FAILS(CHORUS_INVALID_ARGUMENT, "tokens[0]",
        chorus_detokenize(engine, tokens, 1, out, sizeof out, &count, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "tokens",
        chorus_detokenize(engine, NULL, 1, out, sizeof out, &count, &error));

  const chorus_chat_message messages[] = {{"user", "hello"}, {"user", NULL}};
  const char* expected = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
  OK(chorus_render_chat(engine, messages, 1, out, sizeof out, &count, &error));
  CHECK(count == strlen(expected) && memcmp(out, expected, count) == 0);
  FAILS(CHORUS_INVALID_ARGUMENT, "messages[1].content",
        chorus_render_chat(engine, messages, 2, out, sizeof out, &count, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "messages",
        chorus_render_chat(engine, NULL, 1, out, sizeof out, &count, &error));
}

// What a callback saw.
typedef struct {
  char text[1024];
  size_t text_size;
  size_t num_tokens;
  int calls;
  int stop_after;  // calls; 0: never
  chorus_finish finish;
} Seen;

static int32_t see(void* context, const chorus_update* update) {
  Seen* seen = context;
  CHECK(seen->text_size + update->text_size <= sizeof seen->text);
  if (update->text_size > 0) memcpy(seen->text + seen->text_size, update->text, update->text_size);
  seen->text_size += update->text_size;
  seen->num_tokens += update->num_tokens;
  seen->finish = update->finish;
  return ++seen->calls == seen->stop_after;
}

static chorus_generation* start_text(chorus_session* session, int32_t count) {
  const char* prompt = "the sea";
  const chorus_generation_options options = draws(count);
  chorus_generation* generation = NULL;
  OK(chorus_session_generate_text(session, prompt, strlen(prompt), &options, &generation, &error));
  return generation;
}

// The same text by callback, by reading, by polling, and from the result.
static void test_ways_to_read(chorus_engine* engine) {
  current = "ways to read";
  Seen seen = {.text_size = 0};
  chorus_session* session = NULL;
  OK(chorus_session_open(engine, NULL, &session, &error));
  chorus_generation* generation = start_text(session, 30);
  OK(chorus_generation_run(generation, see, &seen, &error));
  CHECK(seen.num_tokens == 30 && seen.text_size > 0 && seen.finish == CHORUS_FINISH_LENGTH);
  chorus_result result = {.size = sizeof result};
  OK(chorus_generation_get_result(generation, &result, &error));
  CHECK(result.text_size == seen.text_size && memcmp(result.text, seen.text, seen.text_size) == 0);
  CHECK(result.num_tokens == 30 && result.finish == CHORUS_FINISH_LENGTH);
  CHECK(result.error.code == CHORUS_OK && isnan(result.tokens[0].logprob));
  chorus_generation_metrics metrics = {.size = sizeof metrics};
  OK(chorus_generation_get_metrics(generation, &metrics, &error));
  CHECK(metrics.generated_tokens == 30 && metrics.seed == 7 && metrics.total_ms > 0);
  CHECK(metrics.itl.count > 0 && metrics.itl.max_ms >= metrics.itl.p50_ms);
  chorus_generation_close(generation);

  for (int polls = 0; polls < 2; ++polls) {
    Seen again = {.text_size = 0};
    OK(chorus_session_rewind(session, 0, &error));
    generation = start_text(session, 30);
    while (again.finish == CHORUS_FINISH_NONE) {
      chorus_update update = {.size = sizeof update};
      if (polls) {
        OK(chorus_generation_poll(generation, &update, &error));
      } else {
        OK(chorus_generation_read(generation, &update, &error));
      }
      see(&again, &update);
    }
    CHECK(again.text_size == seen.text_size && memcmp(again.text, seen.text, seen.text_size) == 0);
    CHECK(again.num_tokens == 30);
    chorus_update after = {.size = sizeof after};
    OK(chorus_generation_read(generation, &after, &error));
    CHECK(after.num_tokens == 0 && after.text_size == 0 && after.finish == CHORUS_FINISH_LENGTH);
    chorus_generation_close(generation);
  }

  // A stop text of the middle of what was seen.
  char stop[8] = {0};
  size_t at = seen.text_size / 2;
  while ((seen.text[at] & 0xc0) == 0x80) ++at;
  size_t size = 1;
  while (at + size < seen.text_size && (seen.text[at + size] & 0xc0) == 0x80) ++size;
  memcpy(stop, seen.text + at, size);
  const char* stops[] = {stop};
  chorus_generation_options options = draws(30);
  options.stops = stops;
  options.num_stops = 1;
  OK(chorus_session_rewind(session, 0, &error));
  OK(chorus_session_generate_text(session, "the sea", 7, &options, &generation, &error));
  result = finished(generation);
  CHECK(result.finish == CHORUS_FINISH_STOP && result.text_size <= at);
  CHECK(memcmp(result.text, seen.text, result.text_size) == 0);
  CHECK(memcmp(seen.text + result.text_size, stop, size) == 0);
  const size_t before_stop = result.text_size;
  chorus_generation_close(generation);

  options.include_stop = 1;
  OK(chorus_session_rewind(session, 0, &error));
  OK(chorus_session_generate_text(session, "the sea", 7, &options, &generation, &error));
  result = finished(generation);
  CHECK(result.text_size == before_stop + size);
  CHECK(memcmp(result.text + before_stop, stop, size) == 0);
  chorus_generation_close(generation);
  chorus_session_close(session);
}

// Ends by a call what may end by itself before the call, on a busy machine; then once more.
#define IN_TIME(is_in_time) \
  for (int tries = 50; !(is_in_time);) CHECK(--tries > 0)

static int is_stopped_by_callback(chorus_session* session) {
  OK(chorus_session_rewind(session, 0, &error));
  Seen seen = {.stop_after = 1};
  chorus_generation* generation = start_text(session, 240);
  OK(chorus_generation_run(generation, see, &seen, &error));
  CHECK(seen.calls == 1);
  chorus_result result = {.size = sizeof result};
  OK(chorus_generation_get_result(generation, &result, &error));
  CHECK(result.error.code == CHORUS_OK);
  const int is_in_time = result.finish == CHORUS_FINISH_CANCELLED && result.num_tokens < 240;
  chorus_generation_close(generation);
  return is_in_time;
}

static int is_cancelled(chorus_session* session) {
  OK(chorus_session_rewind(session, 0, &error));
  chorus_generation* generation = start_text(session, 240);
  const chorus_code code = chorus_session_rewind(session, 0, &error);
  CHECK(code == CHORUS_OK || strcmp(error.field, "session") == 0);
  OK(chorus_generation_cancel(generation, &error));
  const int is_in_time =
      code == CHORUS_INVALID_ARGUMENT && finished(generation).finish == CHORUS_FINISH_CANCELLED;
  chorus_generation_close(generation);
  return is_in_time;
}

static void test_ending_early(chorus_engine* engine) {
  current = "ending early";
  chorus_session* session = NULL;
  OK(chorus_session_open(engine, NULL, &session, &error));
  IN_TIME(is_stopped_by_callback(session));
  IN_TIME(is_cancelled(session));

  chorus_generation* generation = NULL;
  chorus_result result = {.size = sizeof result};
  chorus_generation_options options = draws(200);
  options.deadline_ns = 1;
  OK(chorus_session_generate(session, kPrompt, kPromptSize, &options, &generation, &error));
  result = finished(generation);
  CHECK(result.finish == CHORUS_FINISH_CANCELLED);
  CHECK(result.error.code == CHORUS_DEADLINE_EXCEEDED && result.error.message[0] != '\0');
  chorus_generation_close(generation);

  // Refused by the executor: the generation ends with the error.
  options = draws(3);
  options.top_p = 2;
  OK(chorus_session_generate(session, kPrompt, kPromptSize, &options, &generation, &error));
  result = finished(generation);
  CHECK(result.finish == CHORUS_FINISH_ERROR);
  CHECK(result.error.code == CHORUS_INVALID_ARGUMENT && strcmp(result.error.field, "top_p") == 0);
  chorus_generation_close(generation);
  chorus_session_close(session);
}

static void test_logprobs(chorus_engine* engine) {
  current = "logprobs";
  chorus_session* session = NULL;
  OK(chorus_session_open(engine, NULL, &session, &error));
  chorus_generation_options options = {.size = sizeof options,
                                       .max_new_tokens = 5,
                                       .ignore_stop_tokens = 1,
                                       .logprobs = 1,
                                       .num_likeliest = 3};
  chorus_generation* generation = NULL;
  OK(chorus_session_generate(session, kPrompt, kPromptSize, &options, &generation, &error));
  const chorus_result result = finished(generation);
  CHECK(result.num_tokens == 5 && result.num_likeliest == 15);
  for (size_t i = 0; i < 5; ++i) {
    const chorus_token token = result.tokens[i];  // greedy: the first of the likeliest
    CHECK(token.rank == 1 && token.likeliest_count == 3);
    CHECK(result.likeliest[token.likeliest_begin].id == token.id);
    CHECK(result.likeliest[token.likeliest_begin].logprob == token.logprob && token.logprob < 0);
    CHECK(result.likeliest[token.likeliest_begin + 1].logprob <= token.logprob);
  }
  chorus_generation_close(generation);
  chorus_session_close(session);
}

static void test_stop_tokens(chorus_engine* engine) {
  current = "stop tokens";
  chorus_session* session = NULL;
  int32_t ids[4];
  OK(chorus_session_open(engine, NULL, &session, &error));
  continue_with(session, kPrompt, kPromptSize, 4, ids);
  OK(chorus_session_rewind(session, 0, &error));
  chorus_generation_options options = draws(4);
  options.ignore_stop_tokens = 0;
  options.stop_tokens = &ids[0];
  options.num_stop_tokens = 1;
  chorus_generation* generation = NULL;
  OK(chorus_session_generate(session, kPrompt, kPromptSize, &options, &generation, &error));
  const chorus_result result = finished(generation);
  CHECK(result.finish == CHORUS_FINISH_STOP && result.num_tokens == 1);
  CHECK(result.tokens[0].id == ids[0]);
  chorus_generation_close(generation);
  chorus_session_close(session);
}

// Bias, penalties, and what may and may not come.
static void test_sampling(chorus_engine* engine) {
  current = "sampling";
  chorus_session* session = NULL;
  chorus_generation* generation = NULL;
  OK(chorus_session_open(engine, NULL, &session, &error));
  const int32_t allowed[] = {40, 41, 42, 43};
  const chorus_token_bias bias[] = {{41, 50.0f}, {42, 90.0f}};
  chorus_generation_options options = draws(4);
  options.temperature = 0;
  options.allowed_tokens = allowed;
  options.num_allowed_tokens = 4;
  options.logit_bias = bias;
  options.num_logit_bias = 2;
  OK(chorus_session_generate(session, kPrompt, kPromptSize, &options, &generation, &error));
  chorus_result result = finished(generation);
  for (size_t i = 0; i < 4; ++i) CHECK(result.tokens[i].id == 42);
  chorus_generation_close(generation);

  // Each token once, as long as there are four; the end token not before it may.
  options.num_logit_bias = 0;
  options.repetition_penalty = 1e6f;
  options.presence_penalty = 2.0f;
  options.frequency_penalty = 2.0f;
  options.typical_p = 1.0f;
  options.ignore_stop_tokens = 0;
  options.stop_tokens = allowed;
  options.num_stop_tokens = 1;
  options.min_tokens = 3;
  OK(chorus_session_rewind(session, 0, &error));
  OK(chorus_session_generate(session, kPrompt, kPromptSize, &options, &generation, &error));
  result = finished(generation);
  CHECK(result.num_tokens == 4);
  for (size_t i = 0; i < 3; ++i) CHECK(result.tokens[i].id != 40);
  chorus_generation_close(generation);

  options = draws(1);
  const chorus_token_bias unknown[] = {{99999999, 1.0f}};
  options.logit_bias = unknown;
  options.num_logit_bias = 1;
  FAILS(CHORUS_INVALID_ARGUMENT, "logit_bias[\"99999999\"]",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  const int32_t bad_ids[] = {1, -1};
  options = draws(1);
  options.allowed_tokens = bad_ids;
  options.num_allowed_tokens = 2;
  FAILS(CHORUS_INVALID_ARGUMENT, "allowed_tokens[1]",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  options = draws(1);
  options.stop_tokens = bad_ids;
  options.num_stop_tokens = 2;
  FAILS(CHORUS_INVALID_ARGUMENT, "stop_tokens[1]",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  const char* bad_words[] = {"x", ""};
  options = draws(1);
  options.bad_words = bad_words;
  options.num_bad_words = 2;
  FAILS(CHORUS_INVALID_ARGUMENT, "bad_words[1]",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  bad_words[1] = NULL;
  FAILS(CHORUS_INVALID_ARGUMENT, "bad_words[1]",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  options = draws(1);
  options.min_tokens = 2;
  FAILS(CHORUS_INVALID_ARGUMENT, "min_tokens",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  options = draws(1);
  options.num_logit_bias = 1;
  FAILS(CHORUS_INVALID_ARGUMENT, "logit_bias",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  chorus_session_close(session);
}

// Clones, rewound and loaded sessions go on as the first did.
static void test_sessions(chorus_engine* engine, const char* folder) {
  current = "sessions";
  chorus_session* session = NULL;
  const chorus_session_options options = {.size = sizeof options, .is_private = 1};
  OK(chorus_session_open(engine, &options, &session, &error));
  chorus_generation* appended = NULL;
  OK(chorus_session_append(session, kPrompt, kPromptSize - 1, NULL, &appended, &error));
  const chorus_result result = finished(appended);
  CHECK(result.finish == CHORUS_FINISH_LENGTH && result.num_tokens == 0);
  chorus_generation_close(appended);
  int32_t position = -1;
  OK(chorus_session_position(session, &position, &error));
  CHECK(position == kPromptSize - 1);

  char path[1024];
  snprintf(path, sizeof path, "%s/c_interface_test.session", folder);
  OK(chorus_session_save(session, path, &error));
  chorus_session* clone = NULL;
  OK(chorus_session_clone(session, position, &clone, &error));
  chorus_session* loaded = NULL;
  OK(chorus_session_load(engine, path, 0, NULL, &loaded, &error));
  chorus_session* recomputed = NULL;
  OK(chorus_session_load(engine, path, 1, &options, &recomputed, &error));

  const int32_t* last = &kPrompt[kPromptSize - 1];
  chorus_session* all[] = {session, clone, loaded, recomputed};
  int32_t expected[6];
  continue_with(session, last, 1, 6, expected);
  OK(chorus_session_rewind(session, kPromptSize - 1, &error));
  for (size_t i = 0; i < 4; ++i) {
    int32_t ids[6];
    continue_with(all[i], last, 1, 6, ids);
    CHECK(memcmp(ids, expected, sizeof ids) == 0);
  }

  FAILS(CHORUS_INVALID_ARGUMENT, "length", chorus_session_rewind(session, 1000, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "upto", chorus_session_clone(session, 1000, &clone, &error));
  CHECK(clone == all[1]);
  FAILS(CHORUS_NOT_FOUND, "/nonexistent/session",
        chorus_session_load(engine, "/nonexistent/session", 0, NULL, &loaded, &error));
  FILE* file = fopen(path, "r+b");
  CHECK(file != NULL && fputc('x', file) == 'x' && fclose(file) == 0);
  FAILS(CHORUS_DATA_LOSS, "magic", chorus_session_load(engine, path, 0, NULL, &loaded, &error));
  remove(path);
  FAILS(CHORUS_INVALID_ARGUMENT, "path", chorus_session_save(session, NULL, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "path", chorus_session_save(session, "", &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "path", chorus_session_load(engine, "", 0, NULL, &loaded, &error));
  for (size_t i = 0; i < 4; ++i) chorus_session_close(all[i]);
  chorus_session_close(NULL);

  chorus_session* many[9] = {NULL};
  for (size_t i = 0; i < 8; ++i) OK(chorus_session_open(engine, NULL, &many[i], &error));
  FAILS(CHORUS_RESOURCE_EXHAUSTED, "max_sessions",
        chorus_session_open(engine, NULL, &many[8], &error));
  for (size_t i = 0; i < 9; ++i) chorus_session_close(many[i]);
}

static void test_misuse(chorus_engine* engine) {
  current = "misuse";
  chorus_session* session = NULL;
  chorus_generation* generation = NULL;
  int32_t position = 0;
  FAILS(CHORUS_INVALID_ARGUMENT, "engine", chorus_session_open(NULL, NULL, &session, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "session", chorus_session_open(engine, NULL, NULL, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "path",
        chorus_session_load(engine, NULL, 0, NULL, &session, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "session", chorus_session_position(NULL, &position, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "session", chorus_session_rewind(NULL, 0, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "session", chorus_session_clone(NULL, 0, &session, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "session", chorus_session_save(NULL, "x", &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "session",
        chorus_session_generate(NULL, kPrompt, 1, NULL, &generation, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "session",
        chorus_session_generate_text(NULL, "a", 1, NULL, &generation, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "session",
        chorus_session_append(NULL, kPrompt, 1, NULL, &generation, &error));
  CHECK(session == NULL && generation == NULL);

  OK(chorus_session_open(engine, NULL, &session, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "position", chorus_session_position(session, NULL, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "tokens",
        chorus_session_generate(session, NULL, 1, NULL, &generation, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "tokens",
        chorus_session_generate(session, NULL, 0, NULL, &generation, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "generation",
        chorus_session_generate(session, kPrompt, 1, NULL, NULL, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "text",
        chorus_session_generate_text(session, NULL, 1, NULL, &generation, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "tokens",
        chorus_session_append(session, NULL, 1, NULL, &generation, &error));
  chorus_generation_options options = draws(-1);
  FAILS(CHORUS_INVALID_ARGUMENT, "max_new_tokens",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  options = draws(1);
  options.deadline_ns = -1;
  FAILS(CHORUS_INVALID_ARGUMENT, "deadline_ns",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  const char* empty[] = {"x", ""};
  options = draws(1);
  options.stops = empty;
  options.num_stops = 2;
  FAILS(CHORUS_INVALID_ARGUMENT, "stops[1]",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  options = draws(1);
  options.num_stops = 1;
  FAILS(CHORUS_INVALID_ARGUMENT, "stops",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  const char* stops[] = {"x", NULL};
  options.stops = stops;
  options.num_stops = 2;
  FAILS(CHORUS_INVALID_ARGUMENT, "stops[1]",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));
  options = draws(1);
  options.num_stop_tokens = 1;
  FAILS(CHORUS_INVALID_ARGUMENT, "stop_tokens",
        chorus_session_generate(session, kPrompt, 1, &options, &generation, &error));

  chorus_update update = {.size = sizeof update};
  chorus_result result = {.size = sizeof result};
  chorus_generation_metrics metrics = {.size = sizeof metrics};
  FAILS(CHORUS_INVALID_ARGUMENT, "generation", chorus_generation_read(NULL, &update, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "generation", chorus_generation_poll(NULL, &update, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "generation", chorus_generation_run(NULL, NULL, NULL, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "generation", chorus_generation_cancel(NULL, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "generation", chorus_generation_get_result(NULL, &result, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "generation",
        chorus_generation_get_metrics(NULL, &metrics, &error));
  OK(chorus_session_generate(session, kPrompt, kPromptSize, NULL, &generation, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "update", chorus_generation_read(generation, NULL, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "result", chorus_generation_get_result(generation, NULL, &error));
  FAILS(CHORUS_INVALID_ARGUMENT, "metrics",
        chorus_generation_get_metrics(generation, NULL, &error));
  update.size = 0;
  FAILS(CHORUS_INVALID_ARGUMENT, "update.size",
        chorus_generation_poll(generation, &update, &error));
  // Without options, as many tokens as the context has room for.
  result = finished(generation);
  CHECK(result.finish == CHORUS_FINISH_STOP || result.num_tokens == 256 - kPromptSize);
  chorus_generation_close(generation);
  chorus_generation_close(NULL);
  chorus_session_close(session);
}

// Handles that outlive their engine.
static int ends_with_its_engine(const char* model) {
  const chorus_engine_options options = small_options();
  chorus_engine* engine = NULL;
  OK(chorus_engine_open(model, &options, &engine, &error));
  chorus_session* session = NULL;
  OK(chorus_session_open(engine, NULL, &session, &error));
  chorus_generation* generation = start_text(session, 240);
  chorus_engine_close(engine);
  const int is_in_time = finished(generation).finish == CHORUS_FINISH_CANCELLED;
  chorus_generation* refused = NULL;
  FAILS(CHORUS_UNAVAILABLE, "engine",
        chorus_session_generate(session, kPrompt, kPromptSize, NULL, &refused, &error));
  chorus_session_close(session);
  chorus_result result = {.size = sizeof result};
  OK(chorus_generation_get_result(generation, &result, &error));
  chorus_generation_close(generation);
  return is_in_time;
}

static void test_closing_in_any_order(const char* model) {
  current = "closing";
  IN_TIME(ends_with_its_engine(model));
}

int main(int count, char** arguments) {
  if (count != 3) {
    fprintf(stderr, "usage: %s MODEL FOLDER\n", arguments[0]);
    return 2;
  }
  const char* model = arguments[1];
  test_names();
  test_opening(model);
  test_sizes(model);
  const chorus_engine_options options = small_options();
  chorus_engine* engine = NULL;
  current = "main";
  OK(chorus_engine_open(model, &options, &engine, &error));
  test_facts(engine);
  test_text(engine);
  test_ways_to_read(engine);
  test_ending_early(engine);
  test_logprobs(engine);
  test_stop_tokens(engine);
  test_sampling(engine);
  test_sessions(engine, arguments[2]);
  test_misuse(engine);

  current = "metrics";
  chorus_engine_metrics metrics = {.size = sizeof metrics};
  OK(chorus_engine_get_metrics(engine, &metrics, &error));
  CHECK(metrics.steps > 0 && metrics.completed > 0 && metrics.failed == 1 && metrics.cancelled > 0);
  CHECK(metrics.generated_tokens > 0 && metrics.prompt_tokens > 0 && metrics.kv_blocks == 64);
  CHECK(metrics.step.count == metrics.steps && metrics.ttft.count > 0);
  CHECK(metrics.queue.max_ms >= metrics.queue.p50_ms && metrics.total.max_ms > 0);
  chorus_engine_close(engine);
  test_closing_in_any_order(model);
  puts("ok");
  return 0;
}
