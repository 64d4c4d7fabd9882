// The C interface: engine, sessions and generations as opaque handles. C11 and C++.
//
// - A function that can fail returns a code, and describes a failure in `error` (which may be NULL;
//   it is written only on failure). Out parameters are then untouched. A handle or a required
//   pointer that is NULL is CHORUS_INVALID_ARGUMENT with the parameter as field.
// - Option and result structs begin with `size`, to be set to sizeof the struct by the caller. All
//   other members of an options struct may be zero, which means: not given. NULL for a pointer to
//   options means all of them. A program built with an older header goes on working with a newer
//   library; one built with a newer header is refused if it sets what this library does not know.
// - Inputs are borrowed for the call. Texts are UTF-8 with their size in bytes, and need no NUL.
// - Who gets a handle closes it, once; closing NULL does nothing. Handles may be closed in any
//   order: sessions and generations of a closed engine refuse everything with CHORUS_UNAVAILABLE.
// - Threads: an engine's functions may be called by any thread. A session, and a generation, is for
//   one thread at a time; only chorus_generation_cancel may be called beside others.
// - No exception leaves a function. Where memory ends, so does the process, except where
//   CHORUS_RESOURCE_EXHAUSTED says otherwise.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- Codes and errors ----

typedef enum chorus_code {
  CHORUS_OK = 0,
  CHORUS_INVALID_ARGUMENT = 1,    // the caller's value is wrong; the same call will fail again
  CHORUS_NOT_FOUND = 2,           // a file or an id that does not exist
  CHORUS_RESOURCE_EXHAUSTED = 3,  // more than a limit allows: KV blocks, sessions, queue places
  CHORUS_CANCELLED = 4,           // ended on request
  CHORUS_DEADLINE_EXCEEDED = 5,   // ended by its deadline
  CHORUS_UNAVAILABLE = 6,         // the engine is stopping or could not start
  CHORUS_UNIMPLEMENTED = 7,       // a known feature that this library or the model does not offer
  CHORUS_DATA_LOSS = 8,           // a model or session file that is damaged or not acceptable
  CHORUS_INTERNAL = 9             // a step failed in the backend
} chorus_code;

// Owned by the caller; nothing in it is to be freed. Strings end with NUL, and are cut to fit.
typedef struct chorus_error {
  chorus_code code;
  char field[64];     // the option, parameter or part of a file that is at fault; may be empty
  char message[444];  // what was expected, what was found
} chorus_error;

// "invalid_argument" and so on; "unknown" for other values. Static.
const char* chorus_code_name(chorus_code code);

// The version of the library, such as "0.1.0". Static.
const char* chorus_version(void);

// ---- Engine ----

typedef struct chorus_engine chorus_engine;
typedef struct chorus_session chorus_session;
typedef struct chorus_generation chorus_generation;

typedef struct chorus_engine_options {
  size_t size;
  int32_t threads;               // default: physical cores available to the process
  int32_t context;               // tokens per session; default: the model's, as far as memory goes
  int64_t kv_memory_bytes;       // default: from free memory
  int32_t kv_blocks;             // per layer group, instead of kv_memory_bytes
  int32_t block_size;            // 1, 16 (default), 32 or 64
  int32_t max_sessions;          // default: 256
  int32_t max_batch_tokens;      // tokens of one step
  int32_t prefill_chunk;         // default: 512
  int32_t max_decode_sequences;  // default: 32
  int32_t target_step_ms;        // of a step beside which somebody decodes; default: 100
  int32_t no_prefix_cache;       // not 0: equal prefixes of prompts do not share their KV
  int32_t f32_activations;       // not 0: exact activations in place of int8 ones, slow
  int32_t f32_kv;                // not 0: K and V as f32 in place of bf16
  const char* force_isa;         // "generic", "avx512"; default: the best of this processor
  int32_t priority_age_ms;       // of waiting, worth a priority higher by one; default: 30000
  int32_t shortest_first_ms;  // so much later per token, so that short ones go first; default: off
} chorus_engine_options;

// What the options came to. Strings live as long as the engine.
typedef struct chorus_engine_settings {
  size_t size;
  int32_t threads;
  int32_t context;
  int32_t block_size;
  int32_t max_sessions;
  int32_t max_batch_tokens;
  int32_t prefill_chunk;
  int32_t max_decode_sequences;
  int32_t target_step_ms;
  int32_t vocabulary;  // tokens are in [0, vocabulary)
  int64_t kv_bytes;
  const char* isa;
  int32_t priority_age_ms;
  int32_t shortest_first_ms;  // 0: off
} chorus_engine_settings;

