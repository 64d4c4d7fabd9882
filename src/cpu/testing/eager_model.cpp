#include "cpu/testing/eager_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/check.h"
#include "program/packing/r16k4.h"

namespace chorus::cpu {

namespace {

using Matrix = std::vector<std::vector<double>>;

class EagerModel {
 public:
  EagerModel(const Program& program, std::span<const TokenId> tokens)
      : program_(program), graph_(program.graph()), tokens_(tokens) {}

  Matrix run() {
    for (const Op& op : graph_.ops) run(op);
    return values_.back();
  }

 private:
  const Matrix& input(const Op& op, size_t i = 0) const {
    return values_[static_cast<size_t>(op.inputs[i])];
  }

  std::vector<double> row_of(WeightId id, int32_t row) const {
    const Weight& weight = program_.weights()[static_cast<size_t>(id)];
    std::vector<float> values(static_cast<size_t>(weight.columns));
    dequantize_row(weight, program_.weight_bytes(id), row, values);
    return {values.begin(), values.end()};
  }

  static Matrix map(const Matrix& x, const std::function<double(double)>& f) {
    Matrix y = x;
    for (auto& row : y) {
      for (double& v : row) v = f(v);
    }
    return y;
  }

  static Matrix combine(const Matrix& a, const Matrix& b,
                        const std::function<double(double, double)>& f) {
    Matrix y = a;
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t i = 0; i < y[r].size(); ++i) y[r][i] = f(a[r][i], b[r][i]);
    }
    return y;
  }

  void run(const Op& op) {
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    const double scale = static_cast<double>(op.scale);
    switch (op.kind) {
      case OpKind::kEmbed:
        return push(embed(op));
      case OpKind::kRmsNorm:
        return push(rms_norm(op));
      case OpKind::kLinear:
        return linear(op);
      case OpKind::kRope:
        return push(rope(op));
      case OpKind::kUpdateAndAttend:
        return push(attend(op));
      case OpKind::kAdd:
        return push(combine(input(op), input(op, 1), std::plus<>()));
      case OpKind::kMul:
        return push(combine(input(op), input(op, 1), std::multiplies<>()));
      case OpKind::kScale:
        return push(map(input(op), [&](double x) { return x * scale; }));
      case OpKind::kSilu:
        return push(map(input(op), [&](double x) { return x * sigmoid(x); }));
      case OpKind::kGelu:
        return push(map(input(op), [](double x) {
          return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        }));
      case OpKind::kSigmoid:
        return push(map(input(op), sigmoid));
      case OpKind::kTanhSoftcap:
        return push(map(input(op), [&](double x) { return scale * std::tanh(x / scale); }));
      case OpKind::kSelectRows:
        return push(Matrix(input(op)));
    }
  }

  void push(Matrix value) { values_.push_back(std::move(value)); }

  Matrix embed(const Op& op) const {
    Matrix y;
    for (const TokenId token : tokens_) y.push_back(row_of(op.weights[0], token));
    return y;
  }

  Matrix rms_norm(const Op& op) const {
    Matrix y = input(op);
    for (auto& row : y) {
      const size_t group = op.group_width == 0 ? row.size() : static_cast<size_t>(op.group_width);
      std::vector<double> weight(group, 1.0);
      if (!op.weights.empty()) weight = row_of(op.weights[0], 0);
      for (size_t begin = 0; begin < row.size(); begin += group) {
        double sum = 0;
        for (size_t i = 0; i < group; ++i) sum += row[begin + i] * row[begin + i];
        const double factor =
            1 / std::sqrt(sum / static_cast<double>(group) + static_cast<double>(op.epsilon));
        for (size_t i = 0; i < group; ++i) row[begin + i] *= factor * weight[i];
      }
    }
    return y;
  }

