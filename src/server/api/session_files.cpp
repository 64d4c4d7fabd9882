#include "server/api/session_files.h"

#include <algorithm>
#include <span>

#include "base/memory_map.h"
#include "base/sha256.h"
#include "chorus/session_file.h"
#include "server/api/messages.h"

namespace chorus::api {

namespace {

constexpr size_t kMaxName = 100;
constexpr const char* kNotes = "held_session";  // what says that notes are ours

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

std::string notes_of(const HeldSession& held) {
  json::Array messages;
  for (const HeldMessage& each : held.messages) {
    json::Value entry;
    entry.set("message", each.message);
    entry.set("end", each.end);
    messages.push_back(std::move(entry));
  }
  json::Value notes;
  notes.set(kNotes, 1);
  notes.set("messages", std::move(messages));
  if (!held.cache_salt.empty()) notes.set("cache_salt", held.cache_salt);
  return notes.dump();
}

// Notes of others are none of ours: then the session has no messages.
Status read_notes(const std::string& text, HeldSession& held) {
  const auto notes = json::parse(text, "notes");
  if (!notes.ok() || notes->find(kNotes) == nullptr) return {};
  if (const json::Value* salt = notes->find("cache_salt")) {
    if (!salt->is_string()) return data_loss("notes.cache_salt", "expected a text");
    held.cache_salt = salt->as_string();
  }
  const json::Value* entries = notes->find("messages");
  if (entries == nullptr || !entries->is_array()) {
    return data_loss("notes.messages", "expected an array");
  }
  for (const json::Value& entry : entries->as_array()) {
    const json::Value* message = entry.find("message");
    const json::Value* end = entry.find("end");
    if (message == nullptr || end == nullptr)
      return data_loss("notes.messages", "expected two members");
    auto read = read_messages(json::Value(json::Array{*message}), "notes.messages");
    const auto position = end->to_integer("notes.end", 0, static_cast<int64_t>(held.tokens.size()));
    if (!read.ok()) return data_loss(read.status().field(), read.status().message());
    if (!position.ok()) return data_loss("notes.end", position.status().message());
    held.messages.push_back({std::move((*read)[0]), static_cast<Position>(*position)});
  }
  return {};
}

}  // namespace

Result<std::string> session_path(const std::string& directory, const std::string& owner,
                                 const std::string& name) {
  if (directory.empty()) {
    return unimplemented("name", "the server was given no folder for sessions");
  }
  if (name.empty() || name.size() > kMaxName || name[0] == '.' ||
      !std::all_of(name.begin(), name.end(), is_name_character)) {
    return invalid_argument("name",
                            "expected 1 to 100 of a to z, A to Z, 0 to 9, dot, underscore and "
                            "hyphen, and no dot in front");
  }
  std::string file = name + ".session";
  if (!owner.empty()) {
    file = to_hex(sha256(std::as_bytes(std::span(owner)))).substr(0, 16) + "-" + file;
  }
  return directory + "/" + file;
}

Status save_held(const HeldSession& held, const std::string& path) {
  CHORUS_ASSIGN_OR_RETURN(SavedSession saved, held.session.save());
  saved.notes = notes_of(held);
  const std::vector<std::byte> file = encode_session(saved);
  const std::span<const std::byte> bytes(file);
  return write_file_atomically(path, {&bytes, 1});
}

Status load_held(Runner& runner, const std::string& path, bool recompute,
                 const std::function<std::string(const std::string&)>& salt_of, HeldSession& held) {
  CHORUS_ASSIGN_OR_RETURN(SavedSession saved, read_session(path));
  HeldSession loaded;
  loaded.tokens = saved.tokens;
  CHORUS_RETURN_IF_ERROR(read_notes(saved.notes, loaded));
  SessionOptions options;
  options.salt = salt_of(loaded.cache_salt);
  CHORUS_ASSIGN_OR_RETURN(loaded.session, runner.load(saved, recompute, options));
  held = std::move(loaded);
  return {};
}

}  // namespace chorus::api
