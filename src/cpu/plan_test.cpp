#include "cpu/plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cpu/module.h"
#include "cpu/testing/step_driver.h"
#include "program/builder.h"
#include "program/testing/tiny_program.h"

namespace chorus::cpu {
namespace {

constexpr int32_t kVocabulary = 61;
constexpr int32_t kHeadDim = 16;
constexpr int32_t kContext = 256;

int32_t pick(RandomStream& random, int32_t count) {
  return static_cast<int32_t>(random.below(static_cast<uint64_t>(count)));
}

// A program of random operators: values are read by nobody, once or several times, by operators of
// their own chain and of later ones.
class RandomProgram {
 public:
  explicit RandomProgram(uint64_t seed) : random_(seed), seed_(seed * 1000) {
    b_.facts.architecture = "random";
    b_.facts.name = "random";
    b_.facts.context = kContext;
    b_.facts.vocabulary = kVocabulary;
    b_.facts.methods = {{"forward", 1, kContext, 0}};
  }

  std::shared_ptr<const Program> build() {
    groups_ = {b_.add_group({0}), b_.add_group({1 + pick(random_, 30)})};
    ropes_ = {b_.add_rope({10000.0, kHeadDim, {}}), b_.add_rope({500.0, kHeadDim / 2, {}})};
    const int32_t width = 32 * (1 + pick(random_, 3));
    const WeightId table = matrix(kVocabulary, width);
    add(b_.embed(table), width);
    for (const int32_t group : groups_) {
      for (int32_t i = pick(random_, 12); i >= 0; --i) add_operator();
      add_attention(group);
    }
    for (int32_t i = pick(random_, 10); i >= 0; --i) add_operator();
    Value selected = any();
    selected.id = b_.select_rows(selected.id);
    values_ = {selected};
    is_tail_ = true;
    for (int32_t i = pick(random_, 5); i >= 0; --i) add_operator();
    const Value last = any();
    const ValueId normed = b_.rms_norm(last.id, kNoWeight, 1e-5f);
    const ValueId logits = b_.linear(normed, {matrix(kVocabulary, last.width)})[0];
    if (random_.below(2) == 0) b_.tanh_softcap(logits, 3.0f);
    auto program = b_.build();
    EXPECT_TRUE(program.ok()) << program.status().to_string();
    return std::make_shared<const Program>(std::move(program).value());
  }

 private:
  struct Value {
    ValueId id = 0;
    int32_t width = 0;
  };

  WeightId matrix(int32_t rows, int32_t columns) {
    constexpr WeightType kTypes[] = {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ8_0,
                                     WeightType::kQ5_1, WeightType::kF32,  WeightType::kBF16};
    const WeightType type = kTypes[random_.below(std::size(kTypes))];
    ++seed_;
    return b_.add_matrix("m" + std::to_string(seed_), type, rows, columns,
                         random_matrix(type, rows, columns, seed_));
  }
  WeightId vector(int32_t columns) {
    std::vector<float> values(static_cast<size_t>(columns));
    for (float& value : values) value = static_cast<float>(0.5 + random_.unit());
    return b_.add_vector("v" + std::to_string(++seed_), values);
  }

  void add(ValueId id, int32_t width) { values_.push_back({id, width}); }
  // Mostly one of the last.
  Value any() {
    const auto count = static_cast<int32_t>(values_.size());
    const int32_t back = random_.below(4) == 0 ? pick(random_, count) : pick(random_, 3);
    return values_[static_cast<size_t>(std::max(0, count - 1 - back))];
  }
  Value any_of_width(int32_t width) {
    std::vector<Value> fitting;
    for (const Value& value : values_) {
      if (value.width == width) fitting.push_back(value);
    }
    return fitting[random_.below(fitting.size())];
  }

