// chorus run: continues prompts, all of them in one batch.
#include <algorithm>
#include <cstdio>
#include <unistd.h>
#include <utility>

#include "arguments.h"
#include "base/memory_map.h"
#include "latencies.h"
#include "live_view.h"
#include "models.h"
#include "prompt_job.h"
#include "saved_chat.h"
#include "saving.h"
#include "verbs.h"
#include "version.h"

namespace chorus::cli {

namespace {

constexpr const char* kSave = "--save-session";
constexpr const char* kLoad = "--load-session";

// Runs jobs on one engine and shows what becomes of them.
class RunVerb final : public Verb {
 public:
  RunVerb() : Verb("run", "continue prompts, all of them in one batch") {}
  void declare(CommandLine& line) override;
  Status parse() override;
  int run(Console& console, Interrupt& interrupt) override;

 private:
  Status parse_sessions();
  Status read_all_prompts();
  Status check_outputs() const;
  int open_model(Console& console);
  int load_session(Console& console);
  bool needs_text() const;
  void make_jobs(const Console& console);
  void run_jobs(Console& console, Interrupt& interrupt);
  void start_next(const Interrupt& interrupt);
  bool poll();
  bool is_over(const Interrupt& interrupt) const;
  JobView view_of(const PromptJob& prompt, const GenerationJob& job) const;
  TotalView total_view() const;
  void show_progress(Console& console);
  void stream_text(const GenerationJob& job, Console& console);
  void print_finished(Console& console, const Interrupt& interrupt);
  std::vector<size_t> choices_to_print(const PromptJob& prompt) const;
  void print(const PromptJob& prompt, const GenerationJob& job, Console& console);
  void print_text(const PromptJob& prompt, const GenerationJob& job, Console& console);
  void print_error(const PromptJob& prompt, const GenerationJob& job, Console& console);
  json::Value summary() const;
  Status write_report(const json::Value& total, Interrupt& interrupt);
  Status save_session(Interrupt& interrupt);
  std::string chat_notes_of(const PromptJob& prompt) const;
  int finish(Console& console, Interrupt& interrupt);

  std::string model_, logprobs_, num_choices_, best_of_, truncate_prompt_, report_file_, save_file_,
      load_file_;
  bool recompute_ = false;
  PromptSources sources_;
  bool no_batch_ = false;
  EngineFlags engine_flags_;
  SamplingFlags sampling_flags_;

  const SteadyClock clock_;
  EngineOptions engine_options_;
  JobOptions job_options_;
  Result<SavedSession> saved_ = SavedSession();  // what --load-session names
  std::vector<Prompt> prompts_;
  std::vector<TokenId> end_tokens_;
  std::shared_ptr<const TextModel> text_;  // with the generations
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<UpdateSignal> signal_ = std::make_shared<UpdateSignal>();  // with the generations
  LoadedSession base_;  // closed once every prompt has begun
  std::optional<JobContext> context_;

