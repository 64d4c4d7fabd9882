#include "tests/contract/executor_contract.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <ostream>
#include <set>
#include <utility>

#include "base/random.h"

namespace chorus::contract {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SeamContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExecutorContract);

Rig::Rig(const ContractSubject& subject, const ContractShape& shape) {
  if (subject.make_without_module) {
    executor_ = subject.make_without_module(shape);
    CHORUS_CHECK(executor_->initialize().ok());
    return;
  }
  module_ = subject.make_module(shape);
  faulty_ = std::make_unique<FaultyModule>(*module_);
  SessionExecutorOptions options;
  options.max_sessions = shape.max_sessions;
  options.max_session_tokens = shape.max_session_tokens;
  auto executor = subject.make_executor(*faulty_, options);
  CHORUS_CHECK(executor.ok());
  sessions_ = &(*executor)->sessions();
  executor_ = std::move(executor).value();
  CHORUS_CHECK(executor_->initialize().ok());
}

void Rig::poison_free_blocks() {
  if (module_ == nullptr) return;
  const KvBooks& books = sessions().books();
  const auto block_size = static_cast<size_t>(books.block_size());
  for (int32_t group = 0; group < books.num_groups(); ++group) {
    const LayerGroupInfo& info = module_->info().groups[static_cast<size_t>(group)];
    // All bits set is not a number in every float type, and no token of FakeModule.
    const std::vector<std::byte> bytes(block_size * static_cast<size_t>(info.bytes_per_cell),
                                       std::byte{0xFF});
    std::vector<CellId> cells(block_size);
    for (const BlockId block : books.free_blocks(group)) {
      for (size_t i = 0; i < block_size; ++i) {
        cells[i] = block * books.block_size() + static_cast<CellId>(i);
      }
      ASSERT_TRUE(module_->write_cells(group, cells, bytes).ok());
    }
  }
}

int64_t Rig::blocks_held() const {
  int64_t held = 0;
  for (const GroupUsage& group : executor_->usage().groups) {
    held += group.blocks_total - group.blocks_free - group.blocks_cached;
  }
  return held;
}

bool Rig::may_rewind(Position longest, Position length) const {
  if (module_ == nullptr) return true;
  const ModuleInfo& info = module_->info();
  return length == 0 ||
         std::all_of(info.groups.begin(), info.groups.end(), [&](const LayerGroupInfo& group) {
           const int32_t window = group.policy.window;
           if (window == 0 || longest < window) return true;
           const Position first_seen = longest - window + 1;
           return first_seen - first_seen % info.block_size <= std::max(0, length - window + 1);
         });
}

BatchInput make_input(SessionId session, const Tokens& tokens, Position position,
                      bool produce_output) {
  BatchInput input;
  input.session = session;
  input.tokens = std::make_shared<Tokens>(tokens);
  input.size = static_cast<int32_t>(tokens.size());
  input.position = position;
  input.produce_output = produce_output;
  return input;
}

BatchInput make_slice(SessionId session, std::shared_ptr<const Tokens> tokens, int32_t offset,
                      int32_t size, bool produce_output) {
  BatchInput input;
  input.session = session;
  input.tokens = std::move(tokens);
  input.offset = offset;
  input.size = size;
  input.produce_output = produce_output;
  return input;
}

ScoreBits bits_of(const BatchOutput& output, const TokenScore& score) {
  ScoreBits bits{score.id, std::bit_cast<uint32_t>(score.logprob), score.rank, {}};
  for (const TokenLogprob& each : output.likeliest_of(score)) {
    bits.likeliest.push_back({each.id, std::bit_cast<uint32_t>(each.logprob)});
  }
  return bits;
}

void PrintTo(const ScoreBits& bits, std::ostream* stream) {
  *stream << "token " << bits.id << ", logprob " << std::bit_cast<float>(bits.logprob) << ", rank "
          << bits.rank << ", " << bits.likeliest.size() << " likeliest";
}

Solo::Solo(const ContractSubject& subject) : rig_(subject, {}) {}

std::vector<ScoreBits> Solo::scores(const Tokens& history, Position first, Position last,
                                    int32_t num_likeliest) {
  const SessionId session = *rig_->open({});
  SamplingParams params;
  params.num_likeliest = num_likeliest;
  EXPECT_TRUE(rig_->set_sampling(session, params).ok());
  BatchInput input = make_input(session, history, 0);
  input.score_from = first;
  BatchOutput output;
  EXPECT_TRUE(rig_->execute(std::span(&input, 1), output).ok());
  EXPECT_TRUE(output.inputs[0].status.ok()) << output.inputs[0].status.to_string();
  std::vector<ScoreBits> all;
  for (const TokenScore& score : output.scored(output.inputs[0])) {
    all.push_back(bits_of(output, score));
  }
  all.resize(static_cast<size_t>(last - first));
  rig_->close(session);
  return all;
}

ScoreBits Solo::sample(const Tokens& history, const SamplingParams& params) {
  const SessionId session = *rig_->open({});
  EXPECT_TRUE(rig_->set_sampling(session, params).ok());
  const BatchInput input = make_input(session, history, 0, true);
  BatchOutput output;
  EXPECT_TRUE(rig_->execute(std::span(&input, 1), output).ok());
  EXPECT_TRUE(output.inputs[0].status.ok()) << output.inputs[0].status.to_string();
  const ScoreBits bits = bits_of(output, output.sampled(output.inputs[0])[0]);
  rig_->close(session);
  return bits;
}

Tokens SeamContract::text(uint64_t seed, size_t count) {
  RandomStream random(seed);
  const auto vocabulary = static_cast<uint64_t>(executor().info().vocabulary);
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(vocabulary));
  return tokens;
}

