#include "exporter/safetensors.h"

#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/random.h"
#include "exporter/testing/safetensors_writer.h"
#include "exporter/testing/temporary_folder.h"

namespace chorus {
namespace {

using Bytes = SafetensorsWriter::Bytes;

// Parses a copy of exactly these bytes, so that a read past the end is seen by the sanitizer.
Status parse(const Bytes& bytes) {
  const Bytes copy(bytes);
  return SafetensorsFile::parse(copy).status();
}

Bytes counted_bytes(size_t size, uint64_t seed) {
  RandomStream random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next() & 0xff);
  return bytes;
}

SafetensorsWriter example() {
  SafetensorsWriter w;
  w.metadata.set("format", "pt");
  w.add("b.weight", "BF16", {2, 3}, counted_bytes(12, 1));
  w.add("a.weight", "F32", {3}, counted_bytes(12, 2));
  w.add("scale", "F32", {}, counted_bytes(4, 3));
  w.add("empty", "F16", {0, 7}, {});
  w.add("half", "F16", {1, 1, 5}, counted_bytes(10, 4));
  return w;
}

TEST(Safetensors, ReadsWhatWasWritten) {
  for (const char* padding : {"", " ", "       "}) {
    SafetensorsWriter w = example();
    w.padding = padding;
    const Bytes bytes = w.finish();
    const auto file = SafetensorsFile::parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    ASSERT_EQ(file->tensors().size(), w.tensors.size());
    for (size_t i = 0; i < w.tensors.size(); ++i) {
      const SafetensorsTensor& tensor = file->tensors()[i];
      EXPECT_EQ(file->find_tensor(w.tensors[i].name), &tensor);
      EXPECT_EQ(tensor.name, w.tensors[i].name);
      EXPECT_EQ(tensor.type_name, w.tensors[i].type);
      EXPECT_EQ(tensor.shape, w.tensors[i].shape);
      EXPECT_EQ(Bytes(tensor.data.begin(), tensor.data.end()), w.tensors[i].data);
    }
    EXPECT_EQ(file->find_tensor("b.weight")->type, SafetensorsType::kBF16);
    EXPECT_EQ(file->find_tensor("a.weight")->type, SafetensorsType::kF32);
    EXPECT_EQ(file->find_tensor("half")->type, SafetensorsType::kF16);
    EXPECT_EQ(file->find_tensor("b.weight")->num_elements(), 6);
    EXPECT_EQ(file->find_tensor("scale")->num_elements(), 1);
    EXPECT_EQ(file->find_tensor("empty")->num_elements(), 0);
    EXPECT_EQ(file->find_tensor("absent"), nullptr);
    ASSERT_EQ(file->metadata().size(), 1u);
    EXPECT_EQ(file->metadata()[0].second, "pt");
  }
}

TEST(Safetensors, TheOrderOfTheHeaderNeedNotBeThatOfTheData) {
  const SafetensorsWriter w = example();
  json::Object members = w.header();
  std::swap(members[1], members[5]);
  const Bytes bytes = SafetensorsWriter::join(json::Value(members).dump(), w.data());
  const auto file = SafetensorsFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->tensors()[0].name, "half");
  EXPECT_EQ(file->find_tensor("b.weight")->data.data(), file->tensors()[4].data.data());
}

TEST(Safetensors, MapsAFileAndMoves) {
  const TemporaryFolder folder;
  const SafetensorsWriter w = example();
  folder.write("x.safetensors", w.finish());
  auto opened = SafetensorsFile::open(folder.path_of("x.safetensors"));
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const SafetensorsTensor* tensor = opened->find_tensor("a.weight");
  const SafetensorsFile moved = std::move(opened).value();
  EXPECT_EQ(moved.find_tensor("a.weight"), tensor);
  EXPECT_EQ(Bytes(tensor->data.begin(), tensor->data.end()), w.tensors[1].data);
  const auto missing = SafetensorsFile::open(folder.path_of("y.safetensors"));
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
}

TEST(Safetensors, AFileWithoutTensorsIsEmpty) {
  const Bytes bytes = SafetensorsWriter::join("{}", {});
  EXPECT_TRUE(SafetensorsFile::parse(bytes)->tensors().empty());
}

