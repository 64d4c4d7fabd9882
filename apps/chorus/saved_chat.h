// What a chat writes beside its tokens into a session file: the messages that they came from, which
// tokens alone do not tell (a template may rewrite what was said, an answer may contain anything).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conversation.h"

namespace chorus::cli {

struct SavedChat {
  std::optional<std::string> system;
  std::vector<Turn> turns;
};

// As one line of JSON.
std::string chat_notes(const std::optional<std::string>& system, const std::vector<Turn>& turns);

// The notes of a session that answered these messages with `last`, whose message is not read.
// Empty when they are no chat: a system message or none, then messages of the user, with an answer
// between two.
std::string notes_of_messages(const std::vector<text::ChatMessage>& messages, Turn last);

// Errors: kDataLoss with a field below "notes".
Result<SavedChat> read_chat_notes(std::string_view notes);

}  // namespace chorus::cli
