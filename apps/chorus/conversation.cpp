#include "conversation.h"

#include <algorithm>

#include "saved_chat.h"

namespace chorus::cli {

Result<Conversation> Conversation::restore(std::string name, const SavedSession& saved,
                                           Session session) {
  if (saved.notes.empty()) {
    return invalid_argument("notes",
                            "expected a session that /save wrote, found one without messages "
                            "(chorus run --load-session continues it)");
  }
  CHORUS_ASSIGN_OR_RETURN(SavedChat chat, read_chat_notes(saved.notes));
  Conversation conversation(std::move(name), std::move(chat.system), std::move(session));
  conversation.turns_ = std::move(chat.turns);
  conversation.held_ = saved.tokens;
  return conversation;
}

Result<SavedSession> Conversation::save() {
  const TurnCounts& last = turns_.back().counts;
  const int64_t said = int64_t{last.reused} + last.computed + last.generated;
  if (static_cast<int64_t>(held_.size()) > said) {
    CHORUS_RETURN_IF_ERROR(session_.rewind(static_cast<Position>(said)));
    held_.resize(static_cast<size_t>(said));
  }
  CHORUS_ASSIGN_OR_RETURN(SavedSession saved, session_.save());
  saved.notes = chat_notes(system_, turns_);
  return saved;
}

Result<Conversation> Conversation::fork(std::string name) const {
  CHORUS_ASSIGN_OR_RETURN(Session session, session_.clone(static_cast<Position>(held_.size())));
  Conversation other(std::move(name), system_, std::move(session));
  other.turns_ = turns_;
  other.held_ = held_;
  return other;
}

Status Conversation::encode(const TextModel& text, std::string_view part,
                            std::vector<TokenId>& tokens) const {
  if (part.empty()) return Status();
  // The template writes what the model expects, special tokens included.
  CHORUS_ASSIGN_OR_RETURN(
      const std::vector<TokenId> ids,
      text.tokenizer().encode(part, {.parse_special = true, .add_special = false}));
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  return Status();
}

Result<ChatPrompt> Conversation::prompt_for(const TextModel& text,
                                            const std::string& message) const {
  std::vector<text::ChatMessage> messages;
  if (system_) messages.push_back({"system", *system_});
  for (const Turn& turn : turns_) {
    messages.push_back({"user", turn.message});
    messages.push_back({"assistant", turn.answer});
  }
  messages.push_back({"user", message});
  ChatPrompt prompt;
  CHORUS_ASSIGN_OR_RETURN(prompt.text, text.render_chat(messages));
  const std::string_view rendered = prompt.text;
  size_t done = 0;  // bytes that the tokens cover
  for (const Turn& turn : turns_) {
    const size_t begin = turn.prompt.size();
    if (begin < done || !rendered.starts_with(turn.prompt)) continue;
    if (!rendered.substr(begin).starts_with(turn.answer)) continue;
    CHORUS_RETURN_IF_ERROR(encode(text, rendered.substr(done, begin - done), prompt.tokens));
    prompt.tokens.insert(prompt.tokens.end(), turn.tokens.begin(), turn.tokens.end());
    done = begin + turn.answer.size() - turn.tail.size();
  }
  CHORUS_RETURN_IF_ERROR(encode(text, rendered.substr(done), prompt.tokens));
  return prompt;
}

Result<Session> Conversation::take_session(const std::vector<TokenId>& prompt) {
  const auto differ = std::mismatch(held_.begin(), held_.end(), prompt.begin(), prompt.end());
  const auto common = static_cast<size_t>(differ.first - held_.begin());
  // One token is left to run, for its logits.
  const size_t kept = std::min(common, prompt.empty() ? 0 : prompt.size() - 1);
  // A stop text that was found late is still being cut off: then the session shows more than is
  // held.
  if (session_.position() > static_cast<Position>(kept)) {
    CHORUS_RETURN_IF_ERROR(session_.rewind(static_cast<Position>(kept)));
  }
  held_.resize(kept);
  return std::move(session_);
}

void Conversation::give_back(Session session, const std::vector<TokenId>& prompt,
                             const std::vector<TokenId>& generated) {
  session_ = std::move(session);
  held_ = prompt;
  held_.insert(held_.end(), generated.begin(), generated.end());
  // A generation that was refused, or ended within its prompt, has left less.
  held_.resize(std::min(held_.size(), static_cast<size_t>(session_.position())));
}

void take_answer(const PromptChoices::Choice& choice, const TextModel& text,
                 const std::vector<TokenId>& end_tokens, Turn& turn) {
  turn.answer = choice.text();
  turn.tokens = choice.token_ids();
  turn.tail.clear();
  if (choice.finish != FinishReason::kStop) return;
  const bool has_end_token =
      !turn.tokens.empty() &&
      std::find(end_tokens.begin(), end_tokens.end(), turn.tokens.back()) != end_tokens.end();
  if (has_end_token) {
    turn.tokens.pop_back();
    return;
  }
  // A stop text: it is in the tokens and not in the answer. Those stay that lie within the answer.
  size_t covered = 0;
  size_t num_kept = 0;
  for (const TokenId token : turn.tokens) {
    const auto piece = text.tokenizer().piece(token);
    if (!piece.ok() || !std::string_view(turn.answer).substr(covered).starts_with(*piece)) break;
    covered += piece->size();
    ++num_kept;
  }
  turn.tokens.resize(num_kept);
  turn.tail = turn.answer.substr(covered);
}

}  // namespace chorus::cli
