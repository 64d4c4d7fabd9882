#include "chat_settings.h"

#include "arguments.h"
#include "json/value.h"

namespace chorus::cli {

namespace {

Status change_ignore_eos(const std::string& value, GenerationSettings& settings) {
  CHORUS_ASSIGN_OR_RETURN(const int choice, parse_choice("ignore_eos", value, {"false", "true"}));
  settings.ignore_eos = choice == 1;
  return Status();
}

}  // namespace

Status change_setting(const std::string& name, const std::string& value,
                      const GenerationSettings& defaults, GenerationSettings& settings) {
  const bool is_default = value.empty();
  if (name == "temperature") {
    if (is_default) {
      settings.temperature = defaults.temperature;
    } else {
      CHORUS_ASSIGN_OR_RETURN(settings.temperature, parse_number(name, value, 0, kMaxTemperature));
    }
  } else if (name == "top_k") {
    settings.top_k = defaults.top_k;
    if (!is_default) {
      CHORUS_ASSIGN_OR_RETURN(settings.top_k, parse_top_k(name, value));
    }
  } else if (name == "top_p") {
    settings.top_p = defaults.top_p;
    if (!is_default) {
      CHORUS_ASSIGN_OR_RETURN(settings.top_p, parse_top_p(name, value));
    }
  } else if (name == "min_p") {
    settings.min_p = defaults.min_p;
    if (!is_default) {
      CHORUS_ASSIGN_OR_RETURN(settings.min_p, parse_number(name, value, 0, 1));
    }
  } else if (name == "max_tokens") {
    settings.max_tokens = defaults.max_tokens;
    if (!is_default) {
      CHORUS_ASSIGN_OR_RETURN(const int64_t count, parse_count(name, value, 1, kMaxTokensLimit));
      settings.max_tokens = static_cast<int32_t>(count);
    }
  } else if (name == "seed") {
    settings.seed = defaults.seed;
    if (!is_default) {
      CHORUS_ASSIGN_OR_RETURN(settings.seed, parse_seed(name, value));
    }
  } else if (name == "stop") {
    settings.stop = is_default ? defaults.stop : std::vector<std::string>{value};
  } else if (name == "ignore_eos") {
    settings.ignore_eos = defaults.ignore_eos;
    if (!is_default) return change_ignore_eos(value, settings);
  } else {
    return invalid_argument(
        name, "unknown setting" +
                  suggestion(name, {"temperature", "top_k", "top_p", "min_p", "max_tokens", "seed",
                                    "stop", "ignore_eos"}) +
                  " (/set without a name lists them)");
  }
  return Status();
}

std::string settings_text(const GenerationSettings& settings) {
  std::string stop;
  for (const std::string& text : settings.stop) stop += " " + json::Value(text).dump();
  return "temperature " + json::Value(settings.temperature).dump() + "\ntop_k       " +
         std::to_string(settings.top_k) + "\ntop_p       " + json::Value(settings.top_p).dump() +
         "\nmin_p       " + json::Value(settings.min_p).dump() + "\nmax_tokens  " +
         (settings.max_tokens ? std::to_string(*settings.max_tokens) : "default") +
         "\nseed        " + (settings.seed ? std::to_string(*settings.seed) : "random") +
         "\nstop       " + (stop.empty() ? " none" : stop) + "\nignore_eos  " +
         (settings.ignore_eos ? "true" : "false") + "\n";
}

}  // namespace chorus::cli
