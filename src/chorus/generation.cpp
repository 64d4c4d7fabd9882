#include "chorus/generation.h"

#include <algorithm>
#include <utility>

#include "chorus/text_generation.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace chorus {

namespace {

// A stop text that is the name of a special token, which need not have a text.
struct SpecialStop {
  TokenId token = 0;
  size_t index = 0;  // of the stop text
};

}  // namespace

struct Generation::State {
  State(std::shared_ptr<const TextModel> text_in, text::StopMatcher stops_in,
        std::vector<SpecialStop> special_stops_in, const TextOptions& options,
        int32_t min_tokens_in)
      : text(std::move(text_in)),
        stops(std::move(stops_in)),
        special_stops(std::move(special_stops_in)),
        includes_stop(options.include_stop),
        min_tokens(min_tokens_in) {
    if (text != nullptr) {
      detokenizer.emplace(text->tokenizer(),
                          text::DecodeOptions{.skip_special = !options.show_special});
    }
  }

  void take(Update& delivered);
  void take_text(TokenId token);
  void take_stop_token(TokenId token);
  void show(const text::StopMatcher::Output& shown);
  void finish(FinishReason reason, Status status);

  const std::shared_ptr<const TextModel> text;  // owners: with whoever made the generation
  text::StopMatcher stops;
  const std::vector<SpecialStop> special_stops;
  const bool includes_stop;
  const int32_t min_tokens;                      // stop texts within so many are none
  std::optional<text::Detokenizer> detokenizer;  // none without text
  GenerationHandle handle;
  Update update;  // reused

  std::vector<TokenScore> tokens;  // likeliest_begin counts into likeliest
  std::vector<TokenLogprob> likeliest;
  std::string output;
  size_t text_before = 0;  // of output, at the last read
  size_t tokens_before = 0;
  std::optional<size_t> ended_by;    // the stop text that is the token which ended it
  std::optional<size_t> stop_index;  // of the stop text that ended it
  std::optional<FinishReason> finish_reason;
  Status error;
};

void Generation::State::take(Update& delivered) {
  for (const TokenScore& score : delivered.tokens) {
    if (stop_index) break;
    TokenScore kept = score;
    kept.likeliest_begin = static_cast<int32_t>(likeliest.size());
    const auto first = delivered.likeliest.begin() + score.likeliest_begin;
    likeliest.insert(likeliest.end(), first, first + score.likeliest_count);
    tokens.push_back(kept);
    // Only a stop token, or we ourselves, end it so.
    const bool is_stop_token =
        delivered.finish == FinishReason::kStop && &score == &delivered.tokens.back();
    if (is_stop_token) {
      take_stop_token(score.id);
    } else {
      take_text(score.id);
    }
  }
  if (delivered.finish) finish(*delivered.finish, std::move(delivered.error));
}

void Generation::State::take_stop_token(TokenId token) {
  const auto named = std::find_if(special_stops.begin(), special_stops.end(),
                                  [&](const SpecialStop& each) { return each.token == token; });
  if (named != special_stops.end()) {
    ended_by = named->index;
  } else if (includes_stop) {
    take_text(token);
  }
}

void Generation::State::take_text(TokenId token) {
  if (!detokenizer) return;
  const auto piece = detokenizer->push(token);
  // The engine delivers ids of the vocabulary only; a tokenizer may be smaller.
  if (!piece.ok()) return;
  const auto shown = stops.feed(*piece, std::ssize(tokens) > min_tokens);
  show(shown);
  if (!shown.match) return;
  stop_index = shown.match->stop_index;
  // The surplus is rewound by the engine. There is a token, so this cannot fail.
  CHORUS_CHECK(handle.finish_at(static_cast<int32_t>(tokens.size())).ok());
}

void Generation::State::show(const text::StopMatcher::Output& shown) {
  output += shown.text;
  if (shown.match && includes_stop) output += stops.stop(shown.match->stop_index);
}

void Generation::State::finish(FinishReason reason, Status status) {
  // After a stop text the engine may have cancelled, come to the deadline or run on; what it
  // reports as an error stays one.
  if (stop_index && reason != FinishReason::kError) {
    reason = FinishReason::kStop;
    status = Status();
  }
  if (detokenizer && !stop_index) {
    const std::string rest = detokenizer->finish();
    const auto shown = rest.empty() ? text::StopMatcher::Output()
                                    : stops.feed(rest, std::ssize(tokens) > min_tokens);
    show(shown);
    if (!shown.match) output += stops.finish();
    if (shown.match) stop_index = shown.match->stop_index;
    if (shown.match && reason == FinishReason::kLength) reason = FinishReason::kStop;
  }
  if (ended_by && !stop_index) {  // behind all of the text before it
    stop_index = ended_by;
    if (includes_stop) output += stops.stop(*ended_by);
  }
  finish_reason = reason;
  error = std::move(status);
  handle.wait();
}