  std::vector<std::unique_ptr<PromptJob>> jobs_;
  std::vector<PromptJob*> order_;   // in which they begin
  std::vector<PromptJob*> active_;  // begun and not finished
  size_t num_begun_ = 0;            // order_[0, num_begun_)
  size_t num_printed_ = 0;          // jobs_[0, num_printed_) are printed
  size_t num_choices_printed_ = 0;  // of jobs_[num_printed_]
  size_t num_streamed_ = 0;         // bytes of the only job's text that are printed
  bool echoed_ = false;             // so is its prompt
  bool streams_ = false;
  bool prints_at_end_ = false;
  int64_t started_ns_ = 0;
  int64_t next_view_ns_ = 0;
  double wall_s_ = 0;
  json::Array report_;
};

void RunVerb::declare(CommandLine& line) {
  line.argument("MODEL", model_, kModelKinds);
  line.rest("PROMPT", sources_.line, "[PROMPT...]", "texts to continue");
  line.group("Prompts");
  line.flag("--prompts", sources_.prompts_file, "FILE",
            "prompts, one a line, or JSON Lines with prompt (text or ids) or messages, and id, "
            "what the sampling flags say, by its name over HTTP (max_tokens, top_p, logit_bias, "
            "stop_token_ids and so on: docs/parameters.md), priority (higher first), deadline_ms, "
            "cache_salt (KV is shared only with prompts of the same); - is stdin; blank lines are "
            "skipped");
  line.flag("--tokens", sources_.tokens_file, "FILE",
            "JSON Lines of arrays of token ids; - is stdin");
  line.flag("--chat", sources_.chat, "put each prompt into the model's chat template");
  line.flag("--system", sources_.system, "TEXT", "the system message of each chat; implies --chat");
  line.flag("-n", num_choices_, "K",
            "continuations of each prompt, which is computed once (default: 1)");
  line.flag("--best-of", best_of_, "K",
            "generate K continuations of each prompt and show, best first, the -n of the highest "
            "log probability per token");
  line.flag("--truncate-prompt", truncate_prompt_, "N",
            "take the last N tokens of each prompt; -1: as many as the context has room for");
  line.flag("--no-batch", no_batch_, "one prompt after the other; the results are the same");
  line.group("Sessions");
  line.flag(kSave, save_file_, "FILE",
            "write the session, its tokens and KV, once the only generation has ended; /load of "
            "chorus chat goes on with an answer to --chat, --load-session with any");
  line.flag(kLoad, load_file_, "FILE",
            "continue a saved session, of which each prompt and choice takes a copy; without a "
            "prompt, or with an empty one, it goes on where it stopped. Sampling flags that are "
            "not given, the seed too, are as it was saved");
  line.flag("--recompute", recompute_,
            "with --load-session: use the tokens alone, also of a session that was saved with "
            "another model of the same vocabulary, KV type, activations or instruction set");
  line.group("Output");
  line.flag("--logprobs", logprobs_, "K",
            "with --json: logprobs of each token and of the K likeliest (0 to 64)");
  line.flag("--echo", job_options_.echo, "put the prompt in front of the text");
  line.flag("--report", report_file_, "FILE",
            "also write results and summary as one JSON document");
  sampling_flags_.declare(line);
  engine_flags_.declare(line);
}

Status RunVerb::parse() {
  CHORUS_ASSIGN_OR_RETURN(engine_options_, engine_flags_.parse(common_));
  CHORUS_RETURN_IF_ERROR(parse_sessions());
  CHORUS_ASSIGN_OR_RETURN(
      sources_.settings,
      sampling_flags_.parse(saved_.ok() && !load_file_.empty() ? settings_of(saved_->sampling)
                                                               : GenerationFields()));
  if (!truncate_prompt_.empty()) {
    const Status status = set_generation_field(
        "truncate_prompt_tokens",
        generation_field_of_word("truncate_prompt_tokens", truncate_prompt_), sources_.settings);
    if (!status.ok()) return Status(status.code(), "--truncate-prompt", status.message());
  }
  if (!logprobs_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int64_t count,
                            parse_count("--logprobs", logprobs_, 0, kMaxLikeliest));
    job_options_.logprobs = static_cast<int32_t>(count);
  }
  if (!num_choices_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int64_t count, parse_count("-n", num_choices_, 1, kMaxChoices));
    job_options_.num_choices = static_cast<int32_t>(count);
  }
  if (!best_of_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(
        const int64_t count,
        parse_count("--best-of", best_of_, job_options_.num_choices, kMaxChoices));
    job_options_.num_best = std::exchange(job_options_.num_choices, static_cast<int32_t>(count));
  }
  for (const std::string& input : {model_, sources_.prompts_file, sources_.tokens_file}) {
    CHORUS_RETURN_IF_ERROR(check_not_same("--report", report_file_, input));
    CHORUS_RETURN_IF_ERROR(check_not_same(kSave, save_file_, input));
  }
  return read_all_prompts();
}

// The flags of sessions, and the file to load: an error of that is told when the line is in order.
Status RunVerb::parse_sessions() {
  if (is_same_file(save_file_, report_file_)) {
    return invalid_argument(kSave, "expected another file than --report");
  }
  if (load_file_.empty()) {
    return recompute_ ? invalid_argument("--recompute", "expected --load-session beside it")
                      : Status();
  }
  if (sources_.chat || sources_.system) {
    return invalid_argument(sources_.chat ? "--chat" : "--system",
                            "expected no --load-session beside it, which is continued by text as "
                            "it stands (chorus chat has /load)");
  }
  if (engine_options_.max_sessions == 1) {
    return invalid_argument("--max-sessions",
                            "expected at least 2 beside --load-session, which takes one");
  }
  CHORUS_RETURN_IF_ERROR(check_not_same("--report", report_file_, load_file_));
  saved_ = read_saved(kLoad, load_file_);
  return Status();
}

