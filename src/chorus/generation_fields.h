// The parameters of a generation by the names that they have over HTTP: one table for the HTTP API,
// JSON Lines, flags and settings of a chat.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "chorus/generation.h"
#include "engine/options.h"
#include "json/value.h"

namespace chorus {

// What a generation is asked for. As it is, nothing was asked for: a greedy one.
struct GenerationFields {
  std::optional<int32_t> max_tokens;  // unset: what the caller takes for it
  // Its choice is the number of the first of n continuations. Its seed, logprobs and num_likeliest,
  // and what an engine adds, are not read.
  SamplingParams sampling;
  std::optional<uint64_t> seed;         // unset: drawn at random
  std::vector<std::string> stop;        // the text ends before the first of them; none empty
  std::vector<TokenId> stop_token_ids;  // beside the model's end tokens
  bool ignore_eos = false;              // the model's end tokens do not end it
  // The stop text that ends it, or the text of the stop token, is shown.
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;         // special tokens are not shown
  std::vector<std::string> bad_words;      // texts that are not generated; none empty
  int32_t n = 1;                           // continuations of the prompt
  std::optional<int32_t> logprobs;         // of each token, and of so many likeliest ones
  std::optional<int32_t> prompt_logprobs;  // the same for each token of the prompt but the first
  // So many are generated, of which the n with the greatest mean logprob of their tokens count; at
  // least n.
  std::optional<int32_t> best_of;
  // The prompt's last so many tokens are taken; -1: as many as there is room for.
  std::optional<int32_t> truncate_prompt_tokens;
  int32_t priority = 0;                // higher first
  std::optional<int64_t> deadline_ms;  // from submission
  std::string cache_salt;              // KV is shared only between requests of the same
};

inline constexpr int32_t kMaxTokensLimit = 1 << 24;
inline constexpr int32_t kMaxChoices = 1024;
// So that reading what was sent takes milliseconds: the bytes of all texts of a list, and of a
// salt; the ids of a list.
inline constexpr size_t kMaxTextBytes = size_t{64} << 10;
inline constexpr size_t kMaxSaltBytes = 1024;
inline constexpr size_t kMaxIds = size_t{1} << 20;

// A parameter that is known and not offered by the caller.
struct RefusedField {
  std::string_view name;
  std::string_view why;  // completes "expected none: "
};

// What differs between those who read parameters.
struct FieldRules {
  int32_t least_max_tokens = 1;     // 0 where a prompt may be scored alone
  bool has_negative_seeds = false;  // -1 is a random seed, others are the numbers of their bits
  std::span<const RefusedField> refused = {};
};

// Takes the members of `object` that are parameters over those of `fields`. What is null was not
// given; other members are not looked at. Of two names for one parameter (max_completion_tokens,
// max_tokens) the longer one counts.
// Errors: kInvalidArgument with the member at fault as field ("top_p", "stop[1]"), for a value of
// another type (booleans are no numbers; 1.0 is a whole number), out of its range, or refused.
// Ids are compared with the vocabulary when the generation is submitted. Requires: an object.
Result<GenerationFields> read_generation_fields(const json::Value& object,
                                                GenerationFields fields = {},
                                                const FieldRules& rules = {});

// The names of all parameters, in the order in which lists show them.
std::span<const std::string_view> generation_field_names();
bool is_generation_field(std::string_view name);

// One of them by name. Errors as above; `fields` is then unchanged. Requires: a known name.
Status set_generation_field(std::string_view name, const json::Value& value,
                            GenerationFields& fields, const FieldRules& rules = {});

// The value of one of them, which set_generation_field takes; null where it is unset. Requires: a
// known name.
json::Value generation_field(std::string_view name, const GenerationFields& fields);

// What a word of a command line or of a chat says for it: "0.5" a number, "a b" the only stop text,
// "5 7" two ids, "5=-1 7=2" the biases of two ids. Requires: a known name.
json::Value generation_field_of_word(std::string_view name, std::string_view word);

// What the engine is to be given, but for max_new_tokens where max_tokens is unset, the deadline,
// the signal and score_from.
GenerationOptions generation_options(const GenerationFields& fields,
                                     std::span<const TokenId> end_tokens);
TextOptions text_options(const GenerationFields& fields);

// Takes off the front of a prompt what truncate_prompt_tokens says, where there is room for `room`
// tokens of it. The number of tokens that were taken off, which is to be reported.
int32_t truncate_prompt(const GenerationFields& fields, int64_t room, std::vector<TokenId>& prompt);

}  // namespace chorus
