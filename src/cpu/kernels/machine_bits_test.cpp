// The bits of every operator for some inputs, which are the same on every machine and for every
// instruction set. sets_test.cpp compares the sets of one machine with each other; these hashes
// compare machines. They may change only with the numerics version of docs/formats.md.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/random.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/tested_sets.h"
#include "program/packing/r16k4.h"

namespace chorus::cpu {
namespace {

// FNV-1a over 32-bit words; machines may differ in the bits of a NaN.
class Hash {
 public:
  void add(uint32_t word) {
    for (int i = 0; i < 4; ++i) value_ = (value_ ^ (word >> (8 * i) & 0xff)) * 0x100000001b3;
  }
  void add(float x) { add(std::isnan(x) ? 0x7fc00000u : std::bit_cast<uint32_t>(x)); }
  void add(int32_t x) { add(static_cast<uint32_t>(x)); }
  template <typename T>
  void add(const std::vector<T>& values) {
    for (const T x : values) add(x);
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

float random_float(RandomStream& random) {
  const auto scale = static_cast<int>(random.between(-6, 4));
  return static_cast<float>(std::ldexp(random.unit() * 2.0 - 1.0, scale));
}
std::vector<float> random_floats(RandomStream& random, int count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = random_float(random);
  return values;
}

void elementwise(const Kernels& kernels, Hash& hash) {
  constexpr int kRows = 3, kWidth = 150;
  RandomStream random(1);
  const std::vector<float> a = random_floats(random, kRows * kWidth);
  const std::vector<float> b = random_floats(random, kRows * kWidth);
  for (const auto kernel : {kernels.add, kernels.mul, kernels.scale, kernels.silu, kernels.gelu,
                            kernels.sigmoid, kernels.tanh_softcap}) {
    std::vector<float> out(a.size());
    ElementwiseArgs args;
    args.a = a.data();
    args.b = b.data();
    args.out = out.data();
    args.a_stride = args.b_stride = args.out_stride = kWidth;
    args.rows = kRows;
    args.width = kWidth;
    args.scale = 3.5f;
    kernel(args);
    hash.add(out);
  }
}

void rms_norm(const Kernels& kernels, Hash& hash) {
  constexpr int kRows = 3, kWidth = 202, kGroup = 101;
  RandomStream random(2);
  const std::vector<float> x = random_floats(random, kRows * kWidth);
  const std::vector<float> weight = random_floats(random, kGroup);
  std::vector<float> out(x.size());
  RmsNormArgs args;
  args.x = x.data();
  args.out = out.data();
  args.x_stride = args.out_stride = kWidth;
  args.rows = kRows;
  args.width = kWidth;
  args.group_width = kGroup;
  args.weight = weight.data();
  args.epsilon = 1e-5f;
  kernels.rms_norm(args);
  hash.add(out);
}

void rope(const Kernels& kernels, Hash& hash) {
  constexpr int32_t kRows = 3, kHeads = 2, kDim = 64;
  RandomStream random(3);
  const std::vector<float> x = random_floats(random, kRows * kHeads * kDim);
  const int32_t positions[kRows] = {0, 77, 131071};
  std::vector<double> frequencies(kDim / 2);
  kernels.rope_frequencies(500000.0, kDim, nullptr, frequencies.data());
  std::vector<float> angles(kRows * kDim);
  kernels.rope_angles({frequencies.data(), kDim, positions, kRows, angles.data()});
  hash.add(angles);
  for (const bool half : {false, true}) {
    std::vector<float> out(x.size());
    RopeArgs args;
    args.x = x.data();
    args.out = out.data();
    args.x_stride = args.out_stride = kHeads * kDim;
    args.rows = kRows;
    args.num_heads = kHeads;
    args.head_dim = args.dims = kDim;
    args.half = half;
    args.angles = angles.data();
    kernels.rope(args);
    hash.add(out);
  }
}

// Packed weights of random bytes, all of whose halves and floats are below 2.
AlignedBuffer random_weights(WeightType type, int32_t rows, int32_t columns, RandomStream& random) {
  AlignedBuffer packed(packed_bytes(type, rows, columns).value());
  const std::span<std::byte> bytes = packed.bytes();
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  const RecordLayout& layout = record_layout(type);
  const size_t floats = layout.quant_bits == 0 ? layout.record_bytes() : layout.header_bytes();
  const size_t element = layout.quant_bits == 0 ? layout.element_bytes : 2;
  for (size_t record = 0; record < bytes.size(); record += layout.record_bytes()) {
    for (size_t at = element - 1; at < floats; at += element) {
      bytes[record + at] &= std::byte{0xbf};  // of the upper byte, the uppermost exponent bit
    }
  }
  return packed;
}

void linear(const Kernels& kernels, Hash& hash) {
  constexpr int32_t kRows = 37, kColumns = 256, kTokens = 7, kBlocks = kColumns / 32;
  RandomStream random(4);
  const std::vector<float> x = random_floats(random, kTokens * kColumns);
  for (int type = 0; type < kNumWeights; ++type) {
    const AlignedBuffer packed =
        random_weights(static_cast<WeightType>(type), kRows, kColumns, random);
    for (const bool int8 : {false, true}) {
      const auto kernel = (int8 ? kernels.linear_int8 : kernels.linear_f32)[type];
      if (kernel == nullptr) continue;
      AlignedBuffer prepared(2 * kBlocks * 32 * kQuad * sizeof(float));
      PrepareArgs prepare;
      prepare.x = x.data();
      prepare.x_stride = prepare.columns = kColumns;
      prepare.tokens = kTokens;
      prepare.k_blocks = kBlocks;
      prepare.out = prepared.bytes().data();
      (int8                  ? kernels.quantize
       : type == kWeightBF16 ? kernels.prepare_bf16
                             : kernels.prepare_f32)(prepare);
      std::vector<float> out(kTokens * kRows);
      LinearArgs args;
      args.weights = packed.bytes().data();
      args.k_blocks = kBlocks;
      args.rows = kRows;
      args.group_end = (kRows + kRowGroup - 1) / kRowGroup;
      args.activations = prepared.bytes().data();
      args.tokens = kTokens;
      args.out = out.data();
      args.out_stride = kRows;
      kernel(args);
      hash.add(out);
    }
  }
}

void embed(const Kernels& kernels, Hash& hash) {
  constexpr int32_t kRows = 20, kColumns = 512;
  constexpr int32_t kTokens[] = {0, 19, 7};
  RandomStream random(5);
  for (int type = 0; type < kNumWeights; ++type) {
    const AlignedBuffer packed =
        random_weights(static_cast<WeightType>(type), kRows, kColumns, random);
    std::vector<float> out(3 * kColumns);
    EmbedArgs args;
    args.weights = packed.bytes().data();
    args.k_blocks = kColumns / 32;
    args.columns = kColumns;
    args.tokens = kTokens;
    args.rows = 3;
    args.out = out.data();
    args.out_stride = kColumns;
    kernels.embed[type](args);
    hash.add(out);
  }
}

void attention_of(int type, const Kernels& kernels, Hash& hash) {
  constexpr int32_t kDim = 72, kLength = 400, kBlockSize = 32, kQueries = 5;
  constexpr int32_t kBlocks = (kLength + kBlockSize - 1) / kBlockSize;
  RandomStream random(6);
  const std::vector<float> k = random_floats(random, kLength * kDim);
  const std::vector<float> v = random_floats(random, kLength * kDim);
  const std::vector<float> q = random_floats(random, kQueries * kDim);
  std::vector<int32_t> blocks, cells;
  for (int32_t i = 0; i < kBlocks; ++i) blocks.push_back(i);
  for (int32_t p = 0; p < kLength; ++p) cells.push_back(p);
  KvLayout layout;
  layout.block_size = kBlockSize;
  layout.head_dim = kDim;
  layout.block_bytes = kBlockSize * kv_cell_bytes(type, kDim);
  layout.head_bytes = layout.block_bytes * kBlocks;
  AlignedBuffer arenas(static_cast<size_t>(2 * layout.head_bytes));
  std::vector<uint8_t> not_finite(kLength);
  StoreKvArgs store;
  store.layout = layout;
  store.num_heads = 1;
  store.k_arena = arenas.bytes().data();
  store.v_arena = store.k_arena + layout.head_bytes;
  store.k = k.data();
  store.v = v.data();
  store.k_stride = store.v_stride = kDim;
  store.rows = kLength;
  store.cells = cells.data();
  store.cells_stride = 1;
  store.not_finite = not_finite.data();
  kernels.store_kv[type](store);
  std::vector<float> out(q.size());
  std::vector<AttentionQuery> queries;
  for (int32_t i = 0; i < kQueries; ++i) {
    queries.push_back({q.data() + i * kDim, out.data() + i * kDim, 40 * i, kLength - kQueries + i});
  }
  AlignedBuffer scratch(attention_scratch_bytes(kDim));
  const AttentionPart part{kQueries, blocks.data()};
  AttentionArgs args;
  args.queries = queries.data();
  args.num_queries = kQueries;
  args.parts = &part;
  args.num_parts = 1;
  args.layout = layout;
  args.k = store.k_arena;
  args.v = store.v_arena;
  args.scale = 0.125f;
  args.softcap = type != kKvF32 ? 20.0f : 0.0f;
  args.scratch = scratch.bytes().data();
  kernels.attention[type](args);
  hash.add(out);
}
void attention(const Kernels& kernels, Hash& hash) {
  attention_of(kKvF32, kernels, hash);
  attention_of(kKvBf16, kernels, hash);
}
void attention_q8(const Kernels& kernels, Hash& hash) { attention_of(kKvQ8, kernels, hash); }

void logits(const Kernels& kernels, Hash& hash) {
  RandomStream random(7);
  const std::vector<float> row = random_floats(random, 3001);
  const LogitsArgs args{row.data(), 3001, nullptr};
  const LogitsMax max = kernels.logits_max(args);
  hash.add(max.max);
  hash.add(max.index);
  hash.add(kernels.sum_exp(args, max.max));
  hash.add(kernels.count_above(args, 1.0f, 50));
  for (int i = 0; i < 20; ++i) {
    DrawArgs draw{args, max.max, 0.7f, random.next()};
    if (i % 2 == 1) {
      draw.top_k = 50;
      draw.top_p = uint64_t{3} << 30;
    }
    hash.add(kernels.draw(draw));
  }
  std::vector<int32_t> top(20);
  hash.add(kernels.top_n(args, 20, top.data()));
  hash.add(top);
  for (int i = 0; i < 20; ++i) {
    const auto bits = std::bit_cast<uint64_t>(kernels.log(random.unit() + 1e-9));
    hash.add(static_cast<uint32_t>(bits));
    hash.add(static_cast<uint32_t>(bits >> 32));
  }
}

struct Golden {
  const char* name;
  void (*operators)(const Kernels&, Hash&);
  uint64_t hash;
};
constexpr Golden kGoldens[] = {
    {"elementwise", elementwise, 0x00b77d5858e4427a},
    {"rms_norm", rms_norm, 0xbb6d28591070c8e0},
    {"rope", rope, 0xde837fae2103beb1},
    {"linear", linear, 0xed1ab72dac6e0d45},
    {"embed", embed, 0x9f7d45cca52addca},
    {"attention", attention, 0xc43bf7ebe5d8e41e},
    {"attention_q8", attention_q8, 0x0602041ed4a82f8c},
    {"logits", logits, 0x32bae693c19c2ca1},
};

TEST(MachineBits, AreTheSameEverywhere) {
  for (const TestedSet& set : tested_sets()) {
    for (const Golden& golden : kGoldens) {
      Hash hash;
      golden.operators(*set.kernels, hash);
      EXPECT_EQ(hash.value(), golden.hash)
          << set.name << " " << golden.name << " 0x" << std::hex << hash.value();
    }
  }
}

}  // namespace
}  // namespace chorus::cpu
