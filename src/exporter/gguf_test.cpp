#include "exporter/gguf.h"

#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "exporter/describe_gguf.h"
#include "exporter/testing/gguf_writer.h"

namespace chorus {
namespace {

using Bytes = GgufWriter::Bytes;

// Parses a copy of exactly these bytes, so that a read past the end is seen by the sanitizer.
Status parse(const Bytes& bytes) {
  const Bytes copy(bytes);
  return GgufFile::parse(copy).status();
}

TEST(Gguf, ReadsVersions2And3) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter w = tiny_gguf();
    w.version = version;
    const Bytes bytes = w.finish();
    const auto file = GgufFile::parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->tensors().size(), w.tensors.size());
    for (const GgufWriter::Tensor& written : w.tensors) {
      const GgufTensor* tensor = file->find_tensor(written.name);
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(Bytes(tensor->data.begin(), tensor->data.end()), written.data) << written.name;
    }
    EXPECT_EQ(**file->find_string("general.name"), "tiny");
    EXPECT_EQ(*file->get_int("llama.block_count", 0, 10), 1);
    EXPECT_EQ((**file->find_strings("tokenizer.ggml.tokens")).size(), 20u);
    EXPECT_FALSE(file->find_int("absent", 0, 1)->has_value());
    EXPECT_EQ(file->get_float("absent").status().field(), "absent");
  }
}

TEST(Gguf, TypedAccessNamesTheKey) {
  GgufWriter w;
  w.set_u32("u", 7);
  w.set_f32("f", 0.5f);
  w.set_bool("b", true);
  w.set_i32s("list", {1, -2});
  Bytes huge;
  GgufWriter::append(huge, GgufType::kU64);
  GgufWriter::append(huge, ~uint64_t{0});
  w.replace("huge", huge);
  const Bytes bytes = w.finish();
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->find_int("u", 8, 9).status().field(), "u");
  EXPECT_EQ(file->find_int("f", 0, 9).status().field(), "f");
  EXPECT_EQ(file->find_int("list", 0, 9).status().field(), "list");
  EXPECT_EQ(file->find_int("huge", 0, INT64_MAX).status().field(), "huge");
  EXPECT_EQ(file->find_float("u").status().field(), "u");
  EXPECT_EQ(file->find_bool("u").status().field(), "u");
  EXPECT_EQ(file->find_string("u").status().field(), "u");
  EXPECT_EQ(file->find_strings("u").status().field(), "u");
  EXPECT_EQ(file->find_ints("f").status().field(), "f");
  EXPECT_EQ(file->find_floats("list").status().field(), "list");
  EXPECT_EQ(**file->find_ints("list"), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(**file->find_float("f"), 0.5);
  EXPECT_TRUE(**file->find_bool("b"));
}

TEST(Gguf, EveryTruncationIsRefused) {
  const Bytes bytes = tiny_gguf().finish();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Status status = parse(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size)));
    ASSERT_EQ(status.code(), Code::kDataLoss) << size;
    ASSERT_FALSE(status.field().empty()) << size;
  }
}

TEST(Gguf, UnknownTensorTypesAreListed) {
  GgufWriter w = tiny_gguf();
  w.tensor("odd") = {"odd", {3}, 77, Bytes(32)};
  const Bytes bytes = w.finish();
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->find_tensor("odd")->data.empty());
  EXPECT_EQ(ggml_type_name(77), "type 77");
  EXPECT_EQ(ggml_type_name(12), "Q4_K");
}

TEST(Gguf, DescriptionCountsEveryTensor) {
  GgufWriter w = tiny_gguf();
  w.tensor("odd") = {"odd", {3}, 77, Bytes(32)};
  w.set_string("general.name", "\xff");
  const Bytes bytes = w.finish();
  const GgufDescription d = describe(*GgufFile::parse(bytes));
  EXPECT_EQ(d.architecture, "llama");
  EXPECT_EQ(d.name, "");
  EXPECT_TRUE(d.has_chat_template);
  EXPECT_EQ(d.tensors.size(), 12u);
  EXPECT_EQ(d.num_parameters, 20 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32 + 3 * 32 + 3);
  ASSERT_EQ(d.tensors_by_type.size(), 4u);
  EXPECT_EQ(d.tensors_by_type[0].type, "Q4_0");
  EXPECT_EQ(d.tensors_by_type[0].num_tensors, 5);
  EXPECT_EQ(d.tensors_by_type[3].type, "type 77");
  EXPECT_EQ(d.tensors_by_type[3].bytes, 0u);
}

struct Fault {
  const char* field;
  std::function<void(GgufWriter&)> change;
};

Bytes raw_value(uint32_t type, std::initializer_list<uint64_t> words) {
  Bytes bytes;
  GgufWriter::append(bytes, type);
  for (const uint64_t word : words) GgufWriter::append(bytes, word);
  return bytes;
}

