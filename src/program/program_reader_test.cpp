// What the reader refuses: damage of every kind, and manifests whose checksum is right and whose
// content is not.
#include <cmath>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "program/image.h"
#include "program/limits.h"
#include "program/program.h"
#include "program/strings.h"
#include "program/testing/tiny_program.h"

namespace chorus {
namespace {

using Bytes = std::vector<std::byte>;

// One layer. Operators: 0 embed, 1 rms_norm, 2 linear q k v, 3 4 rope, 5 update_and_attend, 6
// linear, 7 add, 8 rms_norm, 9 linear gate up, 10 silu, 11 mul, 12 linear, 13 add, 14 select_rows,
// 15 rms_norm, 16 linear. Weights: 0 embed, 1 attn_norm, 2 q, 3 k, 4 v, 5 o, 6 ffn_norm, 7 gate,
// 8 up, 9 down, 10 output_norm.
Bytes tiny_image() {
  TinyOptions options;
  options.num_layers = 1;
  options.width = 32;
  options.ff_width = 32;
  options.num_heads = 2;
  options.num_kv_heads = 1;
  options.vocabulary = 21;
  options.tokenizer = true;
  const auto image = tiny_builder(options).build_image();
  EXPECT_TRUE(image.ok());
  const auto bytes = image->bytes();
  return {bytes.begin(), bytes.end()};
}

Status load(std::span<const std::byte> image) {
  return Program::from_bytes(AlignedBuffer::copy_of(image)).status();
}

Manifest manifest_of(std::span<const std::byte> image) {
  auto program = Program::from_bytes(AlignedBuffer::copy_of(image));
  EXPECT_TRUE(program.ok());
  return program->manifest();
}

// The image with another manifest and the right checksum.
Bytes with_manifest(const Bytes& image, std::span<const std::byte> manifest) {
  const uint64_t offset = read_image_header(image)->manifest_offset;
  Bytes changed(image.begin(), image.begin() + static_cast<ptrdiff_t>(offset));
  changed.insert(changed.end(), manifest.begin(), manifest.end());
  write_image_header(changed, offset);
  return changed;
}

// The status of loading the tiny program after `change` to its manifest.
Status load_changed(const std::function<void(Manifest&)>& change) {
  static const Bytes image = tiny_image();
  Manifest manifest = manifest_of(image);
  change(manifest);
  return load(with_manifest(image, encode_manifest(manifest)));
}

TEST(ProgramReader, EveryFlippedBitOutsideWeightsIsRefused) {
  Bytes image = tiny_image();
  std::vector<bool> in_weight(image.size(), false);
  for (const Weight& weight : manifest_of(image).weights) {
    for (uint64_t i = weight.offset; i < weight.offset + weight.bytes; ++i) in_weight[i] = true;
  }
  size_t tried = 0;
  for (size_t i = 0; i < image.size(); ++i) {
    if (in_weight[i]) continue;
    for (int bit = 0; bit < 8; ++bit) {
      image[i] ^= static_cast<std::byte>(1 << bit);
      const Status status = load(image);
      ASSERT_EQ(status.code(), Code::kDataLoss) << "byte " << i << " bit " << bit;
      ASSERT_FALSE(status.field().empty());
      image[i] ^= static_cast<std::byte>(1 << bit);
      ++tried;
    }
  }
  EXPECT_GT(tried, 20000u);
  EXPECT_TRUE(load(image).ok());
}

TEST(ProgramReader, AFlippedWeightBitIsFoundByVerifyWeights) {
  Bytes image = tiny_image();
  const Manifest manifest = manifest_of(image);
  for (const Weight& weight : manifest.weights) {
    const size_t at = weight.offset + weight.bytes / 2;
    image[at] ^= std::byte{4};
    const auto program = Program::from_bytes(AlignedBuffer::copy_of(image));
    ASSERT_TRUE(program.ok());
    const Status status = program->verify_weights();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_EQ(status.field(), "weights[" + weight.name + "]");
    image[at] ^= std::byte{4};
  }
}

TEST(ProgramReader, EveryTruncationIsRefused) {
  const Bytes image = tiny_image();
  for (size_t size = 0; size < image.size(); ++size) {
    ASSERT_EQ(load(std::span(image).first(size)).code(), Code::kDataLoss) << size;
  }
  Bytes longer = image;
  longer.push_back(std::byte{0});
  EXPECT_EQ(load(longer).field(), "header.file_bytes");
}

// Damage with the checksum made right again must not crash; most of it is noticed.
TEST(ProgramReader, DamagedManifestsWithTheRightChecksumDoNoHarm) {
  const Bytes image = tiny_image();
  const uint64_t offset = read_image_header(image)->manifest_offset;
  RandomStream random(7);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Bytes damaged = image;
    if (random.below(4) == 0) {
      damaged.resize(offset + random.below(image.size() - offset + 1));
    }
    for (uint64_t i = random.below(3); damaged.size() > offset && i < 3; ++i) {
      damaged[offset + random.below(damaged.size() - offset)] =
          static_cast<std::byte>(random.below(256));
    }
    write_image_header(damaged, offset);
    auto program = Program::from_bytes(AlignedBuffer::copy_of(damaged));
    refused += program.ok() ? 0 : 1;
    if (program.ok()) (void)program->verify_weights();
  }
  EXPECT_GT(refused, 1000);
}

TEST(ProgramReader, UnknownNamesAreRefusedByName) {
  const Bytes image = tiny_image();
  const uint64_t offset = read_image_header(image)->manifest_offset;
  const auto renamed = [&](std::string_view from, std::string_view to) {
    Bytes manifest(image.begin() + static_cast<ptrdiff_t>(offset), image.end());
    std::string_view text(reinterpret_cast<const char*>(manifest.data()), manifest.size());
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string_view::npos);
    std::memcpy(manifest.data() + at, to.data(), to.size());
    return load(with_manifest(image, manifest));
  };
  const Status op = renamed("update_and_attend", "update_and_amaze!");
  EXPECT_EQ(op.code(), Code::kDataLoss);
  EXPECT_EQ(op.field(), "ops[5].kind");
  EXPECT_NE(op.message().find("update_and_amaze!"), std::string::npos);
  EXPECT_EQ(renamed("q4_1", "q9_9").field(), "weights[2].type");
  EXPECT_EQ(renamed("r16k4", "r99k9").field(), "weights[0].packing");
  EXPECT_EQ(renamed("adjacent", "opposite").field(), "ops[3].pairing");
  EXPECT_EQ(renamed("layer.0.q", "layer.0.\xff").field(), "weights[2].name");
}

