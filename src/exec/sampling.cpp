#include "exec/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/random.h"

namespace chorus {
namespace {

__extension__ typedef unsigned __int128 Wide;

// ceil(total * share / 2^32).
uint64_t share_of(uint64_t total, uint64_t share) {
  return static_cast<uint64_t>((Wide{total} * share + kWholeWeight - 1) >> 32);
}

// How many from the front of `order` reach the share `top_p` of their weight.
template <typename Weight>
size_t count_reaching(std::span<const TokenId> order, uint64_t top_p, Weight weight) {
  uint64_t total = 0;
  for (const TokenId id : order) total += weight(id);
  const uint64_t need = share_of(total, top_p);
  size_t count = 0;
  uint64_t sum = 0;
  while (count == 0 || sum < need) sum += weight(order[count++]);
  return count;
}

// Step 5. `depth` is d.
template <typename Weight, typename Depth>
void keep_typical(std::vector<TokenId>& order, uint64_t typical_p, Weight weight, Depth depth) {
  std::erase_if(order, [&](TokenId id) { return weight(id) == 0; });
  uint64_t total = 0;
  Wide sum = 0;
  for (const TokenId id : order) {
    total += weight(id);
    sum += Wide{weight(id)} * depth(id);
  }
  const auto mean = static_cast<int64_t>(sum / total);
  const auto distance = [&](TokenId id) {
    return std::abs(static_cast<int64_t>(depth(id)) - mean);
  };
  std::vector<TokenId> nearest = order;
  std::sort(nearest.begin(), nearest.end(),
            [&](TokenId a, TokenId b) { return distance(a) < distance(b); });
  const uint64_t need = std::max<uint64_t>(share_of(total, typical_p), 1);
  uint64_t reached = 0;
  size_t count = 0;
  while (reached < need) reached += weight(nearest[count++]);
  const int64_t farthest = distance(nearest[count - 1]);
  std::erase_if(order, [&](TokenId id) { return distance(id) > farthest; });
}

}  // namespace

uint64_t share_of_top_p(float top_p) {
  return static_cast<uint64_t>(static_cast<double>(top_p) * 0x1p32);
}

uint64_t weight_of_min_p(float min_p) {
  return static_cast<uint64_t>(std::ceil(static_cast<double>(min_p) * 0x1p32));
}

float sampling_exp(float x) {
  x = std::clamp(x, -104.0f, 89.0f);
  const float shifted = x * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  // Twice, so that a subnormal result is rounded once, from a normal one.
  const auto exponent = static_cast<int>(n);
  const int half = exponent >> 1;
  return std::ldexp(std::ldexp(p, half), exponent - half);
}

TokenId choose_token(std::span<const float> logits, const RowSpec& spec,
                     std::vector<TokenId>& order) {
  return choose_token(logits, spec,
                      random_bits(spec.seed, spec.choice, static_cast<uint64_t>(spec.position)),
                      order);
}

TokenId choose_token(std::span<const float> logits, const RowSpec& spec, uint64_t bits,
                     std::vector<TokenId>& order) {
  const auto logit = [&](TokenId id) {
    const float own = logits[static_cast<size_t>(id)];
    const auto by = std::lower_bound(
        spec.adjustments.begin(), spec.adjustments.end(), id,
        [](const TokenAdjustment& each, TokenId other) { return each.id < other; });
    return by == spec.adjustments.end() || by->id != id ? own : adjusted_logit(own, *by, spec);
  };
  order.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (spec.mask.empty() || (spec.mask[id / 32] >> (id % 32) & 1) != 0) {
      order.push_back(static_cast<TokenId>(id));
    }
  }
  if (order.empty()) return -1;
  const auto likelier = [&](TokenId a, TokenId b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  };
  const TokenId likeliest = *std::min_element(order.begin(), order.end(), likelier);
  const float max = logit(likeliest);
  const float inverse = 1.0f / spec.temperature;
  if (!(spec.temperature > 0.0f) || !std::isfinite(inverse) || !std::isfinite(max)) {
    return likeliest;
  }
  std::sort(order.begin(), order.end(), likelier);
  const auto weight = [&](TokenId id) {
    return static_cast<uint64_t>(sampling_exp((logit(id) - max) * inverse) * 0x1p32f);
  };
  if (spec.top_k > 0 && static_cast<size_t>(spec.top_k) < order.size()) {
    order.resize(static_cast<size_t>(spec.top_k));
  }
  const uint64_t typical_p = share_of_top_p(spec.typical_p);
  if (typical_p < kWholeWeight) {
    keep_typical(order, typical_p, weight, [&](TokenId id) {
      return static_cast<uint64_t>((max - logit(id)) * inverse * 0x1p20f);
    });
  }
  const uint64_t top_p = share_of_top_p(spec.top_p);
  if (top_p < kWholeWeight) order.resize(count_reaching(order, top_p, weight));
  const uint64_t least = share_of(weight(order.front()), weight_of_min_p(spec.min_p));
  std::erase_if(order, [&](TokenId id) { return weight(id) < least; });
  std::sort(order.begin(), order.end());
  uint64_t total = 0;
  for (const TokenId id : order) total += weight(id);
  auto left = static_cast<uint64_t>((Wide{bits} * total) >> 64);
  for (const TokenId id : order) {
    if (left < weight(id)) return id;
    left -= weight(id);
  }
  return likeliest;  // not reached: left < total
}

}  // namespace chorus
