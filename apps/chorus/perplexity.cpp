// chorus perplexity: how well the model predicts a text, in windows that run in batches.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>

#include "arguments.h"
#include "models.h"
#include "prompts.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

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

class PerplexityVerb final : public Verb {
 public:
  PerplexityVerb() : Verb("perplexity", "how well the model predicts a text") {}
  void declare(CommandLine& line) override;
  Status parse() override;
  int run(Console& console, Interrupt& interrupt) override;

 private:
  int read_windows(const Program& program, Console& console);
  Status cut_text(const Program& program);
  Status read_token_windows();
  void start(Window& window);
  bool poll(Window& window);
  int run_windows(Console& console, Interrupt& interrupt);
  void print(size_t index, Console& console);
  void print_total(double seconds, Console& console) const;

  std::string model_, file_, window_text_, windows_text_;
  bool tokens_ = false;
  bool per_token_ = false;
  EngineFlags engine_flags_;

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

void PerplexityVerb::declare(CommandLine& line) {
  line.argument("MODEL", model_, kModelKinds);
  line.argument("FILE", file_, "a text file; with --tokens, JSON Lines of id arrays; - is stdin");
  line.group("Windows");
  line.flag("--window", window_text_, "N", "tokens of a window (default: 1024)");
  line.flag("--windows", windows_text_, "K", "at most so many windows (default: all full ones)");
  line.flag("--tokens", tokens_, "FILE holds token ids, each line one window");
  line.flag("--per-token", per_token_, "also the logprob of each scored token");
  engine_flags_.declare(line);
}

Status PerplexityVerb::parse() {
  CHORUS_ASSIGN_OR_RETURN(engine_options_, engine_flags_.parse(common_));
  if (!window_text_.empty()) {
    if (tokens_) {
      return invalid_argument("--window",
                              "expected no --tokens beside it: each line is one window");
    }
    CHORUS_ASSIGN_OR_RETURN(window_tokens_, parse_count("--window", window_text_, 2, 1 << 24));
  }
  if (!windows_text_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(max_windows_, parse_count("--windows", windows_text_, 1, 1 << 30));
  }
  return Status();
}

Status PerplexityVerb::cut_text(const Program& program) {
  CHORUS_ASSIGN_OR_RETURN(const std::string text, read_input(file_));
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
    return invalid_argument(file_, "expected at least one window of " +
                                       std::to_string(window_tokens_) + " tokens, found " +
                                       std::to_string(ids.size()) + " tokens");
  }
  return Status();
}

Status PerplexityVerb::read_token_windows() {
  CHORUS_ASSIGN_OR_RETURN(std::vector<Prompt> lines, read_token_prompts(file_));
  for (Prompt& line : lines) {
    if (static_cast<int64_t>(windows_.size()) == max_windows_) break;
    CHORUS_RETURN_IF_ERROR(line.status);
    if (line.tokens->size() < 2) {
      return invalid_argument(
          line.place, "expected at least 2 ids, found " + std::to_string(line.tokens->size()));
    }
    windows_.emplace_back().tokens = std::move(*line.tokens);
  }
  if (windows_.empty()) return invalid_argument(file_, "expected at least one line of ids");
  return Status();
}