namespace {

Tokens joined(Tokens head, const Tokens& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

Tokens first(const Tokens& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

TEST_P(SeamContract, AppendCommitsTheSlice) {
  start();
  const SessionId session = open_greedy();
  const Tokens tokens = text(1, 45);
  EXPECT_EQ(length(session), 0);
  EXPECT_TRUE(step_alone(make_input(session, first(tokens, 40), 0)).ok());
  EXPECT_EQ(length(session), 40);
  auto shared = std::make_shared<Tokens>(tokens);
  const BatchOutput output = step({make_slice(session, shared, 40, 5, true)});
  EXPECT_EQ(sampled_bits(output, 0), Solo(GetParam()).sample(tokens, greedy()));
  // One token came back: it is committed only when it is fed.
  EXPECT_EQ(length(session), 45);
}

TEST_P(SeamContract, OutputIsPresentExactlyWhereAskedFor) {
  start();
  const SessionId a = open_greedy();
  const SessionId b = open_greedy();
  const BatchOutput output =
      step({make_input(a, text(1, 3), 0, true), make_input(b, text(2, 3), 0, false)});
  EXPECT_EQ(output.inputs[0].sampled_count, 1);
  EXPECT_EQ(output.inputs[1].sampled_count, 0);
  EXPECT_EQ(output.inputs[0].scored_count, 0);
  EXPECT_EQ(output.tokens.size(), 1u);
}

TEST_P(SeamContract, RewindReplacesTheTail) {
  start();
  const SessionId session = open_greedy();
  const Tokens tokens = text(1, 50);
  const Tokens other = text(2, 20);
  Solo solo(GetParam());
  step({make_input(session, tokens, 0)});
  for (const Position kept : {49, 48, 40, 33, 32, 31, 16, 1, 0}) {
    const BatchOutput output = step({make_input(session, other, kept, true)});
    if (!rig_->may_rewind(50, kept)) {
      EXPECT_EQ(output.inputs[0].status.code(), Code::kInvalidArgument) << "kept " << kept;
      EXPECT_EQ(output.inputs[0].status.field(), "position");
      EXPECT_EQ(length(session), 50);
      continue;
    }
    EXPECT_EQ(length(session), kept + 20);
    EXPECT_EQ(sampled_bits(output, 0),
              solo.sample(joined(first(tokens, static_cast<size_t>(kept)), other), greedy()))
        << "kept " << kept;
    step({make_input(session, tokens, 0)});
  }
}

TEST_P(SeamContract, RewindToZeroKeepsTheSession) {
  start();
  const SessionId session = open_greedy();
  step({make_input(session, text(1, 30), 0)});
  const Tokens tokens = text(2, 4);
  const BatchOutput output = step({make_input(session, tokens, 0, true)});
  EXPECT_EQ(length(session), 4);
  EXPECT_EQ(sampled_bits(output, 0), Solo(GetParam()).sample(tokens, greedy()));
  EXPECT_TRUE(executor().truncate(session, 0).ok());
  EXPECT_EQ(length(session), 0);
  EXPECT_EQ(rig_->blocks_held(), 0);
}

TEST_P(SeamContract, TruncateIsAChangeOfItsOwn) {
  start();
  const SessionId session = open_greedy();
  const Tokens tokens = text(1, 47);
  step({make_input(session, tokens, 0)});
  EXPECT_EQ(executor().truncate(session, 48).field(), "length");
  EXPECT_EQ(executor().truncate(session, -1).field(), "length");
  EXPECT_EQ(executor().truncate(SessionId{99}, 0).code(), Code::kNotFound);
  for (const Position kept : {42, 19}) {
    const Status status = executor().truncate(session, kept);
    if (!rig_->may_rewind(47, kept)) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_EQ(status.field(), "length");
      continue;
    }
    EXPECT_TRUE(status.ok());
    rig_->poison_free_blocks();
    const BatchOutput output = step({make_input(session, {1}, kept, true)});
    EXPECT_EQ(
        sampled_bits(output, 0),
        Solo(GetParam()).sample(joined(first(tokens, static_cast<size_t>(kept)), {1}), greedy()));
  }
  EXPECT_LE(length(session), 43);
}

TEST_P(ExecutorContract, ALastBlockIsSharedUntilItIsWritten) {
  start();
  const SessionId session = open();
  step({make_input(session, text(1, 41), 0)});
  EXPECT_FALSE(executor().shares_last_block(session));
  const Result<SessionId> clone = executor().clone(session, 41);
  ASSERT_TRUE(clone.ok());
  const bool is_partial = rig_->sessions().books().block_size() > 1;
  EXPECT_EQ(executor().shares_last_block(session), is_partial);
  EXPECT_EQ(executor().shares_last_block(*clone), is_partial);
  step({make_input(*clone, {1}, 41)});
  EXPECT_FALSE(executor().shares_last_block(session));
  EXPECT_FALSE(executor().shares_last_block(*clone));
  executor().close(*clone);
  EXPECT_FALSE(executor().shares_last_block(*clone));
}

TEST_P(ExecutorContract, ReleaseGivesTheBlocksBackAndKeepsTheSession) {
  start();
  const SessionId session = open_greedy();
  const Tokens tokens = text(1, 48);
  const int32_t free = executor().available_blocks(0);
  step({make_input(session, tokens, 0)});
  const Result<SessionId> clone = executor().clone(session, 48);
  ASSERT_TRUE(clone.ok());
  step({make_input(session, {1}, 48)});
  EXPECT_GT(executor().releasable_blocks(session), 0);
  EXPECT_EQ(executor().releasable_blocks(*clone), 0) << "the source holds them too";
  EXPECT_EQ(executor().releasable_blocks(std::vector{session, *clone}, 0),
            free - executor().available_blocks(0));
  EXPECT_TRUE(executor().release(session).ok());
  EXPECT_EQ(length(session), 0);
  EXPECT_EQ(executor().available_blocks(0), free - window_blocks(0, 48));
  EXPECT_GT(executor().releasable_blocks(*clone), 0);
  executor().close(*clone);
  EXPECT_EQ(executor().available_blocks(0), free);
  EXPECT_EQ(executor().release(*clone).code(), Code::kNotFound);
  rig_->poison_free_blocks();
  const BatchOutput output = step({make_input(session, tokens, 0, true)});
  EXPECT_EQ(sampled_bits(output, 0), Solo(GetParam()).sample(tokens, greedy()));
}

// In memory, to be damaged.
class Bytes final : public ByteSink, public ByteSource {
 public:
  Status write(std::span<const std::byte> bytes) override {
    content.insert(content.end(), bytes.begin(), bytes.end());
    return {};
  }
  Status read(std::span<std::byte> bytes) override {
    if (bytes.size() > content.size() - next) return data_loss("source", "it ends too early");
    std::copy_n(content.begin() + static_cast<int64_t>(next), bytes.size(), bytes.begin());
    next += bytes.size();
    return {};
  }
  std::vector<std::byte> content;
  size_t next = 0;
};

TEST_P(ExecutorContract, ALoadedSessionGoesOnWithTheSameBits) {
  Bytes saved;
  start();
  const Tokens tokens = text(1, 50);
  const SessionId source = open_greedy();
  step({make_input(source, first(tokens, 40), 0)});
  ASSERT_TRUE(executor().save(source, saved).ok());
  EXPECT_EQ(executor().save(SessionId{99}, saved).code(), Code::kNotFound);
  const ScoreBits expected = Solo(GetParam()).sample(tokens, greedy());
  for (const int32_t block_size : {1, 16, 32, 64, 128}) {
    SCOPED_TRACE(block_size);
    start({.block_size = block_size, .num_blocks = 1024 / block_size});
    // Its cells come to lie elsewhere than the source's.
    const SessionId other = open();
    step({make_input(other, text(2, 21), 0)});
    rig_->poison_free_blocks();
    saved.next = 0;
    const Result<SessionId> loaded = executor().load({}, first(tokens, 40), saved);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    EXPECT_EQ(saved.next, saved.content.size());
    EXPECT_EQ(length(*loaded), 40);
    Bytes again;
    ASSERT_TRUE(executor().save(*loaded, again).ok());
    EXPECT_EQ(again.content, saved.content);
    EXPECT_TRUE(executor().set_sampling(*loaded, greedy()).ok());
    const BatchOutput output =
        step({make_slice(*loaded, std::make_shared<const Tokens>(tokens), 40, 10, true)});
    EXPECT_EQ(sampled_bits(output, 0), expected);
  }
}

TEST_P(ExecutorContract, DamagedKvIsRefusedAndLeavesNothing) {
  Bytes saved;
  start();
  const SessionId source = open();
  step({make_input(source, text(1, 40), 0)});
  ASSERT_TRUE(executor().save(source, saved).ok());
  executor().close(source);
  const int32_t free = executor().available_blocks(0);
  const auto load_error = [&](Bytes bytes) {
    bytes.next = 0;
    const Status status = executor().load({}, {}, bytes).status();
    EXPECT_EQ(executor().available_blocks(0), free);
    rig_->sessions().check_invariants();
    return status;
  };
  for (const size_t cut : {size_t{0}, size_t{7}, size_t{20}, saved.content.size() - 1}) {
    Bytes shorter = saved;
    shorter.content.resize(cut);
    EXPECT_EQ(load_error(shorter).field(), "source");
  }
  const auto with_byte = [&](size_t place, int value) {
    Bytes changed = saved;
    changed.content[place] = static_cast<std::byte>(value);
    return load_error(changed).field();
  };
  EXPECT_EQ(with_byte(3, 0x7f), "tokens");
  EXPECT_EQ(with_byte(4, 9), "groups");
  EXPECT_EQ(with_byte(11, 0x7f), "groups[0].first_position");
  EXPECT_EQ(with_byte(12, 1), "groups[0].cell_bytes");
  EXPECT_EQ(with_byte(22, 1), "groups[0].cell_bytes");
}

TEST_P(ExecutorContract, ALoadThatFindsNoRoomSaysSo) {
  Bytes saved;
  start();
  const SessionId source = open();
  step({make_input(source, text(1, 100), 0)});
  ASSERT_TRUE(executor().save(source, saved).ok());
  start({.block_size = 16, .num_blocks = 4, .max_sessions = 1, .max_session_tokens = 120});
  EXPECT_EQ(executor().load({}, {}, saved).status().code(), Code::kResourceExhausted);
  const SessionId only = open();
  saved.next = 0;
  EXPECT_EQ(executor().load({}, {}, saved).status().field(), "max_sessions");
  executor().close(only);
}

TEST_P(SeamContract, AGapIsRefused) {
  start();
  const SessionId session = open_greedy();
  step({make_input(session, text(1, 5), 0)});
  const Status status = step_alone(make_input(session, text(2, 3), 6));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.field(), "position");
  EXPECT_EQ(length(session), 5);
}

TEST_P(SeamContract, IdsAreNotReusedAndCapacityIsBounded) {
  start({.max_sessions = 3});
  std::set<SessionId> seen;
  std::vector<SessionId> sessions;
  for (int round = 0; round < 20; ++round) {
    while (sessions.size() < 3) {
      sessions.push_back(open());
      EXPECT_TRUE(seen.insert(sessions.back()).second);
    }
    const Result<SessionId> refused = executor().open({});
    EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
    EXPECT_EQ(refused.status().field(), "max_sessions");
    EXPECT_EQ(executor().clone(sessions[0], 0).status().field(), "max_sessions");
    for (int closed = 0; closed <= round % 3; ++closed) {
      executor().close(sessions.back());
      executor().close(sessions.back());  // unknown by now
      sessions.pop_back();
    }
  }
}

TEST_P(SeamContract, UnknownSessions) {
  start();
  const SessionId session = open_greedy();
  executor().close(session);
  executor().close(SessionId{12345});
  EXPECT_EQ(executor().length(session).status().code(), Code::kNotFound);
  EXPECT_EQ(executor().set_sampling(session, {}).code(), Code::kNotFound);
  EXPECT_EQ(executor().clone(session, 0).status().code(), Code::kNotFound);
  EXPECT_EQ(step_alone(make_input(session, {1}, 0)).code(), Code::kNotFound);
  const SessionDemand demand{session, 0, 1};
  EXPECT_FALSE(executor().can_admit(std::span(&demand, 1)));
}

TEST_P(SeamContract, AnAdapterIsRefused) {
  start();
  SessionOptions options;
  options.adapter = 0;
  EXPECT_EQ(executor().open(options).status().field(), "adapter");
}

TEST_P(ExecutorContract, ACloneSharesAPrefixAndThenDiverges) {
  start();
  const SessionId source = open_greedy();
  const Tokens tokens = text(1, 40);
  step({make_input(source, tokens, 0)});
  const int64_t held = rig_->blocks_held();
  Solo solo(GetParam());
  for (const Position upto : {40, 39, 32, 17, 1}) {
    const Result<SessionId> clone = executor().clone(source, upto);
    if (!rig_->may_rewind(42, upto)) {
      EXPECT_EQ(clone.status().code(), Code::kInvalidArgument);
      EXPECT_EQ(clone.status().field(), "upto");
      continue;
    }
    ASSERT_TRUE(clone.ok());
    EXPECT_EQ(rig_->blocks_held(), held);
    EXPECT_EQ(length(*clone), upto);
    ASSERT_TRUE(executor().set_sampling(*clone, greedy()).ok());
    const Tokens own = text(static_cast<uint64_t>(upto), 3);
    const BatchOutput output =
        step({make_input(*clone, own, upto, true), make_input(source, {1, 2}, 40, true)});
    EXPECT_EQ(sampled_bits(output, 0),
              solo.sample(joined(first(tokens, static_cast<size_t>(upto)), own), greedy()));
    EXPECT_EQ(sampled_bits(output, 1), solo.sample(joined(tokens, {1, 2}), greedy()));
    ASSERT_TRUE(executor().truncate(source, 40).ok());
    executor().close(*clone);
    EXPECT_EQ(rig_->blocks_held(), held);
    rig_->poison_free_blocks();
  }
}

TEST_P(SeamContract, CloneChecksItsBoundsAndCarriesNoPolicy) {
  start();
  const SessionId source = open_greedy();
  step({make_input(source, text(1, 5), 0)});
  EXPECT_EQ(executor().clone(source, 6).status().field(), "upto");
  EXPECT_EQ(executor().clone(source, -1).status().field(), "upto");
  const SessionId empty = *executor().clone(source, 0);
  EXPECT_EQ(length(empty), 0);
  EXPECT_EQ(step_alone(make_input(empty, {1}, 0, true)).field(), "produce_output");
  EXPECT_TRUE(step_alone(make_input(empty, {1}, 0)).ok());
  executor().close(source);
  EXPECT_TRUE(executor().set_sampling(empty, greedy()).ok());
  const BatchOutput output = step({make_input(empty, {2}, 1, true)});
  EXPECT_EQ(sampled_bits(output, 0), Solo(GetParam()).sample({1, 2}, greedy()));
}

TEST_P(ExecutorContract, SamplingParametersAreChecked) {
  start();
  const SessionId session = open();
  const auto field = [&](auto change) {
    SamplingParams params;
    change(params);
    const Status status = executor().set_sampling(session, params);
    return status.ok() ? std::string("ok") : status.field();
  };
  EXPECT_EQ(field([](SamplingParams&) {}), "ok");
  EXPECT_EQ(field([](SamplingParams& p) { p.temperature = -0.5f; }), "temperature");
  EXPECT_EQ(field([](SamplingParams& p) { p.temperature = NAN; }), "temperature");
  EXPECT_EQ(field([](SamplingParams& p) { p.top_k = 1 << 30; }), "ok");
  EXPECT_EQ(field([](SamplingParams& p) { p.top_k = -1; }), "top_k");
  EXPECT_EQ(field([](SamplingParams& p) { p.top_p = 0.0f; }), "top_p");
  EXPECT_EQ(field([](SamplingParams& p) { p.top_p = NAN; }), "top_p");
  EXPECT_EQ(field([](SamplingParams& p) { p.min_p = 1.5f; }), "min_p");
  EXPECT_EQ(field([](SamplingParams& p) { p.min_p = NAN; }), "min_p");
  EXPECT_EQ(field([](SamplingParams& p) { p.num_likeliest = -1; }), "num_likeliest");
  EXPECT_EQ(field([](SamplingParams& p) { p.num_likeliest = kMaxLikeliest + 1; }), "num_likeliest");
}

TEST_P(ExecutorContract, EachGenerationSamplesByItsOwnPolicy) {
  start();
  Solo solo(GetParam());
  std::vector<SamplingParams> policies(8, greedy());
  policies[1].temperature = 1.0f;
  policies[2].temperature = 1.0f;
  policies[2].seed = 7;
  policies[3].temperature = 1.0f;
  policies[3].choice = 1;
  policies[4].logprobs = false;
  policies[4].num_likeliest = 0;
  policies[4].top_k = 3;  // greedy all the same
  policies[4].top_p = 0.5f;
  policies[5].temperature = 1.0f;  // as 1, but for the filters
  policies[5].top_k = 4;
  policies[6].temperature = 1.0f;
  policies[6].top_k = 40;
  policies[6].top_p = 0.6f;
  policies[7].temperature = 1.0f;
  policies[7].top_k = 1;  // as greedy
  const Tokens prompt = text(3, 20);
  std::vector<SessionId> sessions;
  std::vector<Tokens> histories(policies.size(), prompt);
  for (const SamplingParams& policy : policies) {
    sessions.push_back(open());
    ASSERT_TRUE(executor().set_sampling(sessions.back(), policy).ok());
  }
  std::set<Tokens> distinct;
  for (int round = 0; round < 30; ++round) {
    std::vector<BatchInput> batch;
    for (size_t i = 0; i < sessions.size(); ++i) {
      const Position held = length(sessions[i]);
      const Tokens fresh(histories[i].begin() + held, histories[i].end());
      batch.push_back(make_input(sessions[i], fresh, held, true));
    }
    const BatchOutput output = step(batch);
    for (size_t i = 0; i < sessions.size(); ++i) {
      const ScoreBits bits = sampled_bits(output, i);
      ASSERT_EQ(bits, solo.sample(histories[i], policies[i])) << "round " << round;
      histories[i].push_back(bits.id);
    }
  }
  for (const Tokens& history : histories) distinct.insert(history);
  EXPECT_EQ(distinct.size(), 6u);  // three are greedy
  EXPECT_EQ(histories[0], histories[4]);
  EXPECT_EQ(histories[0], histories[7]);
}

// Allows a fixed set of tokens.
class FixedSet final : public TokenConstraint {
 public:
  explicit FixedSet(std::set<TokenId> allowed) : allowed_(std::move(allowed)) {}
  Status fill_mask(std::span<uint32_t> mask) override {
    for (const TokenId id : allowed_) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    return {};
  }
  Status accept(TokenId token) override {
    EXPECT_EQ(allowed_.count(token), 1u) << token;
    ++accepted;
    return {};
  }
  int accepted = 0;

