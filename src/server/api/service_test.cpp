#include "server/api/service.h"

#include <algorithm>
#include <chrono>
#include <gtest/gtest.h>
#include <set>
#include <thread>

#include "chorus/generation_fields.h"
#include "server/api/testing/service_under_test.h"

namespace chorus::api {

const char* const testing::kServedModel = CHORUS_SOURCE_DIR "/tests/golden/tiny/tied_q4_1.gguf";

namespace {

using testing::FakeExchange;
using testing::read_reply;
using testing::Reply;
using testing::ServiceUnderTest;

// No end token ends it, and a temperature makes the text of random weights vary.
constexpr const char* kDraws = R"("temperature":1.5,"seed":7,"ignore_eos":true)";

std::string completion(const std::string& prompt, const std::string& members = "") {
  return R"({"prompt":)" + prompt + "," + kDraws + (members.empty() ? "" : ",") + members + "}";
}

class ServiceTest : public ::testing::Test {
 protected:
  Reply complete(const std::string& prompt, const std::string& members = "") {
    return service_.post("/v1/completions", completion(prompt, members));
  }

  ServiceUnderTest service_;
};

TEST_F(ServiceTest, AChatHasOpenAisShape) {
  const Reply reply = service_.chat(std::string(kDraws) + R"(,"max_tokens":9,"model":"tiny")");
  ASSERT_EQ(reply.status, 200) << reply.body.dump();
  EXPECT_EQ(reply.text("object"), "chat.completion");
  EXPECT_TRUE(reply.text("id").starts_with("chatcmpl-"));
  EXPECT_EQ(reply.text("model"), "tiny");
  EXPECT_TRUE(reply.text("system_fingerprint").starts_with("fp_"));
  EXPECT_GT(reply.number("created"), 1'600'000'000);
  ASSERT_EQ(reply.at("choices").as_array().size(), 1u);
  EXPECT_EQ(reply.number("choices.0.index"), 0);
  EXPECT_EQ(reply.text("choices.0.message.role"), "assistant");
  EXPECT_FALSE(reply.text("choices.0.message.content").empty());
  EXPECT_EQ(reply.text("choices.0.finish_reason"), "length");
  EXPECT_TRUE(reply.at("choices.0.logprobs").is_null());
  EXPECT_EQ(reply.number("usage.completion_tokens"), 9);
  EXPECT_EQ(reply.number("usage.total_tokens"), reply.number("usage.prompt_tokens") + 9);
  EXPECT_EQ(reply.number("usage.prompt_tokens_details.cached_tokens"), 0);
}

TEST_F(ServiceTest, AStreamSaysTheSameInPieces) {
  const std::string members = std::string(kDraws) + R"(,"max_tokens":30)";
  const Reply whole = service_.chat(members);
  const Reply stream =
      service_.chat(members + R"(,"stream":true,"stream_options":{"include_usage":true})");
  EXPECT_EQ(stream.status, 200);
  EXPECT_TRUE(stream.is_done);
  EXPECT_EQ(stream.streamed(), whole.text("choices.0.message.content"));
  ASSERT_GE(stream.events.size(), 4u);
  EXPECT_EQ(Reply::at(stream.events[0], "choices.0.delta").dump(),
            R"({"role":"assistant","content":""})");
  const json::Value& last = stream.events[stream.events.size() - 2];
  EXPECT_EQ(Reply::at(last, "choices.0.delta").dump(), "{}");
  EXPECT_EQ(Reply::at(last, "choices.0.finish_reason").dump(), "\"length\"");
  std::set<std::string> heads;
  for (size_t i = 0; i < stream.events.size(); ++i) {
    const json::Value& event = stream.events[i];
    const bool is_usage = i + 1 == stream.events.size();
    EXPECT_EQ(Reply::at(event, "object").as_string(), "chat.completion.chunk");
    heads.insert(event.find("id")->dump() + event.find("created")->dump() +
                 event.find("model")->dump());
    ASSERT_NE(event.find("usage"), nullptr);
    EXPECT_EQ(event.find("usage")->is_null(), !is_usage);
    EXPECT_EQ(event.find("choices")->as_array().size(), is_usage ? 0u : 1u);
    if (!is_usage) continue;
    // The second request finds the prompt of the first.
    EXPECT_EQ(Reply::at(event, "usage.completion_tokens").dump(), "30");
    EXPECT_EQ(Reply::at(event, "usage.prompt_tokens").dump(),
              whole.at("usage.prompt_tokens").dump());
  }
  EXPECT_EQ(heads.size(), 1u);
}

TEST_F(ServiceTest, WithoutBeingAskedAStreamHasNoUsage) {
  const Reply stream = service_.chat(std::string(kDraws) + R"(,"max_tokens":5,"stream":true)");
  ASSERT_TRUE(stream.is_done);
  for (const json::Value& event : stream.events) {
    EXPECT_EQ(event.find("usage"), nullptr);
    EXPECT_EQ(event.find("choices")->as_array().size(), 1u);
  }
}

TEST_F(ServiceTest, StreamsTellProxiesNotToHoldThem) {
  const auto exchange = service_.send("POST", "/v1/completions",
                                      completion("\"a\"", R"("max_tokens":2,"stream":true)"));
  exchange->wait();
  EXPECT_EQ(exchange->header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(exchange->header("x-accel-buffering"), "no");
  EXPECT_EQ(exchange->header("cache-control"), "no-cache");
}

TEST_F(ServiceTest, ChoicesOfSeveralPromptsAreThoseOfEachAlone) {
  const Reply all = complete(R"(["the sea","a b c"])", R"("n":2,"max_tokens":8,"logprobs":2)");
  ASSERT_EQ(all.status, 200) << all.body.dump();
  EXPECT_EQ(all.text("object"), "text_completion");
  ASSERT_EQ(all.at("choices").as_array().size(), 4u);
  EXPECT_EQ(all.number("usage.completion_tokens"), 32);
  int64_t prompt_tokens = 0;
  for (int prompt = 0; prompt < 2; ++prompt) {
    const Reply alone = complete(prompt == 0 ? R"("the sea")" : R"("a b c")",
                                 R"("n":2,"max_tokens":8,"logprobs":2)");
    prompt_tokens += alone.number("usage.prompt_tokens");
    for (int choice = 0; choice < 2; ++choice) {
      const std::string in_all = "choices." + std::to_string(2 * prompt + choice);
      const std::string in_one = "choices." + std::to_string(choice);
      EXPECT_EQ(all.number(in_all + ".index"), 2 * prompt + choice);
      EXPECT_EQ(all.text(in_all + ".text"), alone.text(in_one + ".text"));
      EXPECT_EQ(all.at(in_all + ".logprobs").dump(), alone.at(in_one + ".logprobs").dump());
    }
    EXPECT_NE(alone.text("choices.0.text"), alone.text("choices.1.text"));
  }
  EXPECT_EQ(all.number("usage.prompt_tokens"), prompt_tokens);
}

TEST_F(ServiceTest, StreamsOfChoicesCarryTheirIndexes) {
  const std::string members = R"("n":3,"max_tokens":12)";
  const Reply whole = complete(R"(["the sea","x"])", members);
  const Reply stream = complete(R"(["the sea","x"])", members + R"(,"stream":true)");
  ASSERT_TRUE(stream.is_done);
  for (int64_t index = 0; index < 6; ++index) {
    EXPECT_EQ(stream.streamed(index), whole.text("choices." + std::to_string(index) + ".text"));
  }
}

TEST_F(ServiceTest, ACompletionHasSixteenTokensByDefault) {
  EXPECT_EQ(complete("\"a\"").number("usage.completion_tokens"), 16);
}

TEST_F(ServiceTest, AChatHasWhatTheContextLeaves) {
  const Reply reply = service_.chat(kDraws);
  EXPECT_EQ(reply.number("usage.total_tokens"), 256);
  EXPECT_EQ(reply.text("choices.0.finish_reason"), "length");
}

TEST_F(ServiceTest, TheSeedAndTheChoiceDecide) {
  Session session = service_.engine().open_session().value();
  GenerationOptions options;
  options.max_new_tokens = 10;
  options.sampling.temperature = 1.5f;
  options.sampling.choice = 1;
  options.seed = 7;
  options.ignore_stop_tokens = true;
  Generation direct = service_.engine().generate(session, "the sea", options).value();
  while (direct.read()) {
  }
  const Reply reply = complete("\"the sea\"", R"("n":2,"max_tokens":10)");
  EXPECT_EQ(reply.text("choices.1.text"), direct.text());
}

TEST_F(ServiceTest, WithoutASeedEveryChoiceAndRequestDiffers) {
  std::set<std::string> texts;
  for (int i = 0; i < 3; ++i) {
    const Reply reply = service_.post(
        "/v1/completions",
        R"({"prompt":"the sea","temperature":2,"ignore_eos":true,"n":3,"max_tokens":30})");
    for (int choice = 0; choice < 3; ++choice) {
      texts.insert(reply.text("choices." + std::to_string(choice) + ".text"));
    }
  }
  EXPECT_EQ(texts.size(), 9u);
}

TEST_F(ServiceTest, TheBestOfSeveralAreAnswered) {
  const Reply best = complete("\"the sea\"", R"("best_of":5,"n":2,"max_tokens":8)");
  const Reply all = complete("\"the sea\"", R"("n":5,"max_tokens":8,"logprobs":0)");
  ASSERT_EQ(best.at("choices").as_array().size(), 2u);
  std::vector<std::pair<double, std::string>> ranked;
  for (int i = 0; i < 5; ++i) {
    const std::string choice = "choices." + std::to_string(i);
    double sum = 0;
    for (const json::Value& each : all.at(choice + ".logprobs.token_logprobs").as_array()) {
      sum += each.to_number("").value();
    }
    ranked.push_back({-sum, all.text(choice + ".text")});
  }
  std::stable_sort(ranked.begin(), ranked.end());
  EXPECT_EQ(best.text("choices.0.text"), ranked[0].second);
  EXPECT_EQ(best.text("choices.1.text"), ranked[1].second);
  EXPECT_EQ(best.number("usage.completion_tokens"), 40);
}

// ---- Stops ----

TEST_F(ServiceTest, AStopTextEndsTheTextAndIsNamed) {
  const std::string text = complete("\"the sea\"", R"("max_tokens":40)").text("choices.0.text");
  std::string stop;  // bytes that are no text cannot be named
  for (size_t at = text.size() / 4; at + 3 <= text.size() && stop.empty(); ++at) {
    const std::string part = text.substr(at, 3);
    const bool is_ascii = std::all_of(part.begin(), part.end(), [](char c) { return c > 0; });
    if (is_ascii) stop = part;
  }
  ASSERT_FALSE(stop.empty()) << "choose another seed";
  const std::string members =
      R"("max_tokens":40,"logprobs":0,"stop":["never so",)" + json::Value(stop).dump() + "]";
  const Reply reply = complete("\"the sea\"", members);
  EXPECT_EQ(reply.text("choices.0.text"), text.substr(0, text.find(stop)));
  EXPECT_EQ(reply.text("choices.0.finish_reason"), "stop");
  EXPECT_EQ(reply.text("choices.0.stop_reason"), stop);
  const Reply stream = complete("\"the sea\"", members + R"(,"stream":true)");
  EXPECT_EQ(stream.streamed(), reply.text("choices.0.text"));
  // Of who asks in ids, and for ids, no less.
  const json::Value ids = service_.post("/tokenize", R"({"prompt":"the sea"})").at("tokens");
  const Reply of_ids = complete(ids.dump(), members + R"(,"return_token_ids":true)");
  EXPECT_EQ(of_ids.text("choices.0.text"), reply.text("choices.0.text"));
  EXPECT_LT(of_ids.at("choices.0.token_ids").as_array().size(), 40u);
}

TEST_F(ServiceTest, AStopTokenThatTheRequestNamedIsTheReason) {
  const Reply ids = complete("\"the sea\"", R"("max_tokens":6,"return_token_ids":true)");
  const int64_t third = ids.number("choices.0.token_ids.2");
  const Reply reply =
      complete("\"the sea\"", R"("max_tokens":6,"return_token_ids":true,"stop_token_ids":[)" +
                                  std::to_string(third) + "]");
  EXPECT_EQ(reply.text("choices.0.finish_reason"), "stop");
  EXPECT_EQ(reply.number("choices.0.stop_reason"), third);
  EXPECT_LE(reply.at("choices.0.token_ids").as_array().size(), 3u);
}

TEST_F(ServiceTest, ASpecialTokenThatAStopNamesEndsTheText) {
  const std::string id =
      service_.post("/tokenize", R"({"content":"<|im_start|>"})").at("tokens.0").dump();
  const std::string members = R"("max_tokens":9,"min_tokens":3,"logprobs":0,"logit_bias":{")" + id +
                              R"(":100},"stop":["<|im_start|>"])";
  const Reply reply = complete("\"the sea\"", members);
  ASSERT_EQ(reply.status, 200) << reply.body.dump();
  EXPECT_EQ(reply.text("choices.0.finish_reason"), "stop");
  EXPECT_EQ(reply.text("choices.0.stop_reason"), "<|im_start|>");
  EXPECT_EQ(reply.number("usage.completion_tokens"), 4);
  EXPECT_EQ(reply.at("choices.0.logprobs.tokens").as_array().size(), 3u);
  const Reply stream = complete("\"the sea\"", members + R"(,"stream":true)");
  EXPECT_EQ(stream.streamed(), reply.text("choices.0.text"));
}

TEST_F(ServiceTest, AStopIsShownWhereThatIsAskedFor) {
  const Reply ids = complete("\"the sea\"", R"("max_tokens":6,"return_token_ids":true)");
  const std::string third = ids.at("choices.0.token_ids.2").dump();
  const std::string members = R"("max_tokens":6,"logprobs":0,"stop_token_ids":[)" + third + "]";
  const Reply without = complete("\"the sea\"", members);
  const Reply with = complete("\"the sea\"", members + R"(,"include_stop_str_in_output":true)");
  const size_t num_tokens = with.at("choices.0.logprobs.tokens").as_array().size();
  EXPECT_EQ(without.at("choices.0.logprobs.tokens").as_array().size(), num_tokens - 1);
  EXPECT_GE(with.text("choices.0.text").size(), without.text("choices.0.text").size());
}

TEST_F(ServiceTest, WhatMayComeIsObeyed) {
  const Reply allowed = complete("\"a\"", R"("max_tokens":6,"return_token_ids":true,)"
                                          R"("allowed_token_ids":[40,41],"logit_bias":{"41":100})");
  EXPECT_EQ(allowed.at("choices.0.token_ids").dump(), "[41,41,41,41,41,41]");
}

TEST_F(ServiceTest, APromptIsTruncatedWhereThatIsAskedForAndReported) {
  std::string ids = "[3";
  for (int i = 4; i < 290; ++i) ids += "," + std::to_string(i);
  ids += "]";
  const Reply cut = complete(ids, R"("max_tokens":3,"truncate_prompt_tokens":4)");
  ASSERT_EQ(cut.status, 200) << cut.body.dump();
  EXPECT_EQ(cut.number("truncated_tokens"), 283);
  EXPECT_EQ(cut.number("usage.prompt_tokens"), 4);
  EXPECT_EQ(cut.text("choices.0.text"),
            complete("[286,287,288,289]", R"("max_tokens":3)").text("choices.0.text"));
  const Reply fitted = complete(ids, R"("max_tokens":3,"truncate_prompt_tokens":-1)");
  EXPECT_EQ(fitted.number("usage.prompt_tokens"), 253);
  EXPECT_EQ(complete(ids, R"("max_tokens":3)").param(), "prompt");
}

// ---- Logprobs ----

TEST_F(ServiceTest, LogprobsOfAChatJoinToItsContent) {
  const std::string members =
      std::string(kDraws) + R"(,"max_tokens":40,"logprobs":true,"top_logprobs":3)";
  const Reply reply = service_.chat(members);
  const json::Array& content = reply.at("choices.0.logprobs.content").as_array();
  std::string bytes;
  for (const json::Value& entry : content) {
    // Special tokens have logprobs, and no text.
    const bool is_special = entry.find("token")->as_string().starts_with("<|");
    for (const json::Value& byte : entry.find("bytes")->as_array()) {
      if (!is_special) bytes += static_cast<char>(byte.to_integer("", 0, 255).value());
    }
    const json::Array& top = entry.find("top_logprobs")->as_array();
    ASSERT_EQ(top.size(), 3u);
    EXPECT_GE(Reply::at(top[0], "logprob").to_number("").value(),
              Reply::at(top[1], "logprob").to_number("").value());
    EXPECT_LE(entry.find("logprob")->to_number("").value(), 0);
  }
  EXPECT_EQ(json::Value(bytes).dump(), reply.at("choices.0.message.content").dump());
  json::Array streamed;
  const Reply stream = service_.chat(members + R"(,"stream":true)");
  for (const json::Value& event : stream.events) {
    const json::Value& list = Reply::at(event, "choices.0.logprobs.content");
    if (list.is_null()) continue;
    streamed.insert(streamed.end(), list.as_array().begin(), list.as_array().end());
  }
  EXPECT_EQ(json::Value(streamed).dump(), json::Value(content).dump());
}

TEST_F(ServiceTest, APromptIsScoredAlone) {
  const Reply reply = complete(R"([10,11,12,13,14])", R"("max_tokens":0,"echo":true,"logprobs":2)");
  ASSERT_EQ(reply.status, 200) << reply.body.dump();
  EXPECT_EQ(reply.number("usage.completion_tokens"), 0);
  EXPECT_EQ(reply.text("choices.0.finish_reason"), "length");
  const json::Array& logprobs = reply.at("choices.0.logprobs.token_logprobs").as_array();
  ASSERT_EQ(logprobs.size(), 5u);
  EXPECT_TRUE(logprobs[0].is_null());
  EXPECT_TRUE(reply.at("choices.0.logprobs.top_logprobs.0").is_null());

  Session session = service_.engine().open_session().value();
  GenerationOptions options;
  options.score_from = 1;
  options.sampling.num_likeliest = 2;
  Generation scored = service_.engine().append(session, {10, 11, 12, 13, 14}, options).value();
  while (scored.read()) {
  }
  const PromptScores scores = scored.take_prompt_scores();
  ASSERT_EQ(scores.tokens.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(logprobs[i + 1].dump(), json::Value(scores.tokens[i].logprob).dump());
  }
}

TEST_F(ServiceTest, EchoAndOffsetsFitTheText) {
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const Reply reply =
        complete("\"the sea\"", std::string(R"("max_tokens":8,"echo":true,"logprobs":1)") + stream);
    const bool is_stream = *stream != 0;
    const std::string text = is_stream ? reply.streamed() : reply.text("choices.0.text");
    EXPECT_TRUE(text.starts_with("the sea"));
    json::Array tokens, offsets;
    const auto take = [&](const json::Value& logprobs) {
      if (logprobs.is_null()) return;
      for (const json::Value& each : logprobs.find("tokens")->as_array()) tokens.push_back(each);
      for (const json::Value& each : logprobs.find("text_offset")->as_array()) {
        offsets.push_back(each);
      }
    };
    if (!is_stream) take(reply.at("choices.0.logprobs"));
    for (const json::Value& event : reply.events) take(Reply::at(event, "choices.0.logprobs"));
    const auto num_prompt = service_.post("/tokenize", R"({"prompt":"the sea"})").number("count");
    ASSERT_EQ(tokens.size(), static_cast<size_t>(num_prompt) + 8);
    // Where a token is plain text it stands at its offset.
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto offset = static_cast<size_t>(offsets[i].to_integer("", 0, 1000).value());
      size_t byte = 0;
      for (size_t seen = 0; byte < text.size(); ++byte) {
        if ((text[byte] & 0xc0) != 0x80 && seen++ == offset) break;
      }
      const std::string& token = tokens[i].as_string();
      if (token.starts_with("bytes:") || token.starts_with("<|")) continue;
      EXPECT_EQ(text.substr(byte, token.size()), token) << i;
    }
  }
}

