#include "exporter/hf_config.h"

#include <gtest/gtest.h>
#include <string>

namespace chorus {
namespace {

class HfConfigTest : public testing::Test {
 protected:
  // Valid until the next call.
  HfConfig config(std::string_view text) {
    value_ = json::parse(text, "test").value();
    return HfConfig(value_);
  }

 private:
  json::Value value_;
};

void expect_status(const Status& status, Code code, const char* field) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  EXPECT_EQ(status.field(), field) << status.to_string();
}

TEST_F(HfConfigTest, GivesTypedMembers) {
  const HfConfig c = config(R"({"i": 7, "f": 1e-5, "whole": 10000, "b": true, "s": "x", "n": null,
                                "ints": [1, 2], "floats": [0.5, 2], "strings": ["a"]})");
  EXPECT_EQ(*c.get_int("i", 0, 9), 7);
  EXPECT_EQ(*c.int_or("i", 3, 0, 9), 7);
  EXPECT_EQ(*c.int_or("absent", 3, 0, 9), 3);
  EXPECT_EQ(*c.int_or("n", 3, 0, 9), 3);
  EXPECT_EQ(*c.get_float("f"), 1e-5);
  EXPECT_EQ(*c.get_float("whole"), 10000.0);
  EXPECT_EQ(*c.float_or("absent", 0.5), 0.5);
  EXPECT_TRUE(*c.bool_or("b", false));
  EXPECT_TRUE(*c.bool_or("absent", true));
  EXPECT_EQ(*c.get_string("s"), "x");
  EXPECT_EQ(*c.string_or("n", "y"), "y");
  EXPECT_EQ(**c.find_ints("ints", 0, 5), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(**c.find_floats("floats"), (std::vector<double>{0.5, 2.0}));
  EXPECT_EQ(**c.find_strings("strings"), std::vector<std::string>{"a"});
  EXPECT_FALSE(c.find_ints("absent", 0, 5)->has_value());
  EXPECT_FALSE(c.find_section("absent")->has_value());
  EXPECT_TRUE(c.has("i"));
  EXPECT_FALSE(c.has("n"));
  EXPECT_EQ(c.keys().size(), 8u);
  EXPECT_TRUE(c.check_all_used().ok());
}

TEST_F(HfConfigTest, IllTypedMembersAreRefusedByName) {
  const HfConfig c = config(R"({"i": 7, "s": "x", "n": null, "list": [1, "x"], "half": 0.5,
                                "o": {"i": [], "p": {"q": 1}}})");
  expect_status(c.get_int("i", 8, 9).status(), Code::kDataLoss, "config.json.i");
  expect_status(c.get_int("s", 8, 9).status(), Code::kDataLoss, "config.json.s");
  expect_status(c.get_int("half", 0, 9).status(), Code::kDataLoss, "config.json.half");
  expect_status(c.get_int("n", 8, 9).status(), Code::kDataLoss, "config.json.n");
  expect_status(c.get_int("absent", 8, 9).status(), Code::kDataLoss, "config.json.absent");
  expect_status(c.int_or("s", 8, 8, 9).status(), Code::kDataLoss, "config.json.s");
  expect_status(c.get_float("s").status(), Code::kDataLoss, "config.json.s");
  expect_status(c.float_or("s", 1).status(), Code::kDataLoss, "config.json.s");
  expect_status(c.bool_or("i", true).status(), Code::kDataLoss, "config.json.i");
  expect_status(c.get_string("i").status(), Code::kDataLoss, "config.json.i");
  expect_status(c.string_or("i", "").status(), Code::kDataLoss, "config.json.i");
  expect_status(c.find_ints("i", 0, 9).status(), Code::kDataLoss, "config.json.i");
  expect_status(c.find_ints("list", 0, 9).status(), Code::kDataLoss, "config.json.list[1]");
  expect_status(c.find_ints("list", 2, 9).status(), Code::kDataLoss, "config.json.list[0]");
  expect_status(c.find_floats("list").status(), Code::kDataLoss, "config.json.list[1]");
  expect_status(c.find_strings("list").status(), Code::kDataLoss, "config.json.list[0]");
  expect_status(c.section("absent").status(), Code::kDataLoss, "config.json.absent");
  expect_status(c.section("i").status(), Code::kDataLoss, "config.json.i");
  expect_status(c.find_section("s").status(), Code::kDataLoss, "config.json.s");
  const HfConfig o = c.section("o").value();
  expect_status(o.get_int("i", 0, 9).status(), Code::kDataLoss, "config.json.o.i");
  expect_status(o.section("p")->get_string("q").status(), Code::kDataLoss, "config.json.o.p.q");
}

