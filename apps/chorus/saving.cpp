#include "saving.h"

#include <span>

#include "arguments.h"
#include "chorus/session_file.h"

namespace chorus::cli {

GenerationFields settings_of(const SamplingParams& sampling) {
  GenerationFields settings;
  settings.sampling = sampling;
  settings.seed = sampling.seed;
  return settings;
}

Result<SavedSession> read_saved(const std::string& name, const std::string& path) {
  auto saved = read_session(path);
  if (saved.ok()) return saved;
  const Status& status = saved.status();
  return status.field() == path ? at_flag(name, status) : status.within(name);
}

Result<Session> load_saved(const std::string& name, const SavedSession& saved, bool recompute,
                           Runner& runner) {
  auto session = runner.load(saved, recompute);
  if (session.ok()) return session;
  const Status& status = session.status();
  const bool is_of_the_content =
      status.code() == Code::kInvalidArgument || status.code() == Code::kDataLoss;
  if (!is_of_the_content) return status;
  const bool is_foreign = status.code() == Code::kInvalidArgument && status.field() != "tokens";
  const Status shown(status.code(), status.field(),
                     status.message() + (is_foreign ? " (--recompute)" : ""));
  return shown.within(name);
}

Status write_saved(const std::string& name, const SavedSession& saved, const std::string& path,
                   Interrupt& interrupt) {
  return at_flag(name, write_output(path, encode_session(saved), interrupt));
}

}  // namespace chorus::cli