 private:
  std::set<TokenId> allowed_;
};

// The filters see only what the constraint allows: were they first, the likeliest tokens of all
// would use up their places.
TEST_P(ExecutorContract, AConstraintComesBeforeTheFilters) {
  start();
  const Tokens prompt = text(8, 20);
  // What was chosen behind the prompt at so many seeds, in company.
  const auto choices = [&](const std::set<TokenId>& allowed, SamplingParams params) {
    std::vector<SessionId> sessions;
    std::vector<BatchInput> batch;
    const auto constraint = std::make_shared<FixedSet>(allowed);
    params.constraint = constraint;
    std::set<TokenId> chosen;
    for (int round = 0; round < 4; ++round) {
      batch.clear();
      for (int i = 0; i < 8; ++i) {
        sessions.push_back(open());
        params.seed = static_cast<uint64_t>(round * 8 + i);
        EXPECT_TRUE(executor().set_sampling(sessions.back(), params).ok());
        batch.push_back(make_input(sessions.back(), prompt, 0, true));
      }
      const BatchOutput output = step(batch);
      for (size_t i = 0; i < batch.size(); ++i) chosen.insert(sampled_bits(output, i).id);
      for (const SessionId session : sessions) executor().close(session);
      sessions.clear();
    }
    EXPECT_EQ(constraint->accepted, 32);
    return chosen;
  };
  // The order of some tokens that are not the likeliest, by greedy choices among those left.
  SamplingParams params;
  std::set<TokenId> left;
  for (TokenId id = 0; id < 64; id += 7) left.insert(id);
  const TokenId likeliest = Solo(GetParam()).sample(prompt, params).id;
  left.erase(likeliest);
  const std::set<TokenId> allowed = left;
  Tokens order;
  while (!left.empty()) {
    const std::set<TokenId> best = choices(left, params);
    ASSERT_EQ(best.size(), 1u);
    order.push_back(*best.begin());
    left.erase(order.back());
  }
  params.temperature = 100.0f;  // about uniform: 32 draws leave out one of 2 once in 2^31
  params.top_k = 1;
  EXPECT_EQ(choices(allowed, params), (std::set<TokenId>{order[0]}));
  params.top_k = 2;
  EXPECT_EQ(choices(allowed, params), (std::set<TokenId>{order[0], order[1]}));
  params.top_p = 0.25f;
  EXPECT_EQ(choices(allowed, params), (std::set<TokenId>{order[0]}));
  params.top_k = 0;
  params.top_p = 1e-3f;
  EXPECT_EQ(choices(allowed, params), (std::set<TokenId>{order[0]}));
  params.top_p = 1.0f;
  params.min_p = 1.0f;
  params.temperature = 0.01f;
  EXPECT_EQ(choices(allowed, params), (std::set<TokenId>{order[0]}));
}

TEST_P(SeamContract, ScoresCoverWhatTheirDefinitionSays) {
  start();
  const Tokens tokens = text(4, 20);
  Solo solo(GetParam());
  const std::vector<ScoreBits> expected = solo.scores(tokens, 1, 20, 2);
  struct Case {
    Position score_from;
    int32_t offset;
    int32_t size;
    Position first;
    int32_t count;
  };
  // An input with rows [offset, offset + size) scores [max(from, offset + 1), min(end, 19)].
  for (const Case& each : std::vector<Case>{{0, 0, 20, 1, 19},
                                            {-5, 0, 20, 1, 19},
                                            {1, 0, 20, 1, 19},
                                            {5, 0, 20, 5, 15},
                                            {19, 0, 20, 19, 1},
                                            {20, 0, 20, 0, 0},
                                            {BatchInput::kNoScores, 0, 20, 0, 0},
                                            {0, 0, 7, 1, 7},
                                            {0, 7, 7, 8, 7},
                                            {14, 7, 7, 14, 1},
                                            {15, 7, 7, 0, 0},
                                            {0, 14, 6, 15, 5},
                                            {0, 19, 1, 0, 0}}) {
    SCOPED_TRACE(std::to_string(each.score_from) + " over " + std::to_string(each.offset) + "+" +
                 std::to_string(each.size));
    const SessionId session = open_greedy();
    if (each.offset > 0)
      step({make_input(session, first(tokens, static_cast<size_t>(each.offset)), 0)});
    BatchInput input =
        make_slice(session, std::make_shared<Tokens>(tokens), each.offset, each.size, true);
    input.score_from = each.score_from;
    const BatchOutput output = step({input});
    const InputOutput& result = output.inputs[0];
    ASSERT_EQ(result.scored_count, each.count);
    ASSERT_EQ(result.sampled_count, 1);
    if (each.count > 0) {
      EXPECT_EQ(result.first_scored, each.first);
    }
    for (int32_t i = 0; i < each.count; ++i) {
      EXPECT_EQ(bits_of(output, output.scored(result)[static_cast<size_t>(i)]),
                expected[static_cast<size_t>(each.first + i - 1)]);
    }
    executor().close(session);
  }
}

// The vector may begin anywhere: positions count from its first token.
TEST_P(SeamContract, ScoresOfAVectorThatBeginsLate) {
  start();
  const Tokens tokens = text(4, 20);
  const SessionId session = open_greedy();
  step({make_input(session, first(tokens, 6), 0)});
  BatchInput input = make_input(session, Tokens(tokens.begin() + 4, tokens.end()), 4);
  input.offset = 2;
  input.size = 3;
  input.score_from = 0;
  const BatchOutput output = step({input});
  ASSERT_EQ(output.inputs[0].first_scored, 7);
  ASSERT_EQ(output.inputs[0].scored_count, 3);
  const std::vector<ScoreBits> expected = Solo(GetParam()).scores(tokens, 7, 10, 2);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(bits_of(output, output.scored(output.inputs[0])[i]), expected[i]);
  }
}