TEST_F(HfConfigTest, OnlyNeutralValuesAreExpected) {
  const HfConfig c = config(R"({"one": 1.0, "two": 2, "yes": true, "no": false, "silu": "silu",
                                "n": null, "o": {"a": 1}})");
  EXPECT_TRUE(c.expect_number("one", 1).ok());
  EXPECT_TRUE(c.expect_number("n", 1).ok());
  EXPECT_TRUE(c.expect_number("absent", 1).ok());
  EXPECT_TRUE(c.expect_bool("no", false).ok());
  EXPECT_TRUE(c.expect_string("silu", "silu").ok());
  EXPECT_TRUE(c.expect_absent("n").ok());
  expect_status(c.expect_number("two", 1), Code::kUnimplemented, "config.json.two");
  expect_status(c.expect_number("silu", 1), Code::kDataLoss, "config.json.silu");
  expect_status(c.expect_bool("yes", false), Code::kUnimplemented, "config.json.yes");
  expect_status(c.expect_bool("one", false), Code::kDataLoss, "config.json.one");
  expect_status(c.expect_string("silu", "gelu"), Code::kUnimplemented, "config.json.silu");
  expect_status(c.expect_string("one", "gelu"), Code::kDataLoss, "config.json.one");
  expect_status(c.expect_absent("o"), Code::kUnimplemented, "config.json.o");
  EXPECT_TRUE(c.check_all_used().ok());
}

TEST_F(HfConfigTest, TheFirstUnknownMemberIsRefusedByName) {
  const char* text = R"({"transformers_version": "5", "hidden_size": 8, "new_feature": 1,
                         "other_feature": null})";
  HfConfig c = config(text);
  expect_status(c.check_all_used(), Code::kUnimplemented, "config.json.hidden_size");
  EXPECT_TRUE(c.get_int("hidden_size", 1, 10).ok());
  expect_status(c.check_all_used(), Code::kUnimplemented, "config.json.new_feature");
  constexpr std::string_view kAllowed[] = {"new_feature"};
  EXPECT_TRUE(c.check_all_used(kAllowed).ok());
  c.skip("new_feature");
  EXPECT_TRUE(c.check_all_used().ok());
  // Each view has a record of its own.
  c = config(text);
  expect_status(c.check_all_used(), Code::kUnimplemented, "config.json.hidden_size");
}

TEST_F(HfConfigTest, SectionsAreCheckedToo) {
  const HfConfig c = config(R"({"rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
      "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}, "vision_config": {"a": 1}})");
  const HfConfig rope = c.section("rope_parameters").value();
  const HfConfig full = rope.section("full_attention").value();
  EXPECT_EQ(*full.get_float("rope_theta"), 1e6);
  EXPECT_EQ(*full.get_string("rope_type"), "linear");
  expect_status(c.check_all_used(), Code::kUnimplemented,
                "config.json.rope_parameters.full_attention.factor");
  EXPECT_EQ(*full.get_float("factor"), 8.0);
  expect_status(c.check_all_used(), Code::kUnimplemented,
                "config.json.rope_parameters.sliding_attention");
  rope.skip("sliding_attention");
  expect_status(c.check_all_used(), Code::kUnimplemented, "config.json.vision_config");
  EXPECT_TRUE(rope.check_all_used().ok());
  c.skip("vision_config");
  EXPECT_TRUE(c.check_all_used().ok());
}

TEST_F(HfConfigTest, SwitchedOffMembersPassAndSwitchedOnOnesDoNot) {
  EXPECT_TRUE(config(R"({"is_encoder_decoder": false, "add_cross_attention": false,
                         "pruned_heads": {}, "architectures": ["X"]})")
                  .check_all_used()
                  .ok());
  expect_status(config(R"({"is_encoder_decoder": true})").check_all_used(), Code::kUnimplemented,
                "config.json.is_encoder_decoder");
  expect_status(config(R"({"pruned_heads": {"1": [0]}})").check_all_used(), Code::kUnimplemented,
                "config.json.pruned_heads");
  expect_status(config(R"({"quantization_config": {}})").check_all_used(), Code::kUnimplemented,
                "config.json.quantization_config");
  expect_status(config("{\"a\\u0007\": 1}").check_all_used(), Code::kUnimplemented,
                "config.json.(unprintable)");
}

}  // namespace
}  // namespace chorus