TEST_F(ServiceTest, PromptLogprobsAreVllms) {
  const Reply reply = complete("[10,11,12]", R"("max_tokens":1,"prompt_logprobs":2)");
  const json::Array& list = reply.at("choices.0.prompt_logprobs").as_array();
  ASSERT_EQ(list.size(), 3u);
  EXPECT_TRUE(list[0].is_null());
  const json::Value* given = list[1].find("11");
  ASSERT_NE(given, nullptr) << list[1].dump();
  EXPECT_LE(given->find("logprob")->to_number("").value(), 0);
  EXPECT_GE(list[1].as_object().size(), 2u);
}

// ---- What is refused ----

TEST_F(ServiceTest, BadRequestsAreNamedAndHurtNobody) {
  const auto busy =
      service_.send("POST", "/v1/completions", completion("\"the sea\"", R"("max_tokens":100)"));
  const auto param = [&](const std::string& body) {
    const Reply reply = service_.post("/v1/completions", body);
    EXPECT_EQ(reply.status, 400) << body;
    return reply.param();
  };
  EXPECT_EQ(param(R"({"prompt":""})"), "prompt");
  EXPECT_EQ(param(R"({"prompt":["a",""]})"), "prompt[1]");
  EXPECT_EQ(param(R"({"prompt":[5,100000]})"), "prompt[1]");
  EXPECT_EQ(param(R"({"prompt":[-1]})"), "prompt[0]");
  EXPECT_EQ(param(R"({"prompt":"a","n":0})"), "n");
  EXPECT_EQ(param(R"({"prompt":"a","max_tokens":1000})"), "max_tokens");
  EXPECT_EQ(param(R"({"prompt":"a","max_tokens":0,"n":2})"), "n");
  EXPECT_EQ(param(R"({"prompt":"a","seed":1e400})"), "seed");
  EXPECT_EQ(param(R"({"prompt":"\ud800"})"), "prompt");
  EXPECT_EQ(param("{\"prompt\":\"a\",\"stop\":\"\xff\"}"), "stop");
  EXPECT_EQ(
      param(R"({"prompt":)" + std::string(1000, '[')), "prompt" + [] {
        std::string path;
        for (int i = 0; i < 63; ++i) path += "[0]";
        return path;
      }());
  EXPECT_EQ(param("[]"), "null");
  EXPECT_EQ(param("nonsense"), "null");
  EXPECT_EQ(param(R"({"prompt":[)" +
                  [] {
                    std::string ids;
                    for (int i = 0; i < 300; ++i) ids += i == 0 ? "5" : ",5";
                    return ids;
                  }() +
                  "]}"),
            "prompt");
  EXPECT_EQ(param(R"({"prompt":"a","stop_token_ids":[100000]})"), "stop_token_ids[0]");
  EXPECT_EQ(param(R"({"prompt":"a","allowed_token_ids":[5,100000]})"), "allowed_token_ids[1]");
  EXPECT_EQ(param(R"({"prompt":"a","logit_bias":{"100000":1}})"), "logit_bias[\"100000\"]");
  EXPECT_EQ(param(R"({"prompt":"a","bad_words":["x",""]})"), "bad_words[1]");
  EXPECT_EQ(param(R"({"prompt":"a","max_tokens":2,"min_tokens":3})"), "min_tokens");
  busy->wait();
  const Reply alone = complete("\"the sea\"", R"("max_tokens":100)");
  EXPECT_EQ(read_reply(*busy).text("choices.0.text"), alone.text("choices.0.text"));
}

