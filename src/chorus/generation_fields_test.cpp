#include "chorus/generation_fields.h"

#include <gtest/gtest.h>

namespace chorus {
namespace {

Result<GenerationFields> read(std::string_view text, const FieldRules& rules = {}) {
  return read_generation_fields(json::parse(text, "").value(), {}, rules);
}

GenerationFields good(std::string_view text, const FieldRules& rules = {}) {
  auto fields = read(text, rules);
  EXPECT_TRUE(fields.ok()) << text << ": " << fields.status().to_string();
  return fields.ok() ? std::move(fields).value() : GenerationFields();
}

// "{NAME: VALUE}".
std::string member(std::string_view name, std::string_view value) {
  return "{\"" + std::string(name) + "\":" + std::string(value) + "}";
}

TEST(GenerationFields, EveryParameterIsRead) {
  const GenerationFields fields = good(R"({"model": "x", "stream": true,
      "temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "max_tokens": 7, "seed": 3,
      "stop": ["a", "b"], "stop_token_ids": [5, 0], "ignore_eos": true, "n": 4, "logprobs": true,
      "top_logprobs": 3, "prompt_logprobs": 2, "priority": -1, "deadline_ms": 20,
      "cache_salt": "s", "typical_p": 0.8, "presence_penalty": 1.5, "frequency_penalty": -0.5,
      "repetition_penalty": 1.25, "logit_bias": {"5": -1, "9": 200.5}, "bad_words": ["x", "y z"],
      "allowed_token_ids": [4, 9], "min_tokens": 2, "include_stop_str_in_output": true,
      "skip_special_tokens": false, "best_of": 6, "truncate_prompt_tokens": -1})");
  EXPECT_EQ(fields.sampling.typical_p, 0.8f);
  EXPECT_EQ(fields.sampling.presence_penalty, 1.5f);
  EXPECT_EQ(fields.sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(fields.sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(fields.sampling.logit_bias, (std::vector<TokenBias>{{5, -1.0f}, {9, 100.0f}}));
  EXPECT_EQ(fields.sampling.allowed_tokens, (std::vector<TokenId>{4, 9}));
  EXPECT_EQ(fields.sampling.min_tokens, 2);
  EXPECT_EQ(fields.bad_words, (std::vector<std::string>{"x", "y z"}));
  EXPECT_TRUE(fields.include_stop_str_in_output);
  EXPECT_FALSE(fields.skip_special_tokens);
  EXPECT_EQ(fields.best_of, 6);
  EXPECT_EQ(fields.truncate_prompt_tokens, -1);
  EXPECT_EQ(fields.sampling.temperature, 0.5f);
  EXPECT_EQ(fields.sampling.top_k, 40);
  EXPECT_EQ(fields.sampling.top_p, 0.9f);
  EXPECT_EQ(fields.sampling.min_p, 0.05f);
  EXPECT_EQ(fields.max_tokens, 7);
  EXPECT_EQ(fields.seed, 3u);
  EXPECT_EQ(fields.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(fields.stop_token_ids, (std::vector<TokenId>{5, 0}));
  EXPECT_TRUE(fields.ignore_eos);
  EXPECT_EQ(fields.n, 4);
  EXPECT_EQ(fields.logprobs, 3);
  EXPECT_EQ(fields.prompt_logprobs, 2);
  EXPECT_EQ(fields.priority, -1);
  EXPECT_EQ(fields.deadline_ms, 20);
  EXPECT_EQ(fields.cache_salt, "s");
}

TEST(GenerationFields, NullIsNotGiven) {
  GenerationFields before;
  before.max_tokens = 9;
  before.stop = {"x"};
  before.sampling.temperature = 0.25f;
  std::string text = "{";
  for (const std::string_view name : generation_field_names()) {
    text += (text.size() > 1 ? ",\"" : "\"") + std::string(name) + "\":null";
  }
  const auto after = read_generation_fields(json::parse(text + "}", "").value(), before);
  ASSERT_TRUE(after.ok()) << after.status().to_string();
  for (const std::string_view name : generation_field_names()) {
    EXPECT_EQ(generation_field(name, *after).dump(), generation_field(name, before).dump());
  }
}

TEST(GenerationFields, WhatIsNotInItsRangeIsRefusedByName) {
  const std::pair<const char*, std::vector<const char*>> bad[] = {
      {"temperature", {"-0.1", "100.5", "true", "\"1\"", "[1]", "{}"}},
      {"top_k", {"-2", "1.5", "2147483648", "true", "\"5\""}},
      {"top_p", {"0", "-1", "1.01", "1e-60", "true"}},
      {"min_p", {"-0.1", "1.01", "false", "\"0\""}},
      {"typical_p", {"0", "-1", "1.01", "true", "\"1\""}},
      {"presence_penalty", {"-2.1", "2.1", "true", "\"1\""}},
      {"frequency_penalty", {"-2.1", "2.1", "[1]"}},
      {"repetition_penalty", {"0", "-1", "1e300", "1e-60", "true"}},
      {"logit_bias", {"5", "[5]", "\"5\"", "true"}},
      {"allowed_token_ids", {"5", "\"5\"", "{}"}},
      {"bad_words", {"5", "\"\"", "{}"}},
      {"min_tokens", {"-1", "1.5", "true", "16777217"}},
      {"include_stop_str_in_output", {"1", "\"true\""}},
      {"skip_special_tokens", {"0", "\"true\""}},
      {"best_of", {"0", "1025", "1.5", "true"}},
      {"truncate_prompt_tokens", {"0", "-2", "1.5", "true"}},
      {"max_tokens", {"0", "-1", "1.5", "1e300", "16777217", "true"}},
      {"max_completion_tokens", {"0", "\"7\"", "[]"}},
      {"seed", {"-1", "1.5", "true", "\"x\"", "1e30"}},
      {"stop", {"5", "\"\"", "{}", "true"}},
      {"stop_token_ids", {"5", "\"5\"", "{}"}},
      {"ignore_eos", {"1", "\"true\"", "[]"}},
      {"n", {"0", "1025", "1.5", "true"}},
      {"logprobs", {"-1", "65", "\"x\"", "[]"}},
      {"top_logprobs", {"-1", "65", "true", "2"}},  // 2: without logprobs
      {"prompt_logprobs", {"-1", "65", "true"}},
      {"priority", {"2147483648", "0.5", "\"high\"", "true"}},
      {"deadline_ms", {"-1", "0.5", "true", "1000000000001"}},
      {"cache_salt", {"5", "true", "[]"}},
  };
  size_t num_names = 0;
  for (const auto& [name, values] : bad) {
    ++num_names;
    for (const char* value : values) {
      const auto fields = read(member(name, value));
      ASSERT_FALSE(fields.ok()) << name << " " << value;
      EXPECT_EQ(fields.status().code(), Code::kInvalidArgument);
      EXPECT_EQ(fields.status().field(), name) << value;
      EXPECT_NE(fields.status().message().find("expected"), std::string::npos);
    }
  }
  EXPECT_EQ(num_names, generation_field_names().size());
}

TEST(GenerationFields, AnElementIsNamedByItsPlace) {
  EXPECT_EQ(read(R"({"stop": ["a", ""]})").status().field(), "stop[1]");
  EXPECT_EQ(read(R"({"stop": ["a", null]})").status().field(), "stop[1]");
  EXPECT_EQ(read(R"({"stop_token_ids": [1, 2, -1]})").status().field(), "stop_token_ids[2]");
  EXPECT_EQ(read(R"({"stop_token_ids": [true]})").status().field(), "stop_token_ids[0]");
  EXPECT_EQ(read(R"({"logit_bias": {"5": true}})").status().field(), "logit_bias[\"5\"]");
  for (const std::string name : {"x", "-1", "05", "+5", "5.0", "", "99999999999"}) {
    EXPECT_EQ(read("{\"logit_bias\": {\"" + name + "\": 1}}").status().field(),
              "logit_bias[\"" + name + "\"]");
  }
}

TEST(GenerationFields, WhatTakesLongToReadIsRefused) {
  const auto text = [](size_t bytes) { return "\"" + std::string(bytes, 'x') + "\""; };
  for (const std::string name : {"stop", "bad_words"}) {
    const std::string member = "{\"" + name + "\": ";
    EXPECT_TRUE(read(member + text(kMaxTextBytes) + "}").ok());
    EXPECT_EQ(read(member + text(kMaxTextBytes + 1) + "}").status().field(), name);
    const std::string half = text(kMaxTextBytes / 2);
    EXPECT_TRUE(read(member + "[" + half + "," + half + "]}").ok());
    EXPECT_EQ(read(member + "[" + half + "," + half + ",\"x\"]}").status().field(), name);
  }
  EXPECT_TRUE(read("{\"cache_salt\": " + text(kMaxSaltBytes) + "}").ok());
  EXPECT_EQ(read("{\"cache_salt\": " + text(kMaxSaltBytes + 1) + "}").status().field(),
            "cache_salt");
  std::string ids;
  for (size_t i = 0; i < kMaxIds; ++i) ids += "1,";
  for (const std::string name : {"stop_token_ids", "allowed_token_ids"}) {
    EXPECT_EQ(read("{\"" + name + "\": [" + ids + "1]}").status().field(), name);
  }
}

TEST(GenerationFields, WholeFloatsAreWholeNumbers) {
  EXPECT_EQ(good(R"({"max_tokens": 5.0})").max_tokens, 5);
  EXPECT_EQ(good(R"({"seed": 5.0})").seed, 5u);
  EXPECT_EQ(good(R"({"temperature": 1})").sampling.temperature, 1.0f);
}

TEST(GenerationFields, FormsOfOneParameter) {
  EXPECT_EQ(good(R"({"stop": "end"})").stop, std::vector<std::string>{"end"});
  EXPECT_TRUE(good(R"({"stop": []})").stop.empty());
  EXPECT_EQ(good(R"({"top_k": -1})").sampling.top_k, 0);
  EXPECT_EQ(good(R"({"logprobs": 5})").logprobs, 5);
  EXPECT_EQ(good(R"({"logprobs": 0})").logprobs, 0);
  EXPECT_EQ(good(R"({"logprobs": true})").logprobs, 0);
  EXPECT_FALSE(good(R"({"logprobs": false, "top_logprobs": 0})").logprobs.has_value());
  EXPECT_EQ(read(R"({"logprobs": false, "top_logprobs": 1})").status().field(), "top_logprobs");
  // Whichever comes first.
  EXPECT_EQ(good(R"({"max_completion_tokens": 3, "max_tokens": 9})").max_tokens, 3);
  EXPECT_EQ(good(R"({"top_logprobs": 2, "logprobs": true})").logprobs, 2);
  EXPECT_EQ(good(R"({"bad_words": "end"})").bad_words, std::vector<std::string>{"end"});
  EXPECT_TRUE(good(R"({"logit_bias": {}})").sampling.logit_bias.empty());
  EXPECT_EQ(good(R"({"best_of": 3, "n": 3})").best_of, 3);
  EXPECT_EQ(read(R"({"best_of": 2, "n": 3})").status().field(), "best_of");
}

TEST(GenerationFields, SeedsHave64Bits) {
  EXPECT_EQ(good(R"({"seed": 18446744073709551615})").seed, UINT64_MAX);
  EXPECT_EQ(good(R"({"seed": 0})").seed, 0u);
  const FieldRules rules{.has_negative_seeds = true};
  EXPECT_EQ(good(R"({"seed": -2})", rules).seed, UINT64_MAX - 1);
  EXPECT_FALSE(good(R"({"seed": -1})", rules).seed.has_value());
  EXPECT_EQ(read(R"({"seed": 1.5})", rules).status().field(), "seed");
  GenerationFields before;
  before.sampling.choice = 4;
  const auto after = read_generation_fields(json::parse(R"({"seed": 1})", "").value(), before);
  EXPECT_EQ(after->sampling.choice, 0u);
}

TEST(GenerationFields, RulesOfTheCaller) {
  const RefusedField refused[] = {{"n", "one is enough"}};
  const auto fields = read(R"({"n": 1})", {.refused = refused});
  EXPECT_EQ(fields.status().to_string(), "n: expected none: one is enough");
  EXPECT_TRUE(read(R"({"n": null})", {.refused = refused}).ok());
  EXPECT_EQ(good(R"({"max_tokens": 0})", {.least_max_tokens = 0}).max_tokens, 0);
}

TEST(GenerationFields, AValueThatIsGotCanBeSet) {
  GenerationFields from = good(R"({"temperature": 0.7, "top_k": 3, "top_p": 0.1, "min_p": 0.3,
      "max_tokens": 5, "seed": 9, "stop": ["a b", "c"], "stop_token_ids": [7],
      "ignore_eos": true, "n": 2, "logprobs": 1, "prompt_logprobs": 4, "priority": 8,
      "deadline_ms": 5, "cache_salt": "x", "typical_p": 0.3, "presence_penalty": 0.1,
      "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logit_bias": {"3": 0.1, "2": -7},
      "allowed_token_ids": [3, 1], "bad_words": ["a"], "min_tokens": 3,
      "include_stop_str_in_output": true, "skip_special_tokens": false, "best_of": 7,
      "truncate_prompt_tokens": 12})");
  for (const GenerationFields& each : {from, GenerationFields()}) {
    GenerationFields to = from;
    for (const std::string_view name : generation_field_names()) {
      if (name == "top_logprobs" && !each.logprobs) continue;
      const json::Value value = generation_field(name, each);
      EXPECT_TRUE(set_generation_field(name, value, to).ok()) << name;
      EXPECT_EQ(generation_field(name, to).dump(), value.dump()) << name;
    }
  }
}

TEST(GenerationFields, ABadValueChangesNothing) {
  GenerationFields fields = good(R"({"stop": "a"})");
  EXPECT_FALSE(set_generation_field("stop", json::parse(R"(["b", 5])", "").value(), fields).ok());
  EXPECT_EQ(fields.stop, std::vector<std::string>{"a"});
}

TEST(GenerationFields, WordsStandForValues) {
  const auto word = [](std::string_view name, std::string_view text) {
    return generation_field_of_word(name, text).dump();
  };
  EXPECT_EQ(word("temperature", ".5"), "0.5");
  EXPECT_EQ(word("max_tokens", "7"), "7");
  EXPECT_EQ(word("seed", "18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(word("stop", "5"), "[\"5\"]");
  EXPECT_EQ(word("stop_token_ids", "5"), "[5]");
  EXPECT_EQ(word("stop_token_ids", " 5  7 x"), "[5,7,\"x\"]");
  EXPECT_EQ(word("logit_bias", "5=-1 7=2.5"), "{\"5\":-1,\"7\":2.5}");
  EXPECT_EQ(word("logit_bias", "5"), "\"5\"");
  EXPECT_EQ(word("logit_bias", "5=x"), "{\"5\":\"x\"}");
  EXPECT_EQ(word("ignore_eos", "true"), "true");
  GenerationFields fields;
  for (const char* text : {"nan", "inf", "1e999", "0x1", "1,5", "", " 1", "hot"}) {
    const Status status =
        set_generation_field("temperature", generation_field_of_word("temperature", text), fields);
    EXPECT_EQ(status.field(), "temperature") << text;
    EXPECT_EQ(status.message(),
              "expected a number from 0 to 100, found \"" + std::string(text) + "\"");
  }
}

TEST(GenerationFields, AsTheEngineTakesThem) {
  const std::vector<TokenId> ends = {2, 9};
  GenerationFields fields = good(R"({"max_tokens": 5, "seed": 1, "stop_token_ids": [7],
      "logprobs": 2, "prompt_logprobs": 4, "priority": 3, "temperature": 2})");
  GenerationOptions options = generation_options(fields, ends);
  EXPECT_EQ(options.max_new_tokens, 5);
  EXPECT_EQ(options.seed, 1u);
  EXPECT_EQ(options.stop_tokens, (std::vector<TokenId>{7, 2, 9}));
  EXPECT_TRUE(options.sampling.logprobs);
  EXPECT_EQ(options.sampling.num_likeliest, 4);
  EXPECT_EQ(options.priority, 3);
  EXPECT_EQ(options.sampling.temperature, 2.0f);
  fields.ignore_eos = true;
  EXPECT_EQ(generation_options(fields, ends).stop_tokens, std::vector<TokenId>{7});
  fields.stop_token_ids.clear();
  EXPECT_TRUE(generation_options(fields, ends).ignore_stop_tokens);
  EXPECT_EQ(generation_options(GenerationFields(), ends).max_new_tokens, 256);
}

TEST(GenerationFields, APromptIsCutAtItsFront) {
  const auto cut = [](std::string_view text, int64_t room) {
    std::vector<TokenId> prompt{1, 2, 3, 4, 5};
    const int32_t removed = truncate_prompt(good(text), room, prompt);
    EXPECT_EQ(removed + std::ssize(prompt), 5);
    EXPECT_EQ(prompt.back(), 5);
    return std::ssize(prompt);
  };
  EXPECT_EQ(cut("{}", 2), 5);
  EXPECT_EQ(cut(R"({"truncate_prompt_tokens": 9})", 2), 5);
  EXPECT_EQ(cut(R"({"truncate_prompt_tokens": 3})", 2), 3);
  EXPECT_EQ(cut(R"({"truncate_prompt_tokens": -1})", 2), 2);
  EXPECT_EQ(cut(R"({"truncate_prompt_tokens": -1})", -4), 1);
}

}  // namespace
}  // namespace chorus