Status RunVerb::read_all_prompts() {
  if (sources_.system) sources_.chat = true;
  CHORUS_ASSIGN_OR_RETURN(prompts_, read_prompts(sources_));
  if (prompts_.empty() && load_file_.empty()) {
    return invalid_argument("PROMPT", "expected a prompt, --prompts FILE or --tokens FILE");
  }
  if (prompts_.empty()) {
    Prompt& prompt = prompts_.emplace_back();
    prompt.settings = sources_.settings;
    prompt.tokens.emplace();
  }
  if (!save_file_.empty() && (prompts_.size() > 1 || job_options_.num_choices > 1)) {
    return invalid_argument(kSave, "expected one prompt and one continuation, found " +
                                       std::to_string(prompts_.size()) + " prompts, and " +
                                       std::to_string(job_options_.num_choices) + " of each");
  }
  job_options_.keeps_session = !save_file_.empty();
  return Status();
}

bool RunVerb::needs_text() const {
  return std::any_of(prompts_.begin(), prompts_.end(), [](const Prompt& prompt) {
    const bool has_text = prompt.text.has_value() || !prompt.messages.empty();
    return prompt.status.ok() && (has_text || !prompt.settings.stop.empty());
  });
}

int RunVerb::open_model(Console& console) {
  auto program = open_program(model_, 0, console);
  if (!program.ok()) return program.exit_code;
  end_tokens_ = end_tokens(*program.value);
  auto text = TextModel::create(*program.value);
  if (text.ok()) {
    text_ = std::move(text).value();
  } else if (needs_text()) {
    return console.error(text.status(), kBadModel);
  } else {
    console.note("no text: " + text.status().to_string());
  }
  auto engine = open_engine(program.value, engine_options_, clock_, console);
  engine_ = std::move(engine.value);
  return engine.ok() ? load_session(console) : engine.exit_code;
}

int RunVerb::load_session(Console& console) {
  if (load_file_.empty()) return kDone;
  auto session = load_saved(kLoad, *saved_, recompute_, engine_->runner());
  if (!session.ok()) {
    const Code code = session.status().code();
    const bool is_bad = code == Code::kInvalidArgument || code == Code::kDataLoss;
    return console.error(session.status(), is_bad ? kBadModel : kFailed);
  }
  base_ = {std::move(session).value(), std::move(saved_->tokens)};
  saved_ = SavedSession();  // its KV is in the pool
  return kDone;
}

void RunVerb::make_jobs(const Console& console) {
  context_.emplace(JobContext{engine_->runner(), clock_, text_, std::move(end_tokens_), signal_,
                              job_options_, load_file_.empty() ? nullptr : &base_});
  // One after the other means that each is submitted when its turn comes.
  const auto submitted = no_batch_ ? std::nullopt : std::optional(started_ns_);
  for (size_t i = 0; i < prompts_.size(); ++i) {
    jobs_.push_back(std::make_unique<PromptJob>(*context_, static_cast<int>(i),
                                                std::move(prompts_[i]), submitted));
    order_.push_back(jobs_.back().get());
  }
  std::stable_sort(order_.begin(), order_.end(), [](const PromptJob* a, const PromptJob* b) {
    return a->prompt().settings.priority > b->prompt().settings.priority;
  });
  streams_ = jobs_.size() == 1 && job_options_.num_choices == 1 && !console.json() &&
             text_ != nullptr && isatty(1) == 1;
  // On a terminal the texts follow the live view.
  prints_at_end_ = !streams_ && !console.json() && console.shows_progress() && isatty(1) == 1;
}