TEST(Safetensors, OtherTypesAreListedAndTheirSizesChecked) {
  SafetensorsWriter w = example();
  w.add("fp8", "F8_E4M3", {3, 2}, Bytes(6));
  w.add("fp4", "F4", {3, 2}, Bytes(3));
  w.add("later", "F12_NEW", {3}, Bytes(50));
  const Bytes bytes = w.finish();
  const auto file = SafetensorsFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->find_tensor("fp8")->type, SafetensorsType::kOther);
  EXPECT_EQ(file->find_tensor("later")->type_name, "F12_NEW");
  EXPECT_EQ(file->find_tensor("later")->data.size(), 50u);
  w.tensor("fp4").shape = {5};
  EXPECT_EQ(parse(w.finish()).field(), "fp4");  // 20 bits
}

TEST(Safetensors, EveryTruncationAndEveryLongerFileIsRefused) {
  Bytes bytes = example().finish();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Status status = parse(Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size)));
    ASSERT_EQ(status.code(), Code::kDataLoss) << size;
    ASSERT_FALSE(status.field().empty()) << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_EQ(parse(bytes).field(), "header");
}

struct Fault {
  const char* field;
  std::function<void(SafetensorsWriter&)> change;
};

TEST(Safetensors, FaultsOfTensorsAreRefusedByName) {
  const std::vector<Fault> faults = {
      {"a.weight", [](SafetensorsWriter& w) { w.tensor("a.weight").shape = {4}; }},
      {"a.weight", [](SafetensorsWriter& w) { w.tensor("a.weight").shape = {-3}; }},
      {"a.weight", [](SafetensorsWriter& w) { w.tensor("a.weight").shape = {3, 0}; }},
      {"a.weight", [](SafetensorsWriter& w) { w.tensor("a.weight").type = "BF16"; }},
      {"a.weight", [](SafetensorsWriter& w) { w.tensor("a.weight").type = ""; }},
      {"a.weight", [](SafetensorsWriter& w) { w.tensor("a.weight").type = "F\x01"; }},
      {"a.weight", [](SafetensorsWriter& w) { w.tensor("a.weight").shape = {int64_t{1} << 31}; }},
      {"a.weight",
       [](SafetensorsWriter& w) {
         w.tensor("a.weight").shape = {INT32_MAX, INT32_MAX, INT32_MAX};
       }},
      {"a.weight",
       [](SafetensorsWriter& w) { w.tensor("a.weight").shape = {INT32_MAX, INT32_MAX}; }},
      {"a.weight",
       [](SafetensorsWriter& w) { w.tensor("a.weight").shape = {1, 1, 1, 1, 1, 1, 1, 1, 3}; }},
      {"header.tensors[2]", [](SafetensorsWriter& w) { w.tensors[1].name = ""; }},
      {"header.tensors[2]", [](SafetensorsWriter& w) { w.tensors[1].name = "a\x07"; }},
      {"header.tensors[2]", [](SafetensorsWriter& w) { w.tensors[1].name.assign(600, 'n'); }},
      {"header", [](SafetensorsWriter& w) { w.tensors[1].name = "b.weight"; }},
      {"header.__metadata__", [](SafetensorsWriter& w) { w.metadata = 3; }},
      {"header.__metadata__", [](SafetensorsWriter& w) { w.metadata.set("n", 3); }},
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    SafetensorsWriter w = example();
    faults[i].change(w);
    const Status status = parse(w.finish());
    EXPECT_EQ(status.code(), Code::kDataLoss) << i << " " << status.to_string();
    EXPECT_EQ(status.field(), faults[i].field) << i << " " << status.to_string();
  }
}

// One entry's text in place of the second tensor's, "a.weight", which lies at bytes 12 to 24.
Status parse_entry(std::string_view entry) {
  const SafetensorsWriter w = example();
  json::Object members = w.header();
  members[2].second = json::parse(entry, "test").value();
  return parse(SafetensorsWriter::join(json::Value(members).dump(), w.data()));
}

