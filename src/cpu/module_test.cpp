#include "cpu/module.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/testing/eager_model.h"
#include "cpu/testing/step_driver.h"
#include "exec/sampling.h"
#include "program/builder.h"
#include "program/testing/tiny_program.h"

namespace chorus::cpu {
namespace {

using Logits = std::vector<std::vector<float>>;

std::shared_ptr<const Program> share(Program program) {
  return std::make_shared<const Program>(std::move(program));
}

std::unique_ptr<Module> load(const std::shared_ptr<const Program>& program, CpuOptions options) {
  if (options.num_blocks.empty()) {
    options.num_blocks.assign(program->graph().groups.size(), 1200 / options.block_size + 40);
  }
  auto module = CpuModule::create(program, options);
  EXPECT_TRUE(module.ok()) << module.status().to_string();
  return std::move(module).value();
}

std::vector<TokenId> random_tokens(uint64_t seed, int32_t count, int32_t vocabulary) {
  RandomStream random(seed);
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(random.below(static_cast<uint64_t>(vocabulary))));
  }
  return tokens;
}

// Everything that tiny_program lacks: rope in halves with factors, partial rope, norms per head and
// without weight, gelu, sigmoid, scale, soft caps, biases, three layers in two groups, MHA.
Program odd_program() {
  constexpr int32_t kWidth = 48, kHeads = 3, kDim = 20, kVocabulary = 77;
  ProgramBuilder b;
  b.facts.architecture = "odd";
  b.facts.name = "odd";
  b.facts.context = 400;
  b.facts.vocabulary = kVocabulary;
  b.facts.methods = {{"forward", 1, 400, 0}};
  uint64_t seed = 100;
  const auto matrix = [&](int32_t rows, int32_t columns) {
    ++seed;
    return b.add_matrix("m" + std::to_string(seed), WeightType::kF32, rows, columns,
                        random_matrix(WeightType::kF32, rows, columns, seed));
  };
  const auto vector = [&](int32_t n) {
    RandomStream random(++seed);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = static_cast<float>(0.5 + random.unit());
    return b.add_vector("v" + std::to_string(seed), values);
  };
  const int32_t windowed = b.add_group({19});
  const int32_t full = b.add_group({0});
  std::vector<float> factors(kDim / 2, 1.0f);
  factors[2] = 3.0f;
  const int32_t half = b.add_rope({500000.0, kDim, factors});
  const int32_t partial = b.add_rope({10000.0, 8, {}});
  const WeightId table = matrix(kVocabulary, kWidth);
  ValueId x = b.scale(b.embed(table), 3.0f);
  for (int32_t i = 0; i < 3; ++i) {
    const int32_t layer = b.add_kv_layer(i == 1 ? full : windowed, {kHeads, kDim});
    const ValueId n = b.rms_norm(x, i == 0 ? kNoWeight : vector(kWidth), 1e-6f);
    const int32_t rows = kHeads * kDim;
    auto qkv = b.linear(n, {matrix(rows, kWidth), matrix(rows, kWidth), matrix(rows, kWidth)},
                        {vector(rows), kNoWeight, vector(rows)});
    qkv[0] = b.rms_norm(qkv[0], vector(kDim), 1e-6f, kDim);
    const auto pairing = i == 2 ? RopePairing::kAdjacent : RopePairing::kHalf;
    const ValueId q = b.rope(qkv[0], i == 2 ? partial : half, kDim, pairing);
    const ValueId k = b.rope(qkv[1], i == 2 ? partial : half, kDim, pairing);
    const ValueId o = b.update_and_attend(
        q, k, qkv[2], {layer, kHeads, kHeads, kDim, 0.3f, i == 1 ? 5.0f : 0.0f, kNoWeight});
    x = b.add(x, b.linear(o, {matrix(kWidth, rows)})[0]);
    const auto up = b.linear(x, {matrix(64, kWidth), matrix(64, kWidth)});
    const ValueId gate = i == 1 ? b.sigmoid(up[0]) : b.gelu(up[0]);
    x = b.add(x, b.linear(b.mul(gate, up[1]), {matrix(kWidth, 64)})[0]);
  }
  x = b.rms_norm(b.select_rows(x), vector(kWidth), 1e-6f);
  b.tanh_softcap(b.linear(x, {table})[0], 10.0f);
  auto program = b.build();
  EXPECT_TRUE(program.ok()) << program.status().to_string();
  return std::move(program).value();
}

