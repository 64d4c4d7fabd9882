#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "exporter/gguf.h"
#include "exporter/testing/gguf_writer.h"
#include "exporter/testing/temporary_folder.h"

namespace chorus {
namespace {

using Bytes = GgufWriter::Bytes;
using Parts = std::vector<GgufWriter>;

// tiny_gguf() in three parts, the first without tensors, as llama-gguf-split can write it.
Parts tiny_parts() {
  const GgufWriter whole = tiny_gguf();
  Parts parts(3);
  parts[0].values = whole.values;
  for (uint32_t i = 0; i < 3; ++i) {
    parts[i].set_u32("split.no", i);
    parts[i].set_u32("split.count", 3);
    parts[i].set_u32("split.tensors.count", static_cast<uint32_t>(whole.tensors.size()));
  }
  parts[1].tensors.assign(whole.tensors.begin(), whole.tensors.begin() + 4);
  parts[2].tensors.assign(whole.tensors.begin() + 4, whole.tensors.end());
  return parts;
}

std::string name_of(size_t part) {
  return "tiny-0000" + std::to_string(part + 1) + "-of-00003.gguf";
}

void write(const TemporaryFolder& folder, const Parts& parts) {
  for (size_t i = 0; i < parts.size(); ++i) folder.write(name_of(i), parts[i].finish());
}

void expect_whole(const GgufFile& file) {
  const GgufWriter whole = tiny_gguf();
  EXPECT_EQ(file.num_parts(), 3);
  EXPECT_EQ(file.get_int("llama.block_count", 0, 9).value(), 1);
  ASSERT_EQ(file.tensors().size(), whole.tensors.size());
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    const GgufTensor* tensor = file.find_tensor(whole.tensors[i].name);
    ASSERT_EQ(tensor, &file.tensors()[i]);
    EXPECT_EQ(Bytes(tensor->data.begin(), tensor->data.end()), whole.tensors[i].data);
  }
}

TEST(GgufSplit, PartsAreOneFile) {
  const TemporaryFolder folder;
  write(folder, tiny_parts());
  auto file = GgufFile::open(folder.path_of(name_of(0)));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  expect_whole(*file);
  const GgufFile moved = std::move(file).value();
  expect_whole(moved);

  std::vector<Bytes> images;
  for (const GgufWriter& part : tiny_parts()) images.push_back(part.finish());
  const std::vector<std::span<const std::byte>> spans(images.begin(), images.end());
  const auto parsed = GgufFile::parse_parts(spans);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  expect_whole(*parsed);
}

TEST(GgufSplit, AWholeFileMaySaySo) {
  for (const uint32_t count : {0u, 1u}) {
    GgufWriter w = tiny_gguf();
    w.set_u32("split.count", count);
    w.set_u32("split.no", 0);
    const Bytes bytes = w.finish();
    const auto file = GgufFile::parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_EQ(file->num_parts(), 1);
  }
}

TEST(GgufSplit, OtherPartsSayWhichToOpen) {
  const TemporaryFolder folder;
  write(folder, tiny_parts());
  const Status status = GgufFile::open(folder.path_of(name_of(2))).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.field(), "split.no");
  EXPECT_NE(status.message().find("open tiny-00001-of-00003.gguf"), std::string::npos)
      << status.to_string();
}

TEST(GgufSplit, APartAloneIsNoFile) {
  const Parts parts = tiny_parts();
  EXPECT_EQ(GgufFile::parse(parts[0].finish()).status().field(), "split.count");
  EXPECT_EQ(GgufFile::parse(parts[1].finish()).status().field(), "split.no");
  EXPECT_EQ(GgufFile::parse_parts({}).status().field(), "split.count");
}

struct Fault {
  const char* field;
  std::function<void(Parts&)> change;
};

TEST(GgufSplit, FaultsAreRefusedByName) {
  const std::vector<Fault> faults = {
      {"split.no", [](Parts& p) { std::swap(p[1], p[2]); }},
      {"split.no", [](Parts& p) { p[0].remove("split.no"); }},
      {"split.no", [](Parts& p) { p[0].set_u32("split.no", 3); }},
      {"split.no", [](Parts& p) { p[1].set_string("split.no", "1"); }},
      {"split.count", [](Parts& p) { p[1].set_u32("split.count", 4); }},
      {"split.count", [](Parts& p) { p[1].remove("split.count"); }},
      {"split.count", [](Parts& p) { p[0].set_u32("split.count", 2); }},
      {"split.count", [](Parts& p) { p[0].set_u32("split.count", 1u << 20); }},
      {"split.tensors.count", [](Parts& p) { p[2].set_u32("split.tensors.count", 4); }},
      {"split.tensors.count", [](Parts& p) { p[2].tensors.pop_back(); }},
      {"token_embd.weight", [](Parts& p) { p[2].tensors.push_back(p[1].tensors[0]); }},
      {"general.name", [](Parts& p) { p[2].set_string("general.name", "other"); }},
      {"new.key", [](Parts& p) { p[2].set_u32("new.key", 1); }},
      {"output_norm.weight", [](Parts& p) { p[2].tensors.back().data.resize(20); }},
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    const TemporaryFolder folder;
    Parts parts = tiny_parts();
    faults[i].change(parts);
    write(folder, parts);
    const Status status = GgufFile::open(folder.path_of(name_of(0))).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << i << " " << status.to_string();
    EXPECT_EQ(status.field(), faults[i].field) << i << " " << status.to_string();
  }
}

TEST(GgufSplit, MissingAndOtherFilesAreNamed) {
  const TemporaryFolder folder;
  write(folder, tiny_parts());
  folder.write(name_of(1), "no GGUF file");
  Status status = GgufFile::open(folder.path_of(name_of(0))).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.field(), name_of(1) + ".header.magic");
  folder.remove(name_of(1));
  status = GgufFile::open(folder.path_of(name_of(0))).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.field(), name_of(1));
  folder.write("renamed.gguf", tiny_parts()[0].finish());
  EXPECT_EQ(GgufFile::open(folder.path_of("renamed.gguf")).status().field(), "split.count");
}

}  // namespace
}  // namespace chorus
