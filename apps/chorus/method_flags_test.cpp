#include "method_flags.h"

#include <gtest/gtest.h>

namespace chorus::cli {
namespace {

using Words = std::vector<std::string>;

Result<std::vector<Method>> applied(const Words& words, const std::vector<Method>& methods) {
  CommandLine line("chorus test", "tests");
  MethodFlags flags;
  flags.declare(line);
  CHORUS_RETURN_IF_ERROR(line.read(words));
  CHORUS_RETURN_IF_ERROR(flags.parse());
  EXPECT_EQ(flags.is_given(), !words.empty());
  return flags.apply(methods);
}

const std::vector<Method> kForward = forward_method(2048);
const std::vector<Method> kBoth = decode_and_prefill({1, 3, 9}, 5, 100);

TEST(MethodFlags, WhatIsNotGivenStaysOrFollows) {
  const auto expect = [](const Words& words, const std::vector<Method>& from,
                         const std::vector<Method>& to) {
    const auto methods = applied(words, from);
    ASSERT_TRUE(methods.ok()) << methods.status().to_string();
    EXPECT_EQ(*methods, to) << testing::PrintToString(words);
  };
  for (const auto& methods : {kForward, kBoth}) expect({}, methods, methods);
  expect({"--methods", "forward"}, kForward, kForward);
  expect({"--methods", "forward"}, kBoth, forward_method(100));
  expect({"--max-step", "7"}, kForward, forward_method(7));
  expect({"--methods", "decode,prefill"}, kForward, decode_and_prefill({1, 2, 4, 8}, 2, 2048));
  expect({"--methods", "decode,prefill", "--max-step", "5"}, kForward,
         decode_and_prefill({1, 2, 4}, 2, 5));
  expect({"--methods", "decode,prefill", "--max-step", "1"}, kForward,
         decode_and_prefill({1}, 1, 1));
  expect({"--methods", "decode,prefill", "--decode-widths", "1,16", "--prefill", "5:512"}, kForward,
         decode_and_prefill({1, 16}, 5, 512));
  expect({"--methods", "decode,prefill"}, kBoth, kBoth);
  expect({"--prefill", "2:64"}, kBoth, decode_and_prefill({1, 3, 9}, 2, 64));
  expect({"--decode-widths", "1"}, kBoth, decode_and_prefill({1}, 5, 100));
  expect({"--max-step", "4"}, kBoth, decode_and_prefill({1, 3}, 4, 4));
  expect({"--max-step", "300"}, kBoth, decode_and_prefill({1, 3, 9}, 5, 300));
}

TEST(MethodFlags, WhatCannotBeIsRefusedByTheFlag) {
  const auto field = [](Words words, bool with_methods = true) {
    if (with_methods) words.insert(words.begin(), {"--methods", "decode,prefill"});
    const auto methods = applied(words, kForward);
    EXPECT_TRUE(methods.ok() || methods.status().code() == Code::kInvalidArgument);
    return methods.ok() ? "ok" : methods.status().field();
  };
  for (const char* text : {"", "decode", "prefill,decode", "forward,decode", "backward"})
    EXPECT_EQ(field({"--methods", text}, false), "--methods") << text;
  for (const char* text : {"", "0", "x", "1,", ",1", "1,2,2", "4,2", "1;2", "1,-2", "2000000"})
    EXPECT_EQ(field({"--decode-widths", text}), "--decode-widths") << text;
  for (const char* text : {"", "5", "5:", ":5", "5:4", "0:4", "1:2:3", "a:b", "1:2000000"})
    EXPECT_EQ(field({"--prefill", text}), "--prefill") << text;
  for (const char* text : {"", "0", "x", "2000000"})
    EXPECT_EQ(field({"--max-step", text}), "--max-step") << text;
  // Combinations.
  EXPECT_EQ(field({"--decode-widths", "2,4", "--prefill", "2:64"}), "--decode-widths");
  EXPECT_EQ(field({"--decode-widths", "2,4", "--prefill", "1:64"}), "ok");
  EXPECT_EQ(field({"--decode-widths", "1,65", "--prefill", "2:64"}), "--decode-widths");
  EXPECT_EQ(field({"--decode-widths", "1,65", "--max-step", "64"}), "--decode-widths");
  EXPECT_EQ(field({"--prefill", "2:65", "--max-step", "64"}), "--prefill");
  EXPECT_EQ(field({"--decode-widths", "1"}, false), "--decode-widths");
  EXPECT_EQ(field({"--prefill", "1:8"}, false), "--prefill");
  EXPECT_EQ(field({"--methods", "forward", "--prefill", "1:8"}, false), "--prefill");
}

}  // namespace
}  // namespace chorus::cli
