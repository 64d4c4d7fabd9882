#include "exporter/export.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "exporter/testing/gguf_writer.h"
#include "program/packing/r16k4.h"

namespace chorus {
namespace {

using Bytes = GgufWriter::Bytes;

Result<Program> export_bytes(const Bytes& bytes, const ExportOptions& options = {}) {
  CHORUS_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::parse(bytes));
  CHORUS_ASSIGN_OR_RETURN(AlignedBuffer image, export_gguf(file, options));
  return Program::from_bytes(std::move(image));
}

Status export_status(const std::function<void(GgufWriter&)>& change) {
  GgufWriter w = tiny_gguf();
  change(w);
  return export_bytes(w.finish()).status();
}

std::vector<OpKind> kinds(const Graph& graph) {
  std::vector<OpKind> result;
  for (const Op& op : graph.ops) result.push_back(op.kind);
  return result;
}

// A file in the test's folder, removed when the test ends.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : path_(::testing::TempDir() + "chorus_export_test_" + name) {}
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Export, LowersLlamaToTheCanonicalGraph) {
  const auto program = export_bytes(tiny_gguf().finish());
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  const Graph& graph = program->graph();
  using enum OpKind;
  EXPECT_EQ(kinds(graph),
            (std::vector<OpKind>{kEmbed, kRmsNorm, kLinear, kRope, kRope, kUpdateAndAttend, kLinear,
                                 kAdd, kRmsNorm, kLinear, kSilu, kMul, kLinear, kAdd, kSelectRows,
                                 kRmsNorm, kLinear}));
  EXPECT_EQ(graph.ops[2].weights.size(), 3u);
  EXPECT_EQ(graph.ops[9].weights.size(), 2u);
  EXPECT_EQ(graph.ops[3].pairing, RopePairing::kAdjacent);
  EXPECT_EQ(graph.ops[5].scale, 0.25f);
  EXPECT_EQ(graph.ops[0].weights, graph.ops[16].weights);  // tied
  EXPECT_EQ(graph.ropes[0].theta, 10000.0);
  EXPECT_EQ(program->context(), 128);
  EXPECT_EQ(program->vocabulary(), 20);
  EXPECT_EQ(program->methods()[0].max_tokens, kDefaultMaxStep);
  const TokenizerData& tokenizer = program->tokenizer();
  EXPECT_EQ(tokenizer.facts.model, "gpt2");
  EXPECT_EQ(tokenizer.facts.eos, 0);
  EXPECT_EQ(tokenizer.facts.end_ids, (std::vector<int32_t>{19}));
  EXPECT_FALSE(tokenizer.facts.add_bos);
  EXPECT_EQ(tokenizer.types[19], 3);
  EXPECT_EQ(tokenizer.merges, (std::vector<std::string_view>{"a b"}));
  EXPECT_EQ(program->chat_template(), "{{ messages }}");
}

// Every weight of the program, unpacked, is the checkpoint's tensor.
void expect_same_weights(const Program& program, const GgufFile& file) {
  for (size_t i = 0; i < program.weights().size(); ++i) {
    const Weight& weight = program.weights()[i];
    const GgufTensor* tensor = file.find_tensor(weight.name);
    ASSERT_NE(tensor, nullptr) << weight.name;
    const auto packed = program.weight_bytes(static_cast<WeightId>(i));
    Bytes source(tensor->data.size());
    if (weight.packing == Packing::kRowMajor) {
      source.assign(packed.begin(), packed.end());
    } else {
      ASSERT_TRUE(unpack(weight.type, weight.rows, weight.columns, packed, source).ok());
    }
    EXPECT_TRUE(std::equal(source.begin(), source.end(), tensor->data.begin(), tensor->data.end()))
        << weight.name;
  }
}

