#include "json/value.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <string>

#include "base/random.h"

namespace chorus::json {
namespace {

using namespace std::string_literals;

std::string round_trip(std::string_view text) {
  const auto value = parse(text, "test");
  return value.ok() ? value->dump() : "error: " + value.status().to_string();
}

TEST(Json, KeepsValuesAndOrder) {
  const char* text = R"({"b":[1,-2,0.5,true,null],"a":{"x":"y"},"n":18446744073709551615})";
  EXPECT_EQ(round_trip(text), text);
  const auto value = parse(text, "test").value();
  EXPECT_EQ(value.find("b")->as_array()[1].to_integer("b", -5, 5).value(), -2);
  EXPECT_EQ(value.find("n")->to_unsigned("n").value(), 18446744073709551615u);
  EXPECT_EQ(value.find("missing"), nullptr);
}

TEST(Json, FloatsReadBackToTheSameBits) {
  RandomStream random(7);
  for (int i = 0; i < 20000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random.next());
    float number = 0;
    std::memcpy(&number, &bits, sizeof number);
    if (!std::isfinite(number)) continue;
    const auto back = parse(Value(number).dump(), "test");
    ASSERT_TRUE(back.ok()) << Value(number).dump();
    const float read = static_cast<float>(back->to_number("x").value());
    ASSERT_EQ(std::memcmp(&read, &number, sizeof read), 0) << Value(number).dump();
  }
  EXPECT_EQ(Value(-0.0f).dump(), "-0.0");
  EXPECT_EQ(Value(std::numeric_limits<float>::quiet_NaN()).dump(), "null");
}

TEST(Json, StringsAreValidUtf8) {
  EXPECT_EQ(Value("a\"\\\n\t\x01").dump(), R"("a\"\\\n\t\u0001")");
  EXPECT_EQ(Value("\xC3\xA9\xFF\xE2\x82").dump(),
            "\"\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  EXPECT_EQ(Value("\xED\xA0\x80").dump(), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  EXPECT_EQ(parse(R"("\ud83d\ude00")", "t").value().as_string(), "\xF0\x9F\x98\x80");
}

TEST(Json, FindsARepeatedMemberAmongMany) {
  constexpr int kMembers = 20000;
  std::string text = "{";
  for (int i = 0; i < kMembers; ++i) text += "\"member " + std::to_string(i) + "\":0,";
  EXPECT_EQ(parse(text + "\"last\":0}", "test").value().as_object().size(), kMembers + 1u);
  for (const char* repeated : {"member 15", "member 16", "member 19999"}) {
    const auto value = parse(text + "\"" + repeated + "\":0}", "test");
    ASSERT_FALSE(value.ok()) << repeated;
    EXPECT_NE(value.status().message().find(repeated), std::string::npos);
  }
}

TEST(Json, RefusesWithTheField) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":1,\"a\":2}", "nul", "1 2", "\"\xFF\"", "1e999",
                           "[1e400]", "{\"a\"}", "\"\\ud800\""}) {
    const auto value = parse(text, "body");
    ASSERT_FALSE(value.ok()) << text;
    EXPECT_EQ(value.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(value.status().field(), "body");
  }
  const std::string deep(100000, '[');
  EXPECT_FALSE(parse(deep, "body").ok());
  EXPECT_FALSE(parse("[1,2,3]", "body", {.max_bytes = 4}).ok());
}

TEST(Json, NothingIsPassedOverBehindANulByte) {
  for (const std::string& text : {"{}\0"s, "{}\0x"s, "{\0}"s, "\0{}"s, "[\"a\0\"]"s}) {
    const auto parsed = parse(text, "test");
    EXPECT_FALSE(parsed.ok());
    EXPECT_EQ(parsed.status().message(),
              "not valid JSON at byte " + std::to_string(text.find('\0') + 1));
  }
}

TEST(Json, ReadsTypedValuesWithBounds) {
  const auto value = parse(R"({"i":3.0,"f":1.5,"s":"x","big":1e300})", "t").value();
  EXPECT_EQ(value.find("i")->to_integer("i", 0, 10).value(), 3);
  EXPECT_FALSE(value.find("f")->to_integer("f", 0, 10).ok());
  EXPECT_FALSE(value.find("big")->to_integer("big", 0, 10).ok());
  EXPECT_FALSE(value.find("i")->to_integer("i", 4, 10).ok());
  EXPECT_EQ(value.find("s")->to_number("s").status().to_string(),
            "s: expected a number, found a string");
  EXPECT_EQ(value.find("f")->to_text("f").status().to_string(), "f: expected a string, found 1.5");
}

TEST(JsonParse, SaysAtWhichMemberItWentWrong) {
  const auto field = [](std::string_view text) {
    const auto value = parse_with_paths(text);
    EXPECT_FALSE(value.ok()) << text;
    return value.status().field();
  };
  EXPECT_EQ(field(R"({"a": 1, "seed": 1e999})"), "seed");
  EXPECT_EQ(field(R"({"messages": [{}, {"role": "user", "content": "\ud800"}]})"),
            "messages[1].content");
  EXPECT_EQ(field("{\"stop\": [\"a\", \"\xff\"]}"), "stop[1]");
  EXPECT_EQ(field(R"({"seed": 1, "n": 1, "seed": 2})"), "seed");
  EXPECT_EQ(field(R"({"a": {"b": 1, "b": 2}})"), "a.b");
  EXPECT_EQ(field(R"({"a": 1)"), "");
  EXPECT_EQ(field("x"), "");
  EXPECT_TRUE(parse_with_paths(R"({"a": [1, {"b": null}]})").ok());
}

}  // namespace
}  // namespace chorus::json