// A quantile is the smallest latency that so many do not exceed, to within 1/32. All 0 where count
// is.
typedef struct chorus_latency {
  int64_t count;
  double mean_ms;
  double p50_ms;
  double p90_ms;
  double p99_ms;
  double max_ms;
} chorus_latency;

// Since the start, as of the last step.
typedef struct chorus_engine_metrics {
  size_t size;
  int64_t steps;
  int64_t prompt_tokens;      // given tokens that were consumed
  int64_t generated_tokens;   // tokens that were delivered
  int64_t cached_tokens;      // of the prompts, tokens whose KV others had computed
  int64_t recomputed_tokens;  // tokens whose KV had been given up
  int64_t preemptions;        // running generations whose blocks were taken, to resume later
  int64_t completed;          // generations that ended with stop or length
  int64_t failed;
  int64_t cancelled;
  int64_t kv_blocks;  // of all layer groups
  int64_t kv_blocks_free;
  int32_t sessions;
  int32_t running;
  int32_t waiting;
  int32_t reserved;      // 0
  chorus_latency queue;  // from submission to the start of the first step
  chorus_latency ttft;   // from submission to the first token
  chorus_latency itl;    // between updates with tokens
  chorus_latency tpot;   // mean time of each token but the first
  chorus_latency total;  // from submission to the end
  chorus_latency step;   // of each call of the backend
} chorus_engine_metrics;

// Loads a .chorus program, or exports a .gguf file in memory, and starts an engine on it. `model`
// and `engine` are required.
chorus_code chorus_engine_open(const char* model, const chorus_engine_options* options,
                               chorus_engine** engine, chorus_error* error);

// Ends all generations and stops the engine, after the step in flight. Its memory is freed when its
// sessions are closed, too. No other call on the engine may be under way.
void chorus_engine_close(chorus_engine* engine);

chorus_code chorus_engine_get_settings(const chorus_engine* engine,
                                       chorus_engine_settings* settings, chorus_error* error);
chorus_code chorus_engine_get_metrics(const chorus_engine* engine, chorus_engine_metrics* metrics,
                                      chorus_error* error);

// ---- Text ----
// These write up to `capacity` elements to a buffer of the caller, and how many there are to
// `count`. With a NULL buffer they only count. A buffer too small is CHORUS_INVALID_ARGUMENT
// (capacity), with nothing written but `count`. No NUL is added. CHORUS_UNIMPLEMENTED (tokenizer)
// where the model has no vocabulary.

enum {
  CHORUS_PARSE_SPECIAL = 1,  // recognise control tokens ("<|im_start|>"): not for users' text
  CHORUS_ADD_SPECIAL = 2     // begin and end as the model wants a whole text
};

// flags: a sum of the above.
chorus_code chorus_tokenize(const chorus_engine* engine, const char* text, size_t text_size,
                            uint32_t flags, int32_t* tokens, size_t capacity, size_t* count,
                            chorus_error* error);

// Valid UTF-8: bytes that are none show as U+FFFD.
chorus_code chorus_detokenize(const chorus_engine* engine, const int32_t* tokens, size_t num_tokens,
                              char* text, size_t capacity, size_t* count, chorus_error* error);

// Both end with NUL.
typedef struct chorus_chat_message {
  const char* role;     // "system", "user", "assistant"
  const char* content;  // UTF-8
} chorus_chat_message;

// The model's chat template over the messages, ready for the answer; to be used as a prompt.
// CHORUS_UNIMPLEMENTED (chat_template) where the model has none.
chorus_code chorus_render_chat(const chorus_engine* engine, const chorus_chat_message* messages,
                               size_t num_messages, char* text, size_t capacity, size_t* count,
                               chorus_error* error);

// ---- Sessions ----

typedef struct chorus_session_options {
  size_t size;
  const char* salt;    // prefixes are shared only between sessions of the same salt
  int32_t is_private;  // not 0: nobody finds its prefixes
} chorus_session_options;

// An empty session. CHORUS_RESOURCE_EXHAUSTED (max_sessions) when so many are open.
chorus_code chorus_session_open(chorus_engine* engine, const chorus_session_options* options,
                                chorus_session** session, chorus_error* error);