TEST(Export, CommittedTinyModelsKeepEveryWeight) {
  const std::string folder = std::string(CHORUS_SOURCE_DIR) + "/tests/golden/tiny/";
  for (const char* name : {"tied_q4_1.gguf", "untied_mixed.gguf"}) {
    SCOPED_TRACE(name);
    const auto program = export_program(folder + name);
    ASSERT_TRUE(program.ok()) << program.status().to_string();
    const auto file = GgufFile::open(folder + name);
    ASSERT_TRUE(file.ok());
    expect_same_weights(*program, *file);
    EXPECT_TRUE(program->verify_weights().ok());
    EXPECT_EQ(program->graph().kv_layers.size(), 2u);
    EXPECT_EQ(program->graph().groups[0].layers, (std::vector<int32_t>{0, 1}));
  }
}

constexpr uint32_t kGgmlIq4Nl = 20;

TEST(Export, TypesWithoutAPackingAreRefusedByName) {
  const Status status =
      export_status([](GgufWriter& w) { w.tensor("blk.0.attn_v.weight").type = kGgmlIq4Nl; });
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_EQ(status.field(), "blk.0.attn_v.weight");
  EXPECT_NE(status.message().find("IQ4_NL"), std::string::npos);
}

TEST(Export, EveryTypeWithAPackingIsKept) {
  const std::pair<uint32_t, WeightType> types[] = {
      {kGgmlF32, WeightType::kF32},   {kGgmlF16, WeightType::kF16},
      {kGgmlBF16, WeightType::kBF16}, {kGgmlQ4_0, WeightType::kQ4_0},
      {kGgmlQ4_1, WeightType::kQ4_1}, {kGgmlQ5_0, WeightType::kQ5_0},
      {kGgmlQ5_1, WeightType::kQ5_1}, {kGgmlQ8_0, WeightType::kQ8_0},
      {kGgmlQ4_K, WeightType::kQ4_K}, {kGgmlQ5_K, WeightType::kQ5_K},
      {kGgmlQ6_K, WeightType::kQ6_K}};
  static_assert(std::size(types) == kNumWeightTypes);
  for (const auto& [ggml_type, type] : types) {
    SCOPED_TRACE(ggml_type);
    GgufWriter w = tiny_gguf();
    w.set_u32("llama.feed_forward_length", 256);
    for (const char* name : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"}) {
      w.tensor(name) = {name, {32, 256}, kGgmlQ4_0, random_matrix(WeightType::kQ4_0, 256, 32, 5)};
    }
    const char* name = "blk.0.ffn_down.weight";
    w.tensor(name) = {name, {256, 32}, ggml_type, random_matrix(type, 32, 256, 6)};
    const Bytes bytes = w.finish();
    const auto program = export_bytes(bytes);
    ASSERT_TRUE(program.ok()) << program.status().to_string();
    const auto file = GgufFile::parse(bytes);
    ASSERT_TRUE(file.ok());
    expect_same_weights(*program, *file);
    const auto found = std::ranges::find(program->weights(), name, &Weight::name);
    ASSERT_NE(found, program->weights().end());
    EXPECT_EQ(found->type, type);
  }
}

TEST(Export, QuantizesWhatGetsSmaller) {
  std::vector<std::string> reported;
  ExportOptions options;
  options.quantize = WeightType::kQ4_0;
  options.report = [&](const QuantizedTensor& tensor) {
    reported.push_back(std::string(tensor.name));
    EXPECT_EQ(tensor.to, WeightType::kQ4_0);
    EXPECT_GT(tensor.error.relative(), 0.01);
    EXPECT_LT(tensor.error.relative(), 0.12);
  };
  const Bytes bytes = tiny_gguf().finish();
  const auto program = export_bytes(bytes, options);
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  EXPECT_EQ(reported, (std::vector<std::string>{"token_embd.weight", "blk.0.attn_k.weight",
                                                "blk.0.attn_v.weight"}));
  for (const Weight& weight : program->weights()) {
    const bool matrix = weight.packing == Packing::kR16K4;
    EXPECT_EQ(weight.type, matrix ? WeightType::kQ4_0 : WeightType::kF32) << weight.name;
  }
  EXPECT_NE(program->kv_identity(), export_bytes(bytes)->kv_identity());
}

