#include "exec/scripted_executor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/random.h"

namespace chorus {
namespace {

uint64_t hash_of(std::span<const TokenId> history) {
  uint64_t hash = history.size() + 1;
  for (const TokenId token : history) {
    hash = (hash ^ static_cast<uint64_t>(static_cast<uint32_t>(token))) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

TokenId scripted_next_token(std::span<const TokenId> history, const SamplingParams& sampling,
                            int32_t vocabulary) {
  uint64_t hash = hash_of(history);
  if (sampling.temperature > 0.0f)
    hash ^= random_bits(sampling.seed, sampling.choice, history.size());
  hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93ull;
  return static_cast<TokenId>((hash >> 20) % static_cast<uint64_t>(vocabulary));
}

float scripted_logprob(std::span<const TokenId> history, TokenId token) {
  const uint64_t bits = random_bits(hash_of(history), 0, static_cast<uint64_t>(token));
  return -0.01f - static_cast<float>(bits >> 50) * 0.001f;
}

Status ScriptedExecutor::initialize() { return options_.initialize_status; }

ExecutorInfo ScriptedExecutor::info() const {
  return {.vocabulary = options_.vocabulary,
          .max_sessions = options_.max_sessions,
          .max_session_tokens = options_.max_session_tokens,
          .preferred_batch_tokens = options_.preferred_batch_tokens,
          .block_size = options_.block_size,
          .kv_format = {{}, "scripted", "scripted", "scripted", 1}};
}

Result<SessionId> ScriptedExecutor::open(const SessionOptions& options) {
  if (options.adapter != -1)
    return invalid_argument("adapter", "expected -1, found " + std::to_string(options.adapter));
  const MutexLock lock(mutex_);
  if (static_cast<int32_t>(sessions_.size()) >= options_.max_sessions)
    return resource_exhausted("max_sessions",
                              "expected at most " + std::to_string(options_.max_sessions));
  const SessionId id{next_session_++};
  sessions_[id];
  return id;
}

void ScriptedExecutor::close(SessionId session) {
  const MutexLock lock(mutex_);
  sessions_.erase(session);
}

Result<SessionId> ScriptedExecutor::clone(SessionId source, Position upto) {
  std::vector<TokenId> prefix;
  {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(source);
    if (found == sessions_.end()) return not_found("session", "no such session");
    const std::vector<TokenId>& tokens = found->second.tokens;
    if (upto < 0 || static_cast<size_t>(upto) > tokens.size())
      return invalid_argument("upto", "expected 0 to " + std::to_string(tokens.size()) +
                                          ", found " + std::to_string(upto));
    prefix.assign(tokens.begin(), tokens.begin() + upto);
  }
  CHORUS_ASSIGN_OR_RETURN(const SessionId id, open(SessionOptions{}));
  const MutexLock lock(mutex_);
  sessions_[id].tokens = std::move(prefix);
  return id;
}

Status ScriptedExecutor::set_sampling(SessionId session, const SamplingParams& params) {
  if (!(params.temperature >= 0.0f)) return invalid_argument("temperature", "expected 0 or more");
  if (params.num_likeliest < 0 || params.num_likeliest > kMaxLikeliest)
    return invalid_argument("num_likeliest", "expected 0 to " + std::to_string(kMaxLikeliest));
  for (const auto& [name, off] :
       {std::pair("top_k", params.top_k == 0), std::pair("top_p", params.top_p == 1.0f),
        std::pair("min_p", params.min_p == 0.0f), std::pair("typical_p", params.typical_p == 1.0f),
        std::pair("logit_bias", params.logit_bias.empty()),
        std::pair("penalties", !params.remembers()),
        std::pair("allowed_token_ids", params.allowed_tokens.empty()),
        std::pair("min_tokens", params.min_tokens == 0)}) {
    if (!off) return unimplemented(name, "the scripted executor has no probabilities");
  }
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return not_found("session", "no such session");
  found->second.sampling = params;
  return {};
}

Result<Position> ScriptedExecutor::length(SessionId session) const {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return not_found("session", "no such session");
  return static_cast<Position>(found->second.tokens.size());
}

int32_t ScriptedExecutor::blocks_of(size_t num_tokens) const {
  const auto size = static_cast<size_t>(options_.block_size);
  return static_cast<int32_t>((num_tokens + size - 1) / size);
}

int32_t ScriptedExecutor::blocks_used() const {
  int32_t used = 0;
  for (const auto& [id, state] : sessions_) used += blocks_of(state.tokens.size());
  return used;
}

bool ScriptedExecutor::admits(std::span<const SessionDemand> demands) const {
  int64_t needed = 0;
  for (const SessionDemand& demand : demands) {
    const auto found = sessions_.find(demand.session);
    if (found == sessions_.end()) return false;
    const size_t held = found->second.tokens.size();
    const auto start = static_cast<size_t>(demand.start);
    const int32_t blocks_at_end = blocks_of(start + static_cast<size_t>(demand.count));
    // A rewind continues in fresh blocks from the block that holds `start`; the old ones stay until
    // the step is committed.
    needed += start < held ? blocks_at_end - demand.start / options_.block_size
                           : blocks_at_end - blocks_of(held);
  }
  return needed <= options_.num_blocks - blocks_used();
}

bool ScriptedExecutor::can_admit(std::span<const SessionDemand> demands) const {
  const MutexLock lock(mutex_);
  if (refusals_ > 0) {
    --refusals_;
    return false;
  }
  return admits(demands);
}

int32_t ScriptedExecutor::available_blocks(int32_t) const {
  const MutexLock lock(mutex_);
  return options_.num_blocks - blocks_used();
}

int64_t ScriptedExecutor::releasable_blocks(SessionId session) const {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end()
             ? 0
             : int64_t{options_.num_groups} * blocks_of(found->second.tokens.size());
}

// Sessions share no blocks, and every group has the same.
int64_t ScriptedExecutor::releasable_blocks(std::span<const SessionId> sessions, int32_t) const {
  int64_t blocks = 0;
  for (const SessionId session : sessions)
    blocks += releasable_blocks(session) / options_.num_groups;
  return blocks;
}

bool ScriptedExecutor::fits(std::span<const BatchInput> batch) const {
  std::vector<SessionDemand> demands;
  for (const BatchInput& input : batch) {
    const auto same = std::find_if(demands.begin(), demands.end(), [&](const SessionDemand& d) {
      return d.session == input.session;
    });
    if (same != demands.end()) {
      same->count += input.size;
    } else if (sessions_.contains(input.session)) {
      demands.push_back({input.session, input.start(), input.size});
    }
  }
  return admits(demands);
}

void ScriptedExecutor::record(std::span<const BatchInput> batch, int64_t step) {
  for (const BatchInput& input : batch) {
    const auto begin = input.tokens->begin() + input.offset;
    seen_.push_back({.step = step,
                     .session = input.session,
                     .start = input.start(),
                     .tokens = std::vector<TokenId>(begin, begin + input.size),
                     .produce_output = input.produce_output});
  }
}

Status ScriptedExecutor::execute(std::span<const BatchInput> batch, BatchOutput& output) {
  output.clear();
  OnStep on_step;
  int64_t step = 0;
  {
    const MutexLock lock(mutex_);
    step = steps_++;
    on_step = on_step_;
    stepped_.notify_all();
  }
  if (on_step) on_step(step, batch);
  const MutexLock lock(mutex_);
  record(batch, step);
  if (is_faulty(ScriptedFault::Kind::kFailStep, SessionId{}, step))
    return internal_error("step", "a scripted fault");
  for (const BatchInput& input : batch) {
    if (is_faulty(ScriptedFault::Kind::kFailStep, input.session, step))
      return internal_error("step", "a scripted fault of one session");
  }
  if (!fits(batch)) return resource_exhausted("kv_blocks", "the pool is full");
  ++forwards_;
  Drafts drafts;
  for (const BatchInput& input : batch) {
    output.inputs.emplace_back();
    const auto found = sessions_.find(input.session);
    if (found == sessions_.end()) {
      output.inputs.back().status = not_found("session", "no such session");
      continue;
    }
    Draft& draft = drafts.try_emplace(input.session, Draft{found->second.tokens, {}}).first->second;
    if (draft.failed.ok()) draft.failed = run_input(input, step, draft, output);
  }
  commit(batch, drafts, output);
  misreport(batch, step, output);
  return {};
}

Status ScriptedExecutor::check_input(const BatchInput& input, size_t num_tokens) const {
  if (input.tokens == nullptr || input.offset < 0 || input.size <= 0 ||
      static_cast<size_t>(input.offset) + static_cast<size_t>(input.size) > input.tokens->size())
    return invalid_argument("tokens", "the slice is empty or outside the token vector");
  if (input.start() < 0 || static_cast<size_t>(input.start()) > num_tokens)
    return invalid_argument("position", "expected at most " + std::to_string(num_tokens) +
                                            ", found " + std::to_string(input.start()));
  if (input.end() > options_.max_session_tokens)
    return resource_exhausted("max_session_tokens",
                              "expected at most " + std::to_string(options_.max_session_tokens) +
                                  ", found " + std::to_string(input.end()));
  return {};
}

Status ScriptedExecutor::check_tokens(const BatchInput& input) const {
  for (int32_t i = input.offset; i < input.offset + input.size; ++i) {
    const TokenId token = (*input.tokens)[static_cast<size_t>(i)];
    if (token >= 0 && token < options_.vocabulary) continue;
    return invalid_argument("tokens[" + std::to_string(i) + "]",
                            "expected an id below " + std::to_string(options_.vocabulary) +
                                ", found " + std::to_string(token));
  }
  return {};
}

Status ScriptedExecutor::run_input(const BatchInput& input, int64_t step, Draft& draft,
                                   BatchOutput& output) {
  if (is_faulty(ScriptedFault::Kind::kFailInput, input.session, step))
    return internal_error("input", "a scripted fault");
  std::vector<TokenId>& tokens = draft.tokens;
  CHORUS_RETURN_IF_ERROR(check_input(input, tokens.size()));
  const auto& sampling = sessions_[input.session].sampling;
  if (input.produce_output && !sampling.has_value())
    return invalid_argument("produce_output", "expected a policy before an output is asked for");
  CHORUS_RETURN_IF_ERROR(check_tokens(input));
  tokens.resize(static_cast<size_t>(input.start()));
  InputOutput& result = output.inputs.back();
  result.scored_begin = static_cast<int32_t>(output.tokens.size());
  result.first_scored = std::max(input.score_from, input.start() + 1);
  const int32_t num_likeliest = sampling.has_value() ? sampling->num_likeliest : 0;
  for (int32_t i = 0; i < input.size; ++i) {
    tokens.push_back((*input.tokens)[static_cast<size_t>(input.offset + i)]);
    const auto next = static_cast<size_t>(input.offset + i + 1);
    if (input.start() + i + 1 < result.first_scored || next >= input.tokens->size()) continue;
    output.tokens.push_back(score_of(tokens, (*input.tokens)[next], num_likeliest, output));
    ++result.scored_count;
  }
  result.sampled_begin = static_cast<int32_t>(output.tokens.size());
  if (!input.produce_output) return {};
  result.sampled_count =
      std::clamp(options_.max_session_tokens - input.end() + 1, 1, options_.tokens_per_output);
  sample(*sampling, result.sampled_count, tokens, output);
  return {};
}

TokenScore ScriptedExecutor::score_of(std::span<const TokenId> history, TokenId token,
                                      int32_t num_likeliest, BatchOutput& output) const {
  TokenScore score{.id = token,
                   .logprob = scripted_logprob(history, token),
                   .rank = 1,
                   .likeliest_begin = static_cast<int32_t>(output.likeliest.size()),
                   .likeliest_count = num_likeliest};
  for (int32_t i = 0; i < num_likeliest; ++i) {
    const TokenId id = (token + i) % options_.vocabulary;
    output.likeliest.push_back({.id = id, .logprob = scripted_logprob(history, id)});
  }
  return score;
}

void ScriptedExecutor::sample(const SamplingParams& sampling, int32_t count,
                              std::vector<TokenId>& tokens, BatchOutput& output) const {
  for (int32_t i = 0; i < count; ++i) {
    const TokenId next = scripted_next_token(tokens, sampling, options_.vocabulary);
    output.tokens.push_back(score_of(tokens, next, sampling.num_likeliest, output));
    tokens.push_back(next);
  }
  tokens.pop_back();  // the last one is committed when it is fed back
}

void ScriptedExecutor::commit(std::span<const BatchInput> batch, Drafts& drafts,
                              BatchOutput& output) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto draft = drafts.find(batch[i].session);
    if (draft != drafts.end() && !draft->second.failed.ok()) {
      output.inputs[i] = {};
      output.inputs[i].status = draft->second.failed;
    }
  }
  for (auto& [id, draft] : drafts) {
    if (draft.failed.ok()) sessions_[id].tokens = std::move(draft.tokens);
  }
  blocks_peak_ = std::max(blocks_peak_, blocks_used());
}

bool ScriptedExecutor::is_faulty(ScriptedFault::Kind kind, SessionId session, int64_t step) const {
  return std::any_of(faults_.begin(), faults_.end(), [&](const ScriptedFault& fault) {
    return fault.kind == kind && fault.session == session && step >= fault.first_step &&
           step - fault.first_step < fault.num_steps;
  });
}

void ScriptedExecutor::misreport(std::span<const BatchInput> batch, int64_t step,
                                 BatchOutput& output) const {
  using Kind = ScriptedFault::Kind;
  for (size_t i = 0; i < batch.size(); ++i) {
    InputOutput& result = output.inputs[i];
    const SessionId id = batch[i].session;
    if (is_faulty(Kind::kMissingToken, id, step)) result.sampled_count = 0;
    if (is_faulty(Kind::kUnexpectedToken, id, step) && !batch[i].produce_output) {
      result.sampled_begin = static_cast<int32_t>(output.tokens.size());
      result.sampled_count = 1;
      output.tokens.emplace_back();
    }
    if (is_faulty(Kind::kTokenOutOfRange, id, step) && result.sampled_count > 0)
      output.tokens[static_cast<size_t>(result.sampled_begin)].id = options_.vocabulary;
    if (is_faulty(Kind::kBadRange, id, step))
      result.sampled_begin = static_cast<int32_t>(output.tokens.size());
  }
  if (is_faulty(Kind::kShortOutput, SessionId{}, step)) output.inputs.pop_back();
}

Status ScriptedExecutor::truncate(SessionId session, Position length) {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return not_found("session", "no such session");
  if (length < 0 || static_cast<size_t>(length) > found->second.tokens.size())
    return invalid_argument("length", "expected at most " +
                                          std::to_string(found->second.tokens.size()) + ", found " +
                                          std::to_string(length));
  found->second.tokens.resize(static_cast<size_t>(length));
  return {};
}

Result<Position> ScriptedExecutor::attach_prefix(SessionId session, std::span<const TokenId>) {
  CHORUS_ASSIGN_OR_RETURN(const Position held, length(session));
  if (held > 0)
    return invalid_argument("session",
                            "expected an empty one, found " + std::to_string(held) + " tokens");
  return 0;
}
Status ScriptedExecutor::release(SessionId session) { return truncate(session, 0); }
// Its KV is its tokens.
Status ScriptedExecutor::save(SessionId session, ByteSink& sink) {
  const auto tokens = tokens_of(session);
  if (!tokens.has_value()) return not_found("session", "no such session");
  const auto count = static_cast<uint32_t>(tokens->size());
  CHORUS_RETURN_IF_ERROR(sink.write(std::as_bytes(std::span(&count, 1))));
  return sink.write(std::as_bytes(std::span(*tokens)));
}

Result<SessionId> ScriptedExecutor::load(const SessionOptions& options, std::span<const TokenId>,
                                         ByteSource& source) {
  uint32_t count = 0;
  CHORUS_RETURN_IF_ERROR(source.read(std::as_writable_bytes(std::span(&count, 1))));
  if (count > static_cast<uint32_t>(options_.max_session_tokens))
    return data_loss("tokens", "too many");
  std::vector<TokenId> tokens(count);
  CHORUS_RETURN_IF_ERROR(source.read(std::as_writable_bytes(std::span(tokens))));
  {
    const MutexLock lock(mutex_);
    if (blocks_of(count) > options_.num_blocks - blocks_used())
      return resource_exhausted("kv_blocks", "the pool is full");
  }
  CHORUS_ASSIGN_OR_RETURN(const SessionId id, open(options));
  const MutexLock lock(mutex_);
  sessions_[id].tokens = std::move(tokens);
  return id;
}

Usage ScriptedExecutor::usage() const {
  const MutexLock lock(mutex_);
  Usage usage;
  usage.groups.assign(static_cast<size_t>(options_.num_groups),
                      {.num_layers = 1,
                       .blocks_total = options_.num_blocks,
                       .blocks_free = options_.num_blocks - blocks_used(),
                       .blocks_peak = blocks_peak_});
  usage.methods.push_back({.name = "forward", .forwards = forwards_});
  usage.steps = steps_;
  return usage;
}

void ScriptedExecutor::add_fault(const ScriptedFault& fault) {
  const MutexLock lock(mutex_);
  faults_.push_back(fault);
}

void ScriptedExecutor::refuse_admission(int num_calls) {
  const MutexLock lock(mutex_);
  refusals_ = num_calls;
}

void ScriptedExecutor::set_on_step(OnStep on_step) {
  const MutexLock lock(mutex_);
  on_step_ = std::move(on_step);
}

int64_t ScriptedExecutor::num_steps() const {
  const MutexLock lock(mutex_);
  return steps_;
}

void ScriptedExecutor::wait_for_steps(int64_t count) const {
  const MutexLock lock(mutex_);
  while (steps_ < count) stepped_.wait(mutex_);
}

int32_t ScriptedExecutor::num_sessions() const {
  const MutexLock lock(mutex_);
  return static_cast<int32_t>(sessions_.size());
}

std::vector<ScriptedExecutor::SeenInput> ScriptedExecutor::seen() const {
  const MutexLock lock(mutex_);
  return seen_;
}

std::optional<std::vector<TokenId>> ScriptedExecutor::tokens_of(SessionId session) const {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return std::nullopt;
  return found->second.tokens;
}

}  // namespace chorus