struct Change {
  const char* field;  // that the error names
  std::function<void(Manifest&)> change;
};

void expect_refused(const std::vector<Change>& changes) {
  for (size_t i = 0; i < changes.size(); ++i) {
    const Status status = load_changed(changes[i].change);
    EXPECT_EQ(status.code(), Code::kDataLoss) << i << ": " << status.to_string();
    EXPECT_EQ(status.field(), changes[i].field) << i << ": " << status.to_string();
    EXPECT_FALSE(status.message().empty());
  }
}

TEST(ProgramReader, UnchangedManifestLoads) {
  EXPECT_TRUE(load_changed([](Manifest&) {}).ok());
}

TEST(ProgramReader, FactsOutOfBoundsAreRefused) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  expect_refused({
      {"numerics_version", [](Manifest& m) { m.numerics_version = 2; }},
      {"architecture", [](Manifest& m) { m.architecture = "a\x01"; }},
      {"name", [](Manifest& m) { m.name = "\xc0\x80"; }},
      {"name", [](Manifest& m) { m.name.assign(kMaxNameBytes + 1, 'n'); }},
      {"context", [](Manifest& m) { m.context = 0; }},
      {"context", [](Manifest& m) { m.context = kMax; }},
      {"vocabulary", [](Manifest& m) { m.vocabulary = 0; }},
      {"vocabulary", [](Manifest& m) { m.vocabulary = -5; }},
      {"ops[0] (embed).weights.rows", [](Manifest& m) { m.vocabulary = 22; }},
      {"methods", [](Manifest& m) { m.methods.clear(); }},
      {"methods", [](Manifest& m) { m.methods.assign(kMaxMethods + 1, m.methods[0]); }},
      {"methods[1].name", [](Manifest& m) { m.methods.push_back(m.methods[0]); }},
      {"methods[0].name", [](Manifest& m) { m.methods[0].name.clear(); }},
      {"methods[0].min_tokens", [](Manifest& m) { m.methods[0].min_tokens = 0; }},
      {"methods[0].min_tokens", [](Manifest& m) { m.methods[0].min_tokens = 513; }},
      {"methods[0].max_tokens", [](Manifest& m) { m.methods[0].max_tokens = 0; }},
      {"methods[0].max_tokens", [](Manifest& m) { m.methods[0].max_tokens = kMax; }},
      {"methods[0].min_wanted", [](Manifest& m) { m.methods[0].min_wanted = -1; }},
      {"methods[0].min_wanted", [](Manifest& m) { m.methods[0].min_wanted = 2; }},
  });
}