  void linear(const Op& op) {
    const Matrix x = input(op);
    for (size_t part = 0; part < op.weights.size(); ++part) {
      const int32_t rows = program_.weights()[static_cast<size_t>(op.weights[part])].rows;
      Matrix y(x.size(), std::vector<double>(static_cast<size_t>(rows)));
      for (int32_t n = 0; n < rows; ++n) {
        const std::vector<double> w = row_of(op.weights[part], n);
        for (size_t t = 0; t < x.size(); ++t) {
          double sum = 0;
          for (size_t k = 0; k < w.size(); ++k) sum += w[k] * x[t][k];
          y[t][static_cast<size_t>(n)] = sum;
        }
      }
      if (!op.biases.empty() && op.biases[part] != kNoWeight) {
        const std::vector<double> bias = row_of(op.biases[part], 0);
        for (auto& row : y) {
          for (size_t n = 0; n < row.size(); ++n) row[n] += bias[n];
        }
      }
      push(std::move(y));
    }
  }

  Matrix rope(const Op& op) const {
    const RopeTable& table = graph_.ropes[static_cast<size_t>(op.rope)];
    Matrix y = input(op);
    const auto dim = static_cast<size_t>(op.head_dim);
    for (size_t t = 0; t < y.size(); ++t) {
      for (size_t head = 0; head < y[t].size(); head += dim) {
        for (size_t i = 0; i < static_cast<size_t>(table.dims / 2); ++i) {
          const double factor = table.factors.empty() ? 1.0 : static_cast<double>(table.factors[i]);
          const double angle = static_cast<double>(t) *
                               std::pow(table.theta, -2.0 * static_cast<double>(i) / table.dims) /
                               factor;
          const bool half = op.pairing == RopePairing::kHalf;
          double& a = y[t][head + (half ? i : 2 * i)];
          double& b = y[t][head + (half ? i + dim / 2 : 2 * i + 1)];
          const double a0 = a;
          a = a0 * std::cos(angle) - b * std::sin(angle);
          b = b * std::cos(angle) + a0 * std::sin(angle);
        }
      }
    }
    return y;
  }

  Matrix attend(const Op& op) const {
    const Matrix &q = input(op), &k = input(op, 1), &v = input(op, 2);
    int32_t window = 0;
    for (const LayerGroup& group : graph_.groups) {
      if (std::count(group.layers.begin(), group.layers.end(), op.layer) > 0) {
        window = group.policy.window;
      }
    }
    const auto dim = static_cast<size_t>(op.head_dim);
    const auto heads = static_cast<size_t>(op.num_heads);
    const size_t together = heads / static_cast<size_t>(op.num_kv_heads);
    Matrix y(q.size(), std::vector<double>(q[0].size()));
    for (size_t t = 0; t < q.size(); ++t) {
      const auto w = static_cast<size_t>(window);
      const size_t first = window == 0 || t + 1 < w ? 0 : t + 1 - w;
      for (size_t head = 0; head < heads; ++head) {
        const size_t kv = head / together * dim;
        std::vector<double> p;
        for (size_t c = first; c <= t; ++c) {
          double s = 0;
          for (size_t i = 0; i < dim; ++i) s += q[t][head * dim + i] * k[c][kv + i];
          s *= static_cast<double>(op.scale);
          const double cap = static_cast<double>(op.softcap);
          p.push_back(cap > 0 ? cap * std::tanh(s / cap) : s);
        }
        const double m = *std::max_element(p.begin(), p.end());
        double sum = 0;
        for (double& x : p) sum += x = std::exp(x - m);
        for (size_t c = first; c <= t; ++c) {
          for (size_t i = 0; i < dim; ++i)
            y[t][head * dim + i] += p[c - first] / sum * v[c][kv + i];
        }
      }
    }
    return y;
  }

  const Program& program_;
  const Graph& graph_;
  std::span<const TokenId> tokens_;
  std::vector<Matrix> values_;
};

}  // namespace

std::vector<std::vector<double>> eager_logits(const Program& program,
                                              std::span<const TokenId> tokens) {
  return EagerModel(program, tokens).run();
}

}  // namespace chorus::cpu
