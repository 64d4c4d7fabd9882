#include "program/program.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

#include "program/builder.h"
#include "program/packing/r16k4.h"
#include "program/rewrite.h"
#include "program/testing/tiny_program.h"

namespace chorus {
namespace {

TinyOptions with_tokenizer() {
  TinyOptions options;
  options.tokenizer = true;
  options.window = 32;
  return options;
}

std::vector<std::byte> image_of(const ProgramBuilder& builder) {
  auto image = builder.build_image();
  EXPECT_TRUE(image.ok()) << image.status().to_string();
  const auto bytes = std::as_const(*image).bytes();
  return {bytes.begin(), bytes.end()};
}

TEST(Program, KeepsWhatTheBuilderWasGiven) {
  const Program program = tiny_program(with_tokenizer());
  EXPECT_EQ(program.architecture(), "llama");
  EXPECT_EQ(program.name(), "tiny");
  EXPECT_EQ(program.context(), 512);
  EXPECT_EQ(program.vocabulary(), 293);
  ASSERT_EQ(program.methods().size(), 1u);
  EXPECT_EQ(program.methods()[0].name, "forward");
  EXPECT_EQ(program.methods()[0].max_tokens, 512);
  EXPECT_EQ(program.tokenizer().facts.model, "gpt2");
  ASSERT_EQ(program.tokenizer().tokens.size(), 293u);
  EXPECT_EQ(program.tokenizer().tokens[292], "<292>");
  ASSERT_EQ(program.tokenizer().merges.size(), 2u);
  EXPECT_EQ(program.tokenizer().merges[1], "<0 >");
  EXPECT_EQ(program.chat_template().substr(0, 6), "{% for");
  const Graph& graph = program.graph();
  ASSERT_EQ(graph.groups.size(), 2u);
  EXPECT_EQ(graph.groups[1].policy.window, 32);
  EXPECT_EQ(graph.groups[1].layers, (std::vector<int32_t>{1}));
  EXPECT_EQ(graph.ops.front().kind, OpKind::kEmbed);
  EXPECT_EQ(graph.ops.back().kind, OpKind::kLinear);
  EXPECT_EQ(graph.values.back().rows, Rows::kWanted);
  EXPECT_EQ(graph.values.back().width, 293);
}

TEST(Program, WeightsUnpackToTheSourceAndAreAligned) {
  const Program program = tiny_program();
  const auto expected = random_matrix(WeightType::kQ8_0, 293, 64, 1 << 20);  // the first weight
  std::vector<std::byte> source(expected.size());
  ASSERT_EQ(program.weights()[0].name, "embed");
  ASSERT_TRUE(unpack(WeightType::kQ8_0, 293, 64, program.weight_bytes(0), source).ok());
  EXPECT_EQ(source, expected);
  for (size_t i = 0; i < program.weights().size(); ++i) {
    const auto bytes = program.weight_bytes(static_cast<WeightId>(i));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 64, 0u);
    EXPECT_EQ(bytes.size(), program.weights()[i].bytes);
  }
  EXPECT_TRUE(program.verify_weights().ok());
}

TEST(Program, RandomWeightsAreFiniteAndOfEitherSign) {
  for (int i = 0; i < kNumWeightTypes; ++i) {
    SCOPED_TRACE(i);
    const auto type = static_cast<WeightType>(i);
    Weight weight;
    weight.type = type;
    weight.packing = Packing::kR16K4;
    weight.rows = 16;
    weight.columns = 256;
    const auto source = random_matrix(type, 16, 256, 4);
    std::vector<std::byte> packed(*packed_bytes(type, 16, 256));
    ASSERT_TRUE(pack(type, 16, 256, source, packed).ok());
    std::vector<float> row(256);
    double sum_of_squares = 0.0;
    int negative = 0;
    for (int32_t r = 0; r < 16; ++r) {
      dequantize_row(weight, packed, r, row);
      for (const float value : row) {
        ASSERT_TRUE(std::isfinite(value));
        sum_of_squares += double{value} * double{value};
        negative += value < 0.0f ? 1 : 0;
      }
    }
    EXPECT_NEAR(std::sqrt(sum_of_squares / 4096), 0.0625, 0.03);
    EXPECT_NEAR(negative, 2048, 400);
  }
}

TEST(Program, TheSameInputGivesTheSameBytes) {
  EXPECT_EQ(image_of(tiny_builder(with_tokenizer())), image_of(tiny_builder(with_tokenizer())));
}

TEST(Program, SurvivesMoves) {
  Program first = tiny_program(with_tokenizer());
  const Digest content = first.content();
  const std::byte* weight = first.weight_bytes(2).data();
  Program second = std::move(first);
  EXPECT_EQ(second.weight_bytes(2).data(), weight);
  EXPECT_EQ(second.tokenizer().tokens[7], "<7>");
  EXPECT_EQ(second.content(), content);
  EXPECT_TRUE(second.verify_weights().ok());
}

TEST(Program, KvIdentityIsAboutArithmeticOnly) {
  const Program program = tiny_program();
  TinyOptions options;
  options.context = 256;
  options.max_tokens = 32;
  options.tokenizer = true;
  const Program renamed = tiny_program(options);
  EXPECT_EQ(program.kv_identity(), renamed.kv_identity());
  EXPECT_NE(program.content(), renamed.content());
  TinyOptions other_seed;
  other_seed.seed = 2;
  EXPECT_NE(program.kv_identity(), tiny_program(other_seed).kv_identity());
  TinyOptions windowed;
  windowed.window = 32;
  EXPECT_NE(program.kv_identity(), tiny_program(windowed).kv_identity());
}

TEST(Program, CarriesDecodeAndPrefill) {
  TinyOptions options;
  options.methods = decode_and_prefill({1, 2, 4, 8}, 5, 256);
  options.methods[1].min_wanted = 3;
  const Program program = tiny_program(options);
  EXPECT_EQ(program.methods(), options.methods);
  EXPECT_EQ(program.methods()[0].widths, (std::vector<int32_t>{1, 2, 4, 8}));
  EXPECT_EQ(program.kv_identity(), tiny_program().kv_identity());
}

TEST(Program, MethodsThatCannotServeAreRefusedWhenBuilt) {
  TinyOptions options;
  options.methods = decode_and_prefill({2, 4}, 5, 256);
  const auto program = tiny_builder(options).build();
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.status().code(), Code::kDataLoss);
  EXPECT_EQ(program.status().field(), "methods[0].widths");
}