// Programs have `forward` alone, or `decode` and `prefill` that together serve every step.
TEST(ProgramReader, MethodsThatDoNotServeEveryStepAreRefused) {
  const auto two = [](Manifest& m) -> std::vector<Method>& {
    m.methods = decode_and_prefill({1, 2, 4, 8}, 5, 512);
    return m.methods;
  };
  EXPECT_TRUE(load_changed([&](Manifest& m) { two(m); }).ok());
  EXPECT_TRUE(load_changed([](Manifest& m) { m.methods = decode_and_prefill({4}, 1, 4); }).ok());
  expect_refused({
      {"methods[0].name", [](Manifest& m) { m.methods[0].name = "backward"; }},
      {"methods[0].min_tokens", [](Manifest& m) { m.methods[0].min_tokens = 2; }},
      {"methods[0].widths", [](Manifest& m) { m.methods[0].widths = {1, 512}; }},
      {"methods[1].name", [](Manifest& m) { m.methods.push_back({"decode", 1, 1, 0, {1}}); }},
      {"methods", [&](Manifest& m) { two(m).pop_back(); }},
      {"methods[0].name", [&](Manifest& m) { m.methods = {two(m)[1]}; }},
      {"methods[0].name",
       [&](Manifest& m) {
         two(m);
         std::swap(m.methods[0], m.methods[1]);
       }},
      {"methods[1].name", [&](Manifest& m) { two(m)[1].name = "decode"; }},
      {"methods[1].name", [&](Manifest& m) { two(m)[1].name = "forward"; }},
      {"methods[2].name", [&](Manifest& m) { two(m).push_back({"forward", 1, 8, 0}); }},
      {"methods[0].widths", [&](Manifest& m) { two(m)[0].widths.clear(); }},
      {"methods[0].widths", [&](Manifest& m) { two(m)[0].widths = {1, 4, 2, 8}; }},
      {"methods[0].widths", [&](Manifest& m) { two(m)[0].widths = {1, 2, 2, 8}; }},
      {"methods[0].widths", [&](Manifest& m) { two(m)[0].widths = {2, 4, 8}; }},
      {"methods[0].widths", [&](Manifest& m) { two(m)[0].widths = {1, 513}; }},
      {"methods[0].widths", [&](Manifest& m) { two(m)[0].widths.assign(kMaxWidths + 1, 1); }},
      {"methods[0].min_tokens", [&](Manifest& m) { two(m) = decode_and_prefill({-1, 8}, 1, 512); }},
      {"methods[0].min_tokens", [&](Manifest& m) { two(m)[0].min_tokens = 2; }},
      {"methods[0].max_tokens", [&](Manifest& m) { two(m)[0].max_tokens = 7; }},
      {"methods[0].min_wanted", [&](Manifest& m) { two(m)[0].min_wanted = 2; }},
      {"methods[1].widths", [&](Manifest& m) { two(m)[1].widths = {5, 512}; }},
      {"methods[1].min_tokens", [&](Manifest& m) { two(m)[1].min_tokens = 513; }},
      {"methods[1].min_tokens", [&](Manifest& m) { two(m)[1].min_tokens = 0; }},
      {"methods[1].max_tokens", [&](Manifest& m) { two(m)[1].max_tokens = 0; }},
      {"methods[1].max_tokens", [&](Manifest& m) { two(m)[1].max_tokens = kMaxStepTokens + 1; }},
      {"methods[1].min_wanted", [&](Manifest& m) { two(m)[1].min_wanted = 6; }},
  });
}

