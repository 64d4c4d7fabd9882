// What a held session is to consume next.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/held_sessions.h"
#include "server/api/prompts.h"
#include "server/api/requests.h"

namespace chorus::api {

// How much of a text a list of tokens says already.
struct TokenMatch {
  size_t num_tokens = 0;  // the longest prefix of the tokens that is one of the text,
  size_t num_bytes = 0;   // and its length there
};
TokenMatch match_prefix(const text::Tokenizer& tokenizer, const std::vector<TokenId>& tokens,
                        std::string_view text);

struct Turn {
  Position kept = 0;            // tokens of the context that stay; the rest is rewound
  std::vector<TokenId> tokens;  // behind them, one at least
  json::Array messages;         // that are new
  std::vector<Position> ends;   // in the context, of these and of held ones before them, if any
  Position known = 0;           // up to here the context's tokens stay as they were, or come again
  bool is_chat = false;         // an answer becomes a message,
  bool goes_on = false;         // or a part of the last one
};

// The ends of the messages of a chat that is rendered as `prompt`, from number `first` on: of what
// the template writes for each and those before it, where that is how the whole text begins and a
// token ends there. Else the next message's. The last one ends with the prompt, so that what opens
// its answer is there for another one. All end together where finding out would take long.
std::vector<Position> message_ends(const ModelFacts& model, const ChatInput& chat,
                                   const PromptTokens& prompt, size_t first = 0);

// Chats: the template is rendered over all messages, and what the session holds of that text stays
// as it is, so that answers keep the tokens that were generated. Only where a template writes
// earlier messages differently than before is the rest consumed anew. Text and tokens go behind
// what is held; without either a chat that waits for an answer gets one, and anything else goes on.
// Errors: those of tokens_of; kInvalidArgument (prompt) for nothing in an empty session.
Result<Turn> plan_turn(const ModelFacts& model, const HeldSession& held,
                       const GenerateRequest& request);

// A turn has ended: the session holds of its prompt and of `generated` what its position says.
// `answer`: the text.
void finish_turn(HeldSession& held, const Turn& turn, const std::vector<TokenId>& generated,
                 const std::string& answer);

// Drops what is behind the first `length` tokens. Requires: the session was rewound.
void cut_held(HeldSession& held, Position length);

}  // namespace chorus::api
