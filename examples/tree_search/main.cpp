// tree_search MODEL PROMPT: a text by search over a tree of sessions. At each level the trunk is
// forked into several branches, which run in one batch; the one whose tokens are the likeliest is
// kept. Then the best text is compared with what the model says without a search, in the same
// session, rewound to the prompt.
#include <chorus/engine.h>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr int kBranches = 4;
constexpr int kLevels = 3;
constexpr int kTokensPerLevel = 8;

template <typename T>
T take(chorus::Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::cerr << result.status().to_string() << '\n';
  std::exit(1);
}

void expect(const chorus::Status& status) {
  if (status.ok()) return;
  std::cerr << status.to_string() << '\n';
  std::exit(1);
}

// Reads to the end; the mean logprob of its tokens.
double finish(chorus::Generation& generation) {
  while (generation.read()) {
  }
  expect(generation.error());
  double sum = 0;
  for (const chorus::TokenScore& token : generation.tokens()) sum += token.logprob;
  return generation.tokens().empty() ? 0 : sum / static_cast<double>(generation.tokens().size());
}

struct Branch {
  chorus::Session session;
  chorus::Generation generation;
};

// The likeliest of kBranches continuations of the trunk. `last` is the trunk's last token, which
// each branch runs for itself: its logits are where they part.
Branch best_branch(chorus::Engine& engine, const chorus::Session& trunk, chorus::TokenId last,
                   uint64_t seed, double& best_score) {
  const chorus::Position held = trunk.position() - 1;
  std::vector<Branch> branches;
  for (uint32_t choice = 0; choice < kBranches; ++choice) {
    chorus::Session session = take(trunk.clone(held));
    chorus::GenerationOptions options;
    options.max_new_tokens = kTokensPerLevel;
    options.sampling.temperature = 0.8f;
    options.sampling.choice = choice;
    options.sampling.logprobs = true;
    options.seed = seed;
    auto generation = take(engine.generate(session, std::vector<chorus::TokenId>{last}, options));
    branches.push_back({std::move(session), std::move(generation)});
  }
  size_t best = 0;
  for (size_t i = 0; i < branches.size(); ++i) {
    const double score = finish(branches[i].generation);
    std::cout << "  " << score << (i == 0 || score > best_score ? " *" : "") << '\n';
    if (i > 0 && score <= best_score) continue;
    best = i;
    best_score = score;
  }
  return std::move(branches[best]);  // the others close, and their blocks are free again
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const auto engine = take(chorus::Engine::open(arguments[1]));
  const auto prompt = take(engine->tokenize(arguments[2]));
  chorus::Session trunk = take(engine->open_session());
  chorus::Generation computed = take(engine->append(trunk, prompt));
  finish(computed);

  int continuations = 0;
  std::string text;
  std::vector<chorus::TokenId> tokens = prompt;
  for (int level = 0; level < kLevels; ++level) {
    std::cout << "level " << level << '\n';
    double score = 0;
    Branch best = best_branch(*engine, trunk, tokens.back(), static_cast<uint64_t>(level), score);
    continuations += kBranches;
    for (const chorus::TokenScore& token : best.generation.tokens()) tokens.push_back(token.id);
    text += best.generation.text();
    trunk = std::move(best.session);
    if (best.generation.finish_reason() == chorus::FinishReason::kStop) break;
  }
  std::cout << "search: " << text << '\n';

  // The trunk holds prompt and text. Back to the prompt, and on without a search.
  expect(trunk.rewind(static_cast<chorus::Position>(prompt.size()) - 1));
  chorus::GenerationOptions greedy;
  greedy.max_new_tokens = kLevels * kTokensPerLevel;
  auto plain = take(engine->generate(trunk, std::vector<chorus::TokenId>{prompt.back()}, greedy));
  finish(plain);
  std::cout << "greedy: " << plain.text() << '\n';
  const chorus::RunnerMetrics metrics = engine->metrics();
  std::cout << "computed " << metrics.prompt_tokens << " given tokens for " << continuations + 1
            << " continuations of " << prompt.size() << '\n';
  return 0;
}
