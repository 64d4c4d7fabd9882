#include "chorus/best_of.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace chorus {

double mean_logprob(std::span<const TokenScore> tokens) {
  double sum = 0;
  for (const TokenScore& token : tokens) sum += static_cast<double>(token.logprob);
  const double mean = sum / static_cast<double>(tokens.size());
  return std::isnan(mean) ? -std::numeric_limits<double>::infinity() : mean;
}

std::vector<size_t> best_choices(std::span<const double> scores, int32_t n) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min(order.size(), static_cast<size_t>(std::max(n, 0))));
  return order;
}

}  // namespace chorus
