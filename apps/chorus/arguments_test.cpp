#include "arguments.h"

#include <gtest/gtest.h>

namespace chorus::cli {
namespace {

TEST(Arguments, CountsAreWholeNumbersWithinBounds) {
  EXPECT_EQ(parse_count("--n", "12", 1, 100).value(), 12);
  for (const char* text :
       {"", "0", "101", "-1", "1.5", "1e1", "12x", " 12", "0x10", "99999999999999999999"}) {
    const auto count = parse_count("--n", text, 1, 100);
    ASSERT_FALSE(count.ok()) << text;
    EXPECT_EQ(count.status().to_string(),
              "--n: expected a whole number from 1 to 100, found \"" + std::string(text) + "\"");
  }
}

TEST(Arguments, SizesHaveUnits) {
  EXPECT_EQ(parse_size("--kv-memory", "512MiB").value(), int64_t{512} << 20);
  EXPECT_EQ(parse_size("--kv-memory", "2GiB").value(), int64_t{2} << 30);
  EXPECT_EQ(parse_size("--kv-memory", "1.5KB").value(), 1500);
  EXPECT_EQ(parse_size("--kv-memory", "7B").value(), 7);
  for (const char* text : {"", "512", "MiB", "-1MiB", "0MiB", "1PiB", "nanMiB", "1e30GiB"}) {
    EXPECT_FALSE(parse_size("--kv-memory", text).ok()) << text;
  }
}

TEST(Arguments, ChoicesNameTheAlternatives) {
  EXPECT_EQ(parse_choice("--kv-type", "f32", {"bf16", "f32"}).value(), 1);
  EXPECT_EQ(parse_choice("--kv-type", "f16", {"bf16", "f32"}).status().to_string(),
            "--kv-type: expected bf16 or f32, found \"f16\"");
}

TEST(Arguments, SuggestsWhatMayHaveBeenMeant) {
  const std::vector<std::string> verbs = {"export", "inspect", "tokenize", "run", "perplexity"};
  EXPECT_EQ(near_matches("exprot", verbs), std::vector<std::string>{"export"});
  EXPECT_EQ(near_matches("rn", verbs), std::vector<std::string>{"run"});
  EXPECT_EQ(near_matches("perp", verbs), std::vector<std::string>{"perplexity"});
  EXPECT_TRUE(near_matches("zebra", verbs).empty());
  EXPECT_EQ(suggestion("inspct", verbs), "; did you mean inspect?");
}

}  // namespace
}  // namespace chorus::cli