TEST_P(SeamContract, OneBadInputAmongEightFailsAlone) {
  start();
  Solo solo(GetParam());
  std::vector<SessionId> sessions;
  std::vector<Tokens> histories;
  std::vector<BatchInput> batch;
  for (uint64_t i = 0; i < 8; ++i) {
    sessions.push_back(open_greedy());
    histories.push_back(text(i, 5 + 3 * i));
    batch.push_back(make_input(sessions.back(), histories.back(), 0));
  }
  step(batch);
  for (int round = 0; round < 6; ++round) {
    batch.clear();
    for (size_t i = 0; i < 8; ++i) {
      batch.push_back(make_input(sessions[i], {static_cast<TokenId>(round)},
                                 static_cast<Position>(histories[i].size()), true));
    }
    if (round % 2 == 1) batch[3].tokens = std::make_shared<Tokens>(Tokens{-1});
    const BatchOutput output = step(batch);
    for (size_t i = 0; i < 8; ++i) {
      if (i == 3 && round % 2 == 1) {
        EXPECT_EQ(output.inputs[i].status.field(), "tokens[0]");
        EXPECT_EQ(output.inputs[i].sampled_count, 0);
        continue;
      }
      histories[i].push_back(static_cast<TokenId>(round));
      EXPECT_EQ(sampled_bits(output, i), solo.sample(histories[i], greedy()));
      EXPECT_EQ(length(sessions[i]), static_cast<Position>(histories[i].size()));
    }
  }
}