// Keeps the engine busy with as many sessions as there may be; the engine itself queues what the KV
// pool cannot hold yet. Choices of prompts that are computed come before new prompts.
void RunVerb::start_next(const Interrupt& interrupt) {
  if (interrupt.requested()) return;
  const size_t num_bases = base_.session.valid() ? 1 : 0;
  const size_t limit =
      no_batch_ ? 1 : static_cast<size_t>(engine_->settings().max_sessions) - num_bases;
  size_t open = 0;
  for (const PromptJob* job : active_) open += job->num_sessions();
  const auto start = [&](PromptJob& job) {
    const size_t held = job.num_sessions();
    job.start(limit - open);
    open += job.num_sessions() - held;
  };
  for (PromptJob* job : active_) start(*job);
  while (open < limit && num_begun_ < order_.size() && !interrupt.requested()) {
    active_.push_back(order_[num_begun_++]);
    start(*active_.back());
  }
  if (num_begun_ == order_.size()) base_.session = Session();
}

// Takes what the engine delivered. True when something changed.
bool RunVerb::poll() {
  bool changed = false;
  for (PromptJob* job : active_) changed = job->poll() || changed;
  return std::erase_if(active_, [](const PromptJob* job) { return job->finished(); }) > 0 ||
         changed;
}

bool RunVerb::is_over(const Interrupt& interrupt) const {
  if (num_begun_ < order_.size() && !interrupt.requested()) return false;
  return std::none_of(active_.begin(), active_.end(), [&](const PromptJob* job) {
    return job->is_running() || !interrupt.requested();
  });
}

JobView RunVerb::view_of(const PromptJob& prompt, const GenerationJob& job) const {
  JobView view;
  view.label = std::to_string(job.index() + 1);
  if (prompt.choices().size() > 1) view.label += "." + std::to_string(job.choice());
  view.prompt_tokens = prompt.num_prompt_tokens();
  view.consumed_tokens = job.consumed_tokens();
  view.tokens = job.generated_tokens();
  view.tokens_per_s = job.tokens_per_s();
  if (job.finished()) {
    view.state = job.error().ok() ? JobView::State::kDone : JobView::State::kFailed;
  } else if (view.tokens > 0) {
    view.state = JobView::State::kGenerating;
  } else if (job.choice() == 0 && view.consumed_tokens > 0) {
    view.state = JobView::State::kPrefill;
  }
  return view;
}

TotalView RunVerb::total_view() const {
  TotalView total;
  for (const auto& prompt : jobs_) {
    for (const auto& job : prompt->choices()) total.tokens += job->generated_tokens();
  }
  const double seconds = static_cast<double>(clock_.now_ns() - started_ns_) / 1e9;
  total.tokens_per_s = seconds > 0 ? static_cast<double>(total.tokens) / seconds : 0;
  for (const GroupUsage& group : engine_->runner().metrics().usage.groups) {
    total.blocks_total += group.blocks_total;
    total.blocks_used += group.blocks_total - group.blocks_free - group.blocks_cached;
  }
  return total;
}

void RunVerb::show_progress(Console& console) {
  constexpr int64_t kViewIntervalNs = 100'000'000;
  if (!console.shows_progress() || streams_ || clock_.now_ns() < next_view_ns_) return;
  next_view_ns_ = clock_.now_ns() + kViewIntervalNs;
  std::vector<JobView> views;
  for (const auto& prompt : jobs_) {
    for (const auto& job : prompt->choices()) views.push_back(view_of(*prompt, *job));
  }
  console.status(live_view(views, total_view(), Console::terminal_size()));
}

// What is new of the text, with the prompt in front when it is to be echoed.
void RunVerb::stream_text(const GenerationJob& job, Console& console) {
  if (!job.finished() && job.generated_tokens() == 0) return;
  if (!echoed_) console.text(job.echo());
  echoed_ = true;
  console.text(job.text().substr(num_streamed_));
  num_streamed_ = job.text().size();
}

void RunVerb::print_text(const PromptJob& prompt, const GenerationJob& job, Console& console) {
  if (streams_) {
    stream_text(job, console);
    console.text("\n");
  } else if (job.finish() == FinishReason::kError) {
    return;
  } else if (text_ == nullptr) {
    console.line(json::Value(job.ids()));
  } else {
    const bool has_choices = prompt.choices().size() > 1;
    std::string head;
    if (jobs_.size() > 1 || has_choices) head = "--- " + std::to_string(job.index() + 1);
    if (has_choices) head += " choice " + std::to_string(job.choice());
    if (!head.empty()) head += "\n";
    console.text(head.append(job.echo()).append(job.text()).append("\n"));
  }
}

