#include "tests/simulation/scenario.h"

#include <algorithm>

#include "base/random.h"
#include "kv/types.h"

namespace chorus::simulation {
namespace {

constexpr int32_t kBlockSizes[] = {1, 16, 32, 64};

std::vector<WindowPolicy> make_groups(RandomStream& random) {
  const auto window = [&] { return WindowPolicy{static_cast<int32_t>(random.between(1, 40))}; };
  switch (random.below(5)) {
    case 0:
      return {{}};
    case 1:
      return {window()};
    case 2:
      return {{}, window()};
    case 3:
      return {window(), {}, window()};
    default:
      return {window(), window()};
  }
}

RunnerOptions make_runner(RandomStream& random, int32_t max_sessions) {
  RunnerOptions options;
  options.prefill_chunk = static_cast<int32_t>(random.between(1, 24));
  options.max_decode_sequences = static_cast<int32_t>(random.between(1, 8));
  options.max_batch_tokens =
      options.prefill_chunk + options.max_decode_sequences + static_cast<int32_t>(random.below(24));
  options.max_queued_generations = static_cast<int32_t>(random.between(1, max_sessions));
  options.max_unread_tokens = static_cast<int32_t>(random.between(1, 12));
  options.target_step_ms = static_cast<int32_t>(random.between(1, 60));
  options.priority_age_ms = static_cast<int32_t>(random.between(1, 60));
  options.shortest_first_ms = static_cast<int32_t>(random.below(3));
  options.seed = random.next();
  return options;
}

// A half of the engines has `forward` alone. Of the others some have few widths and long prefills,
// so that hardly a step is without padding.
std::vector<MethodInfo> make_methods(RandomStream& random, int32_t most_rows) {
  if (random.below(2) == 0 || most_rows < 2) return {{"forward", 1, most_rows, 0}};
  constexpr int32_t kLeast[] = {1, 2, 5, 40};
  MethodInfo prefill{"prefill", std::min(kLeast[random.below(4)], most_rows), most_rows, 0};
  MethodInfo decode{"decode", 1, 1, 0, {1}};
  const uint64_t sparsity = random.between(1, 12);
  for (int32_t width = 2; width <= most_rows; ++width) {
    if (random.below(sparsity) == 0) decode.widths.push_back(width);
  }
  decode.max_tokens = decode.widths.back();
  decode.min_wanted = static_cast<int32_t>(random.below(2));
  prefill.min_wanted = static_cast<int32_t>(random.between(0, prefill.min_tokens));
  return {decode, prefill};
}

// One block for each session, or for some of them; for one that rewinds, another.
std::vector<int32_t> make_sequence_pools(RandomStream& random, const Scenario& scenario,
                                         const EngineScenario& engine) {
  return std::vector<int32_t>(scenario.model.groups.size(),
                              static_cast<int32_t>(random.between(2, engine.max_sessions + 1)));
}

// Pools from a few dozen tokens to more than all sessions need.
std::vector<int32_t> make_pools(RandomStream& random, const Scenario& scenario,
                                const EngineScenario& engine) {
  constexpr int64_t kTokens[][2] = {{24, 80}, {60, 200}, {150, 500}, {500, 1500}};
  std::vector<int32_t> pools;
  for (const WindowPolicy policy : scenario.model.groups) {
    const int64_t* tokens = kTokens[random.below(std::size(kTokens))];
    const int64_t blocks =
        (random.between(tokens[0], tokens[1]) + engine.block_size - 1) / engine.block_size;
    const int64_t least =
        policy.window == 0 ? 1
                           : smallest_pool(policy, engine.block_size, scenario.max_session_tokens,
                                           engine.runner.max_batch_tokens);
    pools.push_back(static_cast<int32_t>(std::max(blocks, least)));
  }
  return pools;
}

std::vector<std::vector<TokenId>> make_texts(RandomStream& random, const Scenario& scenario) {
  std::vector<std::vector<TokenId>> texts(static_cast<size_t>(random.between(1, 4)));
  const int32_t num_ordinary = scenario.model.vocabulary - 2;
  for (auto& text : texts) {
    for (int32_t i = 0; i < scenario.max_session_tokens; ++i)
      text.push_back(static_cast<TokenId>(random.below(static_cast<uint64_t>(num_ordinary))));
  }
  return texts;
}

}  // namespace

Scenario make_scenario(uint64_t seed) {
  RandomStream random(seed);
  RandomStream more_random(seed + (uint64_t{1} << 32));  // leaves the rest of a seed as it is
  Scenario scenario;
  scenario.has_suspends = seed % 2 == 0;
  scenario.model.groups = make_groups(random);
  scenario.model.vocabulary = static_cast<int32_t>(random.between(24, 70));
  if (random.below(3) == 0) {
    scenario.model.nan_kv_token = scenario.model.vocabulary - 1;
    scenario.model.nan_logits_token = scenario.model.vocabulary - 2;
  }
  scenario.max_session_tokens = static_cast<int32_t>(random.between(48, 160));
  if (random.below(3) > 0)
    scenario.faults_per_thousand = static_cast<int32_t>(random.between(5, 60));
  scenario.turns_per_hundred = static_cast<int32_t>(random.between(20, 70));
  const uint64_t num_engines = random.between(1, 2);
  for (uint64_t i = 0; i < num_engines; ++i) {
    EngineScenario& engine = scenario.engines.emplace_back();
    engine.block_size = kBlockSizes[random.below(std::size(kBlockSizes))];
    const auto most_rows = static_cast<int32_t>(random.between(1, 40));
    engine.max_sessions = static_cast<int32_t>(random.between(3, 24));
    engine.runner = make_runner(random, engine.max_sessions);
    engine.num_blocks = make_pools(random, scenario, engine);
    engine.methods = make_methods(more_random, most_rows);
    if (more_random.below(6) == 0) {
      engine.block_size = sequence_block_size(scenario.max_session_tokens);
      engine.num_blocks = make_sequence_pools(more_random, scenario, engine);
    }
  }
  scenario.texts = make_texts(random, scenario);
  return scenario;
}

std::string describe(const Scenario& scenario) {
  const auto number = [](int64_t value) { return std::to_string(value); };
  std::string text = "windows";
  for (const WindowPolicy policy : scenario.model.groups) text += " " + number(policy.window);
  text += ", vocabulary " + number(scenario.model.vocabulary);
  if (scenario.model.nan_kv_token >= 0) text += " with NaN";
  text += ", sessions of " + number(scenario.max_session_tokens) + " tokens, " +
          number(scenario.faults_per_thousand) + " faults in 1000 events";
  for (const EngineScenario& engine : scenario.engines) {
    text += "; engine: blocks of " + number(engine.block_size) + " x";
    for (const int32_t blocks : engine.num_blocks) text += " " + number(blocks);
    text += ", " + number(engine.max_sessions) + " sessions, queue " +
            number(engine.runner.max_queued_generations) + ", unread " +
            number(engine.runner.max_unread_tokens) + ", steps of " +
            number(engine.runner.max_batch_tokens) + ", chunks of " +
            number(engine.runner.prefill_chunk);
    for (const MethodInfo& method : engine.methods) {
      text += ", " + method.name + " of " + number(method.min_tokens) + " to " +
              number(method.max_tokens);
      for (const int32_t width : method.widths) text += " " + number(width);
    }
  }
  return text;
}

}  // namespace chorus::simulation
