// What the routes share.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/clock.h"
#include "chorus/engine.h"
#include "server/api/admission.h"
#include "server/api/delivery.h"
#include "server/api/held_sessions.h"
#include "server/api/keys.h"
#include "server/api/options.h"
#include "server/api/prompts.h"
#include "server/api/work_pool.h"

namespace chorus::api {

// Members in the order in which they come to be; threads last.
struct Core {
  Engine& engine;
  const Clock& clock;
  const ServiceOptions options;
  const ModelFacts model;
  const Keys keys;
  const std::string fingerprint;
  const int64_t created;                       // seconds since 1970
  const std::shared_ptr<UpdateSignal> signal;  // owners: this, the generations, the exchanges
  Admission admission;
  HeldSessions sessions;
  std::atomic<bool> is_draining{false};  // nothing new is begun
  std::atomic<bool> is_stopping{false};  // nor anything that was accepted
  std::unique_ptr<Delivery> delivery;
  std::unique_ptr<WorkPool> pool;
};

// One request on its way to a route.
struct Call {
  std::shared_ptr<http::Exchange> exchange;
  std::string owner;               // the name of its key
  std::string name;                // what its path has in place of {id}
  std::shared_ptr<Ticket> ticket;  // where the route generates
  int64_t arrived_ns = 0;
  json::Value body;  // an object; of POST
};

// The name that answers show for the model that was asked for. kNotFound (model).
Result<std::string> model_name(const Core& core, const std::string& asked);
// Prefixes are shared between sessions of one salt.
std::string salt_of(const Core& core, const std::string& owner, const std::string& cache_salt);
void respond_error(http::Exchange& exchange, const Status& status);

// Routes. Those of GET are called on the I/O thread and do not wait, others on the pool.
void get_health(Core& core, const Call& call);
void get_metrics(Core& core, const Call& call);
void get_version(Core& core, const Call& call);
void get_models(Core& core, const Call& call);
void get_model(Core& core, const Call& call);
void get_props(Core& core, const Call& call);
void get_tokenizer_info(Core& core, const Call& call);
void get_slots(Core& core, const Call& call);
void get_sessions(Core& core, const Call& call);
void get_session(Core& core, const Call& call);

void post_chat(Core& core, const Call& call);
void post_completion(Core& core, const Call& call);
void post_response(Core& core, const Call& call);  // refuses
void post_tokenize(Core& core, const Call& call);
void post_detokenize(Core& core, const Call& call);
void post_template(Core& core, const Call& call);

void post_session(Core& core, const Call& call);
void post_load(Core& core, const Call& call);
void post_generate(Core& core, const Call& call);
void post_fork(Core& core, const Call& call);
void post_rewind(Core& core, const Call& call);
void post_save(Core& core, const Call& call);
void delete_session(Core& core, const Call& call);

}  // namespace chorus::api