void RunVerb::print_error(const PromptJob& prompt, const GenerationJob& job, Console& console) {
  if (job.error().ok()) return;
  // What the whole prompt ended with is told once.
  const GenerationJob& first = *prompt.choices()[0];
  if (job.choice() > 0 && first.generated_tokens() == 0) return;
  std::string place = "prompt " + std::to_string(job.index() + 1);
  if (prompt.choices().size() > 1 && first.generated_tokens() > 0) {
    place += " choice " + std::to_string(job.choice());
  }
  // A line that could not be used names itself.
  const bool is_placed = !prompt.prompt().status.ok();
  console.error(is_placed ? job.error() : job.error().within(place), kFailed);
}

void RunVerb::print(const PromptJob& prompt, const GenerationJob& job, Console& console) {
  if (console.json() || !report_file_.empty()) {
    json::Value result = job.result();
    if (console.json()) console.line(result);
    if (!report_file_.empty()) report_.push_back(std::move(result));
  }
  if (console.json()) return;
  print_text(prompt, job, console);
  print_error(prompt, job, console);
}

// All of them, or the best ones, best first.
std::vector<size_t> RunVerb::choices_to_print(const PromptJob& prompt) const {
  std::vector<double> scores;
  for (const auto& job : prompt.choices())
    scores.push_back(job_options_.num_best > 0 ? job->mean_logprob() : 0);
  const auto count = static_cast<int32_t>(scores.size());
  return best_choices(scores, job_options_.num_best > 0 ? job_options_.num_best : count);
}

// Results appear in the order of the prompts and their choices, so that two runs can be compared
// line by line. After an interrupt, those that never started are passed over.
void RunVerb::print_finished(Console& console, const Interrupt& interrupt) {
  for (; num_printed_ < jobs_.size(); ++num_printed_, num_choices_printed_ = 0) {
    const PromptJob& prompt = *jobs_[num_printed_];
    if (job_options_.num_best > 0 && !prompt.finished() && !interrupt.requested()) return;
    const std::vector<size_t> order = choices_to_print(prompt);
    for (; num_choices_printed_ < order.size(); ++num_choices_printed_) {
      const GenerationJob& job = *prompt.choices()[order[num_choices_printed_]];
      if (!job.started() && interrupt.requested()) continue;
      if (!job.finished()) return;
      print(prompt, job, console);
    }
  }
}

void RunVerb::run_jobs(Console& console, Interrupt& interrupt) {
  interrupt.on_request([this] { signal_->notify(); });
  bool cancelled = false;
  for (;;) {
    const uint64_t seen = signal_->count();
    start_next(interrupt);
    if (interrupt.requested() && !cancelled) {
      cancelled = true;
      for (PromptJob* job : active_) job->cancel();
    }
    const bool changed = poll();
    if (streams_ && jobs_[0]->has_begun()) stream_text(*jobs_[0]->choices()[0], console);
    if (!prints_at_end_) print_finished(console, interrupt);
    if (is_over(interrupt)) break;
    show_progress(console);
    if (!changed) signal_->wait(seen);
  }
  interrupt.on_request({});
  print_finished(console, interrupt);
}

json::Value RunVerb::summary() const {
  const RunnerMetrics metrics = engine_->runner().metrics();
  int64_t failed = 0;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  for (const auto& prompt : jobs_) {
    prompt_tokens += static_cast<int64_t>(prompt->num_prompt_tokens());
    for (const auto& job : prompt->choices()) {
      failed += job->finished() && !job->error().ok() ? 1 : 0;
      generated_tokens += static_cast<int64_t>(job->generated_tokens());
    }
  }
  json::Value value;
  value.set("type", "summary");
  value.set("model", model_json(engine_->program(), model_));
  value.set("engine", engine_json(engine_->settings()));
  value.set("version", version_json());
  value.set("wall_s", wall_s_);
  value.set("prompt_tokens", prompt_tokens);
  value.set("computed_prompt_tokens", metrics.prompt_tokens - metrics.cached_tokens);
  value.set("cached_tokens", metrics.cached_tokens);
  value.set("generated_tokens", generated_tokens);
  value.set("computed_tokens", metrics.computed_tokens);
  value.set("recomputed_tokens", metrics.recomputed_tokens);
  value.set("steps", metrics.steps);
  value.set("forwards", by_method_json(metrics.usage, &MethodUsage::forwards));
  value.set("padded_rows", by_method_json(metrics.usage, &MethodUsage::padded_rows));
  value.set("kv", kv_json(engine_->settings(), metrics.usage));
  value.set("preemptions", metrics.preemptions);
  value.set("latency_ms", latencies_json(metrics));
  value.set("failed", failed);
  return value;
}

