// A prompt with all its continuations, which fork from one prefill.
#pragma once

#include <memory>
#include <vector>

#include "generation_job.h"

namespace chorus::cli {

// Runs as PromptChoices, on a session of its own. With a loaded session, that is a copy of it.
// Thread: main.
class PromptJob {
 public:
  // `submitted_ns`: when it was submitted, by the context's clock; unset: when it begins.
  PromptJob(const JobContext& context, int index, Prompt prompt,
            std::optional<int64_t> submitted_ns);

  const Prompt& prompt() const { return shared_.prompt; }
  // As tokenised, once it has begun; empty for a prompt of tokens.
  const std::string& text() const { return shared_.text; }
  size_t num_prompt_tokens() const { return shared_.num_given(); }
  // All choices in order; some may not have started.
  const std::vector<std::unique_ptr<GenerationJob>>& choices() const { return choices_; }

  // Starts those choices that can, with up to `places` sessions more than it holds.
  void start(size_t places);
  bool has_begun() const { return choices_[0]->started(); }
  // Open sessions.
  size_t num_sessions() const;

  // Takes what the engine delivered. True when something changed.
  bool poll();
  void cancel();
  bool finished() const;
  // Whether a choice has started and not finished.
  bool is_running() const;

  // With keeps_session, the session of the only choice once that has finished; closed if it never
  // had one.
  Session& session() { return kept_; }

 private:
  Status begin();
  Status read_tokens();
  void truncate();
  Status follow(const LoadedSession& base);
  Result<Session> open_session();
  GenerationOptions generation_options() const;
  ChoicesPlan plan() const;
  void take_session();

  const JobContext& context_;
  const std::optional<int64_t> submitted_ns_;
  JobPrompt shared_;
  std::vector<std::unique_ptr<GenerationJob>> choices_;
  Session kept_;
};

}  // namespace chorus::cli