// A value that a parameter cannot have is refused by its name; one that it can have is answered.
TEST_F(ServiceTest, ParametersOfAnyValueAreAnsweredOrNamed) {
  const std::vector<std::string> values = {"0",
                                           "-1",
                                           "1",
                                           "2147483647",
                                           "-2147483648",
                                           "4294967296",
                                           "9223372036854775807",
                                           "1e308",
                                           "-1e308",
                                           "1e-320",
                                           "18446744073709551616",
                                           "0.5",
                                           "-0.0",
                                           "1e400",
                                           "true",
                                           "\"\"",
                                           "\"\\u0000\"",
                                           "[]",
                                           "[-1]",
                                           "[2147483647]",
                                           "[1e30]",
                                           "[[]]",
                                           "[null]",
                                           "{}",
                                           R"({"-1":0})",
                                           R"({"1":1e308})",
                                           R"({"1":null})",
                                           R"({"a":1})"};
  const std::string known[] = {"max_tokens", "prompt"};  // what the others may not fit to
  for (const std::string_view name : generation_field_names()) {
    for (const std::string& value : values) {
      const std::string members = R"({"prompt":"a",")" + std::string(name) + "\":" + value +
                                  (name.starts_with("max_") ? "}" : R"(,"max_tokens":2})");
      const Reply reply = service_.post("/v1/completions", members);
      if (reply.status == 200 || (name == "deadline_ms" && reply.status == 504)) continue;
      EXPECT_EQ(reply.status, 400) << members << reply.body.dump();
      const std::string param = reply.param();
      const bool is_named = param.starts_with(name) || param == known[0] || param == known[1];
      EXPECT_TRUE(is_named) << members << reply.body.dump();
    }
  }
  EXPECT_EQ(complete("\"a\"").status, 200);
}

