// Several continuations of one prompt, which is computed once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/generation.h"
#include "chorus/model.h"
#include "engine/runner.h"

namespace chorus {

struct ChoicesPlan {
  std::vector<TokenId> tokens;  // of the prompt; without one its choices end with an error
  // Of the first choice. Choice i has sampling.choice + i, and no prompt scores. With
  // max_new_tokens 0 the tokens are consumed and nothing is generated; then there is one choice.
  GenerationOptions options;
  std::vector<std::string> stops;
  TextOptions text;
  int32_t num_choices = 1;
  SessionOptions session;  // where none is given
};

// The first choice computes the prompt; the others begin in copies of its session that end before
// the prompt's last token, or in a session whose choice has ended. So the prompt is computed once,
// also where one session must do for all choices. If the first choice ends before its first token,
// the others end like it. Destroying it ends what runs. Thread: one at a time.
class PromptChoices {
 public:
  struct Choice {
    std::optional<Generation> generation;  // none if it never began
    std::optional<FinishReason> finish;
    Status error;
    GenerationMetrics metrics;  // complete when finished
    Position num_held = 0;      // tokens of the prompt that its session held when it began

    // Its tokens so far.
    std::span<const TokenScore> tokens() const {
      return generation ? generation->tokens() : std::span<const TokenScore>();
    }
    std::vector<TokenId> token_ids() const;
    // Its text so far.
    std::string_view text() const {
      return generation ? std::string_view(generation->text()) : std::string_view();
    }
  };

  // `runner` outlives it. `text` may be null: then there are tokens only.
  PromptChoices(Runner& runner, std::shared_ptr<const TextModel> text, ChoicesPlan plan);
  // The prompt follows what `session` holds, in which the first choice begins.
  PromptChoices(Runner& runner, std::shared_ptr<const TextModel> text, ChoicesPlan plan,
                Session session);

  // Starts those choices that can, with up to `places` sessions more than it holds.
  void start(size_t places);
  bool has_begun() const { return num_started_ > 0; }
  // Open sessions. One that was given is not counted: until all has finished, its place is taken.
  size_t num_sessions() const;

  // Gives its sessions' places and KV to others, as Session::suspend; what runs waits. Until
  // resume() has succeeded, start() may not be called. It needs num_sessions() places again.
  void suspend();
  // The error of the first that got no place; the others have theirs.
  Status resume();

  // Takes what the engine delivered. True when something changed.
  bool poll();
  void cancel();
  bool finished() const { return num_finished_ == choices_.size(); }

  const ChoicesPlan& plan() const { return plan_; }
  // All choices in order; some may not have started.
  const std::vector<Choice>& choices() const { return choices_; }
  // Of the prompt's tokens, once the first choice has a token or has ended.
  const PromptScores& prompt_scores() const { return scores_; }
  // Tokens of the prompt that the choice's session holds; 0 where it has none.
  size_t num_consumed(size_t choice) const;
  // The session of the choice that ended last, in the place of the given one. Requires: finished().
  Session take_session();

 private:
  struct Run {
    Session session;
    bool was_taken = false;  // since it has ended
  };

  std::vector<Session*> open_sessions();
  GenerationOptions options_of(size_t choice) const;
  Result<Session> session_for_next();
  bool is_computed() const;
  bool has_none_open() const;
  void start_choice(size_t index, Session session);
  void end(size_t index, FinishReason reason, Status error);
  bool poll_choice(size_t index);
  void take_scores();
  void take_finished();

  Runner& runner_;
  const std::shared_ptr<const TextModel> text_;  // owners: with the generations
  const ChoicesPlan plan_;
  const bool has_given_;
  Position base_ = 0;  // tokens that the given session held
  std::vector<Choice> choices_;
  std::vector<Run> runs_;      // of choices_
  std::vector<Session> idle_;  // of choices that have ended, while others have not started
  Session given_;              // before the first choice starts, and when all have ended
  PromptScores scores_;
  bool has_scores_ = false;  // they are complete
  size_t num_started_ = 0;   // choices_[0, num_started_)
  size_t num_finished_ = 0;  // of those, whose session was taken back
};

}  // namespace chorus