int PerplexityVerb::read_windows(const Program& program, Console& console) {
  const Status status = tokens_ ? read_token_windows() : cut_text(program);
  if (status.ok()) return kDone;
  const bool bad_model = status.code() == Code::kDataLoss || status.code() == Code::kUnimplemented;
  return console.error(status, bad_model ? kBadModel : kUsage);
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

void PerplexityVerb::print(size_t index, Console& console) {
  Window& window = windows_[index];
  if (*window.finish == FinishReason::kError) {
    console.error(window.error.within("window " + std::to_string(index)), kFailed);
    return;
  }
  if (*window.finish == FinishReason::kCancelled) return;
  json::Array logprobs;
  double nll = 0;
  for (const TokenScore& score : window.scores.tokens) {
    nll -= static_cast<double>(score.logprob);
    if (per_token_) logprobs.emplace_back(score.logprob);
  }
  const int64_t scored = static_cast<int64_t>(window.scores.tokens.size());
  sum_nll_ += nll;
  num_scored_ += scored;
  ++num_done_;
  const double mean = nll / static_cast<double>(scored);
  if (console.json()) {
    json::Value value;
    value.set("type", "window");
    value.set("index", static_cast<int64_t>(index));
    value.set("nll", mean);
    if (per_token_) value.set("logprobs", std::move(logprobs));
    console.line(value);
  } else {
    char text[96];
    std::snprintf(text, sizeof text, "window %zu: nll %.5f, ppl %.4f\n", index, mean,
                  std::exp(mean));
    console.text(text);
    if (per_token_) console.line(json::Value(std::move(logprobs)));
  }
}

int PerplexityVerb::run_windows(Console& console, Interrupt& interrupt) {
  interrupt.on_request([this] { signal_->notify(); });
  const size_t limit = static_cast<size_t>(engine_->settings().max_sessions);
  size_t started = 0;
  size_t printed = 0;
  bool failed = false;
  while (printed < windows_.size()) {
    const uint64_t seen = signal_->count();
    if (interrupt.requested()) {
      for (Window& window : windows_) {
        if (window.handle.valid()) window.handle.cancel();
      }
      if (printed == started) break;
    }
    while (started < windows_.size() && started - printed < limit && !interrupt.requested()) {
      start(windows_[started++]);
    }
    bool changed = false;
    for (size_t i = printed; i < started; ++i) changed |= poll(windows_[i]);
    for (; printed < started && windows_[printed].finish; ++printed) {
      failed |= *windows_[printed].finish == FinishReason::kError;
      print(printed, console);
      windows_[printed].tokens = {};
      windows_[printed].scores = {};
      changed = true;
    }
    char text[64];
    std::snprintf(text, sizeof text, "window %zu of %zu", printed, windows_.size());
    console.progress(text);
    if (!changed && printed < started) signal_->wait(seen);
  }
  interrupt.on_request({});
  return failed ? kFailed : kDone;
}

void PerplexityVerb::print_total(double seconds, Console& console) const {
  const double mean = num_scored_ > 0 ? sum_nll_ / static_cast<double>(num_scored_) : 0;
  const int64_t run_tokens = engine_->runner().metrics().prompt_tokens;
  const double rate = seconds > 0 ? static_cast<double>(run_tokens) / seconds : 0;
  if (console.json()) {
    json::Value value;
    value.set("type", "perplexity");
    value.set("windows", num_done_);
    value.set("tokens_scored", num_scored_);
    value.set("nll", num_scored_ > 0 ? json::Value(mean) : json::Value());
    value.set("ppl", num_scored_ > 0 ? json::Value(std::exp(mean)) : json::Value());
    value.set("tokens_per_s", rate);
    console.line(value);
  } else if (num_scored_ > 0) {
    char text[160];
    std::snprintf(text, sizeof text,
                  "perplexity %.4f (nll %.5f) over %lld tokens of %lld windows\n", std::exp(mean),
                  mean, static_cast<long long>(num_scored_), static_cast<long long>(num_done_));
    console.text(text);
  }
}

int PerplexityVerb::run(Console& console, Interrupt& interrupt) {
  auto program = open_program(model_, 0, console);
  if (!program.ok()) return program.exit_code;
  if (const int code = read_windows(*program.value, console); code != kDone) return code;
  auto engine = open_engine(program.value, engine_options_, clock_, console);
  if (!engine.ok()) return engine.exit_code;
  engine_ = std::move(engine.value);
  // Lines of ids have lengths of their own, and each that is too long fails alone.
  if (const int32_t most = engine_->settings().context; !tokens_ && window_tokens_ > most) {
    return console.error(
        invalid_argument("--window", "expected at most the context of " + std::to_string(most) +
                                         " tokens, found " + std::to_string(window_tokens_)),
        kUsage);
  }
  const int64_t started_ns = clock_.now_ns();
  const int code = run_windows(console, interrupt);
  print_total(static_cast<double>(clock_.now_ns() - started_ns) / 1e9, console);
  return interrupt.requested() ? kInterrupted : code;
}

}  // namespace

std::unique_ptr<Verb> make_perplexity() { return std::make_unique<PerplexityVerb>(); }

}  // namespace chorus::cli
