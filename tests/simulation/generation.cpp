#include "tests/simulation/generation.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "tests/simulation/expect.h"

namespace chorus::simulation {
namespace {

// So that NaN equals NaN.
bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

bool same(const Scored& a, const Scored& b) {
  return a.token.id == b.token.id && same_bits(a.token.logprob, b.token.logprob) &&
         a.token.rank == b.token.rank && a.likeliest.size() == b.likeliest.size() &&
         std::equal(a.likeliest.begin(), a.likeliest.end(), b.likeliest.begin(),
                    [](const TokenLogprob& x, const TokenLogprob& y) {
                      return x.id == y.id && same_bits(x.logprob, y.logprob);
                    });
}

std::string show(const Scored& scored) {
  return "token " + std::to_string(scored.token.id) + " logprob " +
         std::to_string(scored.token.logprob) + " rank " + std::to_string(scored.token.rank) +
         " likeliest " + std::to_string(scored.likeliest.size());
}

Scored pick(const TokenScore& token, std::span<const TokenLogprob> likeliest) {
  const auto own = likeliest.subspan(static_cast<size_t>(token.likeliest_begin),
                                     static_cast<size_t>(token.likeliest_count));
  return {token, {own.begin(), own.end()}};
}

}  // namespace

Generation::Generation(Request request, GenerationHandle handle, Oracle& oracle)
    : request_(std::move(request)), handle_(std::move(handle)), oracle_(oracle) {
  all_ = request_.context;
  all_.insert(all_.end(), request_.prompt.begin(), request_.prompt.end());
  seed_ = request_.options.seed;
}

// ---- What it must deliver ----

bool Generation::can_tell() const {
  return seed_.has_value() || request_.options.sampling.temperature == 0.0f;
}

// What bias and penalties have to know, counted anew.
std::vector<TokenAdjustment> Generation::adjustments() const {
  const SamplingParams& sampling = request_.options.sampling;
  std::map<TokenId, TokenAdjustment> by_id;
  for (size_t i = 0; i < all_.size(); ++i) {
    TokenAdjustment& each = by_id[all_[i]];
    const bool is_chosen = static_cast<Position>(i) >= prompt_end();
    each.count += is_chosen ? 1 : 0;
    each.is_given = each.is_given || !is_chosen;
  }
  for (const TokenBias& each : sampling.logit_bias) by_id[each.id].bias = each.bias;
  std::vector<TokenAdjustment> list;
  for (auto& [id, each] : by_id) {
    each.id = id;
    list.push_back(each);
  }
  return list;
}

// By anything but the constraint, as the token number `index` of the generation.
bool Generation::is_forbidden(TokenId token, int32_t index) const {
  const SamplingParams& sampling = request_.options.sampling;
  const std::vector<TokenId>& allowed = sampling.allowed_tokens;
  if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), token) == allowed.end())
    return true;
  if (index < sampling.min_tokens && is_stop(token)) return true;
  Tokens chosen(all_.begin() + prompt_end(), all_.end());
  chosen.push_back(token);
  return std::any_of(
      sampling.bad_sequences.begin(), sampling.bad_sequences.end(), [&](const Tokens& bad) {
        return bad.size() <= chosen.size() && std::equal(bad.rbegin(), bad.rend(), chosen.rbegin());
      });
}