TEST(Export, ValuesThatCannotBeQuantizedAreRefusedByName) {
  GgufWriter w = tiny_gguf();
  const float infinite = INFINITY;
  std::memcpy(w.tensor("blk.0.attn_v.weight").data.data() + 64, &infinite, sizeof infinite);
  ExportOptions options;
  options.quantize = WeightType::kQ8_0;
  const Status status = export_bytes(w.finish(), options).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.field(), "blk.0.attn_v.weight");
  options.quantize = WeightType::kQ6_K;
  EXPECT_EQ(export_bytes(tiny_gguf().finish(), options).status().field(), "quantize");
}

TEST(Export, FilesAreTheSameEveryTimeAndLoad) {
  const TemporaryFile source("source.gguf");
  const TemporaryFile target("target.chorus");
  const Bytes bytes = tiny_gguf().finish();
  const std::span<const std::byte> parts[] = {bytes};
  ASSERT_TRUE(write_file_atomically(source.path(), parts).ok());
  uint64_t last_done = 0;
  uint64_t total = 0;
  ExportOptions options;
  options.progress = [&](uint64_t done, uint64_t all) {
    EXPECT_GT(done, last_done);
    last_done = done;
    total = all;
  };
  ASSERT_TRUE(export_to_file(source.path(), target.path(), options).ok());
  EXPECT_EQ(last_done, total);
  const auto in_memory = export_program(source.path());
  const auto loaded = Program::load(target.path());
  ASSERT_TRUE(in_memory.ok() && loaded.ok());
  EXPECT_TRUE(std::ranges::equal(in_memory->image(), loaded->image()));
  EXPECT_EQ(in_memory->content(), loaded->content());
}

TEST(Export, ContextCanBeShortened) {
  const Bytes bytes = tiny_gguf().finish();
  ExportOptions options;
  options.context = 64;
  const auto shorter = export_bytes(bytes, options);
  ASSERT_TRUE(shorter.ok());
  EXPECT_EQ(shorter->context(), 64);
  EXPECT_EQ(shorter->kv_identity(), export_bytes(bytes)->kv_identity());
  for (const int32_t context : {129, -1}) {
    options.context = context;
    const Status status = export_bytes(bytes, options).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.field(), "context");
  }
}

TEST(Export, FoldersAreLoweredWithTheirOwnNames) {
  const std::string folders = std::string(CHORUS_SOURCE_DIR) + "/tests/golden/folders/";
  const auto program = export_program(folders + "llama_linear");
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  const Graph& graph = program->graph();
  EXPECT_EQ(graph.ops[3].pairing, RopePairing::kHalf);
  EXPECT_EQ(graph.ops[2].biases.size(), 3u);
  EXPECT_EQ(graph.ropes[0].factors, std::vector<float>(8, 4.0f));
  EXPECT_TRUE(program->tokenizer().facts.model.empty());
  EXPECT_EQ(program->context(), 256);
}

TEST(Export, AFolderWithoutAConfigurationIsRefused) {
  const Status status = export_program(::testing::TempDir()).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.field(), "config.json");
}

