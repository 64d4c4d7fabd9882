#include "server/api/turns.h"

#include <algorithm>
#include <optional>

#include "server/api/messages.h"

namespace chorus::api {

namespace {

// Of text that is rendered to find out where messages end, which grows with their square.
constexpr size_t kMostRendered = size_t{2} << 20;

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

// Messages in front that end within the first `known` tokens.
size_t num_unchanged(const HeldSession& held, Position known) {
  const auto first = std::find_if(held.messages.begin(), held.messages.end(),
                                  [&](const HeldMessage& each) { return each.end > known; });
  return static_cast<size_t>(first - held.messages.begin());
}

Status plan_chat(const ModelFacts& model, const HeldSession& held, ChatInput chat,
                 const std::vector<TokenId>& all, Turn& turn) {
  turn.is_chat = true;
  turn.goes_on = chat.continue_final_message;
  turn.messages = chat.messages;
  json::Array messages;
  for (const HeldMessage& each : held.messages) messages.push_back(each.message);
  messages.insert(messages.end(), chat.messages.begin(), chat.messages.end());
  chat.messages = std::move(messages);
  CHORUS_ASSIGN_OR_RETURN(const std::string text, render(model, chat));
  CHORUS_RETURN_IF_ERROR(check_fits(model, text, "messages"));
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
  if (turn.tokens.empty()) {
    return invalid_argument("messages", "expected a chat that says something");
  }
  PromptTokens prompt{text, {all.begin(), all.begin() + turn.kept}};
  prompt.tokens.insert(prompt.tokens.end(), turn.tokens.begin(), turn.tokens.end());
  turn.ends = message_ends(model, chat, prompt, num_unchanged(held, turn.known));
  return {};
}

// Where the text of a chat ends that `prompt` begins with. Nothing where it does not, or no token
// ends there.
std::optional<Position> end_within(const ModelFacts& model, const ChatInput& begin,
                                   const PromptTokens& prompt) {
  const auto text = render(model, begin);
  if (!text.ok() || !std::string_view(prompt.text).starts_with(*text)) return std::nullopt;
  const TokenMatch match = match_prefix(model.text->tokenizer(), prompt.tokens, *text);
  if (match.num_bytes < text->size()) return std::nullopt;
  return static_cast<Position>(match.num_tokens);
}

json::Value with_more(const json::Value& message, const std::string& content) {
  json::Value longer;
  for (const auto& [name, member] : message.as_object()) {
    longer.set(
        name, name == "content" ? json::Value(std::string(content_of(message)) + content) : member);
  }
  return longer;
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
                                   const PromptTokens& prompt, size_t first) {
  const size_t count = chat.messages.size() - first;
  auto end = static_cast<Position>(prompt.tokens.size());
  std::vector<Position> ends(count, end);
  if (count == 0 || prompt.text.size() > kMostRendered / count) return ends;
  ChatInput begin = chat;
  begin.add_generation_prompt = begin.continue_final_message = false;
  for (size_t i = count - 1; i > 0; --i) {
    begin.messages.pop_back();
    end = std::min(end, end_within(model, begin, prompt).value_or(end));
    ends[i - 1] = end;
  }
  return ends;
}

Result<Turn> plan_turn(const ModelFacts& model, const HeldSession& held,
                       const GenerateRequest& request) {
  Turn turn;
  std::vector<TokenId> all = held.tokens;
  all.insert(all.end(), held.pending.begin(), held.pending.end());
  const bool has_messages = request.chat && !request.chat->messages.empty();
  if (has_messages || (request.prompts.empty() && waits_for_answer(held))) {
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
  for (const json::Value& each : turn.messages) held.messages.push_back({each, 0});
  const size_t first = held.messages.size() - turn.ends.size();
  for (size_t i = 0; i < turn.ends.size(); ++i) held.messages[first + i].end = turn.ends[i];
  if (!turn.is_chat || answer.empty()) return;
  const bool is_last_answered = !held.messages.empty() && !waits_for_answer(held);
  if (turn.goes_on || (turn.messages.empty() && is_last_answered)) {
    HeldMessage& last = held.messages.back();
    last = {with_more(last.message, answer), end};
    return;
  }
  json::Value message;
  message.set("role", "assistant");
  message.set("content", answer);
  held.messages.push_back({std::move(message), end});
}

void cut_held(HeldSession& held, Position length) {
  held.pending.clear();
  held.tokens.resize(std::min(held.tokens.size(), static_cast<size_t>(length)));
  std::erase_if(held.messages, [&](const HeldMessage& each) { return each.end > length; });
}

}  // namespace chorus::api