TEST(ProgramReader, TokenizersThatDoNotFitAreRefused) {
  expect_refused({
      {"tokenizer.model", [](Manifest& m) { m.tokenizer.model.clear(); }},
      {"tokenizer.bos", [](Manifest& m) { m.tokenizer.bos = 21; }},
      {"tokenizer.eos", [](Manifest& m) { m.tokenizer.eos = -2; }},
      {"tokenizer.bos", [](Manifest& m) { m.tokenizer.add_bos = true; }},
      {"tokenizer.end_ids[1]", [](Manifest& m) { m.tokenizer.end_ids = {3, -1}; }},
      {"tokenizer.end_ids", [](Manifest& m) { m.tokenizer.end_ids.assign(kMaxEndIds + 1, 0); }},
      {"tokenizer.vocabulary", [](Manifest& m) { m.tokens.sha256[3] ^= 1; }},
      {"tokenizer.merges", [](Manifest& m) { m.merges.sha256[3] ^= 1; }},
      {"chat_template", [](Manifest& m) { m.chat_template.sha256[3] ^= 1; }},
      {"chat_template", [](Manifest& m) { m.chat_template.bytes = 0; }},
      {"tokenizer.vocabulary", [](Manifest& m) { m.tokens.bytes = uint64_t{1} << 60; }},
  });
}

TEST(ProgramReader, WeightsThatDoNotFitAreRefused) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  expect_refused({
      {"weights[2].rows", [](Manifest& m) { m.weights[2].rows = 0; }},
      {"weights[2].rows", [](Manifest& m) { m.weights[2].rows = kMax; }},
      {"weights[2].bytes", [](Manifest& m) { m.weights[2].rows += 16; }},
      {"weights[2].columns", [](Manifest& m) { m.weights[2].columns = 31; }},
      {"weights[2].columns", [](Manifest& m) { m.weights[2].columns = -32; }},
      {"weights[2].bytes", [](Manifest& m) { m.weights[2].bytes += 64; }},
      {"weights[2].bytes", [](Manifest& m) { m.weights[2].type = WeightType::kQ4_0; }},
      {"weights[2].type", [](Manifest& m) { m.weights[2].packing = Packing::kRowMajor; }},
      {"weights[2].packing_version", [](Manifest& m) { m.weights[2].packing_version = 2; }},
      {"segments", [](Manifest& m) { m.weights[2].offset += 1; }},
      {"segments", [](Manifest& m) { m.weights[2].offset = m.weights[3].offset; }},
      {"segments", [](Manifest& m) { m.weights[0].offset = 0; }},
      {"segments", [](Manifest& m) { m.weights[2].offset = uint64_t{1} << 40; }},
      {"segments", [](Manifest& m) { m.weights[2].offset = ~uint64_t{63}; }},
      // A segment that nothing refers to would be bytes that nobody checks.
      {"segments",
       [](Manifest& m) {
         m.tokenizer = {};
         m.tokens = {};
       }},
  });
}