namespace {

// The tokens of each word, alone and behind a space, as what must not come.
Status forbid_words(const text::Tokenizer& tokenizer, const std::vector<std::string>& words,
                    SamplingParams& sampling) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string field = "bad_words[" + std::to_string(i) + "]";
    const std::string word =
        words[i].substr(std::min(words[i].find_first_not_of(' '), words[i].size()));
    if (word.empty()) return invalid_argument(field, "expected a text that is not empty");
    std::vector<TokenId> found[2];
    for (size_t with_space = 0; with_space < 2; ++with_space) {
      auto tokens = tokenizer.encode((with_space == 1 ? " " : "") + word,
                                     {.parse_special = true, .add_special = false});
      if (!tokens.ok()) return Status(tokens.status().code(), field, tokens.status().message());
      found[with_space] = std::move(tokens).value();
    }
    if (found[0].empty()) return invalid_argument(field, "expected a text that has tokens");
    if (found[1] != found[0]) sampling.bad_sequences.push_back(std::move(found[1]));
    sampling.bad_sequences.push_back(std::move(found[0]));
  }
  return {};
}

// The special tokens among the stop texts end the generation as stop tokens do.
std::vector<SpecialStop> add_special_stops(const text::Tokenizer& tokenizer,
                                           const std::vector<std::string>& stops,
                                           GenerationOptions& options) {
  std::vector<SpecialStop> special;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (const auto token = tokenizer.special_named(stops[i])) special.push_back({*token, i});
  }
  if (special.empty()) return special;
  if (std::exchange(options.ignore_stop_tokens, false)) options.stop_tokens.clear();
  for (const SpecialStop& each : special) options.stop_tokens.push_back(each.token);
  return special;
}

}  // namespace

Result<Generation> start_generation(Session& session, std::vector<TokenId> prompt,
                                    GenerationOptions options,
                                    std::shared_ptr<const TextModel> text,
                                    std::vector<std::string> stops,
                                    const TextOptions& text_options) {
  if (text == nullptr && !stops.empty()) {
    return invalid_argument("stop", "expected no stop text: the model has no tokenizer");
  }
  if (text == nullptr && !text_options.bad_words.empty()) {
    return invalid_argument("bad_words", "expected none: the model has no tokenizer");
  }
  std::vector<SpecialStop> special_stops;
  if (text != nullptr) {
    CHORUS_RETURN_IF_ERROR(
        forbid_words(text->tokenizer(), text_options.bad_words, options.sampling));
    special_stops = add_special_stops(text->tokenizer(), stops, options);
  }
  CHORUS_ASSIGN_OR_RETURN(auto matcher, text::StopMatcher::create(std::move(stops)));
  auto state = std::make_unique<Generation::State>(std::move(text), std::move(matcher),
                                                   std::move(special_stops), text_options,
                                                   options.sampling.min_tokens);
  CHORUS_ASSIGN_OR_RETURN(state->handle, session.generate(std::move(prompt), options));
  return Generation(std::move(state));
}

Result<Generation> start_append(Session& session, std::vector<TokenId> tokens,
                                const GenerationOptions& options) {
  auto state = std::make_unique<Generation::State>(nullptr, text::StopMatcher::create({}).value(),
                                                   std::vector<SpecialStop>(), TextOptions(), 0);
  CHORUS_ASSIGN_OR_RETURN(state->handle, session.append(std::move(tokens), options));
  return Generation(std::move(state));
}

Generation::Generation(std::unique_ptr<State> state) : state_(std::move(state)) {}
Generation::Generation(Generation&& other) noexcept = default;
Generation& Generation::operator=(Generation&& other) noexcept = default;
Generation::~Generation() = default;

bool Generation::read() {
  state_->text_before = state_->output.size();
  state_->tokens_before = state_->tokens.size();
  if (finished() || !state_->handle.read(state_->update)) return false;
  state_->take(state_->update);
  return true;
}

bool Generation::poll() {
  state_->text_before = state_->output.size();
  state_->tokens_before = state_->tokens.size();
  if (finished() || !state_->handle.try_read(state_->update)) return false;
  state_->take(state_->update);
  return true;
}

std::string_view Generation::new_text() const {
  return std::string_view(state_->output).substr(state_->text_before);
}

std::span<const TokenScore> Generation::new_tokens() const {
  return std::span(state_->tokens).subspan(state_->tokens_before);
}

const std::string& Generation::text() const { return state_->output; }
std::span<const TokenScore> Generation::tokens() const { return state_->tokens; }
std::span<const TokenLogprob> Generation::likeliest() const { return state_->likeliest; }
bool Generation::finished() const { return state_->finish_reason.has_value(); }

FinishReason Generation::finish_reason() const {
  CHORUS_CHECK(finished());
  return *state_->finish_reason;
}

std::optional<size_t> Generation::stop_index() const { return state_->stop_index; }
const Status& Generation::error() const { return state_->error; }
GenerationMetrics Generation::metrics() const { return state_->handle.metrics(); }
PromptScores Generation::take_prompt_scores() { return state_->handle.take_prompt_scores(); }
void Generation::cancel() const { state_->handle.cancel(); }

}  // namespace chorus
