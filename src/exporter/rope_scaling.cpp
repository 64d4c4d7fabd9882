#include "exporter/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace chorus {

namespace {

// Short wavelengths stay, long ones are stretched, those between are blended.
double llama3_factor(const RopeScaling& s, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < s.original_context / s.high_frequency_factor) return 1.0;
  if (wavelength > s.original_context / s.low_frequency_factor) return s.factor;
  const double smooth = (s.original_context / wavelength - s.low_frequency_factor) /
                        (s.high_frequency_factor - s.low_frequency_factor);
  return 1.0 / ((1.0 - smooth) / s.factor + smooth);
}

// The dimension whose frequency turns so often within the original context.
double yarn_dimension(const RopeScaling& s, double rotations, double theta, double dims) {
  return dims * std::log(s.original_context / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(theta));
}

double yarn_factor(const RopeScaling& s, double theta, double dims, double i) {
  double low = yarn_dimension(s, s.beta_fast, theta, dims);
  double high = yarn_dimension(s, s.beta_slow, theta, dims);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1.0);
  if (low == high) high += 0.001;
  const double kept = 1.0 - std::clamp((i - low) / (high - low), 0.0, 1.0);
  return 1.0 / ((1.0 - kept) / s.factor + kept);
}

}  // namespace

double yarn_attention_factor(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

RopeTable make_rope_table(double theta, int32_t dims, const RopeScaling& scaling) {
  RopeTable table{theta, dims, {}};
  if (scaling.kind == RopeScalingKind::kNone) return table;
  for (int32_t i = 0; i < dims / 2; ++i) {
    double factor = scaling.factor;
    if (scaling.kind == RopeScalingKind::kLlama3) {
      factor = llama3_factor(scaling, std::pow(theta, -2.0 * i / dims));
    } else if (scaling.kind == RopeScalingKind::kYarn) {
      factor = yarn_factor(scaling, theta, dims, i);
    }
    table.factors.push_back(static_cast<float>(factor));
  }
  return table;
}

}  // namespace chorus