struct Difference {
  double max = 0;
  double relative_rms = 0;
};

Difference compare(const Logits& got, const std::vector<std::vector<double>>& want) {
  Difference d;
  double error = 0, size = 0;
  EXPECT_EQ(got.size(), want.size());
  for (size_t r = 0; r < got.size(); ++r) {
    for (size_t i = 0; i < got[r].size(); ++i) {
      const double e = static_cast<double>(got[r][i]) - want[r][i];
      d.max = std::max(d.max, std::abs(e));
      error += e * e;
      size += want[r][i] * want[r][i];
    }
  }
  d.relative_rms = std::sqrt(error / size);
  return d;
}

TEST(CpuModule, MatchesTheEagerModel) {
  std::vector<std::pair<std::string, std::shared_ptr<const Program>>> programs;
  programs.emplace_back("odd", share(odd_program()));
  for (int32_t kv_heads : {6, 3, 2}) {
    for (int32_t window : {0, 40}) {
      TinyOptions o;
      o.num_kv_heads = kv_heads;
      o.window = window;
      o.num_layers = 3;
      o.qk_type = WeightType::kQ8_0;
      o.type = kv_heads == 3 ? WeightType::kQ4_0 : WeightType::kQ4_1;
      programs.emplace_back(
          "tiny, kv heads " + std::to_string(kv_heads) + ", window " + std::to_string(window),
          share(tiny_program(o)));
    }
  }
  for (const auto& [name, program] : programs) {
    SCOPED_TRACE(name);
    const auto tokens = random_tokens(5, 300, program->vocabulary());
    const auto want = eager_logits(*program, tokens);
    const auto run = [&](CpuOptions options) {
      options.max_step_tokens = 300;
      auto module = load(program, options);
      StepDriver driver(*module);
      driver.run_alone(driver.add(tokens), 300);
      return compare(driver.sequence(0).logits, want);
    };
    CpuOptions exact{.activations = Activations::kF32, .kv_type = KvType::kF32};
    EXPECT_LT(run(exact).max, 3e-5) << "f32 activations, f32 kv";
    CpuOptions f32{.activations = Activations::kF32};
    EXPECT_LT(run(f32).relative_rms, 6e-3) << "f32 activations, bf16 kv";
    CpuOptions q8{.activations = Activations::kF32, .kv_type = KvType::kQ8};
    EXPECT_LT(run(q8).relative_rms, 2e-2) << "f32 activations, q8 kv";
    EXPECT_LT(run({}).relative_rms, 3e-2) << "int8 activations, bf16 kv";
  }
}

// ---- One session's bits ------------------------------------------------------------------------

class Bits : public testing::Test {
 protected:
  Bits() {
    TinyOptions o;
    o.num_layers = 2;
    o.window = 21;
    o.width = 32;
    o.ff_width = 64;
    o.vocabulary = 99;
    program_ = share(tiny_program(o));
    for (const int32_t length : {310, 33, 1, 90, 70}) {
      prompts_.push_back(random_tokens(static_cast<uint64_t>(length), length, 99));
    }
  }

  // Every prompt alone, whole, on one thread.
  std::vector<Logits> alone(const CpuOptions& like) {
    CpuOptions options = like;
    options.threads = 1;
    options.block_size = 16;
    std::vector<Logits> all;
    for (const auto& prompt : prompts_) {
      auto module = load(program_, options);
      StepDriver driver(*module);
      driver.run_alone(driver.add(prompt), 512);
      all.push_back(driver.sequence(0).logits);
    }
    return all;
  }

  static void expect_same(const Logits& got, const Logits& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t row = 0; row < got.size(); ++row) {
      ASSERT_EQ(std::memcmp(got[row].data(), want[row].data(), want[row].size() * 4), 0)
          << "position " << row;
    }
  }

  std::shared_ptr<const Program> program_;
  std::vector<std::vector<TokenId>> prompts_;
};

