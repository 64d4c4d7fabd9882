// Sessions over HTTP, an extension of our own.
#include <algorithm>

#include "server/api/accept.h"
#include "server/api/core.h"
#include "server/api/errors.h"
#include "server/api/fields.h"
#include "server/api/session_files.h"
#include "server/api/sse.h"

namespace chorus::api {

namespace {

void respond_facts(Core& core, const Call& call, const std::string& id) {
  const auto facts = core.sessions.facts(id, call.owner);
  if (!facts.ok()) return respond_error(*call.exchange, facts.status());
  call.exchange->respond(json_response(*facts));
}

// Answers with the session of that id, or with the error.
void respond(Core& core, const Call& call, const Result<std::string>& id) {
  if (!id.ok()) return respond_error(*call.exchange, id.status());
  respond_facts(core, call, *id);
}

SessionOptions session_options(const Core& core, const Call& call, const std::string& salt) {
  SessionOptions options;
  options.salt = salt_of(core, call.owner, salt);
  return options;
}

// What the request gives, as the first turn of an empty session.
Result<Turn> first_turn(const Core& core, const OpenRequest& request) {
  Turn turn;
  if (request.chat) {
    ChatInput chat = *request.chat;
    chat.add_generation_prompt = false;  // that comes with the answer
    CHORUS_ASSIGN_OR_RETURN(PromptTokens prompt, tokens_of(core.model, chat, false));
    turn.ends = message_ends(core.model, chat, prompt);
    turn.tokens = std::move(prompt.tokens);
    turn.messages = std::move(chat.messages);
    turn.is_chat = true;
  } else if (request.prompt) {
    CHORUS_ASSIGN_OR_RETURN(
        PromptTokens prompt,
        tokens_of(core.model, *request.prompt, request.add_special_tokens, false, "prompt"));
    turn.tokens = std::move(prompt.tokens);
  }
  if (static_cast<int64_t>(turn.tokens.size()) > core.model.longest) {
    return invalid_argument(request.chat ? "messages" : "prompt",
                            "expected at most " + std::to_string(core.model.longest) +
                                " tokens in a context, found " +
                                std::to_string(turn.tokens.size()));
  }
  return turn;
}

// The number of tokens that a fork or rewind names; those that are held where it names none.
Result<Position> read_position(const Call& call, const char* name, const HeldSession& held) {
  const auto most = static_cast<int64_t>(held.tokens.size());
  std::optional<int32_t> position;
  Fields fields(call.body);
  fields.read(name, 0, most, position);
  CHORUS_RETURN_IF_ERROR(fields.status());
  return position.value_or(static_cast<int32_t>(most));
}

struct SessionFile {
  std::string name;  // as its client knows it
  std::string path;
};

Result<SessionFile> read_file(const Core& core, const Call& call, bool* recompute) {
  SessionFile file;
  Fields fields(call.body);
  fields.read("name", file.name);
  if (recompute != nullptr) fields.read("recompute", *recompute);
  CHORUS_RETURN_IF_ERROR(fields.status());
  CHORUS_ASSIGN_OR_RETURN(file.path,
                          session_path(core.options.session_directory, call.owner, file.name));
  return file;
}

// Where files lie is no client's business, and what the machine refuses no fault of theirs.
Status file_error(const Status& status, const SessionFile& file, const std::string& action) {
  const bool is_full = status.code() == Code::kResourceExhausted;
  return Status(is_full ? status.code() : Code::kInternal, "name",
                "session " + file.name + " cannot be " + action + ": " + status.message());
}

// What a file holds that is no session, or none of this model, is the fault of who names it.
Status load_error(const Status& status, const SessionFile& file) {
  if (status.code() == Code::kNotFound)
    return not_found("name", "there is no session " + file.name);
  if (status.field() == file.path) return file_error(status, file, "read");
  const bool is_damaged = status.code() == Code::kDataLoss;
  if (!is_damaged && status.code() != Code::kInvalidArgument) return status;
  return invalid_argument("name", "expected a session of this model, found " + file.name +
                                      (is_damaged ? ", a damaged file: " : ": ") +
                                      status.to_string());
}

}  // namespace

void get_sessions(Core& core, const Call& call) {
  json::Value value;
  value.set("object", "list");
  value.set("data", core.sessions.list(call.owner));
  call.exchange->respond(json_response(value));
}

void get_session(Core& core, const Call& call) { respond_facts(core, call, call.name); }

namespace {

// A session that is filled now, or nothing where it is filled later or stays empty: its id is then
// in `id`.
Result<std::optional<AcceptedRequest>> open(Core& core, const Call& call, std::string& id) {
  CHORUS_ASSIGN_OR_RETURN(const OpenRequest request, read_open_request(call.body));
  CHORUS_RETURN_IF_ERROR(model_name(core, request.model).status());
  CHORUS_ASSIGN_OR_RETURN(Turn turn, first_turn(core, request));
  CHORUS_ASSIGN_OR_RETURN(std::shared_ptr<TakenSession> taken, core.sessions.add(call.owner));
  HeldSession& held = taken->held();
  held.cache_salt = request.cache_salt;
  CHORUS_ASSIGN_OR_RETURN(
      held.session, core.engine.runner().open(session_options(core, call, request.cache_salt)));
  if (!turn.tokens.empty() && !request.lazy) {
    return std::optional(accept_append(core, call, std::move(taken), std::move(turn)));
  }
  held.pending = std::move(turn.tokens);
  for (size_t i = 0; i < turn.messages.size(); ++i) {
    held.messages.push_back({std::move(turn.messages[i]), turn.ends[i]});
  }
  id = taken->id();
  return std::optional<AcceptedRequest>();
}

Result<AcceptedRequest> generate(Core& core, const Call& call) {
  CHORUS_ASSIGN_OR_RETURN(const GenerateRequest request, read_session_request(call.body));
  CHORUS_ASSIGN_OR_RETURN(auto taken, core.sessions.take(call.name, call.owner));
  CHORUS_ASSIGN_OR_RETURN(Turn turn, plan_turn(core.model, taken->held(), request));
  return accept_turn(core, call, request, std::move(taken), std::move(turn));
}

// The id of the copy.
Result<std::string> fork(Core& core, const Call& call) {
  CHORUS_ASSIGN_OR_RETURN(const auto source, core.sessions.take(call.name, call.owner));
  const HeldSession& held = source->held();
  CHORUS_ASSIGN_OR_RETURN(const Position at, read_position(call, "at", held));
  CHORUS_ASSIGN_OR_RETURN(const auto taken, core.sessions.add(call.owner));
  HeldSession& copy = taken->held();
  CHORUS_ASSIGN_OR_RETURN(copy.session, held.session.clone(at));
  copy.tokens = held.tokens;
  copy.pending = held.pending;
  copy.messages = held.messages;
  copy.cache_salt = held.cache_salt;
  if (at < static_cast<Position>(held.tokens.size())) cut_held(copy, at);
  return taken->id();
}

Status rewind(const Call& call, HeldSession& held) {
  if (Fields(call.body).find("to") == nullptr) {
    return invalid_argument("to", "expected the number of tokens that stay");
  }
  CHORUS_ASSIGN_OR_RETURN(const Position to, read_position(call, "to", held));
  CHORUS_RETURN_IF_ERROR(held.session.rewind(to));
  cut_held(held, to);
  return {};
}

Status save(const Core& core, const Call& call, const HeldSession& held) {
  CHORUS_ASSIGN_OR_RETURN(const SessionFile file, read_file(core, call, nullptr));
  if (!held.pending.empty()) {
    return invalid_argument("name", "expected a session without pending tokens: generate first");
  }
  const Status status = save_held(held, file.path);
  return status.field() == file.path ? file_error(status, file, "written") : status;
}

Result<std::string> load(Core& core, const Call& call) {
  bool recompute = false;
  CHORUS_ASSIGN_OR_RETURN(const SessionFile file, read_file(core, call, &recompute));
  CHORUS_ASSIGN_OR_RETURN(const auto taken, core.sessions.add(call.owner));
  const Status status = load_held(
      core.engine.runner(), file.path, recompute,
      [&](const std::string& cache_salt) { return salt_of(core, call.owner, cache_salt); },
      taken->held());
  if (!status.ok()) return load_error(status, file);
  return taken->id();
}

// Runs `change` in the session. It is given back before its client is answered, who may use it at
// once.
template <typename Change>
Status change_session(Core& core, const Call& call, Change change) {
  CHORUS_ASSIGN_OR_RETURN(const auto taken, core.sessions.take(call.name, call.owner));
  return change(*taken);
}

void respond_changed(Core& core, const Call& call, const Status& status) {
  respond(core, call, status.ok() ? Result<std::string>(call.name) : status);
}

}  // namespace

void post_session(Core& core, const Call& call) {
  std::string id;
  auto opened = open(core, call, id);
  if (!opened.ok()) return respond_error(*call.exchange, opened.status());
  if (!opened->has_value()) return respond_facts(core, call, id);
  core.delivery->submit(std::move(**opened));
}

void post_generate(Core& core, const Call& call) {
  auto accepted = generate(core, call);
  if (!accepted.ok()) return respond_error(*call.exchange, accepted.status());
  core.delivery->submit(std::move(accepted).value());
}

void post_fork(Core& core, const Call& call) { respond(core, call, fork(core, call)); }

void post_rewind(Core& core, const Call& call) {
  respond_changed(core, call, change_session(core, call, [&](TakenSession& taken) {
                    return rewind(call, taken.held());
                  }));
}

void post_save(Core& core, const Call& call) {
  respond_changed(core, call, change_session(core, call, [&](TakenSession& taken) {
                    return save(core, call, taken.held());
                  }));
}

void post_load(Core& core, const Call& call) { respond(core, call, load(core, call)); }

void delete_session(Core& core, const Call& call) {
  const Status status = change_session(core, call, [](TakenSession& taken) {
    taken.held().session.close();
    taken.remove();
    return Status();
  });
  if (!status.ok()) return respond_error(*call.exchange, status);
  json::Value value;
  value.set("id", call.name);
  value.set("object", "session");
  value.set("deleted", true);
  call.exchange->respond(json_response(value));
}

}  // namespace chorus::api