// The rewind of a good input and the refusal of a bad one in the same batch do not touch.
TEST_P(SeamContract, ARewindBesideABadInput) {
  start();
  const SessionId a = open_greedy();
  const SessionId b = open_greedy();
  const Tokens tokens = text(1, 47);
  step({make_input(a, tokens, 0), make_input(b, text(2, 10), 0)});
  const BatchOutput output = step({make_input(a, {1, 2}, 42, true), make_input(b, {1}, 11)});
  EXPECT_EQ(output.inputs[1].status.field(), "position");
  EXPECT_EQ(length(a), 44);
  EXPECT_EQ(length(b), 10);
  EXPECT_EQ(sampled_bits(output, 0),
            Solo(GetParam()).sample(joined(first(tokens, 42), {1, 2}), greedy()));
}

// D11: chunks of one session that are not adjacent in the step, together wider than any window.
TEST_P(SeamContract, ChunksOfTwoSessionsInterleave) {
  start();
  Solo solo(GetParam());
  const SessionId a = open_greedy();
  const SessionId b = open_greedy();
  auto tokens_a = std::make_shared<Tokens>(text(1, 90));
  auto tokens_b = std::make_shared<Tokens>(text(2, 90));
  for (int32_t at = 0; at < 90; at += 30) {
    const BatchOutput output = step(
        {make_slice(a, tokens_a, at, 13, false), make_slice(b, tokens_b, at, 11, false),
         make_slice(a, tokens_a, at + 13, 17, true), make_slice(b, tokens_b, at + 11, 19, true)});
    rig_->poison_free_blocks();
    const auto held = static_cast<size_t>(at + 30);
    EXPECT_EQ(sampled_bits(output, 2), solo.sample(first(*tokens_a, held), greedy()));
    EXPECT_EQ(sampled_bits(output, 3), solo.sample(first(*tokens_b, held), greedy()));
  }
}

