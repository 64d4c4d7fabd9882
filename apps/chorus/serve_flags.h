// The flags of chorus serve, and the options they come to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "chorus/engine_options.h"
#include "command_line.h"
#include "server/api/options.h"
#include "server/http/server.h"

namespace chorus::cli {

struct ServeSettings {
  http::ServerOptions server;
  api::ServiceOptions service;
  std::string access_log;  // a path, or "-"; empty: none
  int64_t drain_timeout_ns = int64_t{30} * 1'000'000'000;
  bool vllm_metric_names = false;
};

class ServeFlags {
 public:
  void declare(CommandLine& line);
  // Reads key files, too. `environment_key` is the value of CHORUS_API_KEY or null; it counts where
  // no flag gives a key.
  Result<ServeSettings> parse(const std::string& model, const char* environment_key) const;

 private:
  Status parse_server(http::ServerOptions& options) const;
  Status parse_limits(api::ServiceOptions& options) const;

  std::string host_, port_, unix_socket_, max_body_, max_bodies_, max_connections_, access_log_;
  std::string queue_, max_running_, max_per_key_, max_held_, session_idle_, session_dir_;
  std::string drain_timeout_, stuck_after_, ping_interval_, api_key_file_;
  std::vector<std::string> model_names_, api_keys_, cors_origins_, allowed_hosts_;
  bool no_tcp_ = false;
  bool open_metrics_ = false;
  bool share_prefixes_ = false;
  bool vllm_metric_names_ = false;
};

// The keys of a file: a line each, "KEY" or "NAME KEY"; empty lines and those that begin with #
// are passed over. A key without a name is called by the number of its line. kInvalidArgument
// (field --api-key-file), which does not show keys.
Result<std::vector<api::ApiKey>> parse_key_file(const std::string& text);

// Lets all of --max-running decode in every step where the engine's flags say nothing of steps: the
// pauses in an answer are then those of a step, not of as many as it takes until its turn comes.
void widen_steps(const api::ServiceOptions& service, EngineOptions& engine);

// What the model is called unless told: the name of its file or folder, without ending.
std::string default_model_name(const std::string& path);

}  // namespace chorus::cli
