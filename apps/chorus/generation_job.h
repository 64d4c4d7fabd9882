// One continuation of a prompt on its way through the engine: its session, its tokens and its text
// so far.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "chorus/best_of.h"
#include "chorus/engine.h"
#include "chorus/generation.h"
#include "chorus/model.h"
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
  std::optional<int64_t> deadline_ns;  // by the context's clock
  PromptScores scores;                 // once the first choice has ended

  size_t num_given() const { return goes_on ? 0 : tokens.size(); }
};

// Choice `choice` of a prompt. Thread: main.
class GenerationJob {
 public:
  // `context` and `prompt` outlive it.
  GenerationJob(const JobContext& context, JobPrompt& prompt, int choice)
      : context_(context), prompt_(prompt), choice_(choice) {}

  // Generates in a session that holds the base and the prompt's tokens up to its position. What
  // goes wrong ends the job alone with an error.
  void start(Session session);
  // Ends it before it has begun.
  void fail(FinishReason reason, Status error);

  // Takes what the engine delivered. True when something changed.
  bool poll();

  void cancel();
  bool started() const { return started_; }
  bool finished() const { return finish_.has_value(); }
  // The session, which may go on while the job is running. The caller may take it when the job has
  // finished.
  Session& session() { return session_; }

  int index() const { return prompt_.index; }
  int choice() const { return choice_; }
  // Valid text so far; it only grows. A stop text and what follows it are left out.
  const std::string& text() const;
  // The prompt as text, which --echo puts in front; else empty.
  std::string echo() const;
  // The tokens so far.
  std::vector<TokenId> tokens() const;
  json::Array ids() const;
  size_t generated_tokens() const { return scores().size(); }
  // As best_of counts it. Requires: num_best is not 0.
  double mean_logprob() const { return chorus::mean_logprob(scores()); }
  // Since the first token, 0 with fewer than two.
  double tokens_per_s() const;
  // Tokens of the prompt that the session holds.
  size_t consumed_tokens() const;
  FinishReason finish() const { return *finish_; }
  const Status& error() const { return error_; }
  // Complete when finished.
  const GenerationMetrics& metrics() const { return metrics_; }

  // The "result" line of the contract. Requires: finished().
  json::Value result() const;

 private:
  GenerationOptions generation_options() const;
  std::span<const TokenScore> scores() const;
  void end(FinishReason reason, Status error);
  json::Value metrics_json() const;
  void add_logprobs(json::Value& value) const;

  const JobContext& context_;
  JobPrompt& prompt_;
  const int choice_;
  bool started_ = false;

  Session session_;
  Position held_ = 0;  // tokens of the prompt that the session held when it was handed over
  std::optional<Generation> generation_;  // none if it never began
  int64_t first_token_ns_ = 0;            // when they were taken
  int64_t last_token_ns_ = 0;
  std::optional<FinishReason> finish_;
  Status error_;
  GenerationMetrics metrics_;
};

}  // namespace chorus::cli