std::optional<Scored> Generation::sample(int32_t index) {
  const SamplingParams& sampling = request_.options.sampling;
  RowSpec spec;
  spec.sample = true;
  spec.temperature = sampling.temperature;
  spec.top_k = sampling.top_k;
  spec.top_p = sampling.top_p;
  spec.min_p = sampling.min_p;
  spec.seed = seed_.value_or(0);
  spec.choice = sampling.choice;
  spec.position = prompt_end() + index;
  spec.logprobs = sampling.logprobs;
  spec.num_likeliest = sampling.num_likeliest;
  spec.typical_p = sampling.typical_p;
  spec.repetition_penalty = sampling.repetition_penalty;
  spec.frequency_penalty = sampling.frequency_penalty;
  spec.presence_penalty = sampling.presence_penalty;
  std::vector<TokenAdjustment> adjusted = adjustments();
  spec.adjustments = adjusted;
  const int32_t vocabulary = oracle_.vocabulary();
  std::vector<uint32_t> mask(static_cast<size_t>(vocabulary + 31) / 32);
  if (request_.constraint.has_value()) {
    if (request_.constraint->fails_at(index)) return std::nullopt;
    request_.constraint->fill(index, last_sampled_, mask);
  } else {
    for (TokenId id = 0; id < vocabulary; ++id)
      mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  for (TokenId id = 0; id < vocabulary; ++id) {
    if (is_forbidden(id, index)) mask[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
  }
  if (std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; }))
    return std::nullopt;
  spec.mask = mask;
  return oracle_.reduce(std::span(all_).first(static_cast<size_t>(spec.position)), spec);
}

// The token it must deliver as number `index`; null where it must fail.
const Scored* Generation::expected(int32_t index) {
  while (std::ssize(expected_) <= index && !expected_ends_) {
    auto next = sample(static_cast<int32_t>(expected_.size()));
    expected_ends_ = !next.has_value();
    if (expected_ends_) break;
    last_sampled_ = next->token.id;
    all_.push_back(last_sampled_);
    expected_.push_back(*std::move(next));
  }
  return index < std::ssize(expected_) ? &expected_[static_cast<size_t>(index)] : nullptr;
}

Tokens Generation::history(Position length) {
  if (length > prompt_end()) {
    SIM_EXPECT(can_tell() && expected(length - prompt_end() - 1) != nullptr,
               name() + ": it holds " + std::to_string(length) + " tokens");
  }
  return {all_.begin(), all_.begin() + length};
}

bool Generation::is_stop(TokenId token) const {
  const auto& stops = request_.options.stop_tokens;
  return !request_.options.ignore_stop_tokens &&
         std::find(stops.begin(), stops.end(), token) != stops.end();
}

Position Generation::first_scored() const {
  return std::max({request_.options.score_from.value_or(BatchInput::kNoScores), prompt_begin(), 1});
}

// A token of the prompt, or one before it that was never computed, whose row is not finite.
bool Generation::must_fail_in_prompt() {
  if (request_.options.max_new_tokens > 0 && expected(0) == nullptr) return true;
  RowSpec spec;
  spec.given = 0;
  const auto is_finite = [&](Position length) {
    return oracle_.reduce(std::span(all_).first(static_cast<size_t>(length)), spec).has_value();
  };
  for (Position p = first_scored(); p < prompt_end(); ++p) {
    if (!is_finite(p)) return true;
  }
  // An append wants no row: only keys and values count.
  Tokens probe(all_.begin(), all_.begin() + prompt_end());
  probe.push_back(0);
  return !oracle_.reduce(probe, spec).has_value();
}

// ---- What it delivers ----

bool Generation::read() {
  Update update;
  if (!handle_.try_read(update)) return false;
  for (const TokenScore& token : update.tokens) read_.push_back(pick(token, update.likeliest));
  if (update.finish.has_value()) {
    SIM_EXPECT(!end_was_read_, name() + ": ended twice");
    SIM_EXPECT(update.finish == handle_.finish_reason(), name());
    SIM_EXPECT(update.error == handle_.error(), name());
    end_was_read_ = true;
    SIM_EXPECT(!handle_.try_read(update), name() + ": there was something behind the end");
  }
  check_read();
  return true;
}

void Generation::check_read() {
  if (!can_tell()) return;
  for (; num_checked_ < num_read(); ++num_checked_) check_token(num_checked_);
  if (end_was_read_ && ended_) {
    SIM_EXPECT(num_read() >= num_delivered_, name() + ": read " + std::to_string(num_read()) +
                                                 " of " + std::to_string(num_delivered_));
    if (!cut.has_value()) SIM_EXPECT(num_read() == num_delivered_, name());
  }
}

