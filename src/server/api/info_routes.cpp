// What GET tells of the server. Nothing here waits.
#include "server/api/core.h"
#include "server/api/errors.h"
#include "server/api/sse.h"

namespace chorus::api {

namespace {

json::Value model_json(const Core& core, const std::string& name) {
  json::Value value;
  value.set("id", name);
  value.set("object", "model");
  value.set("created", core.created);
  value.set("owned_by", "chorus");
  value.set("root", core.options.models[0]);
  value.set("parent", json::Value());
  value.set("max_model_len", core.model.longest);
  return value;
}

json::Value default_settings(const Core& core) {
  const GenerationFields fields = default_fields();
  json::Value params;
  for (const std::string_view name : generation_field_names()) {
    params.set(std::string(name), generation_field(name, fields));
  }
  json::Value settings;
  settings.set("n_ctx", core.model.longest);
  settings.set("params", std::move(params));
  return settings;
}

std::string token_text(const Core& core, TokenId token) {
  if (core.model.text == nullptr || token < 0) return "";
  const auto piece = core.model.text->tokenizer().piece(token);
  return piece.ok() ? std::string(*piece) : "";
}

}  // namespace

void get_health(Core& core, const Call& call) {
  if (core.is_draining.load()) return call.exchange->respond(error_response(draining()));
  // Generations whose clients do not read may keep an engine waiting for as long as they like.
  if (core.engine.runner().busy_ns().value_or(0) >= core.options.stuck_after_ns) {
    return respond_error(*call.exchange, unavailable("engine", "no step has ended for too long"));
  }
  json::Value value;
  value.set("status", "ok");
  call.exchange->respond(json_response(value));
}

void get_metrics(Core& core, const Call& call) {
  if (!core.options.metrics_text) {
    return call.exchange->respond(error_response(route_not_found("/metrics")));
  }
  call.exchange->respond({200,
                          {{"content-type", "text/plain; version=0.0.4; charset=utf-8"}},
                          core.options.metrics_text()});
}

void get_version(Core&, const Call& call) {
  json::Value value;
  value.set("version", version());
  call.exchange->respond(json_response(value));
}

void get_models(Core& core, const Call& call) {
  json::Array models;
  for (const std::string& name : core.options.models) models.push_back(model_json(core, name));
  json::Value value;
  value.set("object", "list");
  value.set("data", std::move(models));
  call.exchange->respond(json_response(value));
}

void get_model(Core& core, const Call& call) {
  const auto name = model_name(core, call.name);
  if (!name.ok()) return respond_error(*call.exchange, name.status());
  call.exchange->respond(json_response(model_json(core, *name)));
}

void get_props(Core& core, const Call& call) {
  const EngineSettings& settings = core.engine.settings();
  json::Value value;
  value.set("default_generation_settings", default_settings(core));
  value.set("total_slots", static_cast<int64_t>(core.delivery->num_places()));
  value.set("max_queued", core.options.max_queued);
  value.set("model_alias", core.options.models[0]);
  value.set("max_sessions", settings.max_sessions);
  value.set("context", settings.context);  // of each session, however many there are
  value.set("isa", isa_name(settings.isa));
  value.set("activations", name_of(settings.activations));
  value.set("kv_type", name_of(settings.kv_type));
  value.set("kv_bytes", settings.kv_bytes);
  const TextModel* text = core.model.text.get();
  value.set("chat_template", text == nullptr ? std::string() : text->chat_template());
  value.set("bos_token", text == nullptr ? "" : token_text(core, text->tokenizer().bos_id()));
  value.set("eos_token", text == nullptr ? "" : token_text(core, text->tokenizer().eos_id()));
  value.set("build_info", "chorus " + std::string(version()));
  value.set("system_fingerprint", core.fingerprint);
  call.exchange->respond(json_response(value));
}

// In vLLM's shape; lm-eval then tokenises through the server.
void get_tokenizer_info(Core& core, const Call& call) {
  const TextModel* text = core.model.text.get();
  if (text == nullptr) return respond_error(*call.exchange, core.model.text_status);
  const auto text_of = [&](TokenId token) {
    return token < 0 ? json::Value() : json::Value(token_text(core, token));
  };
  json::Value value;
  value.set("tokenizer_class", "chorus");
  value.set("bos_token", text_of(text->tokenizer().bos_id()));
  value.set("eos_token", text_of(text->tokenizer().eos_id()));
  value.set("chat_template", text->chat_template());
  value.set("model_max_length", core.model.longest);
  call.exchange->respond(json_response(value));
}

// llama.cpp's list of slots, of which there are as many as requests that can run at once.
void get_slots(Core& core, const Call& call) {
  const std::vector<json::Value> running = core.delivery->running();
  const size_t num_places = core.delivery->num_places();
  const std::string& query = call.exchange->request().query;
  if (query.find("fail_on_no_slot=1") != query.npos && running.size() >= num_places) {
    return respond_error(*call.exchange, unavailable("", "no slot is free"));
  }
  json::Array slots;
  for (size_t i = 0; i < num_places; ++i) {
    json::Value slot;
    slot.set("id", static_cast<int64_t>(i));
    slot.set("n_ctx", core.model.longest);
    slot.set("speculative", false);
    slot.set("is_processing", i < running.size());
    if (i < running.size()) {
      for (const auto& [name, member] : running[i].as_object()) slot.set(name, member);
    }
    slots.push_back(std::move(slot));
  }
  call.exchange->respond(json_response(json::Value(std::move(slots))));
}

}  // namespace chorus::api
