// One prompt on its way through the engine: its tokens, its session, and the text so far.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chorus/engine.h"
#include "chorus/model.h"
#include "prompts.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace chorus::cli {

// What a job's output carries besides text.
struct JobOptions {
  std::optional<int32_t> logprobs;  // number of likeliest tokens, if logprobs are wanted at all
  bool echo = false;
};

// Thread: main.
class GenerationJob {
 public:
  GenerationJob(int index, Prompt prompt, const JobOptions& options, const TextModel* text)
      : index_(index), prompt_(std::move(prompt)), options_(options), text_(text) {}

  int index() const { return index_; }
  const Prompt& prompt() const { return prompt_; }

  // Turns the prompt into tokens, opens a session and starts the generation. What goes wrong ends
  // the job alone with an error.
  void start(Runner& runner, const std::vector<TokenId>& end_tokens,
             std::shared_ptr<UpdateSignal> signal);

  // Takes what the engine delivered. True when something changed.
  bool poll();

  void cancel();
  bool started() const { return started_; }
  bool finished() const { return finish_.has_value(); }

  // Valid text so far; it only grows. A stop text and what follows it are left out.
  const std::string& text() const { return output_; }
  // The prompt as text, which --echo puts in front; else empty.
  std::string echo() const;
  // The tokens so far.
  json::Array ids() const;
  size_t generated_tokens() const { return tokens_.size(); }
  size_t prompt_tokens() const { return prompt_tokens_.size(); }
  FinishReason finish() const { return *finish_; }
  const Status& error() const { return error_; }

  // The "result" line of the contract. Requires: finished().
  json::Value result() const;

 private:
  Status prepare();
  Status begin(Runner& runner, const std::vector<TokenId>& end_tokens,
               std::shared_ptr<UpdateSignal> signal);
  void take(const Update& update);
  void take_text(TokenId token);
  void end(FinishReason reason, Status error);
  void add_logprobs(json::Value& value) const;

  const int index_;
  const Prompt prompt_;
  const JobOptions options_;
  const TextModel* const text_;  // null: no tokenizer; text is null in results
  bool started_ = false;

  std::string prompt_text_;  // as tokenised
  std::vector<TokenId> prompt_tokens_;
  Session session_;
  GenerationHandle handle_;
  std::unique_ptr<text::Detokenizer> detokenizer_;
  std::unique_ptr<text::StopMatcher> stops_;
  bool stopped_by_text_ = false;
  Update update_;

  std::vector<TokenScore> tokens_;  // likeliest_begin counts into likeliest_
  std::vector<TokenLogprob> likeliest_;
  std::string output_;
  PromptScores prompt_scores_;
  std::optional<FinishReason> finish_;
  Status error_;
  GenerationMetrics metrics_;
};

}  // namespace chorus::cli
