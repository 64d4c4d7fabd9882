// How many prompt tokens a step may hold while others decode. Internal to the engine.
#pragma once

#include <algorithm>
#include <cstdint>

namespace chorus {

// Keeps steps that decode about as long as asked for, whatever the machine and the model: from the
// steps that ran it learns what one costs without prompt tokens, and what each of those adds. Both
// are moving averages, so that deep prompts, whose tokens cost more, and other work on the machine
// are followed. The token counts it gives decide only when tokens are computed, never what they
// come to. Thread: engine.
class StepPacer {
 public:
  // A prompt goes on by so many tokens at least, also where decodes alone take all the time.
  static constexpr int32_t kLeastTokens = 16;
  // Before anything was measured.
  static constexpr int32_t kFirstTokens = 64;

  explicit StepPacer(int64_t target_ns) : target_ns_(target_ns) {}

  // Most prompt tokens for the next step that decodes.
  int32_t prefill_tokens() const {
    if (token_ns_ == 0) return kFirstTokens;
    const double tokens = (static_cast<double>(target_ns_) - decode_ns_) / token_ns_;
    return static_cast<int32_t>(std::clamp<double>(tokens, kLeastTokens, kMostTokens));
  }

  // A step took `ns` for so many decodes and prompt tokens.
  void note(int32_t num_decodes, int32_t num_prefill, int64_t ns) {
    const auto time = static_cast<double>(ns);
    if (num_prefill < kLeastTokens && (num_decodes == 0 || num_prefill == 0)) {
      move(time, decode_ns_);  // of few tokens of either kind, the model's weights are the cost
    } else {
      // Of a step that took less than its decodes usually do, a part is the prompt's all the same.
      const double decodes = num_decodes > 0 ? std::min(decode_ns_, kMostDecodeShare * time) : 0;
      move((time - decodes) / num_prefill, token_ns_);
    }
  }

 private:
  static constexpr double kMostTokens = 1 << 30;
  static constexpr double kMostDecodeShare = 0.9;
  static constexpr double kWeight = 0.25;   // of the newest step
  static constexpr double kMostGrowth = 4;  // of a sample against the average: one may be a hiccup

  static void move(double sample, double& average) {
    average = average == 0
                  ? sample
                  : average + kWeight * (std::min(sample, kMostGrowth * average) - average);
  }

  const int64_t target_ns_;
  double decode_ns_ = 0;  // of a step without a prompt to speak of
  double token_ns_ = 0;   // of each prompt token in a step
};

}  // namespace chorus
