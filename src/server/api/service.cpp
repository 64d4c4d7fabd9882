#include "server/api/service.h"

#include <algorithm>
#include <ctime>
#include <span>
#include <utility>

#include "base/sha256.h"
#include "server/api/core.h"
#include "server/api/cors.h"
#include "server/api/errors.h"
#include "server/api/host_names.h"
#include "server/api/routes.h"
#include "server/api/sse.h"
#include "server/http/entity_tag.h"

namespace chorus::api {

struct Service::State {
  Core core;
};

namespace {

// Results depend on all of this and on nothing else.
std::string fingerprint_of(Engine& engine) {
  const KvFormat& format = engine.runner().effective().executor.kv_format;
  std::string text(version());
  text.append(format.identity.begin(), format.identity.end());
  for (const std::string& part :
       {format.kv_type, format.activations, format.isa, std::to_string(format.numerics_version)}) {
    text += '\n' + part;
  }
  return "fp_" + to_hex(sha256(std::as_bytes(std::span(text)))).substr(0, 16);
}

Status check(const ServiceOptions& options) {
  if (options.models.empty()) return invalid_argument("models", "expected a name, found none");
  if (options.num_threads < 1) return invalid_argument("num_threads", "expected at least 1");
  if (options.max_queued < 0) return invalid_argument("max_queued", "expected at least 0");
  if (options.max_running < 0) return invalid_argument("max_running", "expected at least 0");
  for (const ApiKey& key : options.keys) {
    if (key.key.empty()) return invalid_argument("keys", "expected a key, found an empty one");
    if (key.name.empty()) return invalid_argument("keys", "expected a name, found an empty one");
  }
  return {};
}

// Fills what is derived. `max_sessions`: of the engine.
Status derive(int32_t max_sessions, ServiceOptions& options) {
  CHORUS_RETURN_IF_ERROR(check(options));
  if (options.max_held_sessions < 0) options.max_held_sessions = max_sessions / 4;
  const int32_t rest = max_sessions - options.max_held_sessions;
  if (rest < 1) {
    return invalid_argument("max_held_sessions",
                            "expected fewer than the engine's " + std::to_string(max_sessions) +
                                " sessions, found " + std::to_string(options.max_held_sessions));
  }
  // Those that work in held sessions need none of their own.
  if (options.max_running == 0) options.max_running = max_sessions;
  if (options.max_sessions_per_request == 0) {
    options.max_sessions_per_request = std::max(1, rest / 4);
  }
  return {};
}

// A page of another site may send some types without asking first, and bodies of none: those are
// none of ours.
bool is_json(const http::Request& request) {
  const std::string type = http::lower_case(request.header("content-type"));
  if (type.empty()) return request.header("origin").empty();
  const std::string_view essence = std::string_view(type).substr(0, type.find(';'));
  const std::string_view name = essence.substr(0, essence.find_last_not_of(" \t") + 1);
  return name == "application/json" ||
         (name.starts_with("application/") && name.ends_with("+json"));
}

// Reads the body and runs the route, on the pool.
void run_with_body(Core& core, const Route& route, Call& call) {
  if (call.exchange->client_left()) {
    return respond_error(*call.exchange, Status(Code::kCancelled, "", "the client has left"));
  }
  if (core.is_stopping.load()) return call.exchange->respond(error_response(draining()));
  const std::string& body = call.exchange->request().body;
  auto value = body.empty() ? Result<json::Value>(json::Value(json::Object()))
                            : json::parse_with_paths(body);
  if (value.ok() && !value->is_object()) {
    value =
        invalid_argument("", "expected a JSON object, found " + std::string(value->type_name()));
  }
  if (!value.ok()) return respond_error(*call.exchange, value.status());
  call.body = std::move(value).value();
  route.run(core, call);
}

// Wakes the delivery thread when the client leaves or has read what there was; the place of one
// that has left is free at once.
void watch(Core& core, const Call& call) {
  call.exchange->on_change([signal = core.signal, ticket = std::weak_ptr(call.ticket),
                            exchange = std::weak_ptr(call.exchange)] {
    const auto left = exchange.lock();
    const auto place = ticket.lock();
    if (left != nullptr && place != nullptr && left->client_left()) place->give_back();
    signal->notify();
  });
}

void run_on_pool(Core& core, const Route& route, Call call) {
  if (core.is_draining.load()) return call.exchange->respond(error_response(draining()));
  const auto& request = call.exchange->request();
  if (!request.body.empty() && !is_json(request)) {
    return call.exchange->respond(error_response(not_json(request.header("content-type"))));
  }
  const std::string_view encoding = request.header("content-encoding");
  if (!encoding.empty() && http::lower_case(encoding) != "identity") {
    return call.exchange->respond(error_response(not_plain(encoding)));
  }
  if (route.generates) {
    auto ticket = core.admission.admit(call.owner);
    if (!ticket.ok()) return respond_error(*call.exchange, ticket.status());
    call.ticket = std::move(ticket).value();
    watch(core, call);
  }
  const auto exchange = call.exchange;
  auto shared = std::make_shared<Call>(std::move(call));
  const bool is_posted =
      core.pool->post({[&core, &route, shared] { run_with_body(core, route, *shared); },
                       [exchange] { return exchange->client_left(); }});
  if (!is_posted) exchange->respond(error_response(too_much_work()));
}

bool respond_page(const Core& core, http::Exchange& exchange) {
  const http::Request& request = exchange.request();
  const auto found = std::find_if(core.options.pages.begin(), core.options.pages.end(),
                                  [&](const Page& page) { return page.path == request.path; });
  if (found == core.options.pages.end()) return false;
  const std::string_view etag = http::find_header(found->headers, "etag");
  if (request.method != "GET" && request.method != "HEAD") {
    http::Response response = error_response(method_not_allowed(request.method));
    response.headers.push_back({"allow", "GET, HEAD"});
    exchange.respond(std::move(response));
  } else if (!etag.empty() && http::names_entity_tag(request.header("if-none-match"), etag)) {
    exchange.respond({304, found->headers, ""});
  } else {
    exchange.respond({200, found->headers, found->body});
  }
  return true;
}

bool needs_key(const Core& core, const Route& route) {
  return route.access == Access::kKey ||
         (route.access == Access::kMetrics && core.options.metrics_need_key);
}

// A page that another site has led here does not know a key, and has that site's origin.
bool is_led_here(const Core& core, const http::Request& request) {
  const ServiceOptions& options = core.options;
  return options.keys.empty() &&
         !is_allowed_origin(options.cors_origins, request.header("origin")) &&
         comes_by_foreign_name(request, options.allowed_hosts);
}

}  // namespace

Result<std::string> model_name(const Core& core, const std::string& asked) {
  const std::vector<std::string>& names = core.options.models;
  if (asked.empty()) return names[0];
  if (std::find(names.begin(), names.end(), asked) != names.end()) return asked;
  return not_found("model", "there is no model " + asked);
}

std::string salt_of(const Core& core, const std::string& owner, const std::string& cache_salt) {
  if (core.options.share_prefixes || owner.empty()) return cache_salt;
  return owner + '\0' + cache_salt;
}

void respond_error(http::Exchange& exchange, const Status& status) {
  exchange.respond(error_response(error_of(status)));
}

Service::Service(std::unique_ptr<State> state) : state_(std::move(state)) {}

Service::~Service() { stop(); }

Result<std::unique_ptr<Service>> Service::create(Engine& engine, ServiceOptions options,
                                                 const Clock& clock) {
  const int32_t max_sessions = engine.settings().max_sessions;
  CHORUS_RETURN_IF_ERROR(derive(max_sessions, options));
  const int64_t max_requests = int64_t{options.max_running} + options.max_queued;
  const auto num_sessions = static_cast<size_t>(max_sessions - options.max_held_sessions);
  std::unique_ptr<State> state(new State{
      {engine,
       clock,
       options,
       facts_of(engine),
       Keys(options.keys),
       fingerprint_of(engine),
       std::time(nullptr),
       std::make_shared<UpdateSignal>(),
       Admission(static_cast<int32_t>(std::min<int64_t>(max_requests, INT32_MAX)),
                 options.max_requests_per_key),
       HeldSessions(static_cast<size_t>(options.max_held_sessions), options.session_idle_ns, clock),
       {},
       {},
       nullptr,
       nullptr}});
  Core& core = state->core;
  const LiveContext context{
      engine.runner(),          clock,
      core.model.text,          options.max_unsent_bytes,
      options.ping_interval_ns, static_cast<size_t>(options.max_sessions_per_request)};
  CHORUS_ASSIGN_OR_RETURN(
      core.delivery,
      Delivery::start(context, {static_cast<size_t>(options.max_running), num_sessions},
                      core.signal, [&core] { core.sessions.close_idle(); }));
  // Requests that do not generate wait here alone; so many need no more memory than those that do.
  constexpr size_t kSpare = 64;
  CHORUS_ASSIGN_OR_RETURN(
      core.pool, WorkPool::start(options.num_threads, static_cast<size_t>(max_requests) + kSpare));
  return std::unique_ptr<Service>(new Service(std::move(state)));
}

bool Service::wants_body(const http::Request& head) const {
  const Core& core = state_->core;
  if (is_led_here(core, head)) return false;
  const RouteMatch match = find_route(head.method, head.path);
  if (match.route == nullptr) return false;
  return core.keys.name_of(head.header("authorization")) || !needs_key(core, *match.route);
}

void Service::handle(std::shared_ptr<http::Exchange> exchange) {
  Core& core = state_->core;
  const http::Request& request = exchange->request();
  exchange =
      with_headers(exchange, cors_headers(core.options.cors_origins, request.header("origin")));
  if (is_led_here(core, request)) {
    return exchange->respond(error_response(foreign_name(request.header("host"))));
  }
  RouteMatch match = find_route(request.method, request.path);
  if (match.methods.empty() && respond_page(core, *exchange)) return;
  if (match.methods.empty()) {
    return exchange->respond(error_response(route_not_found(request.path)));
  }
  if (request.method == "OPTIONS") {
    return exchange->respond(options_response(request, match.methods));
  }
  if (match.route == nullptr) {
    http::Response response = error_response(method_not_allowed(request.method));
    response.headers.push_back({"allow", match.methods});
    return exchange->respond(std::move(response));
  }
  const std::string_view authorization = request.header("authorization");
  auto owner = core.keys.name_of(authorization);
  if (!owner && needs_key(core, *match.route)) {
    return exchange->respond(error_response(bad_key(!authorization.empty())));
  }
  Call call{exchange, owner.value_or(""), std::move(match.name), nullptr, core.clock.now_ns(), {}};
  if (!call.owner.empty()) exchange->add_log_field({"key", call.owner});
  if (match.route->method == "GET") return match.route->run(core, call);
  run_on_pool(core, *match.route, std::move(call));
}

void Service::drain() { state_->core.is_draining.store(true); }

bool Service::wait_idle(int64_t timeout_ns) {
  return state_->core.admission.wait_empty(timeout_ns);
}

void Service::stop() {
  Core& core = state_->core;
  core.is_draining.store(true);
  core.is_stopping.store(true);
  core.pool->stop();
  core.delivery->stop();
  core.sessions.close_all();
}

ServiceCounts Service::counts() const {
  const Core& core = state_->core;
  const Admission::Counts counts = core.admission.counts();
  return {counts.queued, counts.running, static_cast<int64_t>(core.sessions.size()),
          counts.refused};
}

LatencyHistogram Service::num_choices() const { return state_->core.delivery->num_choices(); }

}  // namespace chorus::api
