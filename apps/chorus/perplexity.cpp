// chorus perplexity: how well the model predicts a text, in windows that run in batches.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>

#include "arguments.h"
#include "base/memory_map.h"
#include "models.h"
#include "prompts.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

struct PerplexityFlags {
  std::string model;
  std::string file;
  std::string window;
  std::string windows;
  bool tokens = false;
  bool per_token = false;
  CommonFlags common;
  EngineFlags engine;
};

// A window on its way through the engine.
struct Window {
  std::vector<TokenId> tokens;
  Session session;
  GenerationHandle handle;
  Update update;
  std::optional<FinishReason> finish;
  PromptScores scores;
  Status error;

  // Of each window the second half is scored, each token from everything before it.
  Position score_from() const { return static_cast<Position>(tokens.size() / 2); }
};

// Thread: main.
class PerplexityVerb {
 public:
  PerplexityVerb(const PerplexityFlags& flags, Interrupt& interrupt)
      : flags_(flags), interrupt_(interrupt), console_(flags.common) {}
  int run();

 private:
  Status read_flags();
  int read_windows(const Program& program);
  Status cut_text(const Program& program);
  Status read_token_windows();
  void start(Window& window);
  bool poll(Window& window);
  int run_windows();
  void print(size_t index);
  int finish(double seconds);

  const PerplexityFlags& flags_;
  Interrupt& interrupt_;
  Console console_;
  const SteadyClock clock_;
  EngineOptions engine_options_;
  int64_t window_tokens_ = 1024;
  int64_t max_windows_ = INT64_MAX;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<UpdateSignal> signal_ = std::make_shared<UpdateSignal>();  // with the generations
  std::deque<Window> windows_;
  int64_t num_scored_ = 0;
  int64_t num_done_ = 0;
  double sum_nll_ = 0;
};

Status PerplexityVerb::read_flags() {
  CHORUS_ASSIGN_OR_RETURN(engine_options_, flags_.engine.parse(flags_.common));
  if (!flags_.window.empty()) {
    if (flags_.tokens) {
      return invalid_argument("--window",
                              "expected no --tokens beside it: each line is one window");
    }
    CHORUS_ASSIGN_OR_RETURN(window_tokens_, parse_count("--window", flags_.window, 2, 1 << 24));
  }
  if (!flags_.windows.empty()) {
    CHORUS_ASSIGN_OR_RETURN(max_windows_, parse_count("--windows", flags_.windows, 1, 1 << 30));
  }
  if (flags_.model.empty()) {
    return invalid_argument("MODEL", "expected a .chorus program or a .gguf file");
  }
  if (flags_.file.empty()) return invalid_argument("FILE", "expected a text file");
  return Status();
}

Status PerplexityVerb::cut_text(const Program& program) {
  CHORUS_ASSIGN_OR_RETURN(const std::string text, read_text_file(flags_.file, size_t{1} << 30));
  CHORUS_ASSIGN_OR_RETURN(const auto model, TextModel::create(program));
  const text::Tokenizer& tokenizer = model->tokenizer();
  CHORUS_ASSIGN_OR_RETURN(const auto ids, tokenizer.encode(text, {.add_special = false}));
  const bool with_bos = tokenizer.adds_bos();
  const size_t step = static_cast<size_t>(window_tokens_) - (with_bos ? 1 : 0);
  for (size_t begin = 0; begin + step <= ids.size(); begin += step) {
    if (static_cast<int64_t>(windows_.size()) == max_windows_) break;
    Window& window = windows_.emplace_back();
    if (with_bos) window.tokens.push_back(tokenizer.bos_id());
    window.tokens.insert(window.tokens.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin),
                         ids.begin() + static_cast<std::ptrdiff_t>(begin + step));
  }
  if (windows_.empty()) {
    return invalid_argument(flags_.file, "expected at least one window of " +
                                             std::to_string(window_tokens_) + " tokens, found " +
                                             std::to_string(ids.size()) + " tokens");
  }
  return Status();
}

