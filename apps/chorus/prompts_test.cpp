#include "prompts.h"

#include <fstream>
#include <gtest/gtest.h>

namespace chorus::cli {
namespace {

std::string file_path() { return testing::TempDir() + "chorus_prompts"; }

std::string file_with(const std::string& text) {
  std::ofstream(file_path(), std::ios::binary) << text;
  return file_path();
}

std::vector<Prompt> from_prompts_file(const std::string& text, PromptSources sources = {}) {
  sources.prompts_file = file_with(text);
  return read_prompts(sources).value();
}

TEST(Prompts, OneALine) {
  const auto prompts = from_prompts_file("first\r\n\n  second \nthird");
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(*prompts[0].text, "first");
  EXPECT_EQ(*prompts[1].text, "  second ");
  EXPECT_EQ(*prompts[2].text, "third");
}

TEST(Prompts, JsonLinesOverrideTheFlags) {
  PromptSources sources;
  sources.settings.max_tokens = 7;
  sources.settings.stop = {"x"};
  const auto prompts = from_prompts_file(
      "{\"prompt\":\"a\",\"id\":{\"k\":1},\"max_tokens\":3,\"temperature\":0.5,\"seed\":0,\"stop\":"
      "\"y\",\"top_k\":40,\"top_p\":0.9,\"min_p\":0.05}\n"
      "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stop\":[]}\n",
      sources);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_TRUE(prompts[0].status.ok()) << prompts[0].status.to_string();
  EXPECT_EQ(*prompts[0].text, "a");
  EXPECT_EQ(prompts[0].id.dump(), "{\"k\":1}");
  EXPECT_EQ(prompts[0].settings.max_tokens, 3);
  EXPECT_EQ(prompts[0].settings.sampling.temperature, 0.5f);
  EXPECT_EQ(prompts[0].settings.seed, 0u);
  EXPECT_EQ(prompts[0].settings.sampling.top_k, 40);
  EXPECT_EQ(prompts[0].settings.sampling.top_p, 0.9f);
  EXPECT_EQ(prompts[0].settings.sampling.min_p, 0.05f);
  EXPECT_EQ(prompts[0].settings.stop, std::vector<std::string>{"y"});
  EXPECT_EQ(prompts[1].messages.size(), 1u);
  EXPECT_EQ(prompts[1].settings.max_tokens, 7);
  EXPECT_TRUE(prompts[1].settings.stop.empty());
}

TEST(Prompts, PriorityAndDeadline) {
  const auto prompts = from_prompts_file(
      "{\"prompt\":\"a\",\"priority\":-3,\"deadline_ms\":0}\n"
      "{\"prompt\":\"a\"}\n"
      "{\"prompt\":\"a\",\"priority\":2147483648}\n"
      "{\"prompt\":\"a\",\"priority\":\"high\"}\n"
      "{\"prompt\":\"a\",\"deadline_ms\":-1}\n"
      "{\"prompt\":\"a\",\"deadline_ms\":0.5}\n");
  ASSERT_EQ(prompts.size(), 6u);
  EXPECT_TRUE(prompts[0].status.ok()) << prompts[0].status.to_string();
  EXPECT_EQ(prompts[0].settings.priority, -3);
  EXPECT_EQ(prompts[0].settings.deadline_ms, 0);
  EXPECT_EQ(prompts[1].settings.priority, 0);
  EXPECT_FALSE(prompts[1].settings.deadline_ms.has_value());
  for (size_t i = 2; i < prompts.size(); ++i) {
    EXPECT_EQ(prompts[i].status.field(), file_path() + ": line " + std::to_string(i + 1) +
                                             (i < 4 ? ".priority" : ".deadline_ms"));
  }
}

TEST(Prompts, FiltersOutOfTheirRangesFailAlone) {
  PromptSources sources;
  sources.settings.sampling.top_k = 5;
  const auto prompts = from_prompts_file(
      "{\"prompt\":\"a\",\"top_k\":-1,\"top_p\":1,\"min_p\":0}\n"
      "{\"prompt\":\"a\",\"top_k\":-2}\n"
      "{\"prompt\":\"a\",\"top_k\":1.5}\n"
      "{\"prompt\":\"a\",\"top_p\":0}\n"
      "{\"prompt\":\"a\",\"top_p\":1.01}\n"
      "{\"prompt\":\"a\",\"top_p\":1e-60}\n"
      "{\"prompt\":\"a\",\"min_p\":-0.1}\n"
      "{\"prompt\":\"a\",\"min_p\":\"0\"}\n"
      "{\"prompt\":\"a\"}\n",
      sources);
  ASSERT_EQ(prompts.size(), 9u);
  const std::string fields[] = {"",      "top_k", "top_k", "top_p", "top_p",
                                "top_p", "min_p", "min_p", ""};
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(prompts[i].status.ok(), fields[i].empty()) << prompts[i].status.to_string();
    const std::string field = ": line " + std::to_string(i + 1) + "." + fields[i];
    EXPECT_EQ(prompts[i].status.field(), fields[i].empty() ? "" : file_path() + field);
  }
  EXPECT_EQ(prompts[0].settings.sampling.top_k, 0);
  EXPECT_EQ(prompts[8].settings.sampling.top_k, 5);
}

TEST(Prompts, WhatTheCommandLineSaysIsRefusedByName) {
  const auto prompts = from_prompts_file(
      "{\"prompt\":\"a\",\"n\":2}\n"
      "{\"prompt\":\"a\",\"logprobs\":true}\n"
      "{\"prompt\":\"a\",\"best_of\":3}\n"
      "{\"prompt\":\"a\",\"logit_bias\":{\"7\":true}}\n"
      "{\"prompt\":\"a\",\"n\":null,\"seed\":null,\"stop_token_ids\":[3]}\n");
  ASSERT_EQ(prompts.size(), 5u);
  EXPECT_EQ(prompts[0].status.field(), file_path() + ": line 1.n");
  EXPECT_EQ(prompts[1].status.field(), file_path() + ": line 2.logprobs");
  EXPECT_EQ(prompts[2].status.field(), file_path() + ": line 3.best_of");
  EXPECT_EQ(prompts[3].status.field(), file_path() + ": line 4.logit_bias[\"7\"]");
  EXPECT_TRUE(prompts[4].status.ok()) << prompts[4].status.to_string();
  EXPECT_EQ(prompts[4].settings.stop_token_ids, std::vector<TokenId>{3});
}

TEST(Prompts, ABadLineFailsAlone) {
  const auto prompts = from_prompts_file(
      "{\"prompt\":\"good\"}\n"
      "\n"
      "{\"prompt\":\n"
      "{\"id\":5,\"prompt\":\"a\",\"max_tokens\":0}\n"
      "{\"prompt\":\"a\",\"tempreature\":1}\n"
      "{\"prompt\":\"a\",\"messages\":[]}\n"
      "{\"prompt\":7}\n"
      "{\"messages\":[{\"role\":\"user\"}]}\n"
      "[1]\n"
      "{\"prompt\":\"also good\"}\n");
  ASSERT_EQ(prompts.size(), 9u);
  const std::string fields[] = {"",
                                "line 3",
                                "line 4.max_tokens",
                                "line 5.tempreature",
                                "line 6.prompt",
                                "line 7.prompt",
                                "line 8.messages[0]",
                                "line 9",
                                ""};
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(prompts[i].status.ok(), fields[i].empty()) << prompts[i].status.to_string();
    EXPECT_EQ(prompts[i].status.field(), fields[i].empty() ? "" : file_path() + ": " + fields[i]);
  }
  EXPECT_EQ(prompts[2].id.dump(), "5");
  EXPECT_EQ(prompts[2].text, "a");
  EXPECT_EQ(prompts[3].text, "a");
  EXPECT_FALSE(prompts[5].text.has_value());
  EXPECT_NE(prompts[3].status.message().find("did you mean temperature"), std::string::npos);
}

