// What the command line shows of one continuation of a prompt.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "chorus/best_of.h"
#include "chorus/engine.h"
#include "chorus/generation.h"
#include "chorus/model.h"
#include "chorus/prompt_choices.h"
#include "prompts.h"
#include "saving.h"

namespace chorus::cli {

// What the output carries besides text, and how many continuations each prompt has.
struct JobOptions {
  std::optional<int32_t> logprobs;  // number of likeliest tokens, if logprobs are wanted at all
  bool echo = false;
  int32_t num_choices = 1;
  int32_t num_best = 0;        // not 0: only so many are wanted, those of the greatest mean logprob
  bool keeps_session = false;  // of a prompt's last choice, for who takes it
};

// What all jobs of a run share; it outlives them.
struct JobContext {
  Runner& runner;
  const Clock& clock;
  std::shared_ptr<const TextModel> text;  // null: no tokenizer; text is null in results
  std::vector<TokenId> end_tokens;
  std::shared_ptr<UpdateSignal> signal;  // notified of every update. Owners: with the generations
  JobOptions options;
  const LoadedSession* base = nullptr;  // what every prompt continues; null: nothing
};

// A prompt as its choices see it. Thread: main.
struct JobPrompt {
  int index = 0;
  Prompt prompt;
  std::string text;  // as tokenised
  // What the session consumes behind its first `base` tokens, which are a loaded one's.
  std::vector<TokenId> tokens;
  Position base = 0;
  int32_t num_truncated = 0;  // tokens that truncate_prompt_tokens has taken off its front
  bool goes_on = false;       // nothing was given: `tokens` is the last token of the loaded session
  std::unique_ptr<PromptChoices> run;  // once it has begun
  PromptChoices::Choice without_run;   // each choice until then; ended, if it could not begin

  size_t num_given() const { return goes_on ? 0 : tokens.size(); }
};

// What is shown of choice `choice` of a prompt. Thread: main.
class GenerationJob {
 public:
  // `context` and `prompt` outlive it.
  GenerationJob(const JobContext& context, const JobPrompt& prompt, size_t choice)
      : context_(context), prompt_(prompt), choice_(choice) {}

  // Notes when its tokens come. To be called when the prompt's run has been polled.
  void follow();

  const PromptChoices::Choice& state() const;
  bool started() const { return state().generation || finished(); }
  bool finished() const { return state().finish.has_value(); }

  int index() const { return prompt_.index; }
  int choice() const { return static_cast<int>(choice_); }
  // Valid text so far; it only grows. A stop text and what follows it are left out.
  std::string_view text() const { return state().text(); }
  // The prompt as text, which --echo puts in front; else empty.
  std::string echo() const;
  json::Array ids() const;
  size_t generated_tokens() const { return scores().size(); }
  // As best_of counts it. Requires: num_best is not 0.
  double mean_logprob() const { return chorus::mean_logprob(scores()); }
  // Since the first token, 0 with fewer than two.
  double tokens_per_s() const;
  // Tokens of the prompt that the session holds.
  size_t consumed_tokens() const;
  FinishReason finish() const { return *state().finish; }
  Status error() const;

  // The "result" line of the contract. Requires: finished().
  json::Value result() const;

 private:
  std::span<const TokenScore> scores() const { return state().tokens(); }
  json::Value metrics_json() const;
  void add_logprobs(json::Value& value) const;

  const JobContext& context_;
  const JobPrompt& prompt_;
  const size_t choice_;
  size_t num_followed_ = 0;     // tokens
  int64_t first_token_ns_ = 0;  // when they were taken
  int64_t last_token_ns_ = 0;
};

}  // namespace chorus::cli