Status PerplexityVerb::read_token_windows() {
  PromptSources sources;
  sources.tokens_file = flags_.file;
  CHORUS_ASSIGN_OR_RETURN(std::vector<Prompt> lines, read_prompts(sources));
  for (Prompt& line : lines) {
    if (static_cast<int64_t>(windows_.size()) == max_windows_) break;
    const std::string field = flags_.file + ": line " + std::to_string(windows_.size() + 1);
    CHORUS_RETURN_IF_ERROR(line.status.within(field));
    if (line.tokens->size() < 2) {
      return invalid_argument(
          field, "expected at least 2 ids, found " + std::to_string(line.tokens->size()));
    }
    windows_.emplace_back().tokens = std::move(*line.tokens);
  }
  if (windows_.empty()) return invalid_argument(flags_.file, "expected at least one line of ids");
  return Status();
}

int PerplexityVerb::read_windows(const Program& program) {
  const Status status = flags_.tokens ? read_token_windows() : cut_text(program);
  if (status.ok()) return kDone;
  const bool bad_model = status.code() == Code::kDataLoss || status.code() == Code::kUnimplemented;
  return console_.error(status, bad_model ? kBadModel : kUsage);
}

void PerplexityVerb::start(Window& window) {
  auto session = engine_->runner().open(SessionOptions());
  if (session.ok()) {
    window.session = std::move(session).value();
    GenerationOptions options;
    options.score_from = window.score_from();
    options.signal = signal_;
    auto handle = window.session.append(window.tokens, options);
    if (handle.ok()) {
      window.handle = std::move(handle).value();
      return;
    }
    window.error = handle.status();
  } else {
    window.error = session.status();
  }
  window.finish = FinishReason::kError;
}

bool PerplexityVerb::poll(Window& window) {
  if (window.finish || !window.handle.valid() || !window.handle.try_read(window.update))
    return false;
  if (!window.update.finish) return true;
  window.finish = window.update.finish;
  window.error = window.update.error;
  window.scores = window.handle.take_prompt_scores();
  window.session.close();
  return true;
}

void PerplexityVerb::print(size_t index) {
  Window& window = windows_[index];
  if (*window.finish == FinishReason::kError) {
    console_.error(window.error.within("window " + std::to_string(index)), kFailed);
    return;
  }
  if (*window.finish == FinishReason::kCancelled) return;
  json::Array logprobs;
  double nll = 0;
  for (const TokenScore& score : window.scores.tokens) {
    nll -= static_cast<double>(score.logprob);
    if (flags_.per_token) logprobs.emplace_back(score.logprob);
  }
  const int64_t scored = static_cast<int64_t>(window.scores.tokens.size());
  sum_nll_ += nll;
  num_scored_ += scored;
  ++num_done_;
  const double mean = nll / static_cast<double>(scored);
  if (console_.json()) {
    json::Value value;
    value.set("type", "window");
    value.set("index", static_cast<int64_t>(index));
    value.set("nll", mean);
    if (flags_.per_token) value.set("logprobs", std::move(logprobs));
    console_.line(value);
  } else {
    char text[96];
    std::snprintf(text, sizeof text, "window %zu: nll %.5f, ppl %.4f\n", index, mean,
                  std::exp(mean));
    console_.text(text);
    if (flags_.per_token) console_.line(json::Value(std::move(logprobs)));
  }
}

int PerplexityVerb::run_windows() {
  interrupt_.on_request([this] { signal_->notify(); });
  const size_t limit = static_cast<size_t>(engine_->settings().max_sessions);
  size_t started = 0;
  size_t printed = 0;
  bool failed = false;
  while (printed < windows_.size()) {
    const uint64_t seen = signal_->count();
    if (interrupt_.requested()) {
      for (Window& window : windows_) {
        if (window.handle.valid()) window.handle.cancel();
      }
      if (printed == started) break;
    }
    while (started < windows_.size() && started - printed < limit && !interrupt_.requested()) {
      start(windows_[started++]);
    }
    bool changed = false;
    for (size_t i = printed; i < started; ++i) changed |= poll(windows_[i]);
    for (; printed < started && windows_[printed].finish; ++printed) {
      failed |= *windows_[printed].finish == FinishReason::kError;
      print(printed);
      windows_[printed].tokens = {};
      windows_[printed].scores = {};
      changed = true;
    }
    char text[64];
    std::snprintf(text, sizeof text, "window %zu of %zu", printed, windows_.size());
    console_.progress(text);
    if (!changed && printed < started) signal_->wait(seen);
  }
  interrupt_.on_request({});
  return failed ? kFailed : kDone;
}