TEST_F(ServiceTest, ATextThatCannotFitIsNotTokenised) {
  const std::string text = json::Value(std::string(size_t{10} << 20, 'x')).dump();
  const Reply reply = service_.post("/v1/completions", R"({"prompt":)" + text + "}");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.param(), "prompt");
  EXPECT_NE(reply.text("error.message").find("10485760 bytes"), std::string::npos);
  const Reply chat = service_.post("/v1/chat/completions",
                                   R"({"messages":[{"role":"user","content":)" + text + "}]}");
  EXPECT_EQ(chat.status, 400);
  EXPECT_EQ(chat.param(), "messages");
  // Nor one of which the tail is wanted, or the tokens alone, without end.
  const std::string longer = json::Value(std::string((size_t{1} << 20) + 1, ' ')).dump();
  const Reply tail =
      service_.post("/v1/completions", R"({"truncate_prompt_tokens":9,"prompt":)" + longer + "}");
  EXPECT_EQ(tail.status, 400);
  EXPECT_EQ(tail.param(), "prompt");
  EXPECT_EQ(service_.post("/tokenize", R"({"prompt":)" + longer + "}").param(), "prompt");
  EXPECT_EQ(service_.post("/tokenize", R"({"content":)" + longer + "}").param(), "content");
  std::string most;  // of few tokens
  while (most.size() + 10 <= size_t{1} << 20) most += "<|im_end|>";
  EXPECT_EQ(service_.post("/tokenize", R"({"prompt":")" + most + "\"}").status, 200);
}

