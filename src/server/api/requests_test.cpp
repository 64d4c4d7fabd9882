#include "server/api/requests.h"

#include <gtest/gtest.h>

#include "server/api/errors.h"
#include "server/api/messages.h"
#include "server/api/refused.h"

namespace chorus::api {
namespace {

json::Value parsed(std::string_view text) { return json::parse(text, "test").value(); }

Status chat_error(std::string_view text) { return read_chat_request(parsed(text)).status(); }
Status completion_error(std::string_view text) {
  return read_completion_request(parsed(text)).status();
}

constexpr std::string_view kUser = R"("messages":[{"role":"user","content":"a"}])";
std::string chat(const std::string& members) {
  return "{" + std::string(kUser) + "," + members + "}";
}

TEST(ChatRequest, ReadsWhatClientsSend) {
  const auto request = read_chat_request(parsed(R"({
      "model": "m", "stream": true, "stream_options": {"include_usage": true},
      "messages": [{"role": "developer", "content": "be brief"},
                   {"role": "user", "content": [{"type": "text", "text": "a"},
                                                {"type": "text", "text": "b"}], "name": "u"}],
      "max_completion_tokens": 7, "n": 3, "temperature": 0.5, "logprobs": true, "top_logprobs": 2,
      "chat_template_kwargs": {"enable_thinking": false}, "user": "x", "metadata": {"a": "b"},
      "something_new": [1], "tools": [], "tool_choice": "none", "seed": null,
      "response_format": {"type": "text"}})"));
  ASSERT_TRUE(request.ok()) << request.status().to_string();
  EXPECT_EQ(request->model, "m");
  EXPECT_TRUE(request->stream && request->include_usage);
  EXPECT_EQ(request->fields.max_tokens, 7);
  EXPECT_EQ(request->fields.n, 3);
  EXPECT_EQ(request->num_tried, 3);
  EXPECT_EQ(request->fields.logprobs, 2);
  EXPECT_FALSE(request->fields.seed.has_value());
  EXPECT_EQ(request->chat->variables_json, R"({"enable_thinking":false})");
  ASSERT_EQ(request->chat->messages.size(), 2u);
  EXPECT_EQ(role_of(request->chat->messages[0]), "system");
  EXPECT_EQ(content_of(request->chat->messages[1]), "a\nb");
  EXPECT_EQ(request->chat->messages[1].find("name")->as_string(), "u");
}

TEST(ChatRequest, DefaultsAreOpenAis) {
  const auto request = read_chat_request(parsed("{" + std::string(kUser) + "}"));
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->fields.sampling.temperature, 1.0f);
  EXPECT_EQ(request->fields.sampling.top_p, 1.0f);
  EXPECT_EQ(request->fields.sampling.top_k, 0);
  EXPECT_EQ(request->fields.n, 1);
  EXPECT_FALSE(request->stream);
  EXPECT_FALSE(request->fields.max_tokens.has_value());
}

TEST(ChatRequest, MessagesThatAreWrongAreNamed) {
  const auto field = [](std::string_view messages) {
    return chat_error(R"({"messages":)" + std::string(messages) + "}").field();
  };
  EXPECT_EQ(chat_error("{}").field(), "messages");
  EXPECT_EQ(field("[]"), "messages");
  EXPECT_EQ(field("\"a\""), "messages");
  EXPECT_EQ(field("[1]"), "messages[0]");
  EXPECT_EQ(field(R"([{"content":"a"}])"), "messages[0].role");
  EXPECT_EQ(field(R"([{"role":"robot","content":"a"}])"), "messages[0].role");
  EXPECT_EQ(field(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(field(R"([{"role":"user","content":7}])"), "messages[0].content");
  EXPECT_EQ(field(R"([{"role":"user","content":[{"type":"text"}]}])"),
            "messages[0].content[0].text");
  EXPECT_EQ(field(R"([{"role":"user","content":"a"},{"role":"user","content":["a"]}])"),
            "messages[1].content[0]");
  EXPECT_EQ(field(R"([{"role":"assistant","content":null,"tool_calls":7}])"),
            "messages[0].tool_calls");
}

TEST(ChatRequest, OtherPartsThanTextAreRefusedByName) {
  const Status status = chat_error(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},
          {"type":"image_url","image_url":{"url":"data:"}}]}]})");
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_EQ(status.field(), "messages[0].content[1].type");
  EXPECT_NE(status.message().find("image_url"), std::string::npos);
}