// A session of a file that chorus_session_save wrote. One of other numerics is refused with
// CHORUS_INVALID_ARGUMENT and the field that differs, unless `recompute` is not 0: then its tokens
// are taken, and computed when they are needed. CHORUS_NOT_FOUND, CHORUS_DATA_LOSS for the file.
chorus_code chorus_session_load(chorus_engine* engine, const char* path, int32_t recompute,
                                const chorus_session_options* options, chorus_session** session,
                                chorus_error* error);

// Cancels its generation, and returns when its memory is back in the pool.
void chorus_session_close(chorus_session* session);

// Tokens of the context. It moves while a generation is live.
chorus_code chorus_session_position(const chorus_session* session, int32_t* position,
                                    chorus_error* error);

// Shortens the context to its first `length` tokens, 0 included. Refused with
// CHORUS_INVALID_ARGUMENT while a generation is live (session), or for a length that it does not
// have.
chorus_code chorus_session_rewind(chorus_session* session, int32_t length, chorus_error* error);

// A new session with the first `upto` tokens of this one; their KV is shared. Also while a
// generation is live. CHORUS_RESOURCE_EXHAUSTED (max_sessions).
chorus_code chorus_session_clone(const chorus_session* session, int32_t upto,
                                 chorus_session** clone, chorus_error* error);

// Writes the session beside `path` and renames it when whole. Refused while a generation is live.
chorus_code chorus_session_save(const chorus_session* session, const char* path,
                                chorus_error* error);

// ---- Generations ----

typedef struct chorus_token_bias {
  int32_t id;
  float bias;  // in [-100, 100], added to the token's logit
} chorus_token_bias;

typedef struct chorus_generation_options {
  size_t size;
  int32_t max_new_tokens;      // default: 256, or fewer where the session has not the room
  float temperature;           // 0: greedy
  int32_t top_k;               // 0: all
  float top_p;                 // in (0, 1]; default: 1
  float min_p;                 // in [0, 1]
  uint32_t choice;             // which of several continuations of one prompt this is
  uint64_t seed;               // read when has_seed is not 0; else one is drawn
  int32_t has_seed;            //
  int32_t logprobs;            // not 0: report the logprob and rank of each token
  int32_t num_likeliest;       // and of so many likeliest tokens; 0 to 64
  int32_t ignore_stop_tokens;  // not 0: go on after the end of a text
  const int32_t* stop_tokens;  // end the generation, and are delivered; default: the model's
  size_t num_stop_tokens;
  const char* const* stops;  // the text ends before the first of these, each with a NUL
  size_t num_stops;
  int64_t deadline_ns;  // from submission; it then ends cancelled, with its text so far; 0: none
  int32_t priority;     // the higher one has the KV blocks that two want

  float typical_p;           // in (0, 1]; default: 1
  float presence_penalty;    // in [-2, 2], taken from logits of tokens that were generated,
  float frequency_penalty;   // and this for each time
  float repetition_penalty;  // above 0; divides logits of tokens of the context, or multiplies
                             // those below 0; default: 1
  const chorus_token_bias* logit_bias;
  size_t num_logit_bias;
  const int32_t* allowed_tokens;  // only these are generated; default: all
  size_t num_allowed_tokens;
  const char* const* bad_words;  // texts that are not generated, each with a NUL
  size_t num_bad_words;
  int32_t min_tokens;    // before so many there is neither a stop token nor a stop text
  int32_t include_stop;  // not 0: the stop text, or the stop token's text, is shown
  int32_t show_special;  // not 0: special tokens are shown
  int32_t reserved;      // 0
} chorus_generation_options;

// Consumes the prompt and generates. A session has one live generation at most. Refused with
// nothing changed: CHORUS_INVALID_ARGUMENT (session, tokens or text, max_new_tokens, min_tokens,
// stops[i], bad_words[i], stop_tokens[i], allowed_tokens[i], logit_bias["ID"]),
// CHORUS_RESOURCE_EXHAUSTED (queue), CHORUS_UNAVAILABLE (engine). What is found later ends the
// generation with an error.
chorus_code chorus_session_generate(chorus_session* session, const int32_t* tokens,
                                    size_t num_tokens, const chorus_generation_options* options,
                                    chorus_generation** generation, chorus_error* error);