TEST_F(ServiceTest, AnErrorIsShortWhateverWasSent) {
  const std::string name = "m" + [] {  // so that it is cut within a character
    std::string text;
    for (int i = 0; i < 100000; ++i) text += "\xC3\xA9";
    return text;
  }();
  const auto error = service_.send("POST", "/v1/completions",
                                   R"({"prompt":"a","model":)" + json::Value(name).dump() + "}");
  error->wait();
  EXPECT_EQ(error->status(), 404);
  EXPECT_LT(error->body().size(), 1000u);
  EXPECT_NE(read_reply(*error).text("error.message").find("..."), std::string::npos);
  const std::string member = json::Value(std::string(100000, 'k')).dump();
  const auto path = service_.send("POST", "/v1/completions", "{" + member + R"(:{"a":1,"a":1}})");
  path->wait();
  EXPECT_EQ(path->status(), 400);
  EXPECT_LT(path->body().size(), 2000u);
}

TEST_F(ServiceTest, AModelThatIsNotServedIsNotFound) {
  const Reply reply = service_.post("/v1/completions", R"({"prompt":"a","model":"gpt-4"})");
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.text("error.code"), "model_not_found");
  EXPECT_EQ(reply.param(), "model");
}

TEST_F(ServiceTest, RoutesAndMethodsAreChecked) {
  EXPECT_EQ(service_.call("GET", "/v1/nothing").status, 404);
  EXPECT_EQ(service_.call("POST", "/v1/embeddings", "{}").status, 404);
  // A route that many clients try first says what to use in its place.
  const Reply responses = service_.post("/v1/responses", R"({"input":"hello"})");
  EXPECT_EQ(responses.status, 400);
  EXPECT_EQ(responses.text("error.message"),
            "/v1/responses is not offered: /v1/chat/completions is");
  const auto wrong = service_.send("GET", "/v1/completions");
  EXPECT_EQ(wrong->status(), 405);
  EXPECT_EQ(wrong->header("allow"), "POST");
  EXPECT_EQ(service_.post("/v1/completions", "prompt=a", {{"content-type", "text/plain"}}).status,
            415);
  EXPECT_EQ(service_
                .post("/v1/completions", R"({"prompt":"a","max_tokens":1})",
                      {{"content-encoding", "gzip"}})
                .status,
            415);
  EXPECT_EQ(service_.call("HEAD", "/health").status, 200);
}

