// The C interface of the Rust library (rust/src/lib.rs, which this file mirrors). Written by hand.
//
// - A function returns 0, or an error code (the Code of rust/src/error.rs) after it has called the
//   error sink once. Then `out` and other sinks are untouched.
// - A sink is called on the calling thread, once, before the function returns; what it is shown is
//   valid only during that call. No memory changes hands.
// - All inputs are borrowed for the call. Pointers may be null only where the count beside is 0.
// - Panics end at this border as error 5 (internal). Thread: any; the handles never change.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct ChorusTextTokenizer;
struct ChorusTextTemplate;

struct ChorusTextBytes {
  const char* data;
  size_t num_bytes;
};

struct ChorusTextSink {
  void* context;
  void (*write)(void* context, const void* data, size_t count);  // count of elements
};

struct ChorusTextErrorSink {
  void* context;
  void (*write)(void* context, ChorusTextBytes field, ChorusTextBytes message);
};

struct ChorusTextVocabulary {
  ChorusTextBytes model;
  ChorusTextBytes definition;
  size_t num_ids;
  ChorusTextBytes pre_tokenizer;
  const ChorusTextBytes* tokens;
  size_t num_tokens;
  const ChorusTextBytes* merges;
  size_t num_merges;
  const float* scores;
  size_t num_scores;
  const int32_t* token_types;
  size_t num_token_types;
  int32_t bos_id;
  int32_t eos_id;
  int32_t unknown_id;
  int32_t padding_id;
  bool add_bos;
  bool add_eos;
  bool add_space_prefix;
};

// Valid as long as the tokenizer.
struct ChorusTextPieces {
  const char* bytes;     // of all tokens: token i is bytes[ends[i] .. ends[i + 1])
  const uint64_t* ends;  // [count + 1]
  const uint8_t* flags;  // [count], 1: control or unknown, 2: found before the text is cut
  size_t count;
  // Which spaces at the beginning are no part of the text: 0 none, 1 one, also after a token with
  // flag 2, 2 one, 3 all those of the first token.
  int32_t space_rule;
};

// ChatTemplateLimits of text/chat_template.h.
struct ChorusTextTemplateLimits {
  uint64_t source_bytes;
  uint64_t tag_tokens;
  uint64_t time_ms;
  uint64_t steps;
  uint64_t steps_per_byte;
  uint64_t max_steps;
  uint64_t recursion;
  uint64_t live_bytes;
  uint64_t live_bytes_per_byte;
  uint64_t output_bytes;
  uint64_t output_bytes_per_byte;
  uint64_t stack_bytes;
};

struct ChorusTextRenderOptions {
  bool add_generation_prompt;
  bool has_now;
  int64_t now;
  ChorusTextBytes bos_token;
  ChorusTextBytes eos_token;
  ChorusTextBytes unk_token;
  ChorusTextBytes pad_token;
  ChorusTextBytes variables_json;
};

int32_t chorus_text_tokenizer_create(const ChorusTextVocabulary* vocabulary,
                                     ChorusTextTokenizer** out, const ChorusTextErrorSink* error);
void chorus_text_tokenizer_destroy(ChorusTextTokenizer* tokenizer);

void chorus_text_tokenizer_pieces(const ChorusTextTokenizer* tokenizer, ChorusTextPieces* out);

// ids: int32_t.
int32_t chorus_text_tokenizer_encode(const ChorusTextTokenizer* tokenizer, ChorusTextBytes text,
                                     bool parse_special, bool add_special, bool refuse_lossy,
                                     const ChorusTextSink* ids, const ChorusTextErrorSink* error);

int32_t chorus_text_template_create(ChorusTextBytes source, const ChorusTextTemplateLimits* limits,
                                    ChorusTextTemplate** out, const ChorusTextErrorSink* error);
void chorus_text_template_destroy(ChorusTextTemplate* chat_template);

// output: char.
int32_t chorus_text_template_render(const ChorusTextTemplate* chat_template,
                                    ChorusTextBytes messages_json,
                                    const ChorusTextRenderOptions* options,
                                    const ChorusTextSink* output, const ChorusTextErrorSink* error);

// Panics inside the border, so that a test can see it come back as an error.
int32_t chorus_text_provoke_panic(const ChorusTextErrorSink* error);

}  // extern "C"
