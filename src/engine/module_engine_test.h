// A Runner over a real executor, session table and block books, with a module that hashes what it
// may see: every token and every score is right exactly when every cell it depends on was. For
// tests.
#pragma once

#include <bit>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/testing.h"
#include "exec/fake_module.h"
#include "executors/make_executor.h"

namespace chorus::testing {

// A module whose steps can be held.
class GatedModule final : public Module {
 public:
  explicit GatedModule(FakeModuleOptions options) : fake(std::move(options)) {}
  const ModuleInfo& info() const override { return fake.info(); }
  Status begin(const Step& step) override {
    gate.pass(num_steps_++);
    if (on_begin) on_begin();
    return fake.begin(step);
  }
  Status run(int32_t method, const Slice& slice, std::span<uint8_t> not_finite) override {
    return fake.run(method, slice, not_finite);
  }
  Status reduce_rows(std::span<const RowSpec> specs, std::span<RowResult> results,
                     std::vector<TokenLogprob>& likeliest) override {
    return fake.reduce_rows(specs, results, likeliest);
  }
  Status copy_cells(const CellCopy& copy) override { return fake.copy_cells(copy); }
  Status read_cells(int32_t group, std::span<const CellId> cells,
                    std::span<std::byte> bytes) const override {
    return fake.read_cells(group, cells, bytes);
  }
  Status write_cells(int32_t group, std::span<const CellId> cells,
                     std::span<const std::byte> bytes) override {
    return fake.write_cells(group, cells, bytes);
  }

  FakeModule fake;
  Gate gate;
  std::function<void()> on_begin;  // of each step; set while nothing runs

 private:
  int64_t num_steps_ = 0;
};

// Methods of programs: each step is cut in another way.
inline const std::vector<std::vector<MethodInfo>> kMethods{
    {{"forward", 1, 32, 0}},
    {{"decode", 1, 8, 0, {1, 2, 4, 8}}, {"prefill", 5, 32, 0}},
    {{"decode", 1, 1, 0, {1}}, {"prefill", 2, 9, 2}},
    {{"decode", 1, 24, 1, {1, 24}}, {"prefill", 28, 32, 0}}};  // hardly a step without padding

// With a group of full history and one of a window.
struct ModuleEngine {
  ModuleEngine(int32_t block_size, int32_t num_blocks, int32_t max_sessions,
               const RunnerOptions& options, const FakeFaults& faults = {},
               int32_t max_session_tokens = 512, int32_t window = 20,
               const std::vector<MethodInfo>& methods = {{"forward", 1, 32, 0}},
               const Clock* other_clock = nullptr)
      : module(module_options(block_size, num_blocks, window, methods)) {
    module.fake.set_faults(faults);
    auto executor = make_executor(
        module, {.max_sessions = max_sessions, .max_session_tokens = max_session_tokens});
    CHORUS_CHECK(executor.ok());
    auto created = Runner::create(std::move(executor).value(), options,
                                  other_clock != nullptr ? *other_clock : clock);
    CHORUS_CHECK(created.ok());
    runner = std::move(created).value();
  }

  // window 0: both groups keep the full history.
  static FakeModuleOptions module_options(int32_t block_size, int32_t num_blocks, int32_t window,
                                          const std::vector<MethodInfo>& methods) {
    FakeModuleOptions options;
    options.methods = methods;
    options.groups.push_back({.policy = {}, .num_blocks = num_blocks});
    options.groups.push_back({.policy = {.window = window}, .num_blocks = num_blocks});
    options.block_size = block_size;
    options.context = 2048;
    return options;
  }

  Session open(const SessionOptions& options = {}) {
    auto session = runner->open(options);
    CHORUS_CHECK(session.ok());
    return std::move(session).value();
  }

  SteadyClock clock;
  GatedModule module;
  std::unique_ptr<Runner> runner;
};

// Everything a caller sees of a request of two turns: ids, and the bits of the logprobs.
struct Seen {
  std::vector<std::pair<TokenId, uint32_t>> tokens;
  std::vector<FinishReason> reasons;
  friend bool operator==(const Seen&, const Seen&) = default;
};

inline void see(const GenerationHandle& handle, Seen& seen) {
  Update update;
  while (handle.read(update)) {
    for (const TokenScore& token : update.tokens)
      seen.tokens.push_back({token.id, std::bit_cast<uint32_t>(token.logprob)});
    if (update.finish.has_value()) seen.reasons.push_back(*update.finish);
  }
  for (const TokenScore& token : handle.take_prompt_scores().tokens)
    seen.tokens.push_back({token.id, std::bit_cast<uint32_t>(token.logprob)});
}

inline Tokens random_tokens(RandomStream& random, int64_t most) {
  Tokens tokens;
  for (int64_t n = random.between(1, most); n > 0; --n)
    tokens.push_back(static_cast<TokenId>(random.below(64)));
  return tokens;
}

}  // namespace chorus::testing