TEST(Safetensors, FaultsOfEntriesAreRefusedByName) {
  ASSERT_TRUE(parse_entry(R"({"dtype":"F32","shape":[3],"data_offsets":[12,24]})").ok());
  for (const char* entry :
       {"3",
        "[]",
        "null",
        "{}",
        R"({"dtype":"F32","shape":[3]})",
        R"({"dtype":"F32","data_offsets":[12,24]})",
        R"({"shape":[3],"data_offsets":[12,24]})",
        R"({"dtype":1,"shape":[3],"data_offsets":[12,24]})",
        R"({"dtype":"F32","shape":3,"data_offsets":[12,24]})",
        R"({"dtype":"F32","shape":["3"],"data_offsets":[12,24]})",
        R"({"dtype":"F32","shape":[2.5],"data_offsets":[12,24]})",
        R"({"dtype":"F32","shape":[3],"data_offsets":{}})",
        R"({"dtype":"F32","shape":[3],"data_offsets":[12]})",
        R"({"dtype":"F32","shape":[3],"data_offsets":[12,24,36]})",
        R"({"dtype":"F32","shape":[3],"data_offsets":[24,12]})",
        R"({"dtype":"F32","shape":[3],"data_offsets":[-12,24]})",
        R"({"dtype":"F32","shape":[3],"data_offsets":[12,18446744073709551615]})",
        R"({"dtype":"F32","shape":[3],"data_offsets":[18446744073709551612,18446744073709551615]})",
        R"({"dtype":"F32","shape":[3],"data_offsets":[12,1e300]})",
        R"({"dtype":"F32","shape":[3],"data_offsets":[12,24],"strides":[1]})"}) {
    const Status status = parse_entry(entry);
    EXPECT_EQ(status.code(), Code::kDataLoss) << entry;
    EXPECT_EQ(status.field(), "a.weight") << entry << ": " << status.to_string();
  }
}

TEST(Safetensors, OverlapsAndHolesAreRefusedByName) {
  // Over the tensor before, over the one after, and with a hole in front.
  EXPECT_EQ(parse_entry(R"({"dtype":"F32","shape":[3],"data_offsets":[8,20]})").field(),
            "a.weight");
  EXPECT_EQ(parse_entry(R"({"dtype":"F32","shape":[4],"data_offsets":[12,28]})").field(), "scale");
  EXPECT_EQ(parse_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[16,24]})").field(),
            "a.weight");
  // Two tensors on the same bytes.
  EXPECT_EQ(parse_entry(R"({"dtype":"BF16","shape":[6],"data_offsets":[0,12]})").code(),
            Code::kDataLoss);
}

TEST(Safetensors, FaultsOfTheHeaderAreRefused) {
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{100000}, uint64_t{1} << 40,
                                (uint64_t{1} << 63) + 5, ~uint64_t{0}}) {
    Bytes bytes = example().finish();
    std::memcpy(bytes.data(), &length, sizeof length);
    const Status status = parse(bytes);
    EXPECT_EQ(status.code(), Code::kDataLoss) << length;
    EXPECT_TRUE(status.field().starts_with("header")) << status.to_string();
  }
  for (const char* header : {"", "[]", "null", " {}", "{", "{}x", "{\"a\":{},\"a\":{}}",
                             "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}",
                             "{\"a\":[[[[[[[[]]]]]]]]}", "{\"\xff\":{}}"}) {
    const Status status = parse(SafetensorsWriter::join(header, {}));
    EXPECT_EQ(status.code(), Code::kDataLoss) << header;
    EXPECT_EQ(status.field(), "header") << header << ": " << status.to_string();
  }
  EXPECT_EQ(parse(Bytes(7)).field(), "header.length");
}

// What is changed at random is refused or read; the sanitizers watch.
TEST(Safetensors, SurvivesRandomDamage) {
  RandomStream random(11);
  const Bytes bytes = example().finish();
  int num_refused = 0;
  for (int i = 0; i < 3000; ++i) {
    Bytes damaged = bytes;
    for (int j = 0; j < 3; ++j) {
      damaged[random.next() % damaged.size()] = static_cast<std::byte>(random.next() & 0xff);
    }
    num_refused += parse(damaged).ok() ? 0 : 1;
  }
  EXPECT_GT(num_refused, 1500);
}

}  // namespace
}  // namespace chorus