void Generation::check_token(int32_t index) {
  const Scored& found = read_[static_cast<size_t>(index)];
  const auto where = [&] { return name() + ", token " + std::to_string(index); };
  SIM_EXPECT(index < request_.options.max_new_tokens, where() + ": too many");
  if (index > 0)
    SIM_EXPECT(!is_stop(read_[static_cast<size_t>(index) - 1].token.id),
               where() + ": after a stop");
  const Scored* wanted = expected(index);
  SIM_EXPECT(wanted != nullptr, where() + ": it had to fail before");
  SIM_EXPECT(same(*wanted, found), where() + ": " + show(*wanted) + " expected, " + show(found));
  digest_ = random_bits(digest_, static_cast<uint32_t>(found.token.id),
                        std::bit_cast<uint32_t>(found.token.logprob));
}

void Generation::check_position(Position position) const {
  const auto where = [&] { return name() + ": position " + std::to_string(position); };
  SIM_EXPECT(position >= prompt_begin(), where());
  SIM_EXPECT(position <= prompt_end() + request_.options.max_new_tokens, where());
  if (ended_ && num_delivered_ > 0) SIM_EXPECT(position == prompt_end() + num_delivered_, where());
}

// ---- The end ----

EndKind Generation::check_end(int64_t turn_ns) {
  SIM_EXPECT(!ended_ && handle_.done(), name());
  ended_ = true;
  const FinishReason reason = *handle_.finish_reason();
  const Status error = handle_.error();
  const GenerationMetrics metrics = handle_.metrics();
  num_delivered_ = metrics.generated_tokens;
  if (seed_.has_value()) SIM_EXPECT(metrics.seed == *seed_, name());
  seed_ = metrics.seed;
  check_metrics(metrics);
  check_read();
  digest_ =
      random_bits(digest_, static_cast<uint32_t>(reason), static_cast<uint64_t>(num_delivered_));
  if (request_.session_is_broken || request_.has_bad_sampling) {
    // A generation that waits may be cancelled before the executor looks at its parameters.
    const bool was_first = !request_.session_is_broken &&
                           (reason == FinishReason::kCancelled || error.field() == "device");
    if (!was_first) {
      SIM_EXPECT(reason == FinishReason::kError && num_delivered_ == 0, name());
      return EndKind::kRefused;
    }
  }
  switch (reason) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      SIM_EXPECT(error.ok(), name() + ": " + error.to_string());
      check_natural_end(reason);
      return reason == FinishReason::kStop ? EndKind::kStop : EndKind::kLength;
    case FinishReason::kCancelled:
      return check_cancelled(error, turn_ns);
    case FinishReason::kError:
      return check_error(error);
  }
  return EndKind::kRefused;
}

void Generation::cut_after_end(int32_t n) {
  if (n >= num_delivered_) return;
  num_delivered_ = n;
  const bool has_failed = handle_.finish_reason() == FinishReason::kError;
  SIM_EXPECT(has_failed || handle_.finish_reason() == FinishReason::kStop, name());
  SIM_EXPECT(has_failed != handle_.error().ok(), name() + ": " + handle_.error().to_string());
}

void Generation::check_metrics(const GenerationMetrics& metrics) const {
  SIM_EXPECT(num_delivered_ >= 0 && num_delivered_ <= request_.options.max_new_tokens, name());
  if (cut.has_value())
    SIM_EXPECT(num_delivered_ <= *cut, name() + ": cut to " + std::to_string(*cut));
  SIM_EXPECT(metrics.prompt_tokens == static_cast<int32_t>(request_.prompt.size()), name());
  SIM_EXPECT(metrics.recomputed_tokens >= 0 && metrics.preemptions >= 0, name());
  if (!may_be_preempted)
    SIM_EXPECT(metrics.preemptions == 0, name() + ": it was the first of all, and was preempted");
  SIM_EXPECT(metrics.queue_ms >= 0 && metrics.queue_ms <= metrics.total_ms, name());
  if (num_delivered_ > 0)
    SIM_EXPECT(metrics.queue_ms <= metrics.ttft_ms && metrics.ttft_ms <= metrics.total_ms, name());
}