// Of these a page of another site may send all that is refused without asking first.
TEST_F(ServiceTest, TypesOfBodiesAreCompared) {
  const auto status = [&](std::vector<http::Header> headers) {
    const auto exchange = service_.send("POST", "/v1/completions",
                                        R"({"prompt":"a","max_tokens":1})", std::move(headers));
    exchange->wait();
    return exchange->status();
  };
  for (const char* type :
       {"application/json", "APPLICATION/JSON ; charset=utf-8", "application/vnd.api+json"}) {
    EXPECT_EQ(status({{"content-type", type}}), 200) << type;
    EXPECT_EQ(status({{"content-type", type}, {"origin", "https://a.example"}}), 200) << type;
  }
  for (const char* type : {"text/plain; x=json", "text/plain;json", "text/json",
                           "application/jsonx", "application/x-www-form-urlencoded; json",
                           "multipart/form-data; boundary=application/json"}) {
    EXPECT_EQ(status({{"content-type", type}}), 415) << type;
  }
  EXPECT_EQ(status({{"content-type", "application/json"}, {"content-encoding", "Identity"}}), 200);
}

TEST_F(ServiceTest, BodiesOfThoseWhoAreRefusedAreNotRead) {
  ServiceOptions options;
  options.keys = {{"alice", "key-a"}};
  ServiceUnderTest service(options);
  const auto wants = [&](std::string method, std::string path, std::string key) {
    http::Request head;
    head.method = std::move(method);
    head.path = std::move(path);
    if (!key.empty()) head.headers.push_back({"authorization", "Bearer " + key});
    return service.service().wants_body(head);
  };
  EXPECT_TRUE(wants("POST", "/v1/completions", "key-a"));
  EXPECT_FALSE(wants("POST", "/v1/completions", ""));
  EXPECT_FALSE(wants("POST", "/v1/completions", "key-b"));
  EXPECT_FALSE(wants("POST", "/v1/nothing", "key-a"));
  EXPECT_FALSE(wants("PUT", "/v1/completions", "key-a"));
}