TEST(Export, OptionalPartsAreTaken) {
  GgufWriter w = tiny_gguf();
  w.tensors.push_back(
      {"output.weight", {32, 20}, kGgmlF32, random_matrix(WeightType::kF32, 20, 32, 99)});
  w.tensors.push_back(
      {"blk.0.attn_k.bias", {16}, kGgmlF32, random_matrix(WeightType::kF32, 1, 16, 98)});
  w.tensors.push_back({"rope_freqs.weight", {8}, kGgmlF32, Bytes(32)});
  const std::vector<float> factors = {1, 1, 1, 1, 2, 4, 8, 8};
  std::memcpy(w.tensors.back().data.data(), factors.data(), 32);
  w.set_f32("llama.rope.freq_base", 500000.0f);
  w.set_string("llama.rope.scaling.type", "none");
  w.remove("llama.attention.head_count_kv");
  for (const char* name : {"blk.0.attn_k.weight", "blk.0.attn_v.weight"}) {
    w.tensor(name) = {name, {32, 32}, kGgmlQ4_0, random_matrix(WeightType::kQ4_0, 32, 32, 5)};
  }
  w.tensor("blk.0.attn_k.bias").dims = {32};
  w.tensor("blk.0.attn_k.bias").data.resize(128);
  const Bytes bytes = w.finish();
  const auto program = export_bytes(bytes);
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  const Graph& graph = program->graph();
  EXPECT_EQ(graph.kv_layers[0].num_kv_heads, 2);
  EXPECT_EQ(graph.ropes[0].factors, factors);
  EXPECT_EQ(graph.ropes[0].theta, 500000.0);
  EXPECT_NE(graph.ops[0].weights, graph.ops[16].weights);
  ASSERT_EQ(graph.ops[2].biases.size(), 3u);
  EXPECT_EQ(graph.ops[2].biases[0], kNoWeight);
  EXPECT_EQ(program->weights()[static_cast<size_t>(graph.ops[2].biases[1])].name,
            "blk.0.attn_k.bias");
  expect_same_weights(*program, *GgufFile::parse(bytes));
}

TEST(Export, ScoredVocabulariesHaveTheirDefaults) {
  GgufWriter w = tiny_gguf();
  w.set_string("tokenizer.ggml.model", "llama");
  w.set_f32s("tokenizer.ggml.scores", std::vector<float>(20, -1.0f));
  w.remove("tokenizer.ggml.merges");
  w.remove("tokenizer.ggml.eos_token_id");
  const auto program = export_bytes(w.finish());
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  const TokenizerFacts& facts = program->tokenizer().facts;
  EXPECT_EQ(facts.bos, 1);
  EXPECT_EQ(facts.eos, 2);
  EXPECT_EQ(facts.unk, 0);
  EXPECT_TRUE(facts.add_bos);
  EXPECT_TRUE(facts.add_space_prefix);
  EXPECT_EQ(program->tokenizer().scores.size(), 20u);
}

TEST(Export, ModelsWithoutTokenizerAreAccepted) {
  GgufWriter w = tiny_gguf();
  std::erase_if(w.values, [](const auto& v) { return v.first.substr(0, 10) == "tokenizer."; });
  const auto program = export_bytes(w.finish());
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  EXPECT_TRUE(program->tokenizer().tokens.empty());
}

struct Fault {
  Code code;
  const char* field;
  std::function<void(GgufWriter&)> change;
};

void expect_faults(const std::vector<Fault>& faults) {
  for (size_t i = 0; i < faults.size(); ++i) {
    const Status status = export_status(faults[i].change);
    EXPECT_EQ(status.code(), faults[i].code) << i << " " << status.to_string();
    EXPECT_EQ(status.field(), faults[i].field) << i << " " << status.to_string();
  }
}