// A window leaves whole blocks behind; they are free at the commit that does so.
TEST_P(ExecutorContract, WhatAWindowLeavesBehindIsFree) {
  start();
  const SessionId session = open_greedy();
  const Tokens tokens = text(1, 100);
  for (Position at = 0; at < 100; at += 20) {
    step({make_input(session, Tokens(tokens.begin() + at, tokens.begin() + at + 20), at)});
    const std::vector<GroupUsage> groups = executor().usage().groups;
    for (size_t group = 0; group < groups.size(); ++group) {
      EXPECT_EQ(
          groups[group].blocks_total - groups[group].blocks_free - groups[group].blocks_cached,
          window_blocks(group, at + 20));
    }
  }
  executor().close(session);
  EXPECT_EQ(rig_->blocks_held(), 0);
}

// D10: also after some of the step's slices have run.
TEST_P(ExecutorContract, AnAbortedStepChangesNothing) {
  start();
  Solo solo(GetParam());
  const Tokens tokens = text(1, 60);
  // 70 rows are three slices: a fault at each of the calls that a step makes.
  for (const Faults& faults :
       std::vector<Faults>{{1, 0, 0}, {0, 1, 0}, {0, 2, 0}, {0, 3, 0}, {0, 0, 1}}) {
    const SessionId rewound = open_greedy();
    const SessionId fresh = open_greedy();
    step({make_input(rewound, tokens, 0)});
    const SessionId clone = *executor().clone(rewound, 58);
    const int64_t held = rig_->blocks_held();
    const std::vector<BatchInput> batch{make_input(rewound, text(2, 30), 57, true),
                                        make_input(fresh, text(3, 30), 0, true),
                                        make_input(clone, text(4, 10), 58)};
    rig_->module().set_faults(faults);
    BatchOutput output;
    EXPECT_EQ(executor().execute(batch, output).code(), Code::kInternal);
    EXPECT_TRUE(output.inputs.empty() && output.tokens.empty() && output.likeliest.empty());
    rig_->sessions().check_invariants();
    EXPECT_EQ(rig_->blocks_held(), held);
    EXPECT_EQ(length(rewound), 60);
    EXPECT_EQ(length(fresh), 0);
    EXPECT_EQ(length(clone), 58);
    rig_->poison_free_blocks();
    output = step({make_input(rewound, {5}, 60, true)});
    EXPECT_EQ(sampled_bits(output, 0), solo.sample(joined(tokens, {5}), greedy()));
    output = step(batch);
    EXPECT_EQ(sampled_bits(output, 0),
              solo.sample(joined(first(tokens, 57), text(2, 30)), greedy()));
    EXPECT_EQ(sampled_bits(output, 1), solo.sample(text(3, 30), greedy()));
    for (const SessionId session : {rewound, fresh, clone}) executor().close(session);
    EXPECT_EQ(rig_->blocks_held(), 0);
  }
}