void Generation::check_natural_end(FinishReason reason) {
  SIM_EXPECT(!must_fail_in_prompt(), name() + ": it had to fail");
  const int32_t n = num_delivered_;
  if (reason == FinishReason::kLength) {
    SIM_EXPECT(n == request_.options.max_new_tokens,
               name() + ": " + std::to_string(n) + " delivered");
    return;
  }
  const Scored* last = n > 0 ? expected(n - 1) : nullptr;
  SIM_EXPECT(last != nullptr, name() + ": stopped by nothing");
  SIM_EXPECT(cut == n || is_stop(last->token.id),
             name() + ": stopped at " + std::to_string(n) + " without a reason");
}

EndKind Generation::check_cancelled(const Status& error, int64_t turn_ns) const {
  const bool was_overdue =
      request_.deadline_at_ns.has_value() && *request_.deadline_at_ns <= turn_ns;
  if (error.ok()) {
    SIM_EXPECT(cancel_posted || close_posted, name() + ": cancelled by nobody");
    return EndKind::kCancelled;
  }
  SIM_EXPECT(error.code() == Code::kDeadlineExceeded && was_overdue,
             name() + ": " + error.to_string());
  return EndKind::kDeadline;
}

EndKind Generation::check_error(const Status& error) {
  const std::string& field = error.field();
  const auto where = [&] { return name() + ": " + error.to_string(); };
  for (const char* injected : {"begin", "forward", "reduce_rows", "device"}) {
    if (field == injected) return EndKind::kInjected;
  }
  if (cut == num_delivered_) return EndKind::kNotFinite;  // whatever it was came later
  const bool in_prompt = num_delivered_ == 0;
  SIM_EXPECT(in_prompt ? must_fail_in_prompt() : expected(num_delivered_) == nullptr, where());
  if (field == "constraint") {
    SIM_EXPECT(request_.constraint.has_value() && request_.constraint->fails_at(num_delivered_),
               where());
    return EndKind::kConstraint;
  }
  for (const char* forbids : {"allowed_token_ids", "min_tokens", "bad_words"}) {
    if (field == forbids) return EndKind::kConstraint;
  }
  SIM_EXPECT(field == "kv" || field == "logits" || field == "session", where());
  return EndKind::kNotFinite;
}

// All of them once a token was delivered or the prompt is consumed, else the first ones.
void Generation::check_scores() {
  SIM_EXPECT(ended_, name());
  const PromptScores scores = handle_.take_prompt_scores();
  const Position first = first_scored();
  const bool is_complete = num_delivered_ > 0 || (request_.options.max_new_tokens == 0 &&
                                                  handle_.finish_reason() == FinishReason::kLength);
  const auto num_scores = static_cast<Position>(scores.tokens.size());
  const Position most = std::max(0, prompt_end() - first);
  SIM_EXPECT(num_scores <= most && (!is_complete || num_scores == most),
             name() + ": " + std::to_string(num_scores) + " scores of " + std::to_string(most));
  if (num_scores > 0) SIM_EXPECT(scores.first == first, name());
  for (Position i = 0; i < num_scores; ++i) {
    const auto at = static_cast<size_t>(first + i);
    RowSpec spec;
    spec.given = all_[at];
    spec.num_likeliest = request_.options.sampling.num_likeliest;
    const auto wanted = oracle_.reduce(std::span(all_).first(at), spec);
    const Scored found = pick(scores.tokens[static_cast<size_t>(i)], scores.likeliest);
    SIM_EXPECT(wanted.has_value() && same(*wanted, found),
               name() + ": the score at position " + std::to_string(at));
  }
}

}  // namespace chorus::simulation