TEST_F(Bits, DoNotDependOnBatchChunksSlicesThreadsOrBlockSize) {
  for (const KvType type : {KvType::kBf16, KvType::kF32, KvType::kQ8}) {
    for (const Activations activations : {Activations::kInt8, Activations::kF32}) {
      CpuOptions options{.activations = activations, .kv_type = type, .max_step_tokens = 600};
      const auto want = alone(options);
      for (const int32_t block_size : {1, 16, 32, 64, 320}) {
        for (const int32_t threads : {1, 2}) {
          for (const int32_t chunk : {1, 7, 64, 512}) {
            // The full product for the default types, a part of it for the others.
            const bool is_default = type == KvType::kBf16 && activations == Activations::kInt8;
            if (!is_default && (threads == 1 || block_size % 32 == 16 || chunk % 63 == 1)) continue;
            options.block_size = block_size;
            options.threads = threads;
            SCOPED_TRACE("kv " + std::to_string(static_cast<int>(type)) + " activations " +
                         std::to_string(static_cast<int>(activations)) + " block size " +
                         std::to_string(block_size) + " threads " + std::to_string(threads) +
                         " chunk " + std::to_string(chunk));
            auto module = load(program_, options);
            StepDriver driver(*module);
            for (const auto& prompt : prompts_) driver.add(prompt);
            // Sequences come and go in the packed steps as a seeded coin decides.
            RandomStream random(static_cast<uint64_t>(block_size * 100 + chunk));
            for (bool more = true; more;) {
              std::vector<StepDriver::Part> parts;
              more = false;
              for (int32_t i = 0; i < std::ssize(prompts_); ++i) {
                const auto& s = driver.sequence(i);
                const int32_t left = static_cast<int32_t>(s.tokens.size()) - s.length;
                if (left == 0) continue;
                more = true;
                if (random.below(3) != 0) parts.push_back({i, std::min(left, chunk)});
              }
              if (!parts.empty()) {
                driver.step(parts, static_cast<int32_t>(random.between(1, 600)));
              }
            }
            for (int32_t i = 0; i < std::ssize(prompts_); ++i) {
              SCOPED_TRACE("prompt " + std::to_string(i));
              expect_same(driver.sequence(i).logits, want[static_cast<size_t>(i)]);
            }
          }
        }
      }
    }
  }
}

// The chunks of a long sequence are dealt to all threads, alone and beside others.
TEST(CpuModule, LongSequencesHaveTheSameBitsWithAnyNumberOfThreads) {
  TinyOptions tiny;
  tiny.context = 2048;
  tiny.num_layers = 2;
  tiny.width = 32;
  tiny.ff_width = 32;
  tiny.vocabulary = 50;
  const std::pair<int32_t, KvType> kinds[] = {
      {1, KvType::kBf16}, {3, KvType::kQ8}, {3, KvType::kF32}};
  for (const auto& [kv_heads, type] : kinds) {
    tiny.num_kv_heads = kv_heads;
    tiny.window = kv_heads == 1 ? 600 : 0;
    const auto program = share(tiny_program(tiny));
    const auto first = random_tokens(1, 900, tiny.vocabulary);
    const auto second = random_tokens(2, 300, tiny.vocabulary);
    std::vector<Logits> want;
    for (const int32_t threads : {1, 2, 5}) {
      SCOPED_TRACE("kv heads " + std::to_string(kv_heads) + ", threads " + std::to_string(threads));
      auto module = load(program, {.threads = threads, .kv_type = type, .max_step_tokens = 600});
      StepDriver driver(*module);
      driver.add(first);
      driver.add(second);
      const std::vector<StepDriver::Part> steps[] = {
          {{0, 500}}, {{0, 280}, {1, 30}}, {{0, 1}}, {{0, 1}, {1, 1}}, {{1, 199}, {0, 7}}};
      for (const auto& parts : steps) driver.step(parts);
      const std::vector<Logits> got{driver.sequence(0).logits, driver.sequence(1).logits};
      if (want.empty()) want = got;
      EXPECT_EQ(got, want);
    }
  }
}

// D12: what a window has left behind may be evicted, present, or present and spoiled.
TEST_F(Bits, DoNotDependOnWhatAWindowHasLeftBehind) {
  using LeftBehind = StepDriver::LeftBehind;
  const auto eager = eager_logits(*program_, prompts_[0]);
  for (const KvType type : {KvType::kBf16, KvType::kF32, KvType::kQ8}) {
    CpuOptions options{.activations = Activations::kF32, .kv_type = type, .max_step_tokens = 600};
    const Logits want = alone(options)[0];
    const double bound = type == KvType::kF32 ? 1e-4 : type == KvType::kBf16 ? 1e-2 : 3e-2;
    EXPECT_LT(compare(want, eager).relative_rms, bound);
    for (const int32_t block_size : {1, 16, 64}) {
      for (const LeftBehind left :
           {LeftBehind::kEvicted, LeftBehind::kPresent, LeftBehind::kPoisoned}) {
        for (const int32_t chunk : {1, 7, 40}) {
          SCOPED_TRACE("block size " + std::to_string(block_size) + ", left behind " +
                       std::to_string(static_cast<int>(left)) + ", chunk " + std::to_string(chunk));
          options.block_size = block_size;
          auto module = load(program_, options);
          StepDriver driver(*module, left);
          driver.run_alone(driver.add(prompts_[0]), chunk);
          expect_same(driver.sequence(0).logits, want);
        }
      }
    }
  }
}