TEST(ProgramReader, GraphsWithWrongReferencesAreRefused) {
  expect_refused({
      {"ops[1] (rms_norm).inputs", [](Manifest& m) { m.graph.ops[1].inputs = {1}; }},
      {"ops[1] (rms_norm).inputs", [](Manifest& m) { m.graph.ops[1].inputs = {16}; }},
      {"ops[1] (rms_norm).inputs", [](Manifest& m) { m.graph.ops[1].inputs = {-1}; }},
      {"ops[1] (rms_norm).inputs", [](Manifest& m) { m.graph.ops[1].inputs = {9999}; }},
      {"ops[1] (rms_norm).inputs", [](Manifest& m) { m.graph.ops[1].inputs = {0, 0}; }},
      {"ops[1] (rms_norm).outputs", [](Manifest& m) { m.graph.ops[1].outputs = {0}; }},
      {"ops[1] (rms_norm).outputs", [](Manifest& m) { m.graph.ops[1].outputs.clear(); }},
      {"ops[1] (rms_norm).weights", [](Manifest& m) { m.graph.ops[1].weights = {11}; }},
      {"ops[1] (rms_norm).weights", [](Manifest& m) { m.graph.ops[1].weights = {-1}; }},
      {"ops[2] (linear).weights", [](Manifest& m) { m.graph.ops[2].weights = {2, 3, 1}; }},
      {"ops[2] (linear).outputs", [](Manifest& m) { m.graph.ops[2].weights = {2, 3}; }},
      {"ops[2] (linear).weights", [](Manifest& m) { m.graph.ops[2].weights.clear(); }},
      {"ops[2] (linear).biases", [](Manifest& m) { m.graph.ops[2].biases = {1}; }},
      {"ops[2] (linear).biases", [](Manifest& m) { m.graph.ops[2].biases = {-1, -1, 99}; }},
      {"ops[2] (linear).biases", [](Manifest& m) { m.graph.ops[2].biases = {-1, -1, 4}; }},
      {"ops[3] (rope).rope", [](Manifest& m) { m.graph.ops[3].rope = 1; }},
      {"ops[3] (rope).rope", [](Manifest& m) { m.graph.ops[3].rope = -1; }},
      {"ops[2].inputs", [](Manifest& m) { m.graph.ops[2].inputs.assign(9, 0); }},
      {"ops[2].outputs",
       [](Manifest& m) { m.graph.ops[2].outputs.assign(kMaxSegmentsPerLinear + 1, 0); }},
      {"ops[7] (add).version", [](Manifest& m) { m.graph.ops[7].version = 2; }},
      {"values", [](Manifest& m) { m.graph.values.push_back({Rows::kWanted, 4}); }},
      {"ops[16] (linear).outputs", [](Manifest& m) { m.graph.values.pop_back(); }},
      {"values", [](Manifest& m) { m.graph.values.resize(kMaxValues + 1, {Rows::kTokens, 1}); }},
      {"ops", [](Manifest& m) { m.graph.ops.resize(kMaxOps + 1); }},
  });
}

