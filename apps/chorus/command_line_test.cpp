#include "command_line.h"

#include <gtest/gtest.h>

namespace chorus::cli {
namespace {

// A verb with a flag of each kind, and what a line came to.
struct Read {
  explicit Read(const std::vector<std::string>& words) {
    CommandLine line("chorus test", "tests");
    declare(line);
    status = line.read(words);
  }
  void declare(CommandLine& line) {
    line.argument("MODEL", model, "a model");
    line.rest("PROMPT", prompts, "[PROMPT...]", "texts");
    line.group("First");
    line.flag("--json", json, "as JSON");
    line.flag("-o,--output", output, "FILE", "where to");
    line.group("Second");
    line.flag("--seed", seed, "N", "of the random numbers");
    line.flag("--system", system, "TEXT", "the system message");
    line.flag("--stop", stop, "TEXT", "end before this text");
  }

  std::string model, output, seed;
  std::vector<std::string> prompts, stop;
  std::optional<std::string> system;
  bool json = false;
  Status status;
};

using Words = std::vector<std::string>;

TEST(CommandLine, FlagsAndArgumentsInAnyOrder) {
  const Read read({"--seed", "1", "m", "a", "--json", "--output=f", "b", "--system", "s"});
  ASSERT_TRUE(read.status.ok()) << read.status.to_string();
  EXPECT_EQ(read.model, "m");
  EXPECT_EQ(read.prompts, (Words{"a", "b"}));
  EXPECT_EQ(read.seed, "1");
  EXPECT_EQ(read.output, "f");
  EXPECT_EQ(read.system, "s");
  EXPECT_TRUE(read.json);
}

TEST(CommandLine, ShortNamesTakeTheirValueInEverySpelling) {
  for (const Words& words : {Words{"m", "-o", "f"}, Words{"m", "-of"}, Words{"m", "-o=f"},
                             Words{"m", "--output", "f"}, Words{"m", "--output=f"}}) {
    const Read read(words);
    EXPECT_TRUE(read.status.ok()) << read.status.to_string();
    EXPECT_EQ(read.output, "f");
  }
}

TEST(CommandLine, TextsAreTakenAsTheyAre) {
  const Words texts = {
      "[a,b]", "[INST] hi [/INST]", "{}", "++", "%%", "run", "-5", "- item", "-", "", "a b", "x=1"};
  Words words = {"m"};
  words.insert(words.end(), texts.begin(), texts.end());
  const Read read(words);
  ASSERT_TRUE(read.status.ok()) << read.status.to_string();
  EXPECT_EQ(read.prompts, texts);
}

TEST(CommandLine, EverythingAfterTheSeparatorIsAnArgument) {
  const Read read({"--json", "--", "m", "--seed", "-o", "--", "x"});
  ASSERT_TRUE(read.status.ok()) << read.status.to_string();
  EXPECT_EQ(read.model, "m");
  EXPECT_EQ(read.prompts, (Words{"--seed", "-o", "--", "x"}));
  EXPECT_TRUE(read.seed.empty());
  const Words words = {"a", "--json", "--", "--help", "--"};
  EXPECT_EQ(before_separator(words).size(), 2u);
}

TEST(CommandLine, AValueIsNotTakenFromTheNextFlag) {
  EXPECT_EQ(Read({"m", "--seed", "--json"}).status.field(), "--seed");
  EXPECT_EQ(Read({"m", "--seed", "--", "1"}).status.field(), "--seed");
  EXPECT_EQ(Read({"m", "--seed"}).status.to_string(), "--seed: expected a value, found none");
  EXPECT_EQ(Read({"m", "-o"}).status.field(), "-o");
  EXPECT_EQ(Read({"m", "--stop=--json", "--seed", "-5"}).stop, Words{"--json"});
}

TEST(CommandLine, AnEmptyValueIsAValue) {
  for (const Words& words : {Words{"m", "--seed=", "7"}, Words{"m", "--seed", "", "7"}}) {
    EXPECT_EQ(Read(words).status.to_string(), "--seed: expected a value, found \"\"");
  }
  const Read read({"m", "--system=", "7", "--stop=", "--stop", "x"});
  ASSERT_TRUE(read.status.ok()) << read.status.to_string();
  EXPECT_EQ(read.system, "");
  EXPECT_EQ(read.stop, (Words{"", "x"}));
  EXPECT_EQ(read.prompts, Words{"7"});
}

TEST(CommandLine, RefusesWithTheNameOfTheFlag) {
  EXPECT_EQ(Read({"m", "--seed", "1", "--seed=2"}).status.to_string(),
            "--seed: expected once, found again with \"2\"");
  EXPECT_EQ(Read({"m", "--system", "", "--system", ""}).status.field(), "--system");
  EXPECT_EQ(Read({"m", "--json=yes"}).status.to_string(),
            "--json: expected no value, found \"yes\"");
  EXPECT_EQ(Read({"m", "--json="}).status.field(), "--json");
  EXPECT_TRUE(Read({"m", "--json", "--json"}).status.ok());
  EXPECT_EQ(Read({}).status.to_string(), "MODEL: expected a model");
  EXPECT_EQ(Read({""}).status.field(), "MODEL");
  const Status unknown = Read({"m", "--sede=1"}).status;
  EXPECT_EQ(unknown.field(), "--sede");
  EXPECT_NE(unknown.message().find("did you mean --seed"), std::string::npos);
}

TEST(CommandLine, TooManyArguments) {
  CommandLine line("chorus test", "tests");
  std::string model;
  line.argument("MODEL", model, "a model");
  const Words words = {"m", "n"};
  EXPECT_EQ(line.read(words), invalid_argument("n", "expected no further argument"));
}

TEST(CommandLine, HelpIsGroupedAndComplete) {
  CommandLine line("chorus test", "tests");
  Read read({"m"});
  read.declare(line);
  EXPECT_EQ(line.help(),
            "chorus test: tests\n\nUsage: chorus test [FLAGS] MODEL [PROMPT...]\n\n"
            "  MODEL                       a model\n"
            "  PROMPT                      texts\n"
            "\nFirst:\n"
            "  --json                      as JSON\n"
            "  -o, --output FILE           where to\n"
            "\nSecond:\n"
            "  --seed N                    of the random numbers\n"
            "  --system TEXT               the system message\n"
            "  --stop TEXT                 end before this text\n");
}

}  // namespace
}  // namespace chorus::cli