TEST_F(Bits, ATableThatBeginsTooLateIsRefused) {
  auto module = load(program_, {.max_step_tokens = 600});
  const std::vector<BlockId> blocks{0, 1, 2, 3};
  Step step;
  step.num_groups = 2;
  step.sequences = {{0, 1, 40}};
  step.tokens = {1};
  step.row_sequence = {0};
  step.positions = {40};
  for (size_t group = 0; group < 2; ++group) {
    step.tables.push_back({0, 0, blocks});
    step.cells.push_back(40);
  }
  const auto windowed = static_cast<size_t>(module->info().groups[0].policy.window == 0);
  EXPECT_TRUE(module->begin(step).ok());
  step.tables[windowed] = {20, 1, std::span(blocks).subspan(1)};  // 40 - 21 + 1
  EXPECT_TRUE(module->begin(step).ok());
  step.tables[windowed].first_position = 21;
  EXPECT_EQ(module->begin(step).field(), "step.tables[" + std::to_string(windowed) + "]");
  step.tables[windowed] = {20, 2, std::span(blocks).subspan(2)};
  EXPECT_EQ(module->begin(step).code(), Code::kInvalidArgument);
  step.tables[windowed] = {20, 1, std::span(blocks).subspan(1, 1)};
  EXPECT_EQ(module->begin(step).code(), Code::kInvalidArgument);
}

TEST_F(Bits, SurviveCloning) {
  for (const int32_t block_size : {1, 16, 64}) {
    SCOPED_TRACE("block size " + std::to_string(block_size));
    CpuOptions options{.threads = 2, .block_size = block_size, .max_step_tokens = 600};
    const auto want = alone(options);
    auto module = load(program_, options);
    StepDriver driver(*module);
    auto tokens = prompts_[3];
    const int32_t first = driver.add(tokens);
    const StepDriver::Part start{first, 37};
    driver.step({&start, 1});
    std::vector<TokenId> other(tokens.begin(), tokens.begin() + 37);
    for (int i = 0; i < 30; ++i) other.push_back(i);
    const int32_t second = driver.clone(first, tokens);
    const StepDriver::Part one{second, 1};
    driver.step({&one, 1});
    const int32_t third = driver.clone(first, other);
    const StepDriver::Part all[] = {{first, 53}, {second, 52}, {third, 30}};
    driver.step(all);
    expect_same(driver.sequence(first).logits, want[3]);
    expect_same(driver.sequence(second).logits, want[3]);
    prompts_[0] = other;
    expect_same(driver.sequence(third).logits, alone(options)[0]);
  }
}

TEST_F(Bits, SurviveTheFloatingPointModeOfTheCaller) {
  CpuOptions options{.threads = 2, .max_step_tokens = 600};
  const auto want = alone(options);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  auto module = load(program_, options);
  StepDriver driver(*module);
  driver.run_alone(driver.add(prompts_[3]), 16);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  expect_same(driver.sequence(0).logits, want[3]);
}