TEST(ProgramReader, GraphsWithWrongShapesAreRefused) {
  expect_refused({
      {"values[3].width", [](Manifest& m) { m.graph.values[3].width = 0; }},
      {"values[3].width", [](Manifest& m) { m.graph.values[3].width = kMaxWidth + 1; }},
      {"ops[0] (embed).weights.columns", [](Manifest& m) { m.graph.values[0].width = 64; }},
      {"ops[1] (rms_norm).outputs.width", [](Manifest& m) { m.graph.values[1].width = 64; }},
      {"ops[2] (linear).weights.rows", [](Manifest& m) { m.graph.values[3].width = 64; }},
      {"ops[3] (rope).outputs.width", [](Manifest& m) { m.graph.values[5].width = 16; }},
      {"ops[5] (update_and_attend).outputs.width",
       [](Manifest& m) { m.graph.values[7].width = 16; }},
      {"ops[7] (add).inputs.width", [](Manifest& m) { m.graph.values[9].width = 31; }},
      {"ops[7] (add).inputs.width", [](Manifest& m) { m.graph.ops[7].inputs = {0, 3}; }},
      {"ops[10] (silu).inputs.width", [](Manifest& m) { m.graph.values[13].width = 3; }},
      {"ops[1] (rms_norm).weights.columns", [](Manifest& m) { m.graph.ops[1].group_width = 16; }},
      {"ops[1] (rms_norm).group_width", [](Manifest& m) { m.graph.ops[1].group_width = 5; }},
      {"ops[1] (rms_norm).weights", [](Manifest& m) { m.graph.ops[1].weights = {2}; }},
      {"ops[1] (rms_norm).epsilon", [](Manifest& m) { m.graph.ops[1].epsilon = NAN; }},
      {"ops[1] (rms_norm).epsilon", [](Manifest& m) { m.graph.ops[1].epsilon = -1.0f; }},
      {"ops[1] (rms_norm).scale", [](Manifest& m) { m.graph.ops[1].scale = 1.0f; }},
      {"ops[7] (add).head_dim", [](Manifest& m) { m.graph.ops[7].head_dim = 1; }},
      {"ops[7] (add).layer", [](Manifest& m) { m.graph.ops[7].layer = 0; }},
      {"ops[7] (add).rope", [](Manifest& m) { m.graph.ops[7].rope = 0; }},
      {"ops[3] (rope).head_dim", [](Manifest& m) { m.graph.ops[3].head_dim = 0; }},
      {"ops[3] (rope).head_dim", [](Manifest& m) { m.graph.ops[3].head_dim = 15; }},
      {"ops[3] (rope).ropes.dims", [](Manifest& m) { m.graph.ropes[0].dims = 18; }},
      {"ropes[0].dims", [](Manifest& m) { m.graph.ropes[0].dims = 15; }},
      {"ropes[0].theta", [](Manifest& m) { m.graph.ropes[0].theta = 0.0; }},
      {"ropes[0].theta", [](Manifest& m) { m.graph.ropes[0].theta = INFINITY; }},
      {"ropes[0].factors", [](Manifest& m) { m.graph.ropes[0].factors = {1.0f}; }},
      {"ropes[0].factors", [](Manifest& m) { m.graph.ropes[0].factors.assign(8, 0.0f); }},
  });
}

TEST(ProgramReader, AttentionAndLayerGroupsAreChecked) {
  expect_refused({
      {"ops[5] (update_and_attend).layer", [](Manifest& m) { m.graph.ops[5].layer = 1; }},
      {"ops[5] (update_and_attend).layer", [](Manifest& m) { m.graph.ops[5].layer = -1; }},
      {"ops[5] (update_and_attend).num_kv_heads",
       [](Manifest& m) { m.graph.ops[5].num_kv_heads = 2; }},
      {"ops[5] (update_and_attend).head_dim", [](Manifest& m) { m.graph.ops[5].head_dim = 32; }},
      {"ops[5] (update_and_attend).num_heads", [](Manifest& m) { m.graph.ops[5].num_heads = 0; }},
      {"ops[5] (update_and_attend).inputs.width",
       [](Manifest& m) { m.graph.ops[5].num_heads = 3; }},
      {"ops[5] (update_and_attend).inputs.width",
       [](Manifest& m) { std::swap(m.graph.ops[5].inputs[0], m.graph.ops[5].inputs[1]); }},
      {"ops[5] (update_and_attend).scale", [](Manifest& m) { m.graph.ops[5].scale = NAN; }},
      {"ops[5] (update_and_attend).softcap", [](Manifest& m) { m.graph.ops[5].softcap = -1; }},
      {"ops[5] (update_and_attend).sinks", [](Manifest& m) { m.graph.ops[5].sinks = 77; }},
      {"ops[5] (update_and_attend).sinks.columns", [](Manifest& m) { m.graph.ops[5].sinks = 1; }},
      {"kv_layers[0].head_dim", [](Manifest& m) { m.graph.kv_layers[0].head_dim = 1 << 20; }},
      {"kv_layers[0].num_kv_heads", [](Manifest& m) { m.graph.kv_layers[0].num_kv_heads = 0; }},
      {"groups", [](Manifest& m) { m.graph.kv_layers.push_back({1, 16}); }},
      {"kv_layers",
       [](Manifest& m) {
         m.graph.kv_layers.push_back({1, 16});
         m.graph.groups[0].layers.push_back(1);
       }},
      {"groups", [](Manifest& m) { m.graph.groups.clear(); }},
      {"groups", [](Manifest& m) { m.graph.groups.resize(kMaxGroups + 1); }},
      {"groups[0].window", [](Manifest& m) { m.graph.groups[0].policy.window = -1; }},
      {"groups[0].layers", [](Manifest& m) { m.graph.groups[0].layers = {0, 0}; }},
      {"groups[0].layers", [](Manifest& m) { m.graph.groups[0].layers = {1}; }},
      {"groups[0].layers", [](Manifest& m) { m.graph.groups[0].layers.clear(); }},
      {"groups[1].layers", [](Manifest& m) { m.graph.groups.push_back({{4}, {0}}); }},
  });
}

