#include "exporter/hf_folder.h"

#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "exporter/describe_hf.h"
#include "exporter/export.h"
#include "exporter/hf_index.h"
#include "exporter/testing/safetensors_writer.h"
#include "exporter/testing/temporary_folder.h"
#include "exporter/testing/tiny_hf_folder.h"

namespace chorus {
namespace {

constexpr char kFirst[] = "model-00001-of-00002.safetensors";
constexpr char kSecond[] = "model-00002-of-00002.safetensors";

SafetensorsWriter shard(const std::vector<std::string>& names) {
  SafetensorsWriter w;
  for (const std::string& name : names) w.add_zeros(name, "BF16", {2, 3});
  return w;
}

void write_small_files(const TemporaryFolder& folder) {
  folder.write("config.json", R"({"model_type": "llama"})");
  folder.write("tokenizer.json", "{}");
  folder.write("generation_config.json", R"({"eos_token_id": 2})");
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  folder.write("chat_template.jinja", "{{ messages }}");
}

// a and b in the first file, c in the second: 36 bytes.
void write_shards(const TemporaryFolder& folder) {
  write_small_files(folder);
  folder.write(kFirst, shard({"a", "b"}).finish());
  folder.write(kSecond, shard({"c"}).finish());
  folder.write(kHfIndexFile, R"({"metadata": {"total_size": 36, "total_parameters": 18},
      "weight_map": {"a": "model-00001-of-00002.safetensors",
                     "b": "model-00001-of-00002.safetensors",
                     "c": "model-00002-of-00002.safetensors"}})");
}

TEST(HfFolder, AnEmptyTokenizerIsNotAMissingOne) {
  const TemporaryFolder folder;
  write_small_files(folder);
  folder.write("model.safetensors", shard({"a"}).finish());
  folder.write("tokenizer.json", "");
  EXPECT_EQ(HfFolder::open(folder.path()).status().field(), "tokenizer.json");
}

TEST(HfFolder, ReadsOneFile) {
  const TemporaryFolder folder;
  write_small_files(folder);
  folder.write("model.safetensors", shard({"a", "b"}).finish());
  folder.write("training_args.bin", "pickle");
  for (const std::string& path : {folder.path(), folder.path() + "/"}) {
    const auto opened = HfFolder::open(path);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    EXPECT_EQ(opened->file_names(), std::vector<std::string>{"model.safetensors"});
    ASSERT_EQ(opened->tensors().size(), 2u);
    EXPECT_EQ(opened->find_tensor("b"), opened->tensors()[1]);
    EXPECT_EQ(opened->find_tensor("c"), nullptr);
    EXPECT_EQ(opened->tokenizer_json().size(), 2u);
    EXPECT_EQ(opened->settings().eos_ids, std::vector<int32_t>{2});
    EXPECT_EQ(opened->settings().bos.text, "<s>");
    EXPECT_EQ(*opened->settings().chat_template(), "{{ messages }}");
    EXPECT_EQ(opened->config().find("model_type")->as_string(), "llama");
  }
}

TEST(HfFolder, OnlyConfigAndWeightsAreNeeded) {
  const TemporaryFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", shard({"a"}).finish());
  const auto opened = HfFolder::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_TRUE(opened->tokenizer_json().empty());
  EXPECT_TRUE(opened->settings().chat_templates.empty());
}

TEST(HfFolder, ReadsShardsAndMoves) {
  const TemporaryFolder folder;
  write_shards(folder);
  auto opened = HfFolder::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const SafetensorsTensor* c = opened->find_tensor("c");
  const HfFolder moved = std::move(opened).value();
  EXPECT_EQ(moved.find_tensor("c"), c);
  EXPECT_EQ(moved.file_names(), (std::vector<std::string>{kFirst, kSecond}));
  ASSERT_EQ(moved.tensors().size(), 3u);
  EXPECT_EQ(moved.tensors()[2], c);
  EXPECT_EQ(c->data.size(), 12u);
}

TEST(HfFolder, ContentsAreReadAsFilesAre) {
  const SafetensorsWriter weights = tiny_safetensors();
  const auto bytes = weights.finish();
  const auto folder = HfFolder::parse({.config = kTinyHfConfig}, bytes);
  ASSERT_TRUE(folder.ok()) << folder.status().to_string();
  EXPECT_EQ(folder->tensors().size(), weights.tensors.size());
  const auto image = export_folder(*folder);
  EXPECT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_EQ(HfFolder::parse({.config = "3"}, bytes).status().field(), "config.json");
  EXPECT_EQ(HfFolder::parse({.config = "{}"}, {}).status().field(), "header.length");
}

TEST(HfFolder, IsDescribed) {
  SafetensorsWriter weights = tiny_safetensors();
  weights.add("later", "F12_NEW", {INT32_MAX, INT32_MAX}, SafetensorsWriter::Bytes(7));
  const auto bytes = weights.finish();
  HfTexts texts;
  texts.config = R"({"model_type": "big", "architectures": ["BigModel", "a\u0007"],
      "vision_config": {}, "quantization_config": {},
      "text_config": {"hidden_size": 32, "num_hidden_layers": 1}})";
  texts.tokenizer_config = R"({"tokenizer_class": "T", "bos_token": "<s>", "eos_token": "\u0007",
      "chat_template": [{"name": "tool_use", "template": "x"}]})";
  const std::string tokenizer = "{}";
  const auto folder = HfFolder::parse(texts, bytes, std::as_bytes(std::span(tokenizer)));
  ASSERT_TRUE(folder.ok()) << folder.status().to_string();
  const HfDescription d = describe(*folder);
  EXPECT_EQ(d.model_type, "big");
  EXPECT_EQ(d.architectures, (std::vector<std::string>{"BigModel", ""}));
  EXPECT_EQ(d.other_models, std::vector<std::string>{"vision_config"});
  EXPECT_EQ(d.width, 32);
  EXPECT_EQ(d.num_layers, 1);
  EXPECT_EQ(d.context, -1);
  EXPECT_EQ(d.num_parameters, 9952 + int64_t{INT32_MAX} * INT32_MAX);
  ASSERT_EQ(d.tensors_by_type.size(), 2u);
  EXPECT_EQ(d.tensors_by_type[0].type, "F32");
  EXPECT_EQ(d.tensors_by_type[0].num_tensors, 11);
  EXPECT_EQ(d.tensors_by_type[0].bytes, 9952u * 4);
  EXPECT_EQ(d.tensors_by_type[1].bytes, 7u);
  ASSERT_EQ(d.files.size(), 1u);
  EXPECT_EQ(d.files[0].num_tensors, 12);
  EXPECT_EQ(d.tensors[11].file, "model.safetensors");
  EXPECT_EQ(d.tokenizer_bytes, 2u);
  EXPECT_EQ(d.tokenizer_class, "T");
  EXPECT_EQ(d.bos.text, "<s>");
  EXPECT_EQ(d.eos.text, "");
  EXPECT_EQ(d.chat_templates, std::vector<std::string>{"tool_use"});
}