TEST(Prompts, ChatMakesMessagesOfPlainPrompts) {
  PromptSources sources;
  sources.line = {"hello"};
  sources.chat = true;
  sources.system = "be brief";
  const auto prompts = read_prompts(sources).value();
  ASSERT_EQ(prompts.size(), 1u);
  ASSERT_EQ(prompts[0].messages.size(), 2u);
  EXPECT_EQ(prompts[0].messages[0].role, "system");
  EXPECT_EQ(prompts[0].messages[1].content, "hello");
  EXPECT_FALSE(prompts[0].text.has_value());
}

TEST(Prompts, TokenLines) {
  PromptSources sources;
  sources.tokens_file = file_with("[1,2,3]\n\n[]\n[1.5]\n{}\n[-1, 5000000000]\n");
  const auto prompts = read_prompts(sources).value();
  ASSERT_EQ(prompts.size(), 5u);
  EXPECT_EQ(*prompts[0].tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_TRUE(prompts[1].tokens->empty());
  EXPECT_EQ(prompts[2].status.field(), file_path() + ": line 4.tokens[0]");
  EXPECT_EQ(prompts[3].status.field(), file_path() + ": line 5.tokens");
  EXPECT_EQ(prompts[4].status.field(), file_path() + ": line 6.tokens[1]");
}

TEST(Prompts, APromptOfAJsonLineMayBeIds) {
  PromptSources sources;
  sources.chat = true;  // ids are never a message
  const auto prompts = from_prompts_file(
      "{\"prompt\":[1,2,3],\"max_tokens\":4}\n"
      "{\"prompt\":[]}\n"
      "{\"prompt\":[1,\"a\"]}\n",
      sources);
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(*prompts[0].tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_FALSE(prompts[0].text.has_value());
  EXPECT_TRUE(prompts[0].messages.empty());
  EXPECT_EQ(prompts[0].settings.max_tokens, 4);
  EXPECT_TRUE(prompts[1].tokens->empty());
  EXPECT_EQ(prompts[2].status.field(), file_path() + ": line 3.prompt[1]");
}

TEST(Prompts, AMissingFileIsNamed) {
  PromptSources sources;
  sources.prompts_file = testing::TempDir() + "chorus_no_such_prompts";
  const auto prompts = read_prompts(sources);
  ASSERT_FALSE(prompts.ok());
  EXPECT_EQ(prompts.status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace chorus::cli