TEST(ChatRequest, ToolMessagesArePassedOn) {
  const auto messages = read_messages(parsed(R"([
      {"role":"assistant","content":null,"tool_calls":[
          {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
      {"role":"tool","content":"42","tool_call_id":"c1"}])"),
                                      "messages");
  ASSERT_TRUE(messages.ok()) << messages.status().to_string();
  EXPECT_EQ((*messages)[0].dump(),
            R"({"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function",)"
            R"("function":{"name":"f","arguments":{"x":1}}}]})");
  EXPECT_EQ((*messages)[1].dump(), R"({"role":"tool","content":"42","tool_call_id":"c1"})");
}

TEST(ChatRequest, AFinalMessageIsContinuedWithoutAPrompt) {
  auto request = read_chat_request(parsed(chat(R"("continue_final_message":true)")));
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(request->chat->add_generation_prompt);
  EXPECT_EQ(
      chat_error(chat(R"("continue_final_message":true,"add_generation_prompt":true)")).field(),
      "continue_final_message");
  EXPECT_EQ(cut_behind_content("<a>hello</a>\n", "hello").value(), "<a>hello");
  EXPECT_EQ(cut_behind_content("<a>hello</a>\n", " hello ").value(), "<a>hello");
  EXPECT_EQ(cut_behind_content("<a></a>", "b").status().field(), "continue_final_message");
}

TEST(Requests, WhatIsKnownAndNotOfferedIsRefusedByItsName) {
  for (const char* members : {R"("tools":[{"type":"function"}])",
                              R"("tool_choice":"auto")",
                              R"("functions":[{}])",
                              R"("response_format":{"type":"json_object"})",
                              R"("logits_processors":["a"])",
                              R"("structured_outputs":{"regex":"a"})",
                              R"("guided_json":{})",
                              R"("store":true)",
                              R"("prediction":{})",
                              R"("audio":{})",
                              R"("modalities":["text","audio"])",
                              R"("use_beam_search":true)",
                              R"("chat_template":"x")",
                              R"("grammar":"root ::= x")",
                              R"("mirostat":2)",
                              R"("reasoning_effort":"high")",
                              R"("cache_prompt":false)",
                              R"("service_tier":"flex")",
                              R"("n_predict":64)",
                              R"("repeat_penalty":1.1)",
                              R"("typ_p":0.5)",
                              R"("regex":"a")",
                              R"("ebnf":"root ::= x")",
                              R"("no_stop_trim":true)"}) {
    const std::string text(members);
    const Status status = chat_error(chat(text));
    EXPECT_EQ(status.code(), Code::kUnimplemented) << members;
    EXPECT_EQ('"' + status.field() + '"', text.substr(0, text.find(':'))) << members;
    EXPECT_EQ(error_of(status).status, 400);
  }
  EXPECT_EQ(completion_error(R"({"prompt":"a","suffix":"b"})").field(), "suffix");
  const Status usage =
      chat_error(chat(R"("stream":true,"stream_options":{"continuous_usage_stats":true})"));
  EXPECT_EQ(usage.code(), Code::kUnimplemented);
  EXPECT_EQ(usage.field(), "stream_options.continuous_usage_stats");
}

// What would change the prompt is not passed over where nothing is generated.
TEST(Requests, RoutesThatMakeAPromptAloneRefuseWhatIsNotOffered) {
  for (const char* members : {R"("tools":[{"type":"function"}])", R"("chat_template":"x")",
                              R"("documents":[{"text":"a"}])"}) {
    const json::Value body = parsed(chat(members));
    EXPECT_EQ(read_tokenize_request(body).status().code(), Code::kUnimplemented) << members;
    EXPECT_EQ(read_template_request(body).status().code(), Code::kUnimplemented) << members;
    EXPECT_EQ(read_open_request(body).status().code(), Code::kUnimplemented) << members;
  }
}

TEST(Requests, SpecialTokensAreThePromptsOwnInSessionsToo) {
  const json::Value text = parsed(R"({"prompt":"a","add_special_tokens":false})");
  EXPECT_FALSE(read_open_request(text)->add_special_tokens);
  EXPECT_FALSE(read_session_request(text)->add_special_tokens);
  EXPECT_TRUE(read_open_request(parsed(R"({"prompt":"a"})"))->add_special_tokens);
  const json::Value messages = parsed(chat(R"("add_special_tokens":true)"));
  EXPECT_EQ(read_open_request(messages).status().field(), "add_special_tokens");
  EXPECT_EQ(read_session_request(messages).status().field(), "add_special_tokens");
}

TEST(Requests, WhatAsksForNothingPasses) {
  for (const char* members :
       {R"("tools":null)", R"("tools":[])", R"("tool_choice":"none")", R"("store":false)",
        R"("mirostat":0)", R"("grammar":"")", R"("service_tier":"default")", R"("suffix":"")",
        R"("modalities":["text"])", R"("bad_words":[])", R"("presence_penalty":0)",
        R"("use_beam_search":false)", R"("cache_prompt":true)", R"("parallel_tool_calls":true)",
        R"("user":"u")", R"("prompt_cache_key":"k")", R"("n_predict":-1)", R"("typ_p":1.0)"}) {
    EXPECT_TRUE(chat_error(chat(members)).ok()) << members;
  }
}

TEST(Requests, ParametersAreCheckedAndNamed) {
  const auto field = [](const std::string& members) {
    const Status status = chat_error(chat(members));
    return status.ok() ? std::string("ok") : status.field();
  };
  EXPECT_EQ(field(R"("n":0)"), "n");
  EXPECT_EQ(field(R"("n":129)"), "n");
  EXPECT_EQ(field(R"("n":"1")"), "n");
  EXPECT_EQ(field(R"("temperature":-1)"), "temperature");
  EXPECT_EQ(field(R"("temperature":"hot")"), "temperature");
  EXPECT_EQ(field(R"("top_p":0)"), "top_p");
  EXPECT_EQ(field(R"("max_tokens":0)"), "max_tokens");
  EXPECT_EQ(field(R"("max_tokens":-5)"), "max_tokens");
  EXPECT_EQ(field(R"("max_tokens":1.5)"), "max_tokens");
  EXPECT_EQ(field(R"("stop":"")"), "stop");
  EXPECT_EQ(field(R"("stop":["a",""])"), "stop[1]");
  EXPECT_EQ(field(R"("stream":1)"), "stream");
  EXPECT_EQ(field(R"("stream_options":{"include_usage":true})"), "stream_options");
  EXPECT_EQ(field(R"("stream":true,"stream_options":{"include_usage":1})"),
            "stream_options.include_usage");
  EXPECT_EQ(field(R"("top_logprobs":2)"), "top_logprobs");
  EXPECT_EQ(field(R"("logprobs":true,"top_logprobs":65)"), "top_logprobs");
  EXPECT_EQ(field(R"("stream":true,"prompt_logprobs":1)"), "prompt_logprobs");
  EXPECT_EQ(field(R"("chat_template_kwargs":[])"), "chat_template_kwargs");
  EXPECT_EQ(field(R"("seed":-1)"), "ok");
}

TEST(CompletionRequest, TakesFourKindsOfPrompts) {
  const auto prompts = [](std::string_view prompt) {
    return read_completion_request(parsed(R"({"prompt":)" + std::string(prompt) + "}"))
        .value()
        .prompts;
  };
  EXPECT_EQ(prompts(R"("a")")[0].text, "a");
  EXPECT_EQ(prompts(R"(["a","b"])")[1].text, "b");
  EXPECT_EQ(prompts("[1,2]")[0].tokens, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(prompts("[[1,2],[3]]")[1].tokens, (std::vector<TokenId>{3}));
  EXPECT_EQ(prompts(R"([[1],"b"])").size(), 2u);
  EXPECT_EQ(completion_error("{}").field(), "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":[]})").field(), "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":[[]]})").field(), "prompt[0]");
  EXPECT_EQ(completion_error(R"({"prompt":[1,"a"]})").field(), "prompt[1]");
  EXPECT_EQ(completion_error(R"({"prompt":{}})").field(), "prompt");
  EXPECT_EQ(completion_error(R"({"prompt":[["a"]]})").field(), "prompt[0][0]");
}