Status RunVerb::write_report(const json::Value& total, Interrupt& interrupt) {
  if (report_file_.empty()) return Status();
  json::Value document;
  document.set("results", std::move(report_));
  document.set("summary", total);
  const std::string text = document.dump() + "\n";
  return at_flag("--report", write_output(report_file_, std::as_bytes(std::span(text)), interrupt));
}

// So that chorus chat can go on with an answer to messages; empty for other prompts.
std::string RunVerb::chat_notes_of(const PromptJob& prompt) const {
  if (prompt.prompt().messages.empty()) return "";
  const GenerationJob& job = *prompt.choices()[0];
  Turn turn;
  take_answer(job.state(), *text_, context_->end_tokens, turn);
  turn.prompt = prompt.text();
  turn.counts.computed = static_cast<int32_t>(prompt.num_prompt_tokens());
  turn.counts.generated = static_cast<int32_t>(job.generated_tokens());
  turn.counts.tokens_per_s = job.tokens_per_s();
  return notes_of_messages(prompt.prompt().messages, std::move(turn));
}

// Of a generation that gave something, also when it was cut short.
Status RunVerb::save_session(Interrupt& interrupt) {
  if (save_file_.empty()) return Status();
  const GenerationJob& job = *jobs_[0]->choices()[0];
  if (!job.finished() || job.finish() == FinishReason::kError || job.generated_tokens() == 0) {
    return Status(Code::kCancelled, kSave, "nothing was saved, since nothing was generated");
  }
  CHORUS_ASSIGN_OR_RETURN(SavedSession saved, jobs_[0]->session().save());
  saved.notes = chat_notes_of(*jobs_[0]);
  return write_saved(kSave, saved, save_file_, interrupt);
}

int RunVerb::finish(Console& console, Interrupt& interrupt) {
  const json::Value total = summary();
  if (console.json()) console.line(total);
  int code = kDone;
  for (const Status& status : {write_report(total, interrupt), save_session(interrupt)}) {
    if (!status.ok()) code = console.error(status, kFailed);
  }
  const auto number = [&](const char* name) { return total.find(name)->dump(); };
  const double generated = total.find("generated_tokens")->to_number("").value();
  char text[160];
  std::snprintf(text, sizeof text,
                "%zu prompts, %s prompt tokens, %s generated in %.2f s (%.1f tokens/s)",
                jobs_.size(), number("prompt_tokens").c_str(), number("generated_tokens").c_str(),
                wall_s_, wall_s_ > 0 ? generated / wall_s_ : 0.0);
  if (!console.json()) console.note(text);
  if (interrupt.requested()) return kInterrupted;
  return number("failed") == "0" ? code : kFailed;
}

// Nobody wants to know after the work that its results cannot be kept.
Status RunVerb::check_outputs() const {
  if (!report_file_.empty())
    CHORUS_RETURN_IF_ERROR(at_flag("--report", check_writable(report_file_)));
  return save_file_.empty() ? Status() : at_flag(kSave, check_writable(save_file_));
}

int RunVerb::run(Console& console, Interrupt& interrupt) {
  if (!saved_.ok()) return console.error(saved_.status(), kBadModel);
  if (const Status status = check_outputs(); !status.ok()) return console.error(status, kFailed);
  if (const int code = open_model(console); code != kDone) return code;
  started_ns_ = clock_.now_ns();
  make_jobs(console);
  run_jobs(console, interrupt);
  wall_s_ = static_cast<double>(clock_.now_ns() - started_ns_) / 1e9;
  return finish(console, interrupt);
}

}  // namespace

std::unique_ptr<Verb> make_run() { return std::make_unique<RunVerb>(); }

}  // namespace chorus::cli
