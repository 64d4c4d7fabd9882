// chorus run: continues prompts, all of them in one batch.
#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include "arguments.h"
#include "base/memory_map.h"
#include "generation_job.h"
#include "models.h"
#include "verbs.h"
#include "version.h"

namespace chorus::cli {

namespace {

struct RunFlags {
  std::string model;
  PromptSources sources;
  std::string logprobs;
  std::string report;
  std::string system;
  bool echo = false;
  bool no_batch = false;
  CommonFlags common;
  EngineFlags engine;
  SamplingFlags sampling;
};

// Runs jobs on one engine and shows what becomes of them. Thread: main.
class RunVerb {
 public:
  RunVerb(const RunFlags& flags, Interrupt& interrupt)
      : flags_(flags), interrupt_(interrupt), console_(flags.common) {}

  int run();

 private:
  Status read_flags();
  int open_model();
  bool needs_text() const;
  void make_jobs();
  void run_jobs();
  void start_next(size_t limit);
  void show_progress();
  void stream_text(const GenerationJob& job);
  void print_finished();
  void print_text(const GenerationJob& job);
  json::Value summary() const;
  int finish();

  const RunFlags& flags_;
  Interrupt& interrupt_;
  Console console_;
  const SteadyClock clock_;

  EngineOptions engine_options_;
  JobOptions job_options_;
  std::vector<Prompt> prompts_;
  std::unique_ptr<TextModel> text_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<UpdateSignal> signal_ = std::make_shared<UpdateSignal>();  // with the generations

  std::vector<std::unique_ptr<GenerationJob>> jobs_;
  std::vector<TokenId> end_tokens_;
  size_t num_started_ = 0;
  size_t num_printed_ = 0;   // jobs_[0, num_printed_) are printed
  size_t num_streamed_ = 0;  // bytes of the only job's text that are printed
  bool streams_ = false;
  int64_t started_ns_ = 0;
  double wall_s_ = 0;
  json::Array report_;
};

Status RunVerb::read_flags() {
  CHORUS_ASSIGN_OR_RETURN(engine_options_, flags_.engine.parse(flags_.common));
  PromptSources sources = flags_.sources;
  CHORUS_ASSIGN_OR_RETURN(sources.settings, flags_.sampling.parse());
  if (!flags_.logprobs.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int64_t count,
                            parse_count("--logprobs", flags_.logprobs, 0, kMaxLikeliest));
    job_options_.logprobs = static_cast<int32_t>(count);
  }
  job_options_.echo = flags_.echo;
  if (flags_.model.empty()) {
    return invalid_argument("MODEL", "expected a .chorus program or a .gguf file");
  }
  CHORUS_ASSIGN_OR_RETURN(prompts_, read_prompts(sources));
  if (prompts_.empty()) {
    return invalid_argument("PROMPT", "expected a prompt, --prompts FILE or --tokens FILE");
  }
  return Status();
}

bool RunVerb::needs_text() const {
  return std::any_of(prompts_.begin(), prompts_.end(), [](const Prompt& prompt) {
    return prompt.text.has_value() || !prompt.messages.empty() || !prompt.settings.stop.empty();
  });
}

int RunVerb::open_model() {
  auto program = open_program(flags_.model, 0, console_);
  if (!program.ok()) return program.exit_code;
  end_tokens_ = end_tokens(*program.value);
  auto text = TextModel::create(*program.value);
  if (text.ok()) {
    text_ = std::move(text).value();
  } else if (needs_text()) {
    return console_.error(text.status(), kBadModel);
  } else {
    console_.note("no text: " + text.status().to_string());
  }
  auto engine = open_engine(program.value, engine_options_, clock_, console_);
  engine_ = std::move(engine.value);
  return engine.exit_code;
}

void RunVerb::make_jobs() {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    jobs_.push_back(std::make_unique<GenerationJob>(static_cast<int>(i), std::move(prompts_[i]),
                                                    job_options_, text_.get()));
  }
  streams_ = jobs_.size() == 1 && !console_.json() && text_ != nullptr && isatty(1) == 1;
}

