// Token constraints through the engine and a real module: what they allow, and that nobody else
// hears of them.
#include <algorithm>
#include <bit>
#include <gtest/gtest.h>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"
#include "chorus/engine.h"
#include "chorus/model.h"

namespace chorus {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int32_t kGenerated = 12;
constexpr size_t kPrompts = 6;

// Allows a fixed set; fails as it is told to.
class FixedSet final : public TokenConstraint {
 public:
  explicit FixedSet(std::set<TokenId> allowed) : allowed_(std::move(allowed)) {}
  Status fill_mask(std::span<uint32_t> mask) override {
    if (num_accepted == fail_mask_at) return internal_error("grammar", "no mask, as asked");
    for (const TokenId id : allowed_) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    return {};
  }
  Status accept(TokenId token) override {
    EXPECT_EQ(allowed_.count(token), 1u) << token;
    if (num_accepted == fail_accept_at) return invalid_argument("grammar", "refused, as asked");
    ++num_accepted;
    return {};
  }
  const std::set<TokenId>& allowed() const { return allowed_; }

  int fail_mask_at = -1;  // so many tokens were accepted before
  int fail_accept_at = -1;
  int num_accepted = 0;

 private:
  const std::set<TokenId> allowed_;
};

// Everything a caller sees of a generation.
struct Seen {
  std::vector<std::pair<TokenId, uint32_t>> tokens;  // with the bits of the logprob
  FinishReason finish = FinishReason::kError;
  std::string field;  // of the error
  friend bool operator==(const Seen&, const Seen&) = default;

  Tokens ids() const {
    Tokens ids;
    for (const auto& [id, bits] : tokens) ids.push_back(id);
    return ids;
  }
};

Seen see(const GenerationHandle& handle) {
  Seen seen;
  Update update;
  while (handle.read(update)) {
    for (const TokenScore& token : update.tokens)
      seen.tokens.push_back({token.id, std::bit_cast<uint32_t>(token.logprob)});
    if (update.finish) seen.finish = *update.finish;
    seen.field = update.error.field();
  }
  return seen;
}

class ConstraintTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto program = load_program(CHORUS_SOURCE_DIR "/tests/golden/tiny/untied_mixed.gguf", {});
    ASSERT_TRUE(program.ok()) << program.status().to_string();
    EngineOptions options;
    options.threads = 1;
    options.kv_blocks = 200;
    auto engine = Engine::create(*program, options, clock_);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_ = std::move(engine).value();
    RandomStream random(1234);
    const auto vocabulary = static_cast<uint64_t>(engine_->program().vocabulary());
    for (size_t i = 0; i < kPrompts; ++i) {
      Tokens prompt;
      for (int64_t n = random.between(1, 40); n > 0; --n)
        prompt.push_back(static_cast<TokenId>(random.below(vocabulary)));
      prompts_.push_back(std::move(prompt));
      std::set<TokenId> allowed;
      while (allowed.size() < 3 + 9 * i) {
        allowed.insert(static_cast<TokenId>(random.below(vocabulary)));
      }
      sets_.push_back(std::move(allowed));
    }
  }

  Session open() { return engine_->runner().open().value(); }

  // Prompt i under its set; the odd ones draw.
  GenerationOptions options(size_t i, std::shared_ptr<TokenConstraint> constraint) const {
    GenerationOptions options;
    options.max_new_tokens = kGenerated;
    options.sampling.logprobs = true;
    options.sampling.temperature = i % 2 == 0 ? 0.0f : 1.5f;
    options.sampling.constraint = std::move(constraint);
    options.seed = i;
    return options;
  }
  std::shared_ptr<FixedSet> set_of(size_t i) const { return std::make_shared<FixedSet>(sets_[i]); }

  // All prompts together, each under `constraints[i]`.
  std::vector<Seen> run(const std::vector<std::shared_ptr<FixedSet>>& constraints) {
    std::vector<Session> sessions;
    std::vector<GenerationHandle> handles;
    for (size_t i = 0; i < kPrompts; ++i) {
      sessions.push_back(open());
      handles.push_back(sessions[i].generate(prompts_[i], options(i, constraints[i])).value());
    }
    std::vector<Seen> seen;
    for (const GenerationHandle& handle : handles) seen.push_back(see(handle));
    return seen;
  }
  std::vector<std::shared_ptr<FixedSet>> fresh() const {
    std::vector<std::shared_ptr<FixedSet>> constraints;
    for (size_t i = 0; i < kPrompts; ++i) constraints.push_back(set_of(i));
    return constraints;
  }
  Seen run_alone(size_t i) {
    Session session = open();
    return see(session.generate(prompts_[i], options(i, set_of(i))).value());
  }

  // What the model thinks of the tokens behind prompt i, without a constraint.
  PromptScores scores_of(size_t i, const Tokens& tokens) {
    Tokens all = prompts_[i];
    all.insert(all.end(), tokens.begin(), tokens.end());
    Session session = open();
    GenerationOptions wanted;
    wanted.sampling.logprobs = true;
    wanted.sampling.num_likeliest = kMaxLikeliest;
    wanted.score_from = static_cast<Position>(prompts_[i].size());
    const GenerationHandle handle = session.append(all, wanted).value();
    handle.wait();
    return handle.take_prompt_scores();
  }

  const SteadyClock clock_;
  std::unique_ptr<Engine> engine_;
  std::vector<Tokens> prompts_;
  std::vector<std::set<TokenId>> sets_;
};