  void add_linear(const Value& x) {
    std::vector<WeightId> weights, biases;
    std::vector<int32_t> widths;
    const bool biased = random_.below(3) == 0;
    for (int32_t i = pick(random_, 3); i >= 0; --i) {
      widths.push_back(32 * (1 + pick(random_, 3)));
      weights.push_back(matrix(widths.back(), x.width));
      if (biased) biases.push_back(random_.below(2) == 0 ? kNoWeight : vector(widths.back()));
    }
    const auto outputs = b_.linear(x.id, weights, biases);
    for (size_t i = 0; i < outputs.size(); ++i) add(outputs[i], widths[i]);
  }

  void add_operator() {
    const Value x = any();
    const Value y = any_of_width(x.width);
    switch (random_.below(is_tail_ ? 10 : 11)) {
      case 0:
      case 1:
        return add_linear(x);
      case 2:
        return add(b_.rms_norm(x.id, random_.below(2) == 0 ? kNoWeight : vector(x.width), 1e-5f),
                   x.width);
      case 3:
        return add(b_.rms_norm(x.id, vector(kHeadDim), 1e-5f, kHeadDim), x.width);
      case 4:
        return add(b_.add(x.id, y.id), x.width);
      case 5:
        return add(b_.mul(b_.sigmoid(x.id), y.id), x.width);
      case 6:
        return add(b_.scale(x.id, 0.7f), x.width);
      case 7:
        return add(b_.silu(x.id), x.width);
      case 8:
        return add(b_.gelu(x.id), x.width);
      case 9:
        return add(b_.tanh_softcap(x.id, 2.0f), x.width);
      default:
        return add(rope(x.id), x.width);
    }
  }

  ValueId rope(ValueId x) {
    const auto pairing = random_.below(2) == 0 ? RopePairing::kAdjacent : RopePairing::kHalf;
    return b_.rope(x, ropes_[random_.below(2)], kHeadDim, pairing);
  }

  void add_attention(int32_t group) {
    const int32_t kv_heads = 2 * (1 + pick(random_, 2));
    const int32_t heads = kv_heads * (1 + pick(random_, 2));
    const Value x = any();
    const ValueId normed = b_.rms_norm(x.id, vector(x.width), 1e-5f);
    const int32_t kv_rows = kv_heads * kHeadDim;
    const auto qkv = b_.linear(normed, {matrix(heads * kHeadDim, x.width), matrix(kv_rows, x.width),
                                        matrix(kv_rows, x.width)});
    // V may be K as well, and each may be what the linear layer gave or what it became.
    const ValueId q = random_.below(3) == 0 ? qkv[0] : rope(qkv[0]);
    const ValueId k = random_.below(3) == 0 ? qkv[1] : rope(qkv[1]);
    const ValueId v = random_.below(3) == 0 ? k : qkv[2];
    const int32_t layer = b_.add_kv_layer(group, {kv_heads, kHeadDim});
    add(b_.update_and_attend(q, k, v, {layer, heads, kv_heads, kHeadDim, 0.25f, 0.0f, kNoWeight}),
        heads * kHeadDim);
  }

