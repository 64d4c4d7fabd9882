// A prompt with all its continuations, which fork from one prefill.
#pragma once

#include <memory>
#include <vector>

#include "generation_job.h"

namespace chorus::cli {

// The first choice computes the prompt; the others begin in copies of its session that end before
// the prompt's last token, or in a session whose choice has ended. So the prompt is computed once,
// also where one session must do for all choices. If the first choice ends before its first token,
// the others end like it. With a loaded session, the first choice begins in a copy of that.
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
  bool has_begun() const { return num_started_ > 0; }
  // Open sessions.
  size_t num_sessions() const;

  // Takes what the engine delivered. True when something changed.
  bool poll();
  void cancel();
  bool finished() const { return num_finished_ == choices_.size(); }
  // Whether a choice has started and not finished.
  bool is_running() const { return num_finished_ < num_started_; }

  // With keeps_session, the session of the only choice once that has finished; closed if it never
  // had one.
  Session& session() { return kept_; }

 private:
  Status prepare();
  Status read_tokens();
  void truncate();
  Status follow(const LoadedSession& base);
  bool is_computed() const;
  Result<Session> session_for_next();
  void take_finished();

  const JobContext& context_;
  const std::optional<int64_t> submitted_ns_;
  JobPrompt shared_;
  std::vector<std::unique_ptr<GenerationJob>> choices_;
  std::vector<Session> idle_;  // of choices that have ended, while others have not started
  Session kept_;
  size_t num_started_ = 0;   // choices_[0, num_started_)
  size_t num_finished_ = 0;  // of those, whose session was taken back
  std::vector<bool> was_taken_;
};

}  // namespace chorus::cli