// Keeps up to `limit` jobs in the engine; the engine itself queues what the KV pool cannot hold
// yet.
void RunVerb::start_next(size_t limit) {
  size_t running = 0;
  for (size_t i = num_printed_; i < num_started_; ++i) running += jobs_[i]->finished() ? 0 : 1;
  while (running < limit && num_started_ < jobs_.size() && !interrupt_.requested()) {
    GenerationJob& job = *jobs_[num_started_++];
    job.start(engine_->runner(), end_tokens_, signal_);
    running += job.finished() ? 0 : 1;
  }
}

void RunVerb::show_progress() {
  if (!console_.shows_progress() || streams_) return;
  size_t done = 0;
  size_t tokens = 0;
  for (const auto& job : jobs_) {
    done += job->finished() ? 1 : 0;
    tokens += job->generated_tokens();
  }
  const double seconds = static_cast<double>(clock_.now_ns() - started_ns_) / 1e9;
  char text[128];
  std::snprintf(text, sizeof text, "%zu of %zu done, %zu tokens, %.1f tokens/s", done, jobs_.size(),
                tokens, seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
  console_.progress(text);
}

void RunVerb::stream_text(const GenerationJob& job) {
  const std::string text = job.shown_text();
  if (!job.finished() && job.generated_tokens() == 0) return;
  console_.text(std::string_view(text).substr(num_streamed_));
  num_streamed_ = text.size();
}

void RunVerb::print_text(const GenerationJob& job) {
  if (streams_) {
    stream_text(job);
    console_.text("\n");
  } else if (text_ != nullptr && job.finish() != FinishReason::kError) {
    const std::string head =
        jobs_.size() == 1 ? "" : "--- " + std::to_string(job.index() + 1) + "\n";
    console_.text(head + job.shown_text() + "\n");
  } else if (job.finish() != FinishReason::kError) {
    console_.line(job.result().find("tokens") != nullptr ? *job.result().find("tokens")
                                                         : json::Value());
  }
  if (!job.error().ok()) {
    console_.error(job.error().within("prompt " + std::to_string(job.index() + 1)), kFailed);
  }
}

// Results appear in the order of the prompts, so that two runs can be compared line by line.
void RunVerb::print_finished() {
  for (; num_printed_ < num_started_ && jobs_[num_printed_]->finished(); ++num_printed_) {
    const GenerationJob& job = *jobs_[num_printed_];
    if (console_.json() || !flags_.report.empty()) {
      json::Value result = job.result();
      if (console_.json()) console_.line(result);
      if (!flags_.report.empty()) report_.push_back(std::move(result));
    }
    if (!console_.json()) print_text(job);
  }
}

void RunVerb::run_jobs() {
  const size_t limit = flags_.no_batch ? 1 : static_cast<size_t>(engine_->settings().max_sessions);
  interrupt_.on_request([this] { signal_->notify(); });
  bool cancelled = false;
  while (num_printed_ < jobs_.size()) {
    const uint64_t seen = signal_->count();
    start_next(limit);
    if (interrupt_.requested() && !cancelled) {
      cancelled = true;
      for (const auto& job : jobs_) job->cancel();
    }
    bool changed = false;
    for (size_t i = num_printed_; i < num_started_; ++i) {
      while (jobs_[i]->poll()) changed = true;
    }
    if (streams_ && jobs_[0]->started()) stream_text(*jobs_[0]);
    print_finished();
    show_progress();
    if (interrupt_.requested() && num_printed_ == num_started_) break;
    if (!changed && num_printed_ < num_started_ && !jobs_[num_printed_]->finished())
      signal_->wait(seen);
  }
  interrupt_.on_request({});
}

json::Value RunVerb::summary() const {
  const RunnerMetrics metrics = engine_->runner().metrics();
  int64_t failed = 0;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  for (const auto& job : jobs_) {
    failed += job->finished() && job->finish() == FinishReason::kError ? 1 : 0;
    prompt_tokens += static_cast<int64_t>(job->prompt_tokens());
    generated_tokens += static_cast<int64_t>(job->generated_tokens());
  }
  json::Value value;
  value.set("type", "summary");
  value.set("model", model_json(engine_->program(), flags_.model));
  value.set("engine", engine_json(engine_->settings()));
  value.set("version", version_json());
  value.set("wall_s", wall_s_);
  value.set("prompt_tokens", prompt_tokens);
  value.set("generated_tokens", generated_tokens);
  value.set("steps", metrics.steps);
  value.set("forwards", forwards_json(metrics.usage));
  value.set("kv", kv_json(engine_->settings(), metrics.usage));
  value.set("preemptions", 0);
  value.set("failed", failed);
  return value;
}

int RunVerb::finish() {
  const json::Value total = summary();
  if (console_.json()) console_.line(total);
  if (!flags_.report.empty()) {
    json::Value document;
    document.set("results", std::move(report_));
    document.set("summary", total);
    const std::string text = document.dump() + "\n";
    const auto bytes = std::as_bytes(std::span(text));
    const Status status = write_file_atomically(flags_.report, {&bytes, 1});
    if (!status.ok()) return console_.error(status.within("--report"), kFailed);
  }
  const auto number = [&](const char* name) { return total.find(name)->dump(); };
  const double generated = total.find("generated_tokens")->to_number("").value();
  char text[160];
  std::snprintf(text, sizeof text,
                "%zu prompts, %s prompt tokens, %s generated in %.2f s (%.1f tokens/s)",
                jobs_.size(), number("prompt_tokens").c_str(), number("generated_tokens").c_str(),
                wall_s_, wall_s_ > 0 ? generated / wall_s_ : 0.0);
  if (!console_.json()) console_.note(text);
  if (interrupt_.requested()) return kInterrupted;
  return number("failed") == "0" ? kDone : kFailed;
}

int RunVerb::run() {
  if (const Status status = read_flags(); !status.ok()) return console_.error(status, kUsage);
  if (const int code = open_model(); code != kDone) return code;
  make_jobs();
  started_ns_ = clock_.now_ns();
  run_jobs();
  wall_s_ = static_cast<double>(clock_.now_ns() - started_ns_) / 1e9;
  return finish();
}

}  // namespace