TEST_P(ExecutorContract, AStepThatFindsTooFewBlocksIsRefusedAsAWhole) {
  start({.num_blocks = 4});
  const SessionId a = open_greedy();
  const SessionId b = open_greedy();
  step({make_input(a, text(1, 40), 0)});
  const std::vector<SessionDemand> demands{{a, 40, 9}, {b, 0, 16}};
  EXPECT_FALSE(executor().can_admit(demands));
  BatchOutput output;
  const Status status = executor().execute(
      std::vector<BatchInput>{make_input(a, text(2, 9), 40), make_input(b, text(3, 16), 0)},
      output);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.field(), "blocks");
  EXPECT_NE(status.message().find("1 are missing"), std::string::npos) << status.message();
  EXPECT_EQ(length(a), 40);
  EXPECT_EQ(length(b), 0);
  const std::vector<SessionDemand> fits{{a, 40, 8}, {b, 0, 16}};
  EXPECT_TRUE(executor().can_admit(fits));
  step({make_input(a, text(2, 8), 40), make_input(b, text(3, 16), 0)});
}

TEST_P(ExecutorContract, DecodingSessionsShareOneForward) {
  start();
  std::vector<SessionId> sessions;
  std::vector<BatchInput> batch;
  for (uint64_t i = 0; i < 8; ++i) {
    sessions.push_back(open_greedy());
    batch.push_back(make_input(sessions.back(), {1}, 0, true));
  }
  for (Position position = 0; position < 20; ++position) {
    for (BatchInput& input : batch) input.position = position;
    step(batch);
  }
  const Usage usage = executor().usage();
  int64_t forwards = 0;
  for (const MethodUsage& method : usage.methods) forwards += method.forwards;
  EXPECT_EQ(forwards, 20);
  EXPECT_EQ(usage.steps, 20);
}

// ---- The prefix index ----

// The index has no bytes of its own: what attaches goes on with the bits of the whole history, also
// in the midst of a block, beside the session that computed it and after that one is gone.
TEST_P(ExecutorContract, AnAttachedPrefixGoesOnWithTheSameBits) {
  start();
  const Tokens tokens = text(1, 64);
  Solo solo(GetParam());
  for (const int32_t block_size : {1, 16, 32, 64}) {
    SCOPED_TRACE(block_size);
    start({.block_size = block_size, .num_blocks = 1024 / block_size});
    const SessionId source = open_greedy();
    step({make_input(source, tokens, 0, true)});
    std::vector<SessionId> sessions{source};
    for (const bool source_is_gone : {false, true}) {
      if (source_is_gone) {
        for (const SessionId session : sessions) executor().close(session);
        rig_->poison_free_blocks();
      }
      for (const Tokens& wanted : {tokens, joined(tokens, text(source_is_gone ? 5 : 2, 9)),
                                   joined(first(tokens, 48), text(source_is_gone ? 4 : 3, 16))}) {
        const SessionId session = open_greedy();
        const int64_t held = rig_->blocks_held();
        const Result<Position> taken = executor().attach_prefix(session, wanted);
        ASSERT_TRUE(taken.ok()) << taken.status().to_string();
        EXPECT_EQ(length(session), *taken);
        EXPECT_LT(*taken, static_cast<Position>(wanted.size())) << "one token is left to run";
        const bool has_all = first(wanted, 64) == tokens;
        if (has_all) {
          EXPECT_EQ(*taken, wanted.size() == 64 ? 63 : 64);
          if (!source_is_gone && !GetParam().has_window) {
            EXPECT_EQ(rig_->blocks_held(), held) << "it takes no blocks";
          }
        } else {
          EXPECT_EQ(*taken % block_size, 0);
          EXPECT_LE(*taken, 48 / block_size * block_size);
          if (!GetParam().has_window) {
            EXPECT_EQ(*taken, 48 / block_size * block_size);
          }
        }
        rig_->sessions().check_invariants();
        const BatchOutput output =
            step({make_slice(session, std::make_shared<const Tokens>(wanted), *taken,
                             static_cast<int32_t>(wanted.size()) - *taken, true)});
        EXPECT_EQ(sampled_bits(output, 0), solo.sample(wanted, greedy()));
        executor().close(session);
        rig_->poison_free_blocks();
      }
    }
    EXPECT_EQ(rig_->blocks_held(), 0);
  }
}