TEST(Export, ConfigurationsThatCannotBeAreRefusedByKey) {
  constexpr Code kBad = Code::kDataLoss;
  constexpr Code kNotYet = Code::kUnimplemented;
  expect_faults({
      {kBad, "general.architecture", [](GgufWriter& w) { w.remove("general.architecture"); }},
      {kNotYet, "general.architecture",
       [](GgufWriter& w) { w.set_string("general.architecture", "mamba"); }},
      {kBad, "llama.block_count", [](GgufWriter& w) { w.remove("llama.block_count"); }},
      {kBad, "llama.block_count", [](GgufWriter& w) { w.set_u32("llama.block_count", 0); }},
      {kBad, "llama.block_count", [](GgufWriter& w) { w.set_u32("llama.block_count", ~0u); }},
      {kBad, "llama.block_count", [](GgufWriter& w) { w.set_string("llama.block_count", "1"); }},
      {kBad, "blk.1.attn_norm.weight", [](GgufWriter& w) { w.set_u32("llama.block_count", 2); }},
      {kBad, "llama.context_length", [](GgufWriter& w) { w.set_u32("llama.context_length", 0); }},
      {kBad, "token_embd.weight", [](GgufWriter& w) { w.set_u32("llama.embedding_length", 64); }},
      {kBad, "blk.0.ffn_gate.weight",
       [](GgufWriter& w) { w.set_u32("llama.feed_forward_length", 32); }},
      {kBad, "llama.attention.key_length",
       [](GgufWriter& w) { w.set_u32("llama.attention.head_count", 64); }},
      {kBad, "llama.attention.head_count_kv",
       [](GgufWriter& w) { w.set_u32("llama.attention.head_count_kv", 3); }},
      {kBad, "llama.attention.head_count_kv",
       [](GgufWriter& w) { w.set_i32s("llama.attention.head_count_kv", {1}); }},
      {kBad, "blk.0.attn_q.weight",
       [](GgufWriter& w) {
         w.set_u32("llama.attention.key_length", 32);
         w.set_u32("llama.attention.value_length", 32);
       }},
      {kNotYet, "llama.attention.value_length",
       [](GgufWriter& w) { w.set_u32("llama.attention.value_length", 8); }},
      {kBad, "llama.attention.layer_norm_rms_epsilon",
       [](GgufWriter& w) { w.set_f32("llama.attention.layer_norm_rms_epsilon", -1.0f); }},
      {kBad, "llama.rope.dimension_count",
       [](GgufWriter& w) { w.set_u32("llama.rope.dimension_count", 15); }},
      {kBad, "llama.rope.dimension_count",
       [](GgufWriter& w) { w.set_u32("llama.rope.dimension_count", 18); }},
      {kBad, "llama.rope.freq_base",
       [](GgufWriter& w) { w.set_f32("llama.rope.freq_base", 0.0f); }},
      {kNotYet, "llama.rope.scaling.type",
       [](GgufWriter& w) { w.set_string("llama.rope.scaling.type", "longrope"); }},
      {kBad, "llama.rope.scaling.factor",
       [](GgufWriter& w) { w.set_f32("llama.rope.scaling.factor", -8.0f); }},
      {kNotYet, "llama.expert_count", [](GgufWriter& w) { w.set_u32("llama.expert_count", 8); }},
      {kNotYet, "llama.logit_scale", [](GgufWriter& w) { w.set_f32("llama.logit_scale", 1.0f); }},
      {kBad, "llama.vocab_size", [](GgufWriter& w) { w.set_u32("llama.vocab_size", 19); }},
  });
}

TEST(Export, TensorsThatDoNotFitAreRefusedByName) {
  constexpr Code kBad = Code::kDataLoss;
  constexpr Code kNotYet = Code::kUnimplemented;
  std::vector<Fault> faults = {
      {kNotYet, "blk.0.attn_sinks.weight",
       [](GgufWriter& w) {
         w.tensors.push_back({"blk.0.attn_sinks.weight", {32}, kGgmlF32, Bytes(128)});
       }},
      {kBad, "blk.0.attn_q.weight",
       [](GgufWriter& w) { w.tensor("blk.0.attn_q.weight").dims = {32, 16}; }},
      {kBad, "blk.0.attn_q.weight",
       [](GgufWriter& w) { w.tensor("blk.0.attn_q.weight").dims = {32, 32, 1}; }},
      {kNotYet, "blk.0.attn_norm.weight",
       [](GgufWriter& w) { w.tensor("blk.0.attn_norm.weight").type = kGgmlQ8_0; }},
      {kNotYet, "blk.0.attn_v.weight",
       [](GgufWriter& w) { w.tensor("blk.0.attn_v.weight").type = kGgmlIq4Nl; }},
      {kNotYet, "blk.0.attn_v.weight",
       [](GgufWriter& w) { w.tensor("blk.0.attn_v.weight").type = 77; }},
      {kBad, "rope_freqs.weight",
       [](GgufWriter& w) { w.tensors.push_back({"rope_freqs.weight", {8}, kGgmlF32, Bytes(32)}); }},
  };
  for (const GgufWriter::Tensor& tensor : tiny_gguf().tensors) {
    const std::string name = tensor.name;
    const Status status = export_status([&](GgufWriter& w) { w.remove_tensor(name); });
    EXPECT_EQ(status.code(), kBad);
    EXPECT_EQ(status.field(), name);
  }
  expect_faults(faults);
}