void add_run(CommandLine& line) {
  CLI::App& app = *line.app.add_subcommand("run", "continue prompts, all of them in one batch");
  app.allow_extras();
  auto flags = std::make_shared<RunFlags>();
  app.add_option("MODEL", flags->model, "a .chorus program or a .gguf file");
  app.add_option("PROMPT", flags->sources.line, "texts to continue");
  const char* group = "Prompts";
  app.add_option("--prompts", flags->sources.prompts_file,
                 "prompts, one a line, or JSON Lines with prompt or messages, and id, max_tokens, "
                 "temperature, seed, stop, ignore_eos; - is stdin; blank lines are skipped")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--tokens", flags->sources.tokens_file, "JSON Lines of arrays of token ids")
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--chat", flags->sources.chat, "put each prompt into the model's chat template")
      ->group(group);
  CLI::Option* system =
      app.add_option("--system", flags->system, "the system message of each chat; implies --chat")
          ->type_name("TEXT")
          ->group(group);
  app.add_flag("--no-batch", flags->no_batch,
               "one prompt after the other; the results are the same")
      ->group(group);
  group = "Output";
  app.add_option("--logprobs", flags->logprobs,
                 "with --json: logprobs of each token and of the K likeliest (0 to 64)")
      ->type_name("K")
      ->group(group);
  app.add_flag("--echo", flags->echo, "put the prompt in front of the text")->group(group);
  app.add_option("--report", flags->report, "also write results and summary as one JSON document")
      ->type_name("FILE")
      ->group(group);
  flags->sampling.declare(app);
  flags->engine.declare(app);
  flags->common.declare(app);
  app.callback([&line, flags, system] {
    line.action = [&line, flags, system] {
      if (system->count() > 0) {
        flags->sources.system = flags->system;
        flags->sources.chat = true;
      }
      if (const Status status = flags->common.parse(); !status.ok()) {
        return Console(flags->common).error(status, kUsage);
      }
      return RunVerb(*flags, line.interrupt).run();
    };
  });
}

}  // namespace chorus::cli
