#include "saved_chat.h"

#include <algorithm>
#include <limits>

#include "json/value.h"

namespace chorus::cli {

namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

// A member of the object that `field` names. Its errors are for that field.
Result<const json::Value*> member(const json::Value& object, const std::string& field,
                                  const char* name) {
  const json::Value* value = object.find(name);
  if (value == nullptr) return data_loss(field + "." + name, "expected this member, found none");
  return value;
}

Status read(const json::Value& object, const std::string& field, const char* name,
            std::string& text) {
  CHORUS_ASSIGN_OR_RETURN(const json::Value* value, member(object, field, name));
  CHORUS_ASSIGN_OR_RETURN(text, value->to_text(field + "." + name));
  return Status();
}

template <typename Number>
Status read(const json::Value& object, const std::string& field, const char* name, Number& number) {
  CHORUS_ASSIGN_OR_RETURN(const json::Value* value, member(object, field, name));
  CHORUS_ASSIGN_OR_RETURN(
      const int64_t found,
      value->to_integer(field + "." + name, 0, std::numeric_limits<Number>::max()));
  number = static_cast<Number>(found);
  return Status();
}

// A prompt begins with most of the one before it, of which it names the bytes.
size_t shared_bytes(const std::string& a, const std::string& b) {
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  size_t bytes = static_cast<size_t>(differ.first - a.begin());
  // Not within a character.
  while (bytes > 0 && bytes < b.size() && (static_cast<unsigned char>(b[bytes]) & 0xc0) == 0x80) {
    --bytes;
  }
  return bytes;
}

json::Value turn_json(const Turn& turn, const std::string& prompt_before) {
  const size_t shared = shared_bytes(prompt_before, turn.prompt);
  json::Value value;
  value.set("message", turn.message);
  value.set("choice", turn.choice);
  value.set("answer", turn.answer);
  value.set("prompt_shared", static_cast<int64_t>(shared));
  value.set("prompt_rest", turn.prompt.substr(shared));
  value.set("tokens", json::Array(turn.tokens.begin(), turn.tokens.end()));
  value.set("tail_bytes", static_cast<int64_t>(turn.tail.size()));
  value.set("reused", turn.counts.reused);
  value.set("computed", turn.counts.computed);
  value.set("generated", turn.counts.generated);
  value.set("tokens_per_s", turn.counts.tokens_per_s);
  return value;
}

Result<Turn> read_turn(const json::Value& value, const std::string& field,
                       const std::string& prompt_before) {
  Turn turn;
  std::string rest;
  int64_t shared = 0;
  int64_t tail = 0;
  CHORUS_RETURN_IF_ERROR(read(value, field, "message", turn.message));
  CHORUS_RETURN_IF_ERROR(read(value, field, "choice", turn.choice));
  CHORUS_RETURN_IF_ERROR(read(value, field, "answer", turn.answer));
  CHORUS_RETURN_IF_ERROR(read(value, field, "prompt_shared", shared));
  CHORUS_RETURN_IF_ERROR(read(value, field, "prompt_rest", rest));
  if (shared > static_cast<int64_t>(prompt_before.size())) {
    return data_loss(field + ".prompt_shared", "expected at most " +
                                                   std::to_string(prompt_before.size()) +
                                                   ", found " + std::to_string(shared));
  }
  turn.prompt = prompt_before.substr(0, static_cast<size_t>(shared)) + rest;
  CHORUS_RETURN_IF_ERROR(read(value, field, "tail_bytes", tail));
  if (tail > static_cast<int64_t>(turn.answer.size())) {
    return data_loss(field + ".tail_bytes", "expected at most " +
                                                std::to_string(turn.answer.size()) + ", found " +
                                                std::to_string(tail));
  }
  turn.tail = turn.answer.substr(turn.answer.size() - static_cast<size_t>(tail));
  CHORUS_ASSIGN_OR_RETURN(const json::Value* tokens, member(value, field, "tokens"));
  if (!tokens->is_array()) return data_loss(field + ".tokens", "expected an array");
  for (const json::Value& token : tokens->as_array()) {
    CHORUS_ASSIGN_OR_RETURN(const int64_t id, token.to_integer(field + ".tokens", 0, kMaxInt));
    turn.tokens.push_back(static_cast<TokenId>(id));
  }
  CHORUS_RETURN_IF_ERROR(read(value, field, "reused", turn.counts.reused));
  CHORUS_RETURN_IF_ERROR(read(value, field, "computed", turn.counts.computed));
  CHORUS_RETURN_IF_ERROR(read(value, field, "generated", turn.counts.generated));
  CHORUS_ASSIGN_OR_RETURN(const json::Value* speed, member(value, field, "tokens_per_s"));
  CHORUS_ASSIGN_OR_RETURN(turn.counts.tokens_per_s, speed->to_number(field + ".tokens_per_s"));
  return turn;
}

Result<SavedChat> read_chat(std::string_view notes) {
  CHORUS_ASSIGN_OR_RETURN(const json::Value value, json::parse(notes, "notes"));
  SavedChat chat;
  CHORUS_ASSIGN_OR_RETURN(const json::Value* system, member(value, "notes", "system"));
  if (!system->is_null()) {
    CHORUS_ASSIGN_OR_RETURN(chat.system, system->to_text("notes.system"));
  }
  CHORUS_ASSIGN_OR_RETURN(const json::Value* turns, member(value, "notes", "turns"));
  if (!turns->is_array()) return data_loss("notes.turns", "expected an array");
  std::string prompt;
  for (size_t i = 0; i < turns->as_array().size(); ++i) {
    const std::string field = "notes.turns[" + std::to_string(i) + "]";
    CHORUS_ASSIGN_OR_RETURN(Turn turn, read_turn(turns->as_array()[i], field, prompt));
    prompt = turn.prompt;
    chat.turns.push_back(std::move(turn));
  }
  return chat;
}

}  // namespace

std::string chat_notes(const std::optional<std::string>& system, const std::vector<Turn>& turns) {
  json::Array list;
  std::string prompt;
  for (const Turn& turn : turns) {
    list.push_back(turn_json(turn, prompt));
    prompt = turn.prompt;
  }
  json::Value value;
  value.set("system", system ? json::Value(*system) : json::Value());
  value.set("turns", std::move(list));
  return value.dump();
}

std::string notes_of_messages(const std::vector<text::ChatMessage>& messages, Turn last) {
  std::optional<std::string> system;
  std::vector<Turn> turns;
  size_t next = 0;
  if (!messages.empty() && messages[0].role == "system") system = messages[next++].content;
  for (; next + 1 < messages.size(); next += 2) {
    if (messages[next].role != "user" || messages[next + 1].role != "assistant") return "";
    Turn& turn = turns.emplace_back();
    turn.message = messages[next].content;
    turn.answer = messages[next + 1].content;
  }
  if (next >= messages.size() || messages[next].role != "user") return "";
  last.message = messages[next].content;
  turns.push_back(std::move(last));
  return chat_notes(system, turns);
}

Result<SavedChat> read_chat_notes(std::string_view notes) {
  auto chat = read_chat(notes);
  if (chat.ok() || chat.status().code() == Code::kDataLoss) return chat;
  return data_loss(chat.status().field(), chat.status().message());
}

}  // namespace chorus::cli