TEST_F(Bits, CellsReadAndWrittenAreCanonical) {
  for (const KvType type : {KvType::kBf16, KvType::kF32, KvType::kQ8}) {
    CpuOptions options{.kv_type = type, .max_step_tokens = 600};
    const auto want = alone(options);
    std::vector<std::vector<std::byte>> bytes;  // of the block sizes, both groups
    for (const int32_t block_size : {16, 1, 64}) {
      options.block_size = block_size;
      auto module = load(program_, options);
      StepDriver driver(*module);
      const int32_t s = driver.add(prompts_[3]);
      const StepDriver::Part start{s, 70};
      driver.step({&start, 1});
      bytes.emplace_back();
      for (int32_t g = 0; g < 2; ++g) {
        std::vector<CellId> cells;
        for (Position p = driver.sequence(s).first[static_cast<size_t>(g)]; p < 70; ++p) {
          cells.push_back(driver.cell(s, g, p));
        }
        const size_t each =
            static_cast<size_t>(module->info().groups[static_cast<size_t>(g)].bytes_per_cell);
        std::vector<std::byte> part(cells.size() * each);
        ASSERT_TRUE(module->read_cells(g, cells, part).ok());
        bytes.back().insert(bytes.back().end(), part.begin(), part.end());
        // Moved to other cells: poisoned, then written back.
        const std::vector<std::byte> nan(part.size(), std::byte{0xff});
        ASSERT_TRUE(module->write_cells(g, cells, nan).ok());
        ASSERT_TRUE(module->write_cells(g, cells, part).ok());
      }
      EXPECT_EQ(bytes.back(), bytes.front()) << "block size " << block_size;
      driver.run_alone(s, 7);
      expect_same(driver.sequence(s).logits, want[3]);
    }
  }
}

// ---- What is not finite ------------------------------------------------------------------------

TEST(CpuModule, NotFiniteStaysInItsSequence) {
  TinyOptions o;
  o.embed_type = WeightType::kF32;
  const float nan = std::nanf("");
  o.tied = false;  // a tied head would make a logit of every row NaN
  const auto clean = share(tiny_program(o));
  // The same program with the embedding of token 7 spoiled.
  Program spoiled = tiny_program(o);
  const WeightId table = spoiled.graph().ops[0].weights[0];
  auto* bytes = const_cast<std::byte*>(spoiled.weight_bytes(table).data());
  std::memcpy(bytes + 4 * 7, &nan, 4);  // record 0, vector k = 0, row 7
  const auto program = share(std::move(spoiled));
  for (const Activations activations : {Activations::kInt8, Activations::kF32}) {
    CpuOptions options{.threads = 2, .activations = activations};
    auto module = load(program, options);
    auto reference = load(clean, options);
    StepDriver driver(*module), plain(*reference);
    auto tokens = random_tokens(3, 30, o.vocabulary);
    std::replace(tokens.begin(), tokens.end(), 7, 8);
    auto bad = tokens;
    bad[11] = 7;
    for (StepDriver* d : {&driver, &plain}) {
      d->add(tokens);
      d->add(d == &driver ? bad : tokens);
      const StepDriver::Part parts[] = {{0, 30}, {1, 30}};
      d->step(parts);
    }
    EXPECT_EQ(driver.sequence(0).logits, plain.sequence(0).logits);
    for (size_t row = 0; row < 30; ++row) {
      EXPECT_EQ(driver.sequence(0).not_finite[row], 0);
      EXPECT_TRUE(driver.sequence(0).results[row].finite);
      // From the second layer on, later positions see the NaN; earlier ones of the same step may.
      if (row >= 11) {
        EXPECT_EQ(driver.sequence(1).not_finite[row], 1) << row;
        EXPECT_FALSE(driver.sequence(1).results[row].finite) << row;
      }
    }
  }
}

// ---- Reductions --------------------------------------------------------------------------------

class Reduce : public testing::Test {
 protected:
  static constexpr int32_t kRows = 40;
  Reduce() : program_(share(tiny_program())), module_(load(program_, {.threads = 2})) {
    step_.num_groups = 1;
    step_.sequences = {{0, kRows, 0}};
    for (BlockId b = 0; b < 3; ++b) blocks_.push_back(b);
    step_.tables = {{0, 0, blocks_}};
    step_.tokens = random_tokens(9, kRows, program_->vocabulary());
    for (int32_t row = 0; row < kRows; ++row) {
      step_.row_sequence.push_back(0);
      step_.positions.push_back(row);
      step_.cells.push_back(row);
      if (row % 2 == 0) wanted_.push_back(row);
    }
    not_finite_.resize(kRows);
    EXPECT_TRUE(module_->begin(step_).ok());
    EXPECT_TRUE(module_->run(0, {0, kRows, wanted_}, not_finite_).ok());
  }

  std::shared_ptr<const Program> program_;
  std::unique_ptr<Module> module_;
  std::vector<BlockId> blocks_;
  Step step_;
  std::vector<int32_t> wanted_;
  std::vector<uint8_t> not_finite_;
};

