#include "chorus/generation.h"

#include <algorithm>

#include "chorus/text_generation.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace chorus {

struct Generation::State {
  State(std::shared_ptr<const TextModel> text_in, text::StopMatcher stops_in)
      : text(std::move(text_in)), stops(std::move(stops_in)) {
    if (text != nullptr) {
      detokenizer.emplace(text->tokenizer(), text::DecodeOptions{.skip_special = true});
    }
  }

  void take(Update& delivered);
  void take_text(TokenId token);
  void finish(FinishReason reason, Status status);

  const std::shared_ptr<const TextModel> text;  // owners: with whoever made the generation
  text::StopMatcher stops;
  std::optional<text::Detokenizer> detokenizer;  // none without text
  GenerationHandle handle;
  Update update;  // reused

  std::vector<TokenScore> tokens;  // likeliest_begin counts into likeliest
  std::vector<TokenLogprob> likeliest;
  std::string output;
  size_t text_before = 0;  // of output, at the last read
  size_t tokens_before = 0;
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
    take_text(score.id);
  }
  if (delivered.finish) finish(*delivered.finish, std::move(delivered.error));
}

void Generation::State::take_text(TokenId token) {
  if (!detokenizer) return;
  const auto piece = detokenizer->push(token);
  // The engine delivers ids of the vocabulary only; a tokenizer may be smaller.
  if (!piece.ok()) return;
  const auto shown = stops.feed(*piece);
  output += shown.text;
  if (!shown.match) return;
  stop_index = shown.match->stop_index;
  // The surplus is rewound by the engine. There is a token, so this cannot fail.
  CHORUS_CHECK(handle.finish_at(static_cast<int32_t>(tokens.size())).ok());
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
    const auto shown = rest.empty() ? text::StopMatcher::Output() : stops.feed(rest);
    output += shown.text;
    if (!shown.match) output += stops.finish();
    if (shown.match) stop_index = shown.match->stop_index;
    if (shown.match && reason == FinishReason::kLength) reason = FinishReason::kStop;
  }
  finish_reason = reason;
  error = std::move(status);
  handle.wait();
}

Result<Generation> start_generation(Session& session, std::vector<TokenId> prompt,
                                    const GenerationOptions& options,
                                    std::shared_ptr<const TextModel> text,
                                    std::vector<std::string> stops) {
  if (text == nullptr && !stops.empty()) {
    return invalid_argument("stop", "expected no stop text: the model has no tokenizer");
  }
  CHORUS_ASSIGN_OR_RETURN(auto matcher, text::StopMatcher::create(std::move(stops)));
  auto state = std::make_unique<Generation::State>(std::move(text), std::move(matcher));
  CHORUS_ASSIGN_OR_RETURN(state->handle, session.generate(std::move(prompt), options));
  return Generation(std::move(state));
}

Result<Generation> start_append(Session& session, std::vector<TokenId> tokens,
                                const GenerationOptions& options) {
  auto state = std::make_unique<Generation::State>(nullptr, text::StopMatcher::create({}).value());
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