TEST_P(ExecutorContract, AttachTakesOnlyFromItsOwnKeyAndOnlyIntoEmptySessions) {
  start();
  const Tokens tokens = text(1, 40);
  const auto opened = [&](const SessionOptions& options) {
    const Result<SessionId> session = executor().open(options);
    EXPECT_TRUE(session.ok());
    return *session;
  };
  const auto taken_by = [&](SessionId session) {
    return executor().attach_prefix(session, tokens).value();
  };
  step({make_input(opened({.salt = "user"}), tokens, 0)});
  step({make_input(opened({.salt = "", .indexed = false}), tokens, 0)});
  EXPECT_EQ(taken_by(open()), 0) << "it has neither the salt nor what is not indexed";
  EXPECT_EQ(taken_by(opened({.salt = "user", .indexed = false})), 0);
  EXPECT_EQ(taken_by(opened({.salt = "use"})), 0);
  const SessionId session = opened({.salt = "user"});
  EXPECT_EQ(executor().attach_prefix(session, {}).value(), 0);
  EXPECT_EQ(executor().attach_prefix(session, first(tokens, 1)).value(), 0);
  EXPECT_EQ(taken_by(session), 32);
  const Status status = executor().attach_prefix(session, tokens).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.field(), "session");
  EXPECT_EQ(length(session), 32);
  EXPECT_EQ(executor().attach_prefix(SessionId{99}, tokens).status().code(), Code::kNotFound);
}

// Released, truncated or cloned empty, a session finds again what it had computed.
TEST_P(ExecutorContract, AnEmptiedSessionAttachesAgain) {
  start();
  const Tokens tokens = text(1, 48);
  const SessionId session = open_greedy();
  const ScoreBits expected = Solo(GetParam()).sample(tokens, greedy());
  step({make_input(session, tokens, 0)});
  EXPECT_TRUE(executor().release(session).ok());
  EXPECT_EQ(rig_->blocks_held(), 0);
  EXPECT_EQ(executor().attach_prefix(session, tokens).value(), 47);
  const BatchOutput output = step({make_input(session, {tokens[47]}, 47, true)});
  EXPECT_EQ(sampled_bits(output, 0), expected);
  EXPECT_TRUE(executor().truncate(session, 0).ok());
  EXPECT_EQ(executor().attach_prefix(session, tokens).value(), 47);
  const SessionId clone = *executor().clone(session, 0);
  EXPECT_EQ(executor().attach_prefix(clone, tokens).value(), 47);
}

// Cached blocks are nobody's: they are there for whoever needs them.
TEST_P(ExecutorContract, CachedBlocksAreGivenBackBeforeAnyoneIsRefused) {
  start({.num_blocks = 6});
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const SessionId session = open();
    const std::vector<SessionDemand> demands{{session, 0, 90}};
    EXPECT_TRUE(executor().can_admit(demands));
    step({make_input(session, text(seed, 90), 0)});
    EXPECT_EQ(executor().available_blocks(0), 6 - window_blocks(0, 90));
    executor().close(session);
    EXPECT_EQ(executor().available_blocks(0), 6);
  }
  EXPECT_GT(executor().usage().groups[0].blocks_cached, 0);
}

// What a file has brought is nobody else's, nor what is computed after it, in a clone either.
TEST_P(ExecutorContract, ALoadedSessionIsNotIndexedWhileItHoldsAnything) {
  start();
  const Tokens tokens = text(1, 48);
  const Tokens more = text(2, 32);
  Bytes saved;
  const SessionId source = open();
  step({make_input(source, tokens, 0)});
  ASSERT_TRUE(executor().save(source, saved).ok());
  start();
  const Result<SessionId> loaded = executor().load({}, joined(tokens, {1}), saved);
  ASSERT_TRUE(loaded.ok());
  const SessionId fork = executor().clone(*loaded, 48).value();
  step({make_input(*loaded, more, 48), make_input(fork, more, 48)});
  rig_->sessions().check_invariants();
  const SessionId session = open_greedy();
  EXPECT_EQ(executor().attach_prefix(session, joined(tokens, more)).value(), 0);
  // It is indexed from when it was empty on.
  EXPECT_TRUE(executor().release(*loaded).ok());
  EXPECT_EQ(executor().attach_prefix(*loaded, tokens).value(), 0);
  step({make_input(*loaded, tokens, 0)});
  EXPECT_EQ(executor().attach_prefix(session, tokens).value(), 47);
}

// Where a generation starts, the windows stay: another one starts there at no cost, however far the
// first has gone on.
TEST_P(ExecutorContract, AGenerationsStartStaysWithinReach) {
  start();
  const Tokens tokens = text(1, 48);
  const SessionId source = open_greedy();
  step({make_input(source, tokens, 0, true)});
  for (Position at = 48; at < 110; ++at) step({make_input(source, {1}, at, true)});
  for (const bool source_is_gone : {false, true}) {
    if (source_is_gone) executor().close(source);
    const SessionId again = open_greedy();
    EXPECT_EQ(executor().attach_prefix(again, tokens).value(), 47);
    const BatchOutput output = step({make_input(again, {tokens[47]}, 47, true)});
    EXPECT_EQ(sampled_bits(output, 0), Solo(GetParam()).sample(tokens, greedy()));
    executor().close(again);
  }
}

TEST_P(ExecutorContract, AnEmptyBatchAndOneOfBadInputsRunNothing) {
  start();
  EXPECT_TRUE(step({}).inputs.empty());
  EXPECT_FALSE(step_alone(make_input(SessionId{77}, {1}, 0)).ok());
  EXPECT_EQ(executor().usage().methods[0].forwards, 0);
}

}  // namespace
}  // namespace chorus::contract