// As the caches of the hub have it.
TEST(HfFolder, FilesMayBeLinks) {
  const TemporaryFolder blobs;
  const TemporaryFolder folder;
  write_shards(folder);
  folder.remove(kSecond);
  blobs.write("blob", shard({"c"}).finish());
  std::filesystem::create_symlink(blobs.path_of("blob"), folder.path_of(kSecond));
  EXPECT_TRUE(HfFolder::open(folder.path()).ok());
  blobs.remove("blob");
  EXPECT_EQ(HfFolder::open(folder.path()).status().field(), kSecond);
}

TEST(HfFolder, AWholeFileGoesBeforeTheIndex) {
  const TemporaryFolder folder;
  write_shards(folder);
  folder.write("model.safetensors", shard({"d"}).finish());
  const auto opened = HfFolder::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened->tensors()[0]->name, "d");
}

struct Fault {
  const char* field;
  std::function<void(const TemporaryFolder&)> change;
};

std::function<void(const TemporaryFolder&)> index_of(const char* text) {
  return [text](const TemporaryFolder& folder) { folder.write(kHfIndexFile, text); };
}

TEST(HfFolder, FaultsAreRefusedByName) {
  const std::vector<Fault> faults = {
      {"config.json", [](const auto& f) { f.remove("config.json"); }},
      {"config.json", [](const auto& f) { f.write("config.json", "{"); }},
      {"tokenizer_config.json", [](const auto& f) { f.write("tokenizer_config.json", "3"); }},
      {"generation_config.json",
       [](const auto& f) {
         f.remove("generation_config.json");
         std::filesystem::create_directory(f.path_of("generation_config.json"));
       }},
      {"tokenizer.json",
       [](const auto& f) {
         f.remove("tokenizer.json");
         std::filesystem::create_symlink("nowhere", f.path_of("tokenizer.json"));
       }},
      {kFirst, [](const auto& f) { f.remove(kFirst); }},
      {kSecond, [](const auto& f) { f.remove(kSecond); }},
      {kSecond,
       [](const auto& f) {
         f.remove(kSecond);
         std::filesystem::create_directory(f.path_of(kSecond));
       }},
      {"model-00002-of-00002.safetensors.header.length",
       [](const auto& f) { f.write(kSecond, std::string("short")); }},
      {"model.safetensors", [](const auto& f) { f.remove(kHfIndexFile); }},
      // A tensor in both files; one in the wrong file; one that the index lacks; a missing one.
      {"a", [](const auto& f) { f.write(kSecond, shard({"c", "a"}).finish()); }},
      {"c",
       [](const auto& f) {
         f.write(kFirst, shard({"a", "b", "c"}).finish());
         f.write(kSecond, shard({}).finish());
       }},
      {"extra", [](const auto& f) { f.write(kSecond, shard({"c", "extra"}).finish()); }},
      {"b", [](const auto& f) { f.write(kFirst, shard({"a"}).finish()); }},
      {"c",
       [](const auto& f) {
         SafetensorsWriter w = shard({"c"});
         w.tensors[0].data.resize(11);
         f.write(kSecond, w.finish());
       }},
      {kHfIndexFile, index_of("[]")},
      {kHfIndexFile, index_of("{")},
      {"model.safetensors.index.json.weight_map", index_of("{}")},
      {"model.safetensors.index.json.weight_map", index_of(R"({"weight_map": []})")},
      {"model.safetensors.index.json.weight_map", index_of(R"({"weight_map": {}})")},
      {"model.safetensors.index.json.weight_map",
       index_of(R"({"weight_map": {"a\u0001": "model-00001-of-00002.safetensors"}})")},
      {"model.safetensors.index.json.weight_map.a", index_of(R"({"weight_map": {"a": 3}})")},
      {"model.safetensors.index.json.weight_map.a", index_of(R"({"weight_map": {"a": ""}})")},
      {"model.safetensors.index.json.weight_map.a", index_of(R"({"weight_map": {"a": "."}})")},
      {"model.safetensors.index.json.weight_map.a", index_of(R"({"weight_map": {"a": ".."}})")},
      {"model.safetensors.index.json.weight_map.a",
       index_of(R"({"weight_map": {"a": "../model-00001-of-00002.safetensors"}})")},
      {"model.safetensors.index.json.weight_map.a",
       index_of(R"({"weight_map": {"a": "/etc/passwd"}})")},
      {"model.safetensors.index.json.weight_map.a",
       index_of(R"({"weight_map": {"a": "x\u0000.safetensors"}})")},
      {"model.safetensors.index.json.metadata",
       index_of(R"({"metadata": 3, "weight_map": {"a": "x"}})")},
      {"model.safetensors.index.json.metadata.total_size",
       index_of(R"({"metadata": {"total_size": "36"}, "weight_map": {"a": "x"}})")},
      {"model.safetensors.index.json.metadata.total_size",
       index_of(R"({"metadata": {"total_size": 37},
                    "weight_map": {"a": "model-00001-of-00002.safetensors",
                                   "b": "model-00001-of-00002.safetensors",
                                   "c": "model-00002-of-00002.safetensors"}})")},
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    const TemporaryFolder folder;
    write_shards(folder);
    ASSERT_TRUE(HfFolder::open(folder.path()).ok());
    faults[i].change(folder);
    const Status status = HfFolder::open(folder.path()).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << i << " " << status.to_string();
    EXPECT_EQ(status.field(), faults[i].field) << i << " " << status.to_string();
  }
}

TEST(HfFolder, PyTorchsOwnFilesAreRefusedAsSuch) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "x.pth"}) {
    const TemporaryFolder folder;
    write_small_files(folder);
    folder.write(name, "pickle");
    const Status status = HfFolder::open(folder.path()).status();
    EXPECT_EQ(status.code(), Code::kUnimplemented);
    EXPECT_EQ(status.field(), name);
    EXPECT_NE(status.message().find("safetensors"), std::string::npos);
  }
}

TEST(HfFolder, OtherPathsAreRefused) {
  const TemporaryFolder folder;
  folder.write("file", "");
  EXPECT_EQ(HfFolder::open(folder.path_of("absent")).status().code(), Code::kNotFound);
  EXPECT_EQ(HfFolder::open(folder.path_of("file")).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(HfFolder::open(folder.path()).status().field(), "config.json");
}

}  // namespace
}  // namespace chorus