Bytes raw_array(uint32_t type, uint64_t count) {
  Bytes bytes;
  GgufWriter::append(bytes, GgufType::kArray);
  GgufWriter::append(bytes, type);
  GgufWriter::append(bytes, count);
  return bytes;
}

TEST(Gguf, FaultsAreRefusedByField) {
  constexpr uint64_t kHuge = uint64_t{1} << 61;
  const std::vector<Fault> faults = {
      {"header.version", [](GgufWriter& w) { w.version = 4; }},
      {"metadata[1].key", [](GgufWriter& w) { w.values[1].first = ""; }},
      {"metadata[1].key", [](GgufWriter& w) { w.values[1].first = "a\xff"; }},
      {"metadata[1].key", [](GgufWriter& w) { w.values[1].first.assign(600, 'k'); }},
      {"general.architecture", [](GgufWriter& w) { w.values[1].first = w.values[0].first; }},
      {"odd", [](GgufWriter& w) { w.replace("odd", raw_value(13, {})); }},
      {"odd", [](GgufWriter& w) { w.replace("odd", raw_value(8, {kHuge})); }},
      {"odd", [](GgufWriter& w) { w.replace("odd", raw_value(7, {7})); }},
      {"odd", [](GgufWriter& w) { w.replace("odd", raw_array(9, 1)); }},
      {"odd", [](GgufWriter& w) { w.replace("odd", raw_array(4, kHuge)); }},
      {"odd", [](GgufWriter& w) { w.replace("odd", raw_array(12, kHuge)); }},
      {"odd", [](GgufWriter& w) { w.replace("odd", raw_array(8, kHuge)); }},
      {"general.alignment", [](GgufWriter& w) { w.set_u32("general.alignment", 0); }},
      {"general.alignment", [](GgufWriter& w) { w.set_u32("general.alignment", 24); }},
      {"general.alignment", [](GgufWriter& w) { w.set_u32("general.alignment", 1u << 31); }},
      {"general.alignment", [](GgufWriter& w) { w.set_string("general.alignment", "32"); }},
      {"tensors[0].name", [](GgufWriter& w) { w.tensors[0].name = ""; }},
      {"tensors[0].name", [](GgufWriter& w) { w.tensors[0].name = "\x01"; }},
      {"output_norm.weight", [](GgufWriter& w) { w.tensors[0].name = "output_norm.weight"; }},
      {"output_norm.weight", [](GgufWriter& w) { w.tensor("output_norm.weight").dims = {}; }},
      {"output_norm.weight",
       [](GgufWriter& w) { w.tensor("output_norm.weight").dims = {1, 1, 1, 1, 1}; }},
      {"output_norm.weight", [](GgufWriter& w) { w.tensor("output_norm.weight").dims = {0}; }},
      {"output_norm.weight",
       [](GgufWriter& w) { w.tensor("output_norm.weight").dims = {~uint64_t{0}}; }},
      {"output_norm.weight",
       [](GgufWriter& w) {
         w.tensor("output_norm.weight").dims = {INT32_MAX, INT32_MAX, INT32_MAX};
       }},
      {"output_norm.weight",
       [](GgufWriter& w) { w.tensor("output_norm.weight").dims = {INT32_MAX, INT32_MAX}; }},
      {"output_norm.weight", [](GgufWriter& w) { w.tensor("output_norm.weight").dims = {33}; }},
      {"blk.0.attn_q.weight",
       [](GgufWriter& w) { w.tensor("blk.0.attn_q.weight").dims = {33, 32}; }},
      {"blk.0.attn_norm.weight", [](GgufWriter& w) { w.alignment = 16; }},
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    GgufWriter w = tiny_gguf();
    faults[i].change(w);
    const Status status = parse(w.finish());
    EXPECT_EQ(status.code(), Code::kDataLoss) << i << " " << status.to_string();
    EXPECT_EQ(status.field(), faults[i].field) << i << " " << status.to_string();
  }
}

TEST(Gguf, AbsurdCountsAreRefused) {
  for (const size_t offset : {size_t{8}, size_t{16}}) {
    for (const uint64_t count : {uint64_t{100}, uint64_t{1} << 20, ~uint64_t{0}}) {
      Bytes bytes = tiny_gguf().finish();
      std::memcpy(bytes.data() + offset, &count, sizeof count);
      EXPECT_EQ(parse(bytes).code(), Code::kDataLoss) << offset << " " << count;
    }
  }
}

TEST(Gguf, OtherFormatsAreNamed) {
  GgufWriter w = tiny_gguf();
  w.version = 1;
  EXPECT_EQ(parse(w.finish()).code(), Code::kUnimplemented);
  w.version = 0x03000000;
  const Status big_endian = parse(w.finish());
  EXPECT_EQ(big_endian.code(), Code::kUnimplemented);
  EXPECT_NE(big_endian.message().find("big endian"), std::string::npos);
  EXPECT_EQ(parse(Bytes(100)).field(), "header.magic");
  EXPECT_EQ(parse({}).field(), "header.magic");
}

}  // namespace
}  // namespace chorus