TEST_F(ConstraintTest, EveryTokenIsOfItsSetAloneAndInABatch) {
  const auto constraints = fresh();
  const std::vector<Seen> together = run(constraints);
  for (size_t i = 0; i < kPrompts; ++i) {
    SCOPED_TRACE("prompt " + std::to_string(i));
    EXPECT_EQ(together[i].finish, FinishReason::kLength);
    ASSERT_EQ(together[i].tokens.size(), size_t{kGenerated});
    for (const TokenId id : together[i].ids()) EXPECT_EQ(sets_[i].count(id), 1u) << id;
    EXPECT_EQ(constraints[i]->num_accepted, kGenerated);
    EXPECT_EQ(run_alone(i), together[i]);
  }
}

TEST_F(ConstraintTest, LogprobsAreOverAllTokens) {
  const std::vector<Seen> together = run(fresh());
  int num_greedy = 0;
  for (size_t i = 0; i < kPrompts; ++i) {
    SCOPED_TRACE("prompt " + std::to_string(i));
    const PromptScores scores = scores_of(i, together[i].ids());
    ASSERT_EQ(scores.tokens.size(), size_t{kGenerated});
    for (size_t k = 0; k < scores.tokens.size(); ++k) {
      const TokenScore& score = scores.tokens[k];
      EXPECT_EQ(together[i].tokens[k].first, score.id);
      EXPECT_EQ(together[i].tokens[k].second, std::bit_cast<uint32_t>(score.logprob));
      if (i % 2 != 0) continue;
      // Greedy: the likeliest of the set, where that is among the likeliest of all.
      const auto begin = scores.likeliest.begin() + score.likeliest_begin;
      const auto best =
          std::find_if(begin, begin + score.likeliest_count,
                       [&](const TokenLogprob& token) { return sets_[i].count(token.id) > 0; });
      if (best == begin + score.likeliest_count) continue;
      EXPECT_EQ(best->id, score.id);
      ++num_greedy;
    }
  }
  EXPECT_GT(num_greedy, kGenerated);
}

TEST_F(ConstraintTest, AConstraintThatFailsEndsItsGenerationAlone) {
  const std::vector<Seen> good = run(fresh());
  const auto expect_prefix = [&](const Seen& seen, size_t i, size_t count) {
    EXPECT_EQ(seen.finish, FinishReason::kError);
    ASSERT_EQ(seen.tokens.size(), count);
    EXPECT_TRUE(std::equal(seen.tokens.begin(), seen.tokens.end(), good[i].tokens.begin()));
  };
  auto constraints = fresh();
  constraints[0]->fail_mask_at = 0;
  constraints[1]->fail_accept_at = 5;
  constraints[2] = std::make_shared<FixedSet>(std::set<TokenId>{});
  constraints[3]->fail_mask_at = 7;
  const std::vector<Seen> seen = run(constraints);
  expect_prefix(seen[0], 0, 0);
  EXPECT_EQ(seen[0].field, "grammar");
  expect_prefix(seen[1], 1, 5);
  EXPECT_EQ(seen[1].field, "grammar");
  expect_prefix(seen[2], 2, 0);
  EXPECT_EQ(seen[2].field, "constraint");
  expect_prefix(seen[3], 3, 7);
  for (size_t i = 4; i < kPrompts; ++i) EXPECT_EQ(seen[i], good[i]);
}

TEST_F(ConstraintTest, TheSessionGoesOnAfterAFailure) {
  for (const bool in_mask : {true, false}) {
    const size_t i = 1;
    const auto constraint = set_of(i);
    (in_mask ? constraint->fail_mask_at : constraint->fail_accept_at) = 4;
    Session session = open();
    const Seen first = see(session.generate(prompts_[i], options(i, constraint)).value());
    EXPECT_EQ(first.finish, FinishReason::kError);
    EXPECT_EQ(session.position(), static_cast<Position>(prompts_[i].size() + 4));
    // Without a constraint, as a session that was given the same tokens.
    const Seen second = see(session.generate({7, 8}, options(i, nullptr)).value());
    Tokens all = prompts_[i];
    for (const TokenId id : first.ids()) all.push_back(id);
    all.insert(all.end(), {7, 8});
    Session other = open();
    EXPECT_EQ(see(other.generate(all, options(i, nullptr)).value()), second);
    EXPECT_EQ(second.finish, FinishReason::kLength);
  }
}

TEST_F(ConstraintTest, ACopyOfTheSessionIsNotBound) {
  Session session = open();
  see(session.generate(prompts_[0], options(0, set_of(0))).value());
  Session copy = session.clone(session.position()).value();
  GenerationOptions free = options(0, nullptr);
  free.max_new_tokens = 40;
  const Seen seen = see(copy.generate({5}, free).value());
  const Tokens ids = seen.ids();
  EXPECT_TRUE(
      std::any_of(ids.begin(), ids.end(), [&](TokenId id) { return sets_[0].count(id) == 0; }));
}

}  // namespace
}  // namespace chorus