TEST_F(Reduce, AgreesWithTheRawLogits) {
  const auto vocabulary = static_cast<size_t>(program_->vocabulary());
  std::vector<std::vector<float>> raw(wanted_.size(), std::vector<float>(vocabulary));
  std::vector<uint32_t> mask((vocabulary + 31) / 32, 0x5a5a5a5au);
  std::vector<RowSpec> specs;
  for (size_t i = 0; i < wanted_.size(); ++i) {
    RowSpec spec;
    spec.row = wanted_[i];
    spec.raw = raw[i];
    spec.num_likeliest = static_cast<int32_t>(i) % 4;
    specs.push_back(spec);
    spec.raw = {};
    spec.num_likeliest = 0;
    spec.sample = true;
    spec.logprobs = i % 3 == 0;
    if (i % 2 == 1) spec.mask = mask;
    if (i % 5 == 0) spec.temperature = 0.8f;
    spec.seed = i;
    spec.position = static_cast<Position>(100 + i);
    specs.push_back(spec);
    RowSpec given;
    given.row = wanted_[i];
    given.given = static_cast<TokenId>(3 * i);
    specs.push_back(given);
  }
  std::vector<RowResult> results(specs.size());
  std::vector<TokenLogprob> likeliest(5);  // stands before
  ASSERT_TRUE(module_->reduce_rows(specs, results, likeliest).ok());
  for (size_t i = 0; i < specs.size(); ++i) {
    SCOPED_TRACE("spec " + std::to_string(i));
    const RowSpec& spec = specs[i];
    const TokenScore& token = results[i].token;
    const std::vector<float>& logits = raw[i / 3];
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x));
    std::vector<int32_t> order(vocabulary);
    for (size_t j = 0; j < vocabulary; ++j) order[j] = static_cast<int32_t>(j);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    const auto logprob = [&](TokenId id) {
      return static_cast<double>(logits[static_cast<size_t>(id)]) - std::log(sum);
    };
    EXPECT_TRUE(results[i].finite);
    ASSERT_EQ(token.likeliest_count, spec.num_likeliest);
    for (int32_t n = 0; n < token.likeliest_count; ++n) {
      const TokenLogprob& t = likeliest[static_cast<size_t>(token.likeliest_begin + n)];
      EXPECT_EQ(t.id, order[static_cast<size_t>(n)]);
      EXPECT_NEAR(t.logprob, logprob(t.id), 1e-5);
    }
    if (spec.given >= 0) {
      EXPECT_EQ(token.id, spec.given);
    }
    if (spec.sample && spec.temperature == 0.0f) {
      const auto is_allowed = [&](int32_t id) {
        return spec.mask.empty() || ((mask[static_cast<size_t>(id / 32)] >> (id % 32)) & 1) != 0;
      };
      EXPECT_EQ(token.id, *std::find_if(order.begin(), order.end(), is_allowed));
    }
    if (spec.given >= 0 || (spec.sample && spec.logprobs)) {
      EXPECT_NEAR(token.logprob, logprob(token.id), 1e-5);
      EXPECT_EQ(order[static_cast<size_t>(token.rank - 1)], token.id);
    } else {
      EXPECT_TRUE(std::isnan(token.logprob));
      EXPECT_EQ(token.rank, 0);
    }
  }
}

// A draw depends on the row, the mask, the temperature, and (seed, choice, position) alone.
TEST_F(Reduce, DrawsAreKeyedAndIndependentOfTheBatch) {
  std::vector<RowSpec> specs;
  for (uint64_t i = 0; i < 200; ++i) {
    RowSpec spec;
    spec.row = wanted_[i % wanted_.size()];
    spec.sample = true;
    spec.temperature = 5.0f;
    spec.seed = i / 3;
    spec.choice = static_cast<uint32_t>(i % 3);
    spec.position = static_cast<Position>(i);
    specs.push_back(spec);
  }
  std::vector<RowResult> together(specs.size());
  std::vector<TokenLogprob> likeliest;
  ASSERT_TRUE(module_->reduce_rows(specs, together, likeliest).ok());
  std::vector<int> seen(static_cast<size_t>(program_->vocabulary()));
  for (size_t i = specs.size(); i-- > 0;) {
    RowResult result;
    ASSERT_TRUE(module_->reduce_rows({&specs[i], 1}, {&result, 1}, likeliest).ok());
    EXPECT_EQ(result.token.id, together[i].token.id);
    ++seen[static_cast<size_t>(result.token.id)];
  }
  EXPECT_GT(std::count_if(seen.begin(), seen.end(), [](int n) { return n > 0; }), 50);
  EXPECT_TRUE(likeliest.empty());
}

