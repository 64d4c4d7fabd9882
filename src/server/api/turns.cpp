#include "server/api/turns.h"

#include <algorithm>

#include "server/api/messages.h"

namespace chorus::api {

namespace {

// Of text that is rendered to find out where messages end, which grows with their square.
constexpr size_t kMostRendered = size_t{16} << 20;

Result<std::vector<TokenId>> encode(const ModelFacts& model, std::string_view text) {
  return model.text->tokenizer().encode(text, {.parse_special = true, .add_special = false});
}

// `all` is what the session holds and is to hold; of it the first `known` tokens stay, and `rest`
// follows. One token is left to run, for its logits.
void set_tokens(const HeldSession& held, const std::vector<TokenId>& all, size_t known,
                const std::vector<TokenId>& rest, Turn& turn) {
  turn.known = static_cast<Position>(known);
  size_t kept = std::min(known, held.tokens.size());
  if (rest.empty() && kept == known && kept > 0) --kept;
  turn.kept = static_cast<Position>(kept);
  turn.tokens.assign(all.begin() + static_cast<int64_t>(kept),
                     all.begin() + static_cast<int64_t>(known));
  turn.tokens.insert(turn.tokens.end(), rest.begin(), rest.end());
}

Status plan_chat(const ModelFacts& model, const HeldSession& held, ChatInput chat,
                 const std::vector<TokenId>& all, Turn& turn) {
  turn.is_chat = true;
  turn.messages = chat.messages;
  json::Array messages;
  for (const HeldMessage& each : held.messages) messages.push_back(each.message);
  messages.insert(messages.end(), chat.messages.begin(), chat.messages.end());
  chat.messages = std::move(messages);
  CHORUS_ASSIGN_OR_RETURN(const std::string text, render(model, chat));
  const TokenMatch match = match_prefix(model.text->tokenizer(), all, text);
  CHORUS_ASSIGN_OR_RETURN(std::vector<TokenId> rest,
                          encode(model, std::string_view(text).substr(match.num_bytes)));
  size_t known = match.num_tokens;
  if (known < all.size()) {
    // The pieces of some vocabularies are not their text; then equal tokens tell.
    CHORUS_ASSIGN_OR_RETURN(std::vector<TokenId> whole, encode(model, text));
    const auto differ = std::mismatch(all.begin(), all.end(), whole.begin(), whole.end());
    const auto common = static_cast<size_t>(differ.first - all.begin());
    if (common > known) {
      known = common;
      rest.assign(whole.begin() + static_cast<int64_t>(common), whole.end());
    }
  }
  set_tokens(held, all, known, rest, turn);
  return turn.tokens.empty() ? invalid_argument("messages", "expected a chat that says something")
                             : Status();
}

bool waits_for_answer(const HeldSession& held) {
  return !held.messages.empty() && role_of(held.messages.back().message) != "assistant";
}

}  // namespace

TokenMatch match_prefix(const text::Tokenizer& tokenizer, const std::vector<TokenId>& tokens,
                        std::string_view text) {
  TokenMatch match;
  for (const TokenId token : tokens) {
    const auto piece = tokenizer.piece(token);
    if (!piece.ok() || !text.substr(match.num_bytes).starts_with(*piece)) break;
    match.num_bytes += piece->size();
    ++match.num_tokens;
  }
  return match;
}

std::vector<Position> message_ends(const ModelFacts& model, const ChatInput& chat,
                                   const PromptTokens& prompt) {
  const size_t count = chat.messages.size();
  std::vector<Position> ends(count, static_cast<Position>(prompt.tokens.size()));
  if (count < 2 || prompt.text.size() > kMostRendered / count) return ends;
  ChatInput begin = chat;
  begin.add_generation_prompt = begin.continue_final_message = false;
  for (size_t i = count - 1; i > 0; --i) {
    ends[i - 1] = ends[i];
    begin.messages.pop_back();
    const auto text = render(model, begin);
    if (!text.ok() || !std::string_view(prompt.text).starts_with(*text)) continue;
    const TokenMatch match = match_prefix(model.text->tokenizer(), prompt.tokens, *text);
    if (match.num_bytes < text->size()) continue;
    ends[i - 1] = std::min(ends[i], static_cast<Position>(match.num_tokens));
  }
  return ends;
}

Result<Turn> plan_turn(const ModelFacts& model, const HeldSession& held,
                       const GenerateRequest& request) {
  Turn turn;
  std::vector<TokenId> all = held.tokens;
  all.insert(all.end(), held.pending.begin(), held.pending.end());
  if (request.chat || (request.prompts.empty() && waits_for_answer(held))) {
    if (model.text == nullptr) return model.text_status;
    CHORUS_RETURN_IF_ERROR(plan_chat(model, held, request.chat.value_or(ChatInput()), all, turn));
    return turn;
  }
  if (!request.prompts.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const PromptTokens prompt,
                            tokens_of(model, request.prompts[0],
                                      request.add_special_tokens && all.empty(), false, "prompt"));
    set_tokens(held, all, all.size(), prompt.tokens, turn);
    return turn;
  }
  if (all.empty()) return invalid_argument("prompt", "expected one: the session is empty");
  turn.is_chat = !held.messages.empty();
  set_tokens(held, all, all.size(), {}, turn);
  return turn;
}

void finish_turn(HeldSession& held, const Turn& turn, const std::vector<TokenId>& generated,
                 const std::string& answer) {
  const auto kept = static_cast<size_t>(turn.kept);
  const size_t prompt_end = kept + turn.tokens.size();
  held.pending.clear();
  held.tokens.resize(kept);
  held.tokens.insert(held.tokens.end(), turn.tokens.begin(), turn.tokens.end());
  held.tokens.insert(held.tokens.end(), generated.begin(), generated.end());
  // What was refused, or ended within its prompt, has left less.
  const auto position = static_cast<size_t>(held.session.valid() ? held.session.position() : 0);
  held.tokens.resize(std::min(held.tokens.size(), position));
  const auto end = static_cast<Position>(held.tokens.size());
  if (held.tokens.size() < prompt_end) {
    for (HeldMessage& each : held.messages) each.end = std::min(each.end, end);
    return;
  }
  for (HeldMessage& each : held.messages) {  // what was consumed anew
    if (each.end > std::max(turn.kept, turn.known)) each.end = static_cast<Position>(prompt_end);
  }
  for (size_t i = 0; i < turn.messages.size(); ++i) {
    const Position own = turn.ends.empty() ? static_cast<Position>(prompt_end) : turn.ends[i];
    held.messages.push_back({turn.messages[i], own});
  }
  if (!turn.is_chat || answer.empty()) return;
  const bool goes_on = turn.messages.empty() && !held.messages.empty() && !waits_for_answer(held);
  json::Value message;
  message.set("role", "assistant");
  message.set("content",
              goes_on ? std::string(content_of(held.messages.back().message)) + answer : answer);
  if (goes_on) held.messages.pop_back();
  held.messages.push_back({std::move(message), end});
}

void cut_held(HeldSession& held, Position length) {
  held.pending.clear();
  held.tokens.resize(std::min(held.tokens.size(), static_cast<size_t>(length)));
  std::erase_if(held.messages, [&](const HeldMessage& each) { return each.end > length; });
}

}  // namespace chorus::api