TEST(CompletionRequest, AsksForNoMoreThanCanBeHeld) {
  std::string prompts = "[\"a\"";
  for (int i = 1; i < 64; ++i) prompts += ",\"a\"";
  prompts += "]";
  EXPECT_TRUE(completion_error(R"({"n":64,"prompt":)" + prompts + "}").ok());
  EXPECT_EQ(completion_error(R"({"n":65,"prompt":)" + prompts + "}").field(), "prompt");
}

TEST(CompletionRequest, ScoresAPromptAloneAndTriesMoreThanItAnswers) {
  const auto request = read_completion_request(
      parsed(R"({"prompt":"a","max_tokens":0,"echo":true,"logprobs":5,"n":2,"best_of":4})"));
  ASSERT_TRUE(request.ok()) << request.status().to_string();
  EXPECT_EQ(request->fields.max_tokens, 0);
  EXPECT_TRUE(request->echo);
  EXPECT_EQ(request->fields.logprobs, 5);
  EXPECT_EQ(request->num_tried, 4);
  EXPECT_EQ(completion_error(R"({"prompt":"a","n":3,"best_of":2})").field(), "best_of");
  EXPECT_EQ(completion_error(R"({"prompt":"a","best_of":2,"stream":true})").field(), "best_of");
}

TEST(Errors, HaveTheStatusesThatClientsActOn) {
  EXPECT_EQ(error_of(invalid_argument("n", "x")).status, 400);
  EXPECT_EQ(error_of(unimplemented("tools", "x")).status, 400);
  EXPECT_EQ(error_of(not_found("model", "x")).status, 404);
  EXPECT_EQ(error_of(not_found("model", "x")).code, "model_not_found");
  EXPECT_EQ(error_of(unavailable("session", "busy")).status, 409);
  // A member of that name that is no JSON is no busy session.
  EXPECT_EQ(error_of(json::parse_with_paths(R"({"session":})").status()).status, 400);
  EXPECT_EQ(error_of(resource_exhausted("queue", "x")).status, 429);
  EXPECT_EQ(error_of(resource_exhausted("chat_template", "x")).status, 400);
  EXPECT_EQ(error_of(resource_exhausted("name", "x")).status, 507);
  EXPECT_EQ(error_of(resource_exhausted("name", "x")).code, "insufficient_storage");
  EXPECT_FALSE(error_of(resource_exhausted("name", "x")).retry_after_s.has_value());
  EXPECT_EQ(error_of(deadline_exceeded("", "x")).status, 504);
  EXPECT_EQ(error_of(unavailable("engine", "x")).status, 503);
  EXPECT_EQ(error_of(internal_error("", "x")).status, 500);
  EXPECT_EQ(error_of(data_loss("file", "x")).status, 500);
  for (const Status& status : {resource_exhausted("queue", "x"), unavailable("engine", "x")}) {
    EXPECT_FALSE(
        http::find_header(error_response(error_of(status)).headers, "retry-after").empty());
  }
  EXPECT_EQ(error_response(error_of(invalid_argument("n", "expected 1"))).body,
            "{\"error\":{\"message\":\"n: expected 1\",\"type\":\"invalid_request_error\","
            "\"param\":\"n\",\"code\":\"invalid_argument\"}}\n");
}

}  // namespace
}  // namespace chorus::api
