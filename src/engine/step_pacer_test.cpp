#include "engine/step_pacer.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include "base/random.h"

namespace chorus {
namespace {

constexpr int64_t kMs = 1'000'000;

// A machine: a step costs a fixed part, and each prompt token more, the deeper it lies.
struct Machine {
  int64_t decode_ns = 10 * kMs;
  int64_t token_ns = kMs / 2;
  int64_t depth_ns = 0;  // more per token for each 1000 tokens before it

  int64_t run(int32_t tokens, int64_t depth) const {
    return decode_ns + tokens * (token_ns + depth * depth_ns / 1000);
  }
};

TEST(StepPacer, StepsTakeTheTargetAfterAFew) {
  for (const int64_t token_ns : {kMs / 50, kMs / 2, 2 * kMs}) {
    SCOPED_TRACE(token_ns);
    const Machine machine{.token_ns = token_ns};
    StepPacer pacer(100 * kMs);
    pacer.note(8, 0, machine.run(0, 0));
    for (int step = 0; step < 12; ++step)
      pacer.note(8, pacer.prefill_tokens(), machine.run(pacer.prefill_tokens(), 0));
    const int64_t ns = machine.run(pacer.prefill_tokens(), 0);
    EXPECT_LE(std::abs(ns - 100 * kMs), 10 * kMs) << ns;
  }
}

TEST(StepPacer, AnEmptyEngineHasMeasuredPromptsAlready) {
  const Machine machine;
  StepPacer pacer(100 * kMs);
  pacer.note(0, 512, machine.run(512, 0));  // the prompts of those who decode now
  EXPECT_LT(machine.run(pacer.prefill_tokens(), 0), 110 * kMs);
}

TEST(StepPacer, FollowsAPromptThatGrowsDear) {
  const Machine machine{.depth_ns = kMs / 4};
  StepPacer pacer(100 * kMs);
  pacer.note(8, 0, machine.run(0, 0));
  for (int64_t depth = 0; depth < 4000;) {
    const int32_t tokens = pacer.prefill_tokens();
    const int64_t ns = machine.run(tokens, depth);
    EXPECT_TRUE(depth == 0 || ns < 130 * kMs) << depth << " " << ns;
    pacer.note(8, tokens, ns);
    depth += tokens;
  }
}

TEST(StepPacer, OneHiccupIsForgottenAndNoiseEvensOut) {
  const Machine machine;
  StepPacer pacer(100 * kMs);
  RandomStream random(1);
  for (int step = 0; step < 200; ++step) {
    const int32_t tokens = pacer.prefill_tokens();
    int64_t ns = machine.run(tokens, 0);
    ns += ns * static_cast<int64_t>(random.below(40)) / 100;
    if (step == 100) ns += 5000 * kMs;
    pacer.note(8, tokens, ns);
    EXPECT_GT(tokens, StepPacer::kLeastTokens);
    if (step < 20 || (step > 100 && step < 115)) continue;
    EXPECT_GT(machine.run(tokens, 0), 55 * kMs) << step;
    EXPECT_LT(machine.run(tokens, 0), 115 * kMs) << step;
  }
}

TEST(StepPacer, APromptGoesOnWhereDecodesTakeAllTheTime) {
  StepPacer pacer(10 * kMs);
  pacer.note(32, 0, 50 * kMs);
  pacer.note(32, 16, 60 * kMs);
  EXPECT_EQ(pacer.prefill_tokens(), StepPacer::kLeastTokens);
}

}  // namespace
}  // namespace chorus
