// The plain values that cross the seam between scheduling and execution.
//
// A session is an ordered list of committed tokens; its length is its position. An input commits
// its slice; an output input also commits all returned tokens but the last. start == length
// appends, start < length first discards [start, length) (a rewind), start > length is a gap and is
// refused. Source: ExecuTorch extension/llm/batching, executor and session contracts (commit
// cff6f4dd).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chorus/base/result.h"
#include "chorus/kv/types.h"

namespace chorus {

using TokenId = int32_t;

// Names a session for the life of an executor. Never reused, also not after close.
enum class SessionId : uint64_t {};

struct SessionOptions {
  std::string salt;      // prefixes are shared only between sessions of the same salt
  int32_t adapter = -1;  // no adapters yet: anything but -1 is refused
  bool indexed = true;   // whether its blocks may be found as prefixes by others
};

class TokenConstraint;

struct TokenBias {
  TokenId id = 0;
  float bias = 0.0f;  // finite, at most kMaxBias from 0
  friend bool operator==(const TokenBias&, const TokenBias&) = default;
};
inline constexpr float kMaxBias = 100.0f;

// How the tokens of one generation are chosen; holds until replaced. First come what forbids tokens
// (constraint, allowed_tokens, bad_sequences, min_tokens), then the bias and the penalties, then
// the temperature, and then the filters, which compose in the order top_k, typical_p, top_p, min_p
// and do not change a greedy choice: sampling.h has the exact arithmetic. Logprobs and ranks that
// are reported know of none of this.
struct SamplingParams {
  float temperature = 0.0f;   // 0: greedy, the likeliest token, the lowest id on ties
  int32_t top_k = 0;          // only so many of the likeliest tokens; 0: all
  float top_p = 1.0f;         // the fewest that hold this share of the probability; in (0, 1]
  float min_p = 0.0f;         // those at least so likely, against the likeliest; in [0, 1]
  uint64_t seed = 0;          // an ordinary number, 0 included; unset seeds are drawn by the engine
  uint32_t choice = 0;        // which of several continuations of one prompt this is
  bool logprobs = false;      // report the logprob and rank of each sampled token
  int32_t num_likeliest = 0;  // and of so many likeliest tokens; 0 to kMaxLikeliest
  std::shared_ptr<TokenConstraint> constraint =
      nullptr;  // owners: the session's policy and whoever made it
  // Those whose likelihood is nearest to what is to be expected, with this share; in (0, 1].
  float typical_p = 1.0f;
  std::vector<TokenBias> logit_bias = {};  // added to logits; the last of several for one id counts
  // The logits of tokens that are in `before` or were chosen: divided by it where above 0, else
  // multiplied. Above 0 and finite.
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;  // taken from a logit for each time that the token was chosen
  float presence_penalty = 0.0f;   // taken from it once if it was; both in [-2, 2]
  std::vector<TokenId> allowed_tokens = {};  // only these; empty: all
  // None of them is chosen: the last token of one not behind the others, once those were chosen.
  std::vector<std::vector<TokenId>> bad_sequences = {};
  int32_t min_tokens = 0;  // the first so many tokens are none of late_tokens

  // What an engine adds for the generation that begins.
  std::vector<TokenId> late_tokens = {};  // those that would end it
  Position first_position = 0;            // of the first token that is chosen
  // The session's tokens before that, where repetition_penalty is not 1.
  // Owners: the session's policy and whoever made it.
  std::shared_ptr<const std::vector<TokenId>> before = nullptr;
  int32_t max_tokens = 0;  // most that are chosen, for which memory is taken at once; 0: not known

  // Whether a choice depends on those before it: penalties and bad_sequences. Then every token at
  // first_position or later is to come in an input under this policy.
  bool remembers() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f ||
           !bad_sequences.empty();
  }
};
inline constexpr int32_t kMaxLikeliest = 64;

// One slice of one session's tokens. All chunks of a prompt share `tokens`, so chunking copies
// nothing. The slice is tokens[offset, offset + size) at positions [start(), end()).
struct BatchInput {
  static constexpr Position kNoScores = std::numeric_limits<Position>::max();

  SessionId session{};
  std::shared_ptr<const std::vector<TokenId>> tokens;  // owners: the generation and its inputs
  int32_t offset = 0;
  int32_t size = 0;
  Position position = 0;  // absolute position of tokens[0], not of the slice
  bool produce_output = false;
  // Given tokens of `tokens` at positions >= score_from are scored: a token at position p by the
  // row at p - 1, in the input whose slice holds p - 1. So an input scores the positions
  // [max(score_from, start() + 1), min(end(), position + tokens->size() - 1)], and never position
  // 0.
  Position score_from = kNoScores;

  Position start() const { return position + offset; }
  Position end() const { return position + offset + size; }
};

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0.0f;  // natural logarithm, over the unfiltered distribution at temperature 1
};

// A sampled or a given token with what the model thought of it.
struct TokenScore {
  TokenId id = 0;
  float logprob = 0.0f;         // as above; NaN where it was not asked for
  int32_t rank = 0;             // 1: the likeliest (ties by lower id); 0 where it was not asked for
  int32_t likeliest_begin = 0;  // into BatchOutput::likeliest, in order of rank
  int32_t likeliest_count = 0;
};

// What became of one input.
struct InputOutput {
  Status
      status;  // not ok: this input failed alone; its session stands where it stood before the step
  int32_t sampled_begin = 0;  // into BatchOutput::tokens
  int32_t sampled_count = 0;  // >= 1 exactly when produce_output and ok
  int32_t scored_begin = 0;   // into BatchOutput::tokens, in order of position
  int32_t scored_count = 0;
  Position first_scored = 0;  // the position of the first scored token
};

// The results of a step, one entry per input in input order. Reused from step to step without
// allocating.
struct BatchOutput {
  std::vector<InputOutput> inputs;
  std::vector<TokenScore> tokens;
  std::vector<TokenLogprob> likeliest;

  void clear() {
    inputs.clear();
    tokens.clear();
    likeliest.clear();
  }
  std::span<const TokenScore> sampled(const InputOutput& input) const {
    return std::span(tokens).subspan(static_cast<size_t>(input.sampled_begin),
                                     static_cast<size_t>(input.sampled_count));
  }
  std::span<const TokenScore> scored(const InputOutput& input) const {
    return std::span(tokens).subspan(static_cast<size_t>(input.scored_begin),
                                     static_cast<size_t>(input.scored_count));
  }
  std::span<const TokenLogprob> likeliest_of(const TokenScore& score) const {
    return std::span(likeliest).subspan(static_cast<size_t>(score.likeliest_begin),
                                        static_cast<size_t>(score.likeliest_count));
  }
};

// A grammar or a set of allowed tokens, consulted for each token of one generation.
// Thread: engine. It outlives the generation that carries it.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets bit id (word id / 32, bit id % 32) for each token allowed next. `mask` is zeroed by the
  // caller and covers the vocabulary. Errors end the generation.
  virtual Status fill_mask(std::span<uint32_t> mask) = 0;
  // Called with each token chosen, in order.
  virtual Status accept(TokenId token) = 0;
};

}  // namespace chorus