TEST_F(ServiceTest, WhereNoTextIsShownLogprobsAreEmpty) {
  const std::string first = complete("\"the sea\"", R"("max_tokens":1,"return_token_ids":true)")
                                .at("choices.0.token_ids.0")
                                .dump();
  const std::string members = R"("max_tokens":3,"stop_token_ids":[)" + first + "]";
  const Reply text = complete("\"the sea\"", members + R"(,"logprobs":2)");
  EXPECT_EQ(text.text("choices.0.text"), "");
  EXPECT_EQ(text.at("choices.0.logprobs.tokens").dump(), "[]");
  const Reply chat = service_.chat(R"("temperature":0,"max_tokens":2,"allowed_token_ids":[2],)"
                                   R"("stop_token_ids":[2],"logprobs":true)");
  EXPECT_EQ(chat.at("choices.0.logprobs.content").dump(), "[]") << chat.body.dump();
}

TEST_F(ServiceTest, WhatTheEngineRefusesHasItsStatusInStreamsToo) {
  const std::string members = R"("max_tokens":5,"allowed_token_ids":[40],"logit_bias":{"40":-100},)"
                              R"("bad_words":["a"],"min_tokens":3,"stop_token_ids":[40])";
  const Reply whole = complete("\"a\"", members);
  const Reply stream = complete("\"a\"", members + R"(,"stream":true)");
  EXPECT_EQ(whole.status, 400) << whole.body.dump();
  EXPECT_EQ(stream.status, 400) << stream.body.dump();
}

TEST_F(ServiceTest, ADeadlineThatPassesIsATimeout) {
  const Reply whole = complete("\"a\"", R"("max_tokens":200,"deadline_ms":0)");
  EXPECT_EQ(whole.status, 504) << whole.body.dump();
}

// Its client does not read, so that it cannot end before.
TEST(ServiceDeadline, OneThatPassesInAStreamIsAnErrorWithinAndItsEnd) {
  ServiceOptions options;
  options.max_unsent_bytes = 0;
  ServiceUnderTest service(options);
  for (int deadline_ms = 100;; deadline_ms *= 2) {  // on a busy machine it may pass before the head
    const auto exchange = service.send_unread(
        "/v1/completions",
        R"({"prompt":"a","ignore_eos":true,"max_tokens":200,"stream":true,"deadline_ms":)" +
            std::to_string(deadline_ms) + "}");
    exchange->wait_for_head();
    if (exchange->status() == 504) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline_ms + 1));
    exchange->drain();
    exchange->wait();
    const Reply stream = read_reply(*exchange);
    EXPECT_EQ(stream.status, 200);
    EXPECT_TRUE(stream.is_done);
    EXPECT_EQ(Reply::at(stream.events.back(), "error.type").dump(), "\"timeout_error\"");
    EXPECT_LT(stream.events.size(), 200u);
    return;
  }
}

// ---- Facts ----

TEST_F(ServiceTest, ModelsAreListed) {
  const Reply list = service_.call("GET", "/v1/models");
  EXPECT_EQ(list.text("object"), "list");
  EXPECT_EQ(list.text("data.0.id"), "tiny");
  EXPECT_EQ(list.number("data.0.max_model_len"), 256);
  EXPECT_EQ(service_.call("GET", "/v1/models/tiny").text("object"), "model");
  EXPECT_EQ(service_.call("GET", "/v1/models/t%69ny").text("id"), "tiny");
  EXPECT_EQ(service_.call("GET", "/v1/models/org/other").status, 404);
}

TEST_F(ServiceTest, PropsAndSlotsTellOfTheServer) {
  const Reply props = service_.call("GET", "/props");
  EXPECT_EQ(props.number("default_generation_settings.n_ctx"), 256);
  EXPECT_EQ(props.number("default_generation_settings.params.temperature"), 1);
  EXPECT_EQ(props.number("context"), 256);
  EXPECT_NE(props.text("chat_template").find("im_start"), std::string::npos);
  const auto slots = service_.call("GET", "/slots?fail_on_no_slot=1");
  EXPECT_EQ(slots.status, 200);
  EXPECT_EQ(slots.body.as_array().size(), static_cast<size_t>(props.number("total_slots")));
  EXPECT_FALSE(Reply::at(slots.body, "0.is_processing").as_bool());
  EXPECT_EQ(service_.call("GET", "/version").text("version"), std::string(version()));
  EXPECT_EQ(service_.call("GET", "/metrics").status, 404);  // nobody makes them
}

TEST_F(ServiceTest, ChoicesAskedForAreMeasuredOnceForEachPrompt) {
  complete(R"(["the sea","a b c"])", R"("n":3,"max_tokens":1)");
  complete(R"("a")", R"("n":2,"best_of":5,"max_tokens":1)");
  service_.chat(R"("max_tokens":1,"stream":true)");
  complete(R"("a")", R"("n":0)");                            // refused
  service_.post("/v1/sessions", R"({"prompt":"the sea"})");  // nothing is generated
  const LatencyHistogram measured = service_.service().num_choices();
  EXPECT_EQ(measured.count(), 4);
  EXPECT_EQ(measured.sum_ns(), 3 + 3 + 2 + 1);
  EXPECT_EQ(measured.marks().back(), 100);
}