// With filters and masks, as the plain implementation chooses from the same logits.
TEST_F(Reduce, ChoosesAsThePlainImplementation) {
  const auto vocabulary = static_cast<size_t>(program_->vocabulary());
  std::vector<float> raw(vocabulary);
  std::vector<uint32_t> mask((vocabulary + 31) / 32, 0x5a5a5a5au);
  std::vector<TokenId> order;
  std::vector<TokenLogprob> likeliest;
  for (uint64_t i = 0; i < 400; ++i) {
    RowSpec spec;
    spec.row = wanted_[i % wanted_.size()];
    spec.raw = raw;
    spec.sample = true;
    spec.temperature = i % 7 == 0 ? 0.0f : 0.5f + static_cast<float>(i % 5);
    spec.top_k = i % 2 == 0 ? static_cast<int32_t>(i % 30) : 0;
    spec.top_p = i % 3 == 0 ? 0.7f : 1.0f;
    spec.min_p = i % 4 == 0 ? 0.1f : 0.0f;
    spec.typical_p = i % 6 == 0 ? 0.5f : 1.0f;
    spec.seed = i / 100;
    spec.position = static_cast<Position>(i);
    if (i % 5 == 0) spec.mask = mask;
    RowResult result;
    ASSERT_TRUE(module_->reduce_rows({&spec, 1}, {&result, 1}, likeliest).ok());
    EXPECT_EQ(result.token.id, choose_token(raw, spec, order)) << "spec " << i;
  }
}

// A row that a choice has changed is as it was before for whoever looks at it next, whatever of the
// row others ask for in the same call; and logprobs know nothing of the change.
TEST_F(Reduce, AdjustmentsChangeTheChoiceAlone) {
  const auto vocabulary = static_cast<size_t>(program_->vocabulary());
  RandomStream random(21);
  std::vector<TokenId> order;
  std::vector<TokenLogprob> likeliest;
  int num_changed = 0;
  for (int i = 0; i < 200; ++i) {
    std::vector<std::vector<float>> raw(3, std::vector<float>(vocabulary));
    std::vector<TokenAdjustment> lists[3];
    std::vector<RowSpec> specs(3);
    for (size_t s = 0; s < 3; ++s) {
      RowSpec& spec = specs[s];
      spec.row = wanted_[static_cast<size_t>(i) % wanted_.size()];
      spec.raw = raw[s];
      spec.sample = spec.logprobs = true;
      spec.num_likeliest = 3;
      spec.temperature = random.below(3) == 0 ? 0.0f : 1.5f;
      spec.typical_p = random.below(2) == 0 ? 0.6f : 1.0f;
      spec.top_k = random.below(2) == 0 ? 20 : 0;
      spec.top_p = random.below(2) == 0 ? 0.8f : 1.0f;
      spec.seed = random.next();
      if (s == 1) continue;  // not adjusted
      spec.repetition_penalty = static_cast<float>(0.5 + 2 * random.unit());
      spec.frequency_penalty = static_cast<float>(random.unit());
      spec.presence_penalty = static_cast<float>(random.unit());
      for (size_t id = 0; id < vocabulary; ++id) {
        if (random.below(3) != 0) continue;
        lists[s].push_back({.id = static_cast<TokenId>(id),
                            .bias = static_cast<float>(random.unit() * 4 - 2),
                            .count = static_cast<int32_t>(random.below(3)),
                            .is_given = random.below(2) == 0});
      }
      spec.adjustments = lists[s];
    }
    std::vector<RowResult> results(3);
    ASSERT_TRUE(module_->reduce_rows(specs, results, likeliest).ok());
    RowSpec given;
    given.row = specs[0].row;
    given.raw = raw[1];
    for (size_t s = 0; s < 3; ++s) {
      SCOPED_TRACE("spec " + std::to_string(s) + " of call " + std::to_string(i));
      EXPECT_EQ(raw[s], raw[0]);
      EXPECT_EQ(results[s].token.id, choose_token(raw[s], specs[s], order));
      given.given = results[s].token.id;
      given.num_likeliest = 3;
      RowResult alone;
      ASSERT_TRUE(module_->reduce_rows({&given, 1}, {&alone, 1}, likeliest).ok());
      EXPECT_EQ(results[s].token.logprob, alone.token.logprob);
      EXPECT_EQ(results[s].token.rank, alone.token.rank);
      for (int32_t n = 0; n < 3; ++n) {
        EXPECT_EQ(likeliest[static_cast<size_t>(results[s].token.likeliest_begin + n)].id,
                  likeliest[static_cast<size_t>(alone.token.likeliest_begin + n)].id);
      }
      specs[s].adjustments = {};
      if (choose_token(raw[s], specs[s], order) != results[s].token.id) ++num_changed;
    }
  }
  EXPECT_GT(num_changed, 100);
}

