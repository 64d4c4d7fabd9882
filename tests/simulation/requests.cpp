// What a client of the simulation asks for.
#include <algorithm>
#include <utility>

#include "tests/simulation/world.h"

namespace chorus::simulation {

// Mostly something that fits.
World::Draft World::draft(const Client& client) {
  Draft draft;
  const int32_t room = engines_[client.engine]->longest() - client.session.position();
  const bool is_short = chance(95);
  const int32_t most_prompt = is_short ? std::max(1, room - 1) : scenario_.max_session_tokens;
  draft.prompt = draft_prompt(client, most_prompt);
  const auto num_prompt = static_cast<int32_t>(draft.prompt.size());
  const int32_t most_new = is_short ? std::max(1, room - num_prompt) : 60;
  draft.options.max_new_tokens =
      chance(15) ? 0 : between(1, std::min(most_new, chance(10) ? 60 : 16));
  draft_sampling(draft);
  draft_rest(client, draft);
  return draft;
}

// Sessions that begin alike go on alike, for a while.
Tokens World::draft_prompt(const Client& client, int32_t most) {
  Tokens prompt;
  const auto begin = static_cast<int32_t>(client.context.size());
  const int32_t length = between(1, std::min(most, chance(30) ? 80 : 16));
  if (chance(65)) {
    const Tokens& text = scenario_.texts[random_.below(scenario_.texts.size())];
    const int32_t end = std::min(begin + length, static_cast<int32_t>(text.size()));
    if (begin < end) prompt.assign(text.begin() + begin, text.begin() + end);
  }
  const int32_t num_ordinary = scenario_.model.vocabulary - 2;
  const int32_t num_own = prompt.empty() ? length : between(0, 3);
  for (int32_t i = 0; i < num_own; ++i) prompt.push_back(between(0, num_ordinary - 1));
  if (std::ssize(prompt) > most) prompt.resize(static_cast<size_t>(most));
  if (scenario_.model.nan_kv_token >= 0 && chance(4))
    prompt[random_.below(prompt.size())] = scenario_.model.vocabulary - between(1, 2);
  return prompt;
}

void World::draft_sampling(Draft& draft) {
  GenerationOptions& options = draft.options;
  SamplingParams& sampling = options.sampling;
  if (chance(60)) {
    constexpr float kTemperatures[] = {0.3f, 0.8f, 1.0f, 2.0f};
    sampling.temperature = kTemperatures[random_.below(4)];
    if (chance(30)) sampling.top_k = between(1, 20);
    if (chance(30)) sampling.top_p = 0.05f * static_cast<float>(between(1, 20));
    if (chance(30)) sampling.min_p = 0.05f * static_cast<float>(between(0, 20));
    sampling.choice = static_cast<uint32_t>(random_.below(3));
  }
  if (chance(85)) options.seed = random_.below(4);
  sampling.logprobs = chance(50);
  if (chance(25)) sampling.num_likeliest = between(1, 5);
  if (chance(2)) {
    draft.has_bad_sampling = true;
    sampling.temperature = -1.0f;
  }
  if (draft.options.max_new_tokens == 0) return;
  if (chance(30)) draft_adjustments(draft);
  if (!chance(12)) return;
  ConstraintRules& rules = draft.constraint.emplace();
  rules.seed = random_.below(3);
  rules.vocabulary = scenario_.model.vocabulary;
  int32_t* const failures[] = {&rules.fails_to_fill_at, &rules.fails_to_accept_at,
                               &rules.allows_nothing_at};
  if (chance(15)) *failures[random_.below(3)] = between(0, 6);
}

// Bias, penalties, and what forbids tokens.
void World::draft_adjustments(Draft& draft) {
  SamplingParams& sampling = draft.options.sampling;
  const auto any_token = [&] { return between(0, scenario_.model.vocabulary - 1); };
  const auto tenths = [&](int32_t low, int32_t high) {
    return 0.1f * static_cast<float>(between(low, high));
  };
  if (chance(40)) sampling.typical_p = tenths(1, 10);
  if (chance(40)) sampling.repetition_penalty = tenths(5, 30);
  if (chance(40)) sampling.frequency_penalty = tenths(-20, 20);
  if (chance(40)) sampling.presence_penalty = tenths(-20, 20);
  if (chance(40)) {
    for (int32_t i = between(1, 5); i > 0; --i)
      sampling.logit_bias.push_back({any_token(), tenths(-60, 60)});
  }
  if (chance(20)) {
    for (int32_t i = between(8, 40); i > 0; --i) sampling.allowed_tokens.push_back(any_token());
  }
  if (chance(40)) {
    // Short ones over few tokens, so that they would come.
    for (int32_t i = between(1, 6); i > 0; --i) {
      std::vector<TokenId>& bad = sampling.bad_sequences.emplace_back();
      for (int32_t j = between(1, 3); j > 0; --j) bad.push_back(any_token());
    }
  }
  if (chance(30)) sampling.min_tokens = between(0, draft.options.max_new_tokens);
}

void World::draft_rest(const Client& client, Draft& draft) {
  GenerationOptions& options = draft.options;
  if (chance(30)) {
    for (int32_t i = between(1, 3); i > 0; --i)
      options.stop_tokens.push_back(between(0, scenario_.model.vocabulary - 1));
    options.ignore_stop_tokens = chance(15);
  }
  const auto end = static_cast<int32_t>(client.context.size() + draft.prompt.size());
  if (chance(18)) options.score_from = between(0, end + 1);
  if (chance(40)) options.priority = between(-1, 2);
  if (chance(15)) options.deadline_ns = random_.between(0, 40'000'000);
}

}  // namespace chorus::simulation