int PerplexityVerb::finish(double seconds) {
  const double mean = num_scored_ > 0 ? sum_nll_ / static_cast<double>(num_scored_) : 0;
  const int64_t run_tokens = engine_->runner().metrics().prompt_tokens;
  const double rate = seconds > 0 ? static_cast<double>(run_tokens) / seconds : 0;
  if (console_.json()) {
    json::Value value;
    value.set("type", "perplexity");
    value.set("windows", num_done_);
    value.set("tokens_scored", num_scored_);
    value.set("nll", num_scored_ > 0 ? json::Value(mean) : json::Value());
    value.set("ppl", num_scored_ > 0 ? json::Value(std::exp(mean)) : json::Value());
    value.set("tokens_per_s", rate);
    console_.line(value);
  } else if (num_scored_ > 0) {
    char text[160];
    std::snprintf(text, sizeof text,
                  "perplexity %.4f (nll %.5f) over %lld tokens of %lld windows\n", std::exp(mean),
                  mean, static_cast<long long>(num_scored_), static_cast<long long>(num_done_));
    console_.text(text);
  }
  return interrupt_.requested() ? kInterrupted : kDone;
}

int PerplexityVerb::run() {
  if (const Status status = read_flags(); !status.ok()) return console_.error(status, kUsage);
  auto program = open_program(flags_.model, 0, console_);
  if (!program.ok()) return program.exit_code;
  if (const int code = read_windows(*program.value); code != kDone) return code;
  auto engine = open_engine(program.value, engine_options_, clock_, console_);
  if (!engine.ok()) return engine.exit_code;
  engine_ = std::move(engine.value);
  // Lines of ids have lengths of their own, and each that is too long fails alone.
  if (const int32_t most = engine_->settings().context; !flags_.tokens && window_tokens_ > most) {
    return console_.error(
        invalid_argument("--window", "expected at most the context of " + std::to_string(most) +
                                         " tokens, found " + std::to_string(window_tokens_)),
        kUsage);
  }
  const int64_t started_ns = clock_.now_ns();
  const int code = run_windows();
  const int last = finish(static_cast<double>(clock_.now_ns() - started_ns) / 1e9);
  return last != kDone ? last : code;
}

}  // namespace

void add_perplexity(CommandLine& line) {
  CLI::App& app = *line.app.add_subcommand("perplexity", "how well the model predicts a text");
  app.allow_extras();
  auto flags = std::make_shared<PerplexityFlags>();
  app.add_option("MODEL", flags->model, "a .chorus program or a .gguf file");
  app.add_option("FILE", flags->file, "the text; with --tokens, JSON Lines of id arrays");
  const char* group = "Windows";
  app.add_option("--window", flags->window, "tokens of a window (default: 1024)")
      ->type_name("N")
      ->group(group);
  app.add_option("--windows", flags->windows, "at most so many windows (default: all full ones)")
      ->type_name("K")
      ->group(group);
  app.add_flag("--tokens", flags->tokens, "FILE holds token ids, each line one window")
      ->group(group);
  app.add_flag("--per-token", flags->per_token, "also the logprob of each scored token")
      ->group(group);
  flags->engine.declare(app);
  flags->common.declare(app);
  app.callback([&line, flags] {
    line.action = [&line, flags] {
      if (const Status status = flags->common.parse(); !status.ok()) {
        return Console(flags->common).error(status, kUsage);
      }
      return PerplexityVerb(*flags, line.interrupt).run();
    };
  });
}

}  // namespace chorus::cli
