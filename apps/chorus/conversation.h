// One branch of a chat: its turns, and the session that holds their tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/model.h"
#include "chorus/prompt_choices.h"
#include "engine/session.h"

namespace chorus::cli {

// What a turn cost. reused + computed is its whole prompt, the turns before included.
struct TurnCounts {
  int32_t reused = 0;    // tokens of the prompt whose KV was there
  int32_t computed = 0;  // the others
  int32_t generated = 0;
  double tokens_per_s = 0;
};

// A message and its answer.
struct Turn {
  std::string message;
  uint32_t choice = 0;  // times that it was retried
  std::string answer;   // valid UTF-8, not empty once there is one
  std::string prompt;   // what the template made of everything up to this message
  // The answer as it was generated, without an end token; `tail` is what these lack of its end.
  std::vector<TokenId> tokens;
  std::string tail;
  TurnCounts counts;
};

// The rendered chat, ready for an answer.
struct ChatPrompt {
  std::string text;
  std::vector<TokenId> tokens;
};

// Move-only. Thread: main.
class Conversation {
 public:
  Conversation(std::string name, std::optional<std::string> system, Session session)
      : name_(std::move(name)), system_(std::move(system)), session_(std::move(session)) {}
  // One that was saved. `session` holds the tokens of `saved`. Errors: kInvalidArgument for a
  // session that was not saved by a chat, else those of read_chat_notes.
  static Result<Conversation> restore(std::string name, const SavedSession& saved, Session session);

  const std::string& name() const { return name_; }
  const std::vector<Turn>& turns() const { return turns_; }
  // Tokens that the session holds.
  size_t num_held() const { return held_.size(); }
  void set_system(std::optional<std::string> system) { system_ = std::move(system); }

  // Its session, with the messages as notes. What the session holds of turns that were taken back
  // is dropped. Requires: a turn. Errors are those of Session::save.
  Result<SavedSession> save();

  // The same up to here under another name; the KV is shared. Errors are those of Session::clone.
  Result<Conversation> fork(std::string name) const;

  // Drops the last `count` turns. What the session holds of them stays until the next prompt, of
  // which it may be a part. Requires: so many turns.
  void drop_turns(size_t count) { turns_.resize(turns_.size() - count); }
  void add(Turn turn) { turns_.push_back(std::move(turn)); }

  // The template is rendered anew over all turns and the message. Answers that it left as they were
  // keep the tokens that were generated; all other text is tokenised, so that the prompt depends on
  // the turns and not on how they came about. Errors: of the template and the tokenizer.
  Result<ChatPrompt> prompt_for(const TextModel& text, const std::string& message) const;

  // Cuts the session to what it has in common with the prompt, but for the last token, and hands it
  // over. give_back() follows.
  Result<Session> take_session(const std::vector<TokenId>& prompt);
  // `generated`: what was delivered after the prompt.
  void give_back(Session session, const std::vector<TokenId>& prompt,
                 const std::vector<TokenId>& generated);

 private:
  Status encode(const TextModel& text, std::string_view part, std::vector<TokenId>& tokens) const;

  std::string name_;
  std::optional<std::string> system_;
  std::vector<Turn> turns_;
  Session session_;
  std::vector<TokenId> held_;  // the context of the session
};

// Fills the turn's answer from a choice that has finished.
void take_answer(const PromptChoices::Choice& choice, const TextModel& text,
                 const std::vector<TokenId>& end_tokens, Turn& turn);

}  // namespace chorus::cli