// The same with a text, whose special tokens are recognised. It begins as the model wants it when
// the session is empty. CHORUS_UNIMPLEMENTED (tokenizer) where the model has no vocabulary.
chorus_code chorus_session_generate_text(chorus_session* session, const char* text,
                                         size_t text_size, const chorus_generation_options* options,
                                         chorus_generation** generation, chorus_error* error);

// Consumes tokens without generating; ends with reason length. Of the options, priority and
// deadline_ns are read.
chorus_code chorus_session_append(chorus_session* session, const int32_t* tokens, size_t num_tokens,
                                  const chorus_generation_options* options,
                                  chorus_generation** generation, chorus_error* error);

typedef struct chorus_token {
  int32_t id;
  int32_t rank;             // 1: the likeliest; 0 where it was not asked for
  float logprob;            // natural logarithm, temperature 1, unfiltered; NaN: not asked for
  int32_t likeliest_begin;  // into chorus_result.likeliest
  int32_t likeliest_count;
} chorus_token;

typedef struct chorus_likeliest {
  int32_t id;
  float logprob;
} chorus_likeliest;

typedef enum chorus_finish {
  CHORUS_FINISH_NONE = 0,       // it has not finished
  CHORUS_FINISH_STOP = 1,       // a stop token or a stop text
  CHORUS_FINISH_LENGTH = 2,     // max_new_tokens were delivered; for an append: all was consumed
  CHORUS_FINISH_CANCELLED = 3,  // by a call, or (with an error) by its deadline
  CHORUS_FINISH_ERROR = 4       // the error says why; the session can be used again
} chorus_finish;

// What is new. Pointers are valid until the next call on the generation.
typedef struct chorus_update {
  size_t size;
  const char* text;  // whole characters; may be empty while a stop text may be coming
  size_t text_size;
  const chorus_token* tokens;
  size_t num_tokens;
  chorus_finish finish;  // not CHORUS_FINISH_NONE: this was the last; the session is free again
} chorus_update;

// All of it so far. Pointers as above.
typedef struct chorus_result {
  size_t size;
  const char* text;  // a stop text and what follows it are left out
  size_t text_size;
  const chorus_token* tokens;  // a stop token included
  size_t num_tokens;
  const chorus_likeliest* likeliest;  // ordered by rank for each token
  size_t num_likeliest;
  chorus_finish finish;
  chorus_error error;  // its code is CHORUS_OK unless it ended with one
} chorus_result;

typedef struct chorus_generation_metrics {
  size_t size;
  double queue_ms;  // from submission to the start of its first step
  double ttft_ms;   // from submission to the first token
  double tpot_ms;   // mean time of each token but the first
  double total_ms;
  int32_t prompt_tokens;
  int32_t generated_tokens;
  int32_t cached_tokens;  // of the prompt, tokens whose KV others had computed
  int32_t recomputed_tokens;
  int32_t preemptions;
  uint64_t seed;       // the one used
  chorus_latency itl;  // between updates with tokens
} chorus_generation_metrics;

// Waits until something is new, and takes it. After the end: an empty update with its reason.
chorus_code chorus_generation_read(chorus_generation* generation, chorus_update* update,
                                   chorus_error* error);

// The same without waiting: an empty update where nothing is new.
chorus_code chorus_generation_poll(chorus_generation* generation, chorus_update* update,
                                   chorus_error* error);

// Reads to the end on the calling thread and shows each update to `callback`, unless that is NULL.
// Once the callback returns a value other than 0, it is not called again and the generation is
// cancelled. It must not call functions on this generation but chorus_generation_cancel.
typedef int32_t (*chorus_callback)(void* context, const chorus_update* update);
chorus_code chorus_generation_run(chorus_generation* generation, chorus_callback callback,
                                  void* context, chorus_error* error);

// Asks for the end, which comes within one step and is still to be read. Any thread.
chorus_code chorus_generation_cancel(chorus_generation* generation, chorus_error* error);

chorus_code chorus_generation_get_result(chorus_generation* generation, chorus_result* result,
                                         chorus_error* error);
// Complete once it has finished.
chorus_code chorus_generation_get_metrics(const chorus_generation* generation,
                                          chorus_generation_metrics* metrics, chorus_error* error);

// Does not cancel: the session stays busy until the end.
void chorus_generation_close(chorus_generation* generation);

#ifdef __cplusplus
}
#endif