TEST(Export, TokenizersThatDoNotFitAreRefusedByKey) {
  constexpr Code kBad = Code::kDataLoss;
  expect_faults({
      {kBad, "tokenizer.ggml.tokens", [](GgufWriter& w) { w.remove("tokenizer.ggml.tokens"); }},
      {kBad, "tokenizer.ggml.tokens",
       [](GgufWriter& w) { w.set_strings("tokenizer.ggml.tokens", {"a"}); }},
      {kBad, "tokenizer.ggml.tokens", [](GgufWriter& w) { w.set_u32("tokenizer.ggml.tokens", 1); }},
      {kBad, "tokenizer.ggml.token_type",
       [](GgufWriter& w) { w.set_i32s("tokenizer.ggml.token_type", {1}); }},
      {kBad, "tokenizer.ggml.token_type",
       [](GgufWriter& w) { w.set_i32s("tokenizer.ggml.token_type", std::vector<int32_t>(20, 7)); }},
      {kBad, "tokenizer.ggml.scores",
       [](GgufWriter& w) { w.set_f32s("tokenizer.ggml.scores", {1.0f}); }},
      {kBad, "tokenizer.ggml.scores",
       [](GgufWriter& w) { w.set_string("tokenizer.ggml.model", "llama"); }},
      {kBad, "tokenizer.ggml.scores",
       [](GgufWriter& w) {
         std::vector<float> scores(20, 0.0f);
         scores[3] = std::numeric_limits<float>::quiet_NaN();
         w.set_f32s("tokenizer.ggml.scores", scores);
       }},
      {kBad, "tokenizer.ggml.merges",
       [](GgufWriter& w) { w.set_i32s("tokenizer.ggml.merges", {1}); }},
      {kBad, "tokenizer.ggml.eos_token_id",
       [](GgufWriter& w) { w.set_u32("tokenizer.ggml.eos_token_id", 20); }},
      {kBad, "tokenizer.ggml.add_bos_token",
       [](GgufWriter& w) { w.set_u32("tokenizer.ggml.add_bos_token", 1); }},
      {kBad, "tokenizer.chat_template",
       [](GgufWriter& w) { w.set_string("tokenizer.chat_template", "\xff"); }},
      {kBad, "general.name", [](GgufWriter& w) { w.set_string("general.name", "\xff"); }},
      {kBad, "tokenizer.ggml.pre",
       [](GgufWriter& w) { w.set_string("tokenizer.ggml.pre", std::string(2000, 'p')); }},
  });
}

// Damage anywhere is refused, or changes nothing but values; it never harms.
TEST(Export, RandomDamageDoesNoHarm) {
  const Bytes bytes = tiny_gguf().finish();
  RandomStream random(5);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Bytes damaged = bytes;
    const uint64_t end = random.below(2) == 0 ? 1400 : damaged.size();
    for (uint64_t i = 0; i <= random.below(4); ++i) {
      damaged[random.below(end)] = static_cast<std::byte>(random.below(256));
    }
    refused += export_bytes(damaged).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 150);
}

}  // namespace
}  // namespace chorus