TEST_F(ServiceTest, TextBecomesTokensAndBack) {
  const Reply vllm = service_.post("/tokenize", R"({"prompt":"the sea","return_token_strs":true})");
  const auto ids = service_.engine().tokenize("the sea", {.parse_special = true}).value();
  EXPECT_EQ(vllm.number("count"), static_cast<int64_t>(ids.size()));
  EXPECT_EQ(vllm.at("tokens").dump(), json::Value(json::Array(ids.begin(), ids.end())).dump());
  EXPECT_EQ(vllm.number("max_model_len"), 256);
  std::string joined;
  for (const json::Value& each : vllm.at("token_strs").as_array()) joined += each.as_string();
  EXPECT_EQ(joined, "the sea");
  const Reply llama = service_.post("/tokenize", R"({"content":"the sea","with_pieces":true})");
  EXPECT_EQ(llama.number("tokens.0.id"), ids[0]);
  EXPECT_TRUE(llama.at("tokens.0.piece").is_string());
  const Reply text = service_.post("/detokenize", R"({"tokens":)" + vllm.at("tokens").dump() + "}");
  EXPECT_EQ(text.text("prompt"), "the sea");
  EXPECT_EQ(text.text("content"), "the sea");
  EXPECT_EQ(service_.post("/detokenize", R"({"tokens":[99999]})").param(), "tokens[0]");
  EXPECT_EQ(service_.post("/detokenize", "{}").param(), "tokens");
}

TEST_F(ServiceTest, TheTemplateIsAppliedAsAChatWould) {
  const Reply reply =
      service_.post("/apply-template", R"({"messages":[{"role":"user","content":"hello"}]})");
  EXPECT_EQ(reply.text("prompt"), "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
  const Reply tokens =
      service_.post("/tokenize", R"({"messages":[{"role":"user","content":"hello"}]})");
  const Reply direct =
      service_.post("/tokenize", R"({"add_special_tokens":false,"prompt":)" +
                                     json::Value(reply.text("prompt")).dump() + "}");
  EXPECT_EQ(tokens.at("tokens").dump(), direct.at("tokens").dump());
}

TEST_F(ServiceTest, AnAnswerThatHasBegunIsContinued) {
  const std::string messages =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"the sea"}],)";
  const std::string members =
      std::string(kDraws) + R"(,"max_tokens":6,"continue_final_message":true)";
  const Reply reply =
      service_.post("/v1/chat/completions", messages + members + R"(,"echo":true})");
  ASSERT_EQ(reply.status, 200) << reply.body.dump();
  const Reply prompt =
      service_.post("/apply-template", messages + R"("continue_final_message":true})");
  EXPECT_TRUE(prompt.text("prompt").ends_with("the sea"));
  const Reply direct = service_.post(
      "/v1/completions", R"({"add_special_tokens":false,"max_tokens":6,"prompt":)" +
                             json::Value(prompt.text("prompt")).dump() + "," + kDraws + "}");
  EXPECT_EQ(reply.text("choices.0.message.content"), "the sea" + direct.text("choices.0.text"));
}

TEST_F(ServiceTest, AKnownPrefixIsReportedAsCached) {
  const std::string prompt = json::Value(std::string(60, 'x')).dump();
  complete(prompt, R"("max_tokens":1)");
  const Reply again = complete(prompt, R"("max_tokens":1)");
  EXPECT_GT(again.number("usage.prompt_tokens_details.cached_tokens"), 0);
  // Whatever came between.
  complete(json::Value(std::string(60, 'y')).dump(), R"("max_tokens":1)");
  const Reply third = complete(prompt, R"("max_tokens":1)");
  EXPECT_EQ(third.number("usage.prompt_tokens_details.cached_tokens"),
            again.number("usage.prompt_tokens_details.cached_tokens"));
  const Reply other = complete(prompt, R"("max_tokens":1,"cache_salt":"mine")");
  EXPECT_EQ(other.number("usage.prompt_tokens_details.cached_tokens"), 0);
}

TEST_F(ServiceTest, ThirtyTwoStreamsAtOnceAreThoseOfEachAlone) {
  std::vector<std::string> bodies;
  for (int i = 0; i < 32; ++i) {
    bodies.push_back(R"({"prompt":"the sea )" + std::to_string(i % 5) + R"(","seed":)" +
                     std::to_string(i) +
                     R"(,"temperature":1.2,"ignore_eos":true,"logprobs":1,"max_tokens":)" +
                     std::to_string(8 + i % 17) + R"(,"stream":true})");
  }
  std::vector<std::shared_ptr<FakeExchange>> exchanges;
  for (const std::string& body : bodies) {
    exchanges.push_back(service_.send("POST", "/v1/completions", body));
  }
  const auto logprobs = [](const Reply& reply) {
    std::string text;
    for (const json::Value& event : reply.events) {
      const json::Value& list = Reply::at(event, "choices.0.logprobs.token_logprobs");
      if (!list.is_array()) continue;
      for (const json::Value& each : list.as_array()) text += each.dump() + " ";
    }
    return text;
  };
  for (size_t i = 0; i < bodies.size(); ++i) {
    exchanges[i]->wait();
    const Reply together = read_reply(*exchanges[i]);
    const Reply alone = service_.post("/v1/completions", bodies[i]);
    ASSERT_TRUE(together.is_done);
    EXPECT_EQ(together.streamed(), alone.streamed()) << i;
    EXPECT_EQ(logprobs(together), logprobs(alone)) << i;
  }
}

}  // namespace
}  // namespace chorus::api
