// chorus serve: the HTTP API over one model, until it is told to end.
#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "arguments.h"
#include "engine/generation.h"
#include "models.h"
#include "serve_flags.h"
#include "server/api/service.h"
#include "server/metrics/access_log.h"
#include "server/metrics/server_metrics.h"
#include "server/web/page.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

// Answers 503 until there is a service.
class LoadingHandler final : public http::Handler {
 public:
  // Requires: `service` outlives the server.
  void set_service(http::Handler& service) { service_.store(&service, std::memory_order_release); }
  bool wants_body(const http::Request& head) const override {
    const http::Handler* service = service_.load(std::memory_order_acquire);
    return service == nullptr || service->wants_body(head);
  }
  void handle(std::shared_ptr<http::Exchange> exchange) override {
    http::Handler* service = service_.load(std::memory_order_acquire);
    if (service != nullptr) return service->handle(std::move(exchange));
    exchange->respond({503,
                       {{"content-type", "application/json"}, {"retry-after", "1"}},
                       R"({"error":{"message":"the model is being loaded",)"
                       R"("type":"unavailable_error","param":null,"code":null}})"});
  }

 private:
  std::atomic<http::Handler*> service_{nullptr};
};

class ServeVerb final : public Verb {
 public:
  ServeVerb() : Verb("serve", "an HTTP server that OpenAI's clients understand") {}
  void declare(CommandLine& line) override;
  bool has_json() const override { return false; }
  Status parse() override;
  int run(Console& console, Interrupt& interrupt) override;

 private:
  Status listen();
  int load(Console& console);
  std::string metrics_text() const;
  void serve_until_told(Console& console, Interrupt& interrupt);

  std::string model_;
  ServeFlags flags_;
  EngineFlags engine_flags_;

  const SteadyClock clock_;
  ServeSettings settings_;
  EngineOptions engine_options_;
  // In order of use: what is used comes before its users, and outlives them.
  std::unique_ptr<metrics::AccessLog> access_log_;
  std::unique_ptr<metrics::ServerMetrics> metrics_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<api::Service> service_;
  LoadingHandler handler_;
  std::unique_ptr<http::Server> server_;
};

void ServeVerb::declare(CommandLine& line) {
  line.argument("MODEL", model_, kModelKinds);
  flags_.declare(line);
  engine_flags_.declare(line);
}

Status ServeVerb::parse() {
  CHORUS_ASSIGN_OR_RETURN(engine_options_, engine_flags_.parse(common_));
  CHORUS_ASSIGN_OR_RETURN(settings_, flags_.parse(model_, std::getenv("CHORUS_API_KEY")));
  widen_steps(settings_.service, engine_options_);
  return Status();
}

// Listens before the model is there: whoever looks meanwhile is told to come back.
Status ServeVerb::listen() {
  metrics_ = std::make_unique<metrics::ServerMetrics>(metrics::MetricsOptions{
      .model_name = settings_.service.models[0], .vllm_names = settings_.vllm_metric_names});
  if (!settings_.access_log.empty()) {
    auto log = metrics::AccessLog::open(settings_.access_log);
    if (!log.ok()) return at_flag("--access-log", log.status());
    access_log_ = std::move(log).value();
  }
  settings_.server.on_end = [this](const http::AccessRecord& record) {
    metrics_->count(record);
    if (access_log_ != nullptr) access_log_->add(record);
  };
  auto server = http::Server::create(settings_.server, handler_);
  if (!server.ok()) {
    const std::string& field = server.status().field();
    return Status(server.status().code(), field == "unix_socket" ? "--unix-socket" : "--" + field,
                  server.status().message());
  }
  server_ = std::move(server).value();
  return Status();
}

std::string ServeVerb::metrics_text() const {
  const Runner& runner = engine_->runner();
  const metrics::EngineSnapshot snapshot{.metrics = runner.metrics(),
                                         .latencies = runner.latencies(),
                                         .block_size = engine_->settings().block_size,
                                         .queued_requests = service_->counts().queued,
                                         .num_choices = service_->num_choices()};
  return metrics_->text(&snapshot, server_->counters());
}

// Returns an exit code.
int ServeVerb::load(Console& console) {
  auto program = open_program(model_, engine_options_.context, console);
  if (!program.ok()) return program.exit_code;
  auto engine = open_engine(std::move(program.value), engine_options_, clock_, console);
  if (!engine.ok()) return engine.exit_code;
  engine_ = std::move(engine.value);
  settings_.service.metrics_text = [this] { return metrics_text(); };
  settings_.service.pages.push_back({"/", web::page_headers(), std::string(web::page())});
  auto service = api::Service::create(*engine_, settings_.service, clock_);
  if (!service.ok()) {
    const Status& status = service.status();
    const bool is_flag = status.field() == "max_held_sessions";
    return console.error(is_flag ? at_flag("--max-held-sessions", status) : status, kUsage);
  }
  service_ = std::move(service).value();
  handler_.set_service(*service_);
  return kDone;
}

// No number of sessions makes the context of one shorter.
std::string room_text(const EngineSettings& settings) {
  const int64_t blocks = *std::max_element(settings.kv_blocks.begin(), settings.kv_blocks.end());
  return "each of " + std::to_string(settings.max_sessions) + " sessions may have " +
         std::to_string(settings.context) + " tokens; all of them share KV for " +
         std::to_string(blocks * settings.block_size);
}

// New requests are refused from the first signal on; those that run have the drain's time to end.
void ServeVerb::serve_until_told(Console& console, Interrupt& interrupt) {
  constexpr int64_t kFarewellNs = 1'000'000'000;  // for what is cut to be told so
  UpdateSignal told;
  interrupt.on_request([&] { told.notify(); });
  for (const std::string& address : server_->addresses())
    console.note("serving " + settings_.service.models[0] + " at " + address);
  console.note(room_text(engine_->settings()));
  told.wait(0);
  service_->drain();
  server_->drain();
  console.note("draining; once more to end at once");
  const bool is_idle = server_->wait_until_idle(settings_.drain_timeout_ns);
  if (!is_idle) console.note("cutting what is left after the drain's time");
  service_->stop();
  (void)server_->wait_until_idle(kFarewellNs);
  server_->stop();
  interrupt.on_request({});
}

int ServeVerb::run(Console& console, Interrupt& interrupt) {
  std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads is no reason to end
  if (const Status status = listen(); !status.ok()) return console.error(status, kFailed);
  interrupt.on_request([] {});  // seen when the model is there; there is nothing to drain before
  const int code = load(console);
  if (code == kDone) serve_until_told(console, interrupt);
  server_->stop();
  return code;
}

}  // namespace

std::unique_ptr<Verb> make_serve() { return std::make_unique<ServeVerb>(); }

}  // namespace chorus::cli
