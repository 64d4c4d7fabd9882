// custom_executor: an executor of one's own under the engine. Its "model" says, after each token,
// the one that followed it in the session most often, and else the next number. It keeps the tokens
// of each session in a plain vector; the engine does batching, queues, cancelling and rewinding.
#include <algorithm>
#include <chorus/engine/runner.h>
#include <iostream>
#include <map>
#include <vector>

using namespace chorus;

namespace {

constexpr int32_t kVocabulary = 100;
constexpr int32_t kMaxSessions = 8;
constexpr int32_t kMaxTokens = 1000;

class CountingExecutor final : public Executor {
 public:
  Status initialize() override { return Status(); }

  ExecutorInfo info() const override {
    ExecutorInfo info;
    info.vocabulary = kVocabulary;
    info.max_sessions = kMaxSessions;
    info.max_session_tokens = kMaxTokens;
    info.block_size = 1;
    return info;
  }

  Result<SessionId> open(const SessionOptions&) override { return add({}); }
  void close(SessionId session) override { sessions_.erase(session); }

  Result<SessionId> clone(SessionId source, Position upto) override {
    const auto found = sessions_.find(source);
    if (found == sessions_.end()) return not_found("session", "expected an open session");
    const Tokens& tokens = found->second;
    if (upto < 0 || upto > static_cast<Position>(tokens.size())) {
      return invalid_argument("upto", "expected at most the session's length");
    }
    return add({tokens.begin(), tokens.begin() + upto});
  }

  // Always the likeliest token: nothing to remember.
  Status set_sampling(SessionId, const SamplingParams& params) override {
    if (params.temperature == 0) return Status();
    return unimplemented("temperature", "expected 0: this model does not draw");
  }

  Result<Position> length(SessionId session) const override {
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return not_found("session", "expected an open session");
    return static_cast<Position>(found->second.size());
  }

  // There is always room: one pool of as many "blocks" as all sessions can fill.
  bool can_admit(std::span<const SessionDemand>) const override { return true; }
  int32_t available_blocks(int32_t) const override { return kMaxSessions * kMaxTokens; }
  int64_t releasable_blocks(SessionId session) const override {
    const auto found = sessions_.find(session);
    return found == sessions_.end() ? 0 : static_cast<int64_t>(found->second.size());
  }
  int64_t releasable_blocks(std::span<const SessionId> sessions, int32_t) const override {
    int64_t blocks = 0;
    for (const SessionId session : sessions) blocks += releasable_blocks(session);
    return blocks;
  }
  bool shares_last_block(SessionId) const override { return false; }  // a block is a token

  // Each input continues the session as it was before the step, or after the input before it. None
  // of this can fail, so that there is nothing to roll back.
  Status execute(std::span<const BatchInput> batch, BatchOutput& output) override {
    output.clear();
    ++steps_;
    for (const BatchInput& input : batch) {
      Tokens& tokens = sessions_.at(input.session);
      tokens.resize(static_cast<size_t>(input.start()));  // start < length is a rewind
      const auto first = input.tokens->begin() + input.offset;
      tokens.insert(tokens.end(), first, first + input.size);
      InputOutput result;
      result.sampled_begin = static_cast<int32_t>(output.tokens.size());
      if (input.produce_output) {
        TokenScore score;
        score.id = next(tokens);
        output.tokens.push_back(score);
        result.sampled_count = 1;
      }
      result.scored_begin = static_cast<int32_t>(output.tokens.size());
      output.inputs.push_back(result);
    }
    return Status();
  }

  Status truncate(SessionId session, Position length) override {
    sessions_.at(session).resize(static_cast<size_t>(length));
    return Status();
  }
  Result<Position> attach_prefix(SessionId, std::span<const TokenId>) override { return 0; }
  Status release(SessionId session) override { return truncate(session, 0); }

  // The tokens are all there is, and the engine saves those itself.
  Status save(SessionId, ByteSink&) override {
    return unimplemented("save", "this executor has no KV");
  }
  Result<SessionId> load(const SessionOptions&, std::span<const TokenId>, ByteSource&) override {
    return unimplemented("load", "this executor has no KV");
  }

  Usage usage() const override {
    Usage usage;
    GroupUsage group;
    group.num_layers = 1;
    group.blocks_total = kMaxSessions * kMaxTokens;
    group.blocks_free = group.blocks_total;
    for (const auto& [session, tokens] : sessions_) {
      group.blocks_free -= static_cast<int32_t>(tokens.size());
    }
    usage.groups = {group};
    usage.steps = steps_;
    return usage;
  }

 private:
  using Tokens = std::vector<TokenId>;

  Result<SessionId> add(Tokens tokens) {
    if (sessions_.size() >= kMaxSessions) {
      return resource_exhausted("max_sessions", "expected a free place");
    }
    const SessionId id{next_id_++};
    sessions_.emplace(id, std::move(tokens));
    return id;
  }

  static TokenId next(const Tokens& tokens) {
    std::map<TokenId, int> followers;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      if (tokens[i] == tokens.back()) ++followers[tokens[i + 1]];
    }
    const auto most =
        std::max_element(followers.begin(), followers.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == followers.end() ? (tokens.back() + 1) % kVocabulary : most->first;
  }

  std::map<SessionId, Tokens> sessions_;
  uint64_t next_id_ = 1;
  int64_t steps_ = 0;
};

}  // namespace

int main() {
  const SteadyClock clock;
  auto runner = Runner::create(std::make_unique<CountingExecutor>(), {}, clock);
  if (!runner.ok()) {
    std::cerr << runner.status().to_string() << '\n';
    return 1;
  }
  // Two sessions in one batch.
  const std::vector<std::vector<TokenId>> prompts = {{7, 3, 5, 7, 3, 9, 7, 3, 5, 7}, {40}};
  std::vector<Session> sessions;
  std::vector<GenerationHandle> generations;
  for (const auto& prompt : prompts) {
    auto session = (*runner)->open();
    auto generation = session.ok() ? session->generate(prompt, {.max_new_tokens = 6})
                                   : Result<GenerationHandle>(session.status());
    if (!generation.ok()) {
      std::cerr << generation.status().to_string() << '\n';
      return 1;
    }
    sessions.push_back(std::move(session).value());
    generations.push_back(*generation);
  }
  for (const GenerationHandle& generation : generations) {
    Update update;
    while (generation.read(update)) {
      for (const TokenScore& token : update.tokens) std::cout << token.id << ' ';
    }
    std::cout << '\n';
  }
  return 0;
}