  RandomStream random_;
  uint64_t seed_;
  ProgramBuilder b_;
  std::vector<int32_t> groups_, ropes_;
  std::vector<Value> values_;
  bool is_tail_ = false;
};

std::vector<std::vector<std::vector<float>>> logits_of(
    const std::shared_ptr<const Program>& program, CpuOptions options, bool fused, uint64_t seed) {
  options.fused = fused;
  auto module = CpuModule::create(program, options);
  EXPECT_TRUE(module.ok()) << module.status().to_string();
  RandomStream random(seed);
  StepDriver driver(**module);
  constexpr int32_t kSequences = 3;
  for (int32_t i = 0; i < kSequences; ++i) {
    std::vector<TokenId> tokens;
    for (int32_t left = 20 + pick(random, 40); left > 0; --left) {
      tokens.push_back(pick(random, kVocabulary));
    }
    driver.add(std::move(tokens));
  }
  for (bool more = true; more;) {
    std::vector<StepDriver::Part> parts;
    more = false;
    for (int32_t i = 0; i < kSequences; ++i) {
      const StepDriver::Sequence& sequence = driver.sequence(i);
      const auto left = static_cast<int32_t>(sequence.tokens.size()) - sequence.length;
      more = more || left > 0;
      const int32_t count = std::min(left, pick(random, 23));
      if (count > 0) parts.push_back({i, count});
    }
    if (!parts.empty()) driver.step(parts, 1 + pick(random, 40));
  }
  std::vector<std::vector<std::vector<float>>> all;
  for (int32_t i = 0; i < kSequences; ++i) all.push_back(driver.sequence(i).logits);
  return all;
}

// Bytes, as NaN is not equal to itself.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Plan, FusedGivesTheBitsOfUnfused) {
  int64_t rows = 0;
  int64_t finite_rows = 0;
  for (uint64_t seed = 1; seed <= 48; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto program = RandomProgram(seed).build();
    RandomStream random(seed);
    CpuOptions options;
    options.threads = seed % 16 == 0 ? 3 : 1 + pick(random, 2);
    options.activations = random.below(3) == 0 ? Activations::kF32 : Activations::kInt8;
    options.kv_type = static_cast<KvType>(random.below(kNumKvTypes));
    options.num_blocks = {40, 40};
    options.max_step_tokens = 100;
    const auto want = logits_of(program, options, false, seed);
    const auto got = logits_of(program, options, true, seed);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].size(), want[i].size());
      for (size_t row = 0; row < want[i].size(); ++row) {
        ASSERT_TRUE(same_bits(got[i][row], want[i][row])) << "sequence " << i << " row " << row;
        const auto is_finite = [](float x) { return std::isfinite(x); };
        finite_rows += std::all_of(want[i][row].begin(), want[i][row].end(), is_finite) ? 1 : 0;
        ++rows;
      }
    }
  }
  EXPECT_GT(finite_rows, rows * 9 / 10);
}

TEST(Plan, KeepsOutOfTheArenaWhatOneChainReads) {
  const Program program = tiny_program();
  PlanOptions options;
  options.body_rows = 64;
  options.tail_rows = 16;
  const Plan fused = make_plan(program, options).value();
  options.fused = false;
  const Plan unfused = make_plan(program, options).value();
  EXPECT_LT(fused.body.floats_per_row, unfused.body.floats_per_row);
  EXPECT_EQ(unfused.body.local_floats_per_row, 0);
  EXPECT_EQ(unfused.body.chains.size(), unfused.body.instructions.size());
  // In each of two layers: qkv, attention, the way out, gate and up, down; then the last add.
  EXPECT_EQ(fused.body.chains.size(), 11u);
  size_t next = 0;
  for (const Chain& chain : fused.body.chains) {
    EXPECT_EQ(chain.begin, next);
    EXPECT_LT(chain.begin, chain.end);
    next = chain.end;
    for (size_t i = chain.begin; i < chain.end; ++i) {
      const Instruction& instruction = fused.body.instructions[i];
      switch (instruction.op->kind) {
        case OpKind::kRmsNorm:
        case OpKind::kSilu:
        case OpKind::kMul:
          EXPECT_TRUE(instruction.output.is_local);
          break;
        case OpKind::kLinear:
          EXPECT_EQ(i + 1, chain.end);
          EXPECT_EQ(instruction.inputs[0].is_local,
                    program.graph().ops[i - 1].kind != OpKind::kUpdateAndAttend);
          break;
        case OpKind::kUpdateAndAttend:
          EXPECT_EQ(i + 1, chain.end);
          EXPECT_FALSE(instruction.inputs[0].is_local);  // q is read by all threads
          EXPECT_TRUE(instruction.inputs[1].is_local);
          EXPECT_FALSE(instruction.output.is_local);
          break;
        case OpKind::kEmbed:
        case OpKind::kAdd:  // of use to the next add, too
          EXPECT_FALSE(instruction.output.is_local);
          break;
        default:
          break;
      }
    }
  }
  EXPECT_EQ(next, fused.body.instructions.size());
}

}  // namespace
}  // namespace chorus::cpu