TEST(ProgramReader, RowsMustBeSelectedOnce) {
  expect_refused({
      {"ops[14] (add).inputs", [](Manifest& m) { m.graph.ops[14].kind = OpKind::kAdd; }},
      {"ops[14] (silu).outputs", [](Manifest& m) { m.graph.ops[14].kind = OpKind::kSilu; }},
      {"ops[10] (select_rows).outputs",
       [](Manifest& m) { m.graph.ops[10].kind = OpKind::kSelectRows; }},
      {"ops[15] (rms_norm).inputs", [](Manifest& m) { m.graph.ops[15].inputs = {16}; }},
      {"ops[15] (rms_norm).outputs", [](Manifest& m) { m.graph.values[18].rows = Rows::kTokens; }},
      {"ops[3] (rope).outputs", [](Manifest& m) { m.graph.values[5].rows = Rows::kWanted; }},
      {"ops",
       [](Manifest& m) {
         m.graph.ops.resize(14);
         m.graph.values.resize(17);
       }},
      {"ops (last).outputs.width",
       [](Manifest& m) {
         m.graph.ops.resize(16);
         m.graph.values.resize(19);
       }},
  });
}

TEST(Strings, RoundTrip) {
  StringList list;
  list.strings = {"a", "", std::string_view("\0\xff", 2), "\xe2\x82\xac"};
  const std::vector<float> scores = {0.0f, -1.5f, 2.0f, -1e30f};
  const std::vector<uint8_t> types = {1, 2, 3, 6};
  for (const bool with_scores : {false, true}) {
    for (const bool with_types : {false, true}) {
      list.scores = with_scores ? std::span<const float>(scores) : std::span<const float>();
      list.types = with_types ? std::span<const uint8_t>(types) : std::span<const uint8_t>();
      const AlignedBuffer bytes = AlignedBuffer::copy_of(encode_strings(list));
      const auto back = decode_strings(bytes.bytes(), 4);
      ASSERT_TRUE(back.ok());
      EXPECT_EQ(back->strings, list.strings);
      EXPECT_EQ(std::vector<float>(back->scores.begin(), back->scores.end()),
                with_scores ? scores : std::vector<float>());
      EXPECT_EQ(std::vector<uint8_t>(back->types.begin(), back->types.end()),
                with_types ? types : std::vector<uint8_t>());
      EXPECT_EQ(decode_strings(bytes.bytes(), 3).status().field(), "count");
      for (size_t size = 1; size < bytes.bytes().size(); ++size) {
        const AlignedBuffer shorter = AlignedBuffer::copy_of(bytes.bytes().first(size));
        EXPECT_FALSE(decode_strings(shorter.bytes(), 4).ok()) << size;
      }
    }
  }
}

TEST(Strings, BadOffsetsAreRefused) {
  StringList list;
  list.strings = {"ab", "c"};
  for (const uint32_t bad : {0u, 1u, 0xffffffffu}) {
    for (size_t i = 0; i < 3; ++i) {
      AlignedBuffer bytes = AlignedBuffer::copy_of(encode_strings(list));
      uint32_t good;
      std::memcpy(&good, bytes.bytes().data() + 8 + 4 * i, 4);
      std::memcpy(bytes.bytes().data() + 8 + 4 * i, &bad, 4);
      const auto back = decode_strings(std::as_const(bytes).bytes(), 10);
      // The middle offset may be anything between its neighbours.
      EXPECT_EQ(back.ok(), good == bad || (i == 1 && bad < 3)) << i << " " << bad;
    }
  }
}

}  // namespace
}  // namespace chorus