TEST_F(Reduce, RefusesWhatItCannotDo) {
  std::vector<TokenLogprob> likeliest;
  RowResult result;
  const auto field = [&](const RowSpec& spec) {
    const Status status = module_->reduce_rows({&spec, 1}, {&result, 1}, likeliest);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.field();
  };
  RowSpec spec;
  spec.row = 1;
  EXPECT_EQ(field(spec), "specs.row");
  spec.row = 1 << 20;
  EXPECT_EQ(field(spec), "specs.row");
  spec.row = 2;
  spec.given = program_->vocabulary();
  EXPECT_EQ(field(spec), "specs.given");
  spec.given = -1;
  spec.num_likeliest = 65;
  EXPECT_EQ(field(spec), "specs.num_likeliest");
  spec.num_likeliest = 0;
  spec.top_k = -1;
  EXPECT_EQ(field(spec), "specs.top_k");
  spec.top_k = 0;
  spec.top_p = 0.0f;
  EXPECT_EQ(field(spec), "specs.top_p");
  spec.top_p = 1.0f;
  spec.min_p = std::nanf("");
  EXPECT_EQ(field(spec), "specs.min_p");
  spec.min_p = 0.0f;
  spec.typical_p = 0.0f;
  EXPECT_EQ(field(spec), "specs.typical_p");
  spec.typical_p = 1.0f;
  for (const auto& [first, second] :
       {std::pair{3, 3}, {4, 3}, {-1, 3}, {3, program_->vocabulary()}}) {
    std::vector<TokenAdjustment> list{{.id = first}, {.id = second}};
    spec.adjustments = list;
    EXPECT_EQ(field(spec), "specs.adjustments");
  }
  spec.adjustments = {};
  std::vector<uint32_t> short_mask(1);
  spec.mask = short_mask;
  EXPECT_EQ(field(spec), "specs.mask");
}

TEST(CpuModule, RefusesBadOptionsByField) {
  const auto program = share(tiny_program());
  const auto field = [&](CpuOptions options) {
    const auto module = CpuModule::create(program, options);
    return module.ok() ? std::string("ok") : module.status().field();
  };
  EXPECT_EQ(field({.num_blocks = {4}}), "ok");
  EXPECT_EQ(field({.threads = 0, .num_blocks = {4}}), "threads");
  EXPECT_EQ(field({.block_size = 8, .num_blocks = {4}}), "block_size");
  EXPECT_EQ(field({.num_blocks = {4, 4}}), "num_blocks");
  EXPECT_EQ(field({.num_blocks = {0}}), "num_blocks");
  EXPECT_EQ(field({.block_size = 64, .num_blocks = {1 << 27}}), "num_blocks");
  EXPECT_EQ(field({.num_blocks = {4}, .max_step_tokens = 0}), "max_step_tokens");
}

TEST(CpuModule, RefusesSinksByName) {
  ProgramBuilder b;
  b.facts.context = 64;
  b.facts.vocabulary = 32;
  b.facts.methods = {{"forward", 1, 8, 0}};
  const WeightId table =
      b.add_matrix("table", WeightType::kF32, 32, 32, random_matrix(WeightType::kF32, 32, 32, 1));
  const WeightId sinks = b.add_vector("sinks", std::vector<float>(2));
  const int32_t layer = b.add_kv_layer(b.add_group({0}), {2, 16});
  const ValueId x = b.embed(table);
  const ValueId y = b.update_and_attend(x, x, x, {layer, 2, 2, 16, 1.0f, 0.0f, sinks});
  b.linear(b.select_rows(y), {table});
  auto program = b.build();
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  const auto module = CpuModule::create(share(std::move(program).value()), {.num_blocks = {4}});
  ASSERT_FALSE(module.ok());
  EXPECT_EQ(module.status().code(), Code::kUnimplemented);
  EXPECT_EQ(module.status().field(), "ops[1] (update_and_attend).sinks");
}

}  // namespace
}  // namespace chorus::cpu