TEST(Program, OthersAreMadeOfItWithTheSameWeights) {
  const Program program = tiny_program(with_tokenizer());
  TinyOptions options = with_tokenizer();
  options.methods = decode_and_prefill({1, 4}, 2, 64);
  options.context = 100;
  const auto rewritten = rewrite_image(program, {100, options.methods});
  ASSERT_TRUE(rewritten.ok()) << rewritten.status().to_string();
  const auto image = std::as_const(*rewritten).bytes();
  // As if it had been built so.
  EXPECT_EQ(std::vector<std::byte>(image.begin(), image.end()), image_of(tiny_builder(options)));
  const auto other = Program::from_bytes(AlignedBuffer::copy_of(image));
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_EQ(other->methods(), options.methods);
  EXPECT_EQ(other->context(), 100);
  EXPECT_EQ(other->kv_identity(), program.kv_identity());
  EXPECT_NE(other->content(), program.content());
  EXPECT_TRUE(other->verify_weights().ok());
  EXPECT_EQ(other->tokenizer().tokens, program.tokenizer().tokens);
  // And back.
  const auto as_it_is = rewrite_image(program, {});
  ASSERT_TRUE(as_it_is.ok());
  EXPECT_EQ(
      Program::from_bytes(AlignedBuffer::copy_of(std::as_const(*as_it_is).bytes()))->content(),
      program.content());
}

TEST(Program, ChangesThatAreNotPossibleAreRefused) {
  const Program program = tiny_program();
  const auto field = [&](int32_t context, std::vector<Method> methods) {
    const auto image = rewrite_image(program, {context, std::move(methods)});
    EXPECT_EQ(image.status().code(), Code::kInvalidArgument);
    return image.status().field();
  };
  EXPECT_EQ(field(513, {}), "context");
  EXPECT_EQ(field(-1, {}), "context");
  EXPECT_EQ(field(0, decode_and_prefill({2}, 2, 8)), "methods[0].widths");
  EXPECT_EQ(field(0, decode_and_prefill({1}, 9, 8)), "methods[1].min_tokens");
  EXPECT_EQ(field(0, forward_method(0)), "methods[0].max_tokens");
}

TEST(Program, SourcesOfTheWrongSizeAreRefused) {
  ProgramBuilder builder = tiny_builder({});
  builder.add_matrix("short", WeightType::kQ4_0, 16, 32, std::vector<std::byte>(287));
  const auto program = builder.build();
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(program.status().field(), "weights[short].source");
}

TEST(Program, MissingFileIsNotFound) {
  EXPECT_EQ(Program::load("/nonexistent/x.chorus").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace chorus
