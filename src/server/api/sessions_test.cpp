#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <thread>

#include "base/testing/file_limit.h"
#include "chorus/session_file.h"
#include "engine/saved_session.h"
#include "server/api/session_files.h"
#include "server/api/testing/service_under_test.h"
#include "server/api/turns.h"

namespace chorus::api {
namespace {

using testing::FakeExchange;
using testing::read_reply;
using testing::Reply;
using testing::ServiceUnderTest;

constexpr const char* kDraws =
    R"("temperature":1.5,"seed":7,"ignore_eos":true,"return_token_ids":true)";

std::vector<http::Header> bearer(const std::string& key) {
  return {{"authorization", "Bearer " + key}};
}

std::string user(const std::string& content) {
  return R"("messages":[{"role":"user","content":")" + content + R"("}])";
}

class SessionsTest : public ::testing::Test {
 protected:
  SessionsTest() : folder_(make_folder()), service_(options(folder_)) {}
  ~SessionsTest() override { std::filesystem::remove_all(folder_); }

  static std::string make_folder() {
    std::string path = ::testing::TempDir() + "chorus_sessions_XXXXXX";
    CHORUS_CHECK(mkdtemp(path.data()) != nullptr);
    return path;
  }
  static ServiceOptions options(const std::string& folder) {
    ServiceOptions options;
    options.session_directory = folder;
    options.max_held_sessions = 6;
    return options;
  }

  std::string open(const std::string& members) {
    const Reply reply = service_.post("/v1/sessions", "{" + members + "}");
    EXPECT_EQ(reply.status, 200) << reply.body.dump();
    return reply.text("id");
  }
  Reply generate(const std::string& id, const std::string& members) {
    return service_.post("/v1/sessions/" + id + "/generate", "{" + members + "}");
  }
  Reply facts(const std::string& id) { return service_.call("GET", "/v1/sessions/" + id); }

  // The tokens of a completion whose prompt is a list of ids.
  std::string alone(const std::string& ids, int max_tokens) {
    return service_
        .post("/v1/completions", R"({"prompt":)" + ids + R"(,"max_tokens":)" +
                                     std::to_string(max_tokens) + "," + kDraws + "}")
        .at("choices.0.token_ids")
        .dump();
  }

  const std::string folder_;
  ServiceUnderTest service_;
};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "[1,2]" and "[3]" make "[1,2,3]".
std::string joined(const std::string& a, const std::string& b) {
  return a.substr(0, a.size() - 1) + "," + b.substr(1);
}

TEST_F(SessionsTest, GoOnAsIfTheirWholeContextWereThePrompt) {
  const std::string id = open(R"("prompt":[10,11,12,13,14])");
  EXPECT_EQ(facts(id).number("tokens"), 5);
  const Reply first = generate(id, std::string(R"("prompt":[20],"max_tokens":4,)") + kDraws);
  ASSERT_EQ(first.status, 200) << first.body.dump();
  EXPECT_EQ(first.text("object"), "text_completion");
  const std::string answer = first.at("choices.0.token_ids").dump();
  EXPECT_EQ(answer, alone("[10,11,12,13,14,20]", 4));
  EXPECT_EQ(first.number("usage.prompt_tokens"), 6);
  EXPECT_EQ(first.number("usage.prompt_tokens_details.cached_tokens"), 5);
  EXPECT_EQ(first.number("session.tokens"), 10);
  EXPECT_EQ(first.number("session.kept_tokens"), 5);
  EXPECT_EQ(first.number("session.recomputed_tokens"), 0);

  const Reply stream =
      generate(id, std::string(R"("prompt":[21,22],"max_tokens":4,"stream":true,)") + kDraws);
  EXPECT_TRUE(stream.is_done);
  EXPECT_EQ(Reply::at(stream.events.back(), "session.tokens").dump(), "16");
  std::string ids;
  for (const json::Value& event : stream.events) {
    const json::Value& list = Reply::at(event, "choices.0.token_ids");
    if (list.is_array()) ids = ids.empty() ? list.dump() : joined(ids, list.dump());
  }
  EXPECT_EQ(ids, alone(joined(joined("[10,11,12,13,14,20]", answer), "[21,22]"), 4));
}

TEST_F(SessionsTest, WithoutAPromptTheyGoOnFromTheirLastToken) {
  const std::string id = open(R"("prompt":[10,11,12])");
  const Reply reply = generate(id, std::string(R"("max_tokens":4,)") + kDraws);
  EXPECT_EQ(reply.at("choices.0.token_ids").dump(), alone("[10,11,12]", 4));
  EXPECT_EQ(reply.number("session.tokens"), 7);
  EXPECT_EQ(generate(open(""), R"("max_tokens":4)").param(), "prompt");
}

TEST_F(SessionsTest, LazyOnesConsumeWithTheFirstGeneration) {
  const std::string id = open(R"("prompt":[10,11,12],"lazy":true)");
  EXPECT_EQ(facts(id).number("tokens"), 0);
  EXPECT_EQ(facts(id).number("pending_tokens"), 3);
  const Reply reply = generate(id, std::string(R"("prompt":[13],"max_tokens":4,)") + kDraws);
  EXPECT_EQ(reply.at("choices.0.token_ids").dump(), alone("[10,11,12,13]", 4));
  EXPECT_EQ(facts(id).number("pending_tokens"), 0);
}

TEST_F(SessionsTest, AChatKeepsItsTranscript) {
  const std::string id = open(user("hello"));
  EXPECT_EQ(facts(id).text("messages.0.content"), "hello");
  const Reply first = generate(id, std::string(R"("max_tokens":6,)") + kDraws);
  ASSERT_EQ(first.status, 200) << first.body.dump();
  EXPECT_EQ(first.text("object"), "chat.completion");
  const Reply stateless = service_.post("/v1/chat/completions",
                                        "{" + user("hello") + R"(,"max_tokens":6,)" + kDraws + "}");
  EXPECT_EQ(first.at("choices.0.token_ids").dump(), stateless.at("choices.0.token_ids").dump());
  const std::string answer = first.text("choices.0.message.content");
  EXPECT_EQ(facts(id).text("messages.1.role"), "assistant");
  EXPECT_EQ(facts(id).text("messages.1.content"), answer);
  const int64_t held = facts(id).number("tokens");
  EXPECT_EQ(facts(id).number("messages.1.end"), held);

  const Reply second = generate(id, user("more") + R"(,"max_tokens":4,)" + kDraws);
  ASSERT_EQ(second.status, 200) << second.body.dump();
  // Bytes that are no text are told as U+FFFD, and the template writes that: then the answer is
  // read anew.
  if (answer.find("\xef\xbf\xbd") == answer.npos && answer == std::string(answer)) {
    EXPECT_LE(second.number("session.kept_tokens"), held);
  }
  EXPECT_EQ(facts(id).at("messages").as_array().size(), 4u);
  EXPECT_EQ(facts(id).text("messages.2.content"), "more");
}

TEST_F(SessionsTest, WhatTheTemplateWritesTheSameIsNotConsumedAgain) {
  // The model's end token ends the answer, as it would with trained weights.
  const std::string id = open(
      R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"the sea"}])");
  const int64_t held = facts(id).number("tokens");
  const Reply reply = generate(id, user("b") + R"(,"max_tokens":2,)" + kDraws);
  EXPECT_EQ(reply.number("session.kept_tokens"), held);
  EXPECT_EQ(reply.number("usage.prompt_tokens_details.cached_tokens"), held);
}

TEST_F(SessionsTest, ForksShareWhatTheyHold) {
  const std::string id = open(R"("prompt":[10,11,12,13,14,15])");
  const Reply copy = service_.post("/v1/sessions/" + id + "/fork", R"({"at":4})");
  ASSERT_EQ(copy.status, 200) << copy.body.dump();
  EXPECT_NE(copy.text("id"), id);
  EXPECT_EQ(copy.number("tokens"), 4);
  const std::string branch = copy.text("id");
  const std::string members = std::string(R"("prompt":[20],"max_tokens":5,)") + kDraws;
  const Reply forked = generate(branch, members);
  EXPECT_EQ(forked.at("choices.0.token_ids").dump(), alone("[10,11,12,13,20]", 5));
  EXPECT_EQ(forked.number("session.recomputed_tokens"), 0);
  EXPECT_EQ(generate(id, members).at("choices.0.token_ids").dump(),
            alone("[10,11,12,13,14,15,20]", 5));
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/fork", R"({"at":100})").param(), "at");
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/fork", "").number("tokens"), 12);
}

TEST_F(SessionsTest, AForkOfAChatHasTheMessagesBeforeIt) {
  const std::string id = open(
      R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"the sea"}])");
  generate(id, user("more") + R"(,"max_tokens":4,)" + kDraws);
  const Reply all = facts(id);
  ASSERT_EQ(all.at("messages").as_array().size(), 4u);
  for (size_t kept : {size_t{2}, size_t{3}, size_t{4}}) {
    const int64_t at = all.number("messages." + std::to_string(kept - 1) + ".end");
    const Reply copy =
        service_.post("/v1/sessions/" + id + "/fork", R"({"at":)" + std::to_string(at) + "}");
    EXPECT_EQ(copy.at("messages").as_array().size(), kept);
    EXPECT_EQ(copy.number("tokens"), at);
  }
}

// So that one can be forked between them, and goes on as if it had been opened so.
TEST_F(SessionsTest, MessagesThatComeTogetherEndEachWhereItDoes) {
  const std::string first = R"({"role":"user","content":"a"})";
  const std::string second = R"({"role":"assistant","content":"the sea"})";
  const std::string third = R"({"role":"user","content":"b"})";
  const auto messages = [](const std::string& list) { return R"("messages":[)" + list + "]"; };
  const std::string more = R"(,"max_tokens":4,)" + std::string(kDraws);
  const int64_t end = facts(open(messages(first))).number("tokens");
  const int64_t second_end = facts(open(messages(first + "," + second))).number("tokens");
  const std::string whole = open(messages(first + "," + second + "," + third));
  EXPECT_EQ(facts(whole).number("messages.0.end"), end);
  EXPECT_EQ(facts(whole).number("messages.1.end"), second_end);
  EXPECT_EQ(facts(whole).number("messages.2.end"), facts(whole).number("tokens"));
  const Reply copy =
      service_.post("/v1/sessions/" + whole + "/fork", R"({"at":)" + std::to_string(end) + "}");
  EXPECT_EQ(copy.number("tokens"), end);
  ASSERT_EQ(copy.at("messages").as_array().size(), 1u);
  const std::string answer = generate(whole, more.substr(1)).at("choices.0.token_ids").dump();
  EXPECT_EQ(generate(copy.text("id"), messages(second + "," + third) + more)
                .at("choices.0.token_ids")
                .dump(),
            answer);
  const std::string lazy = open(messages(first + "," + second + "," + third) + R"(,"lazy":true)");
  EXPECT_EQ(facts(lazy).number("messages.0.end"), end);
  EXPECT_EQ(generate(lazy, more.substr(1)).at("choices.0.token_ids").dump(), answer);
  EXPECT_EQ(facts(lazy).number("messages.0.end"), end);
  EXPECT_EQ(facts(lazy).number("messages.1.end"), second_end);
}

TEST_F(SessionsTest, MessagesOfALaterGenerationEndEachWhereTheyDo) {
  const std::string first = R"({"role":"user","content":"a"})";
  const std::string second = R"({"role":"assistant","content":"the sea"})";
  const std::string third = R"({"role":"user","content":"b"})";
  const auto messages = [](const std::string& list) { return R"("messages":[)" + list + "]"; };
  const std::string more = R"(,"max_tokens":4,)" + std::string(kDraws);
  const Reply opened = facts(open(messages(first + "," + second + "," + third)));
  const std::string id = open("");
  const std::string answer = generate(id, messages(first + "," + second + "," + third) + more)
                                 .at("choices.0.token_ids")
                                 .dump();
  for (const char* end : {"messages.0.end", "messages.1.end"}) {
    EXPECT_EQ(facts(id).number(end), opened.number(end)) << end;
  }
  const std::string at = facts(id).at("messages.0.end").dump();
  const Reply copy = service_.post("/v1/sessions/" + id + "/fork", R"({"at":)" + at + "}");
  EXPECT_EQ(copy.at("tokens").dump(), at);
  EXPECT_EQ(copy.at("messages").as_array().size(), 1u);
  const Reply forked = generate(copy.text("id"), messages(second + "," + third) + more);
  EXPECT_EQ(forked.at("choices.0.token_ids").dump(), answer);
  EXPECT_EQ(forked.at("session.kept_tokens").dump(), at);
  // The last one ends behind what opens its answer; one token of that is run again, for another.
  const int64_t to = facts(id).number("messages.2.end");
  EXPECT_GT(to, opened.number("messages.2.end"));
  const Reply rewound =
      service_.post("/v1/sessions/" + id + "/rewind", R"({"to":)" + std::to_string(to) + "}");
  EXPECT_EQ(rewound.at("messages").as_array().size(), 3u);
  const Reply again = generate(id, more.substr(1));
  EXPECT_EQ(again.at("choices.0.token_ids").dump(), answer);
  EXPECT_EQ(again.number("session.kept_tokens"), to - 1);
  EXPECT_EQ(facts(id).at("messages").as_array().size(), 4u);
}

TEST_F(SessionsTest, AnAnswerThatHasBegunIsContinuedAsOneMessage) {
  const std::string id = open(user("a"));
  const std::string begun =
      R"("messages":[{"role":"assistant","content":"the sea"}],"continue_final_message":true,)";
  const Reply reply = generate(id, begun + R"("max_tokens":4,)" + kDraws);
  ASSERT_EQ(reply.status, 200) << reply.body.dump();
  ASSERT_EQ(facts(id).at("messages").as_array().size(), 2u);
  EXPECT_EQ(facts(id).text("messages.1.content"),
            "the sea" + reply.text("choices.0.message.content"));
  EXPECT_EQ(facts(id).number("messages.1.end"), facts(id).number("tokens"));
}

TEST_F(SessionsTest, AChatsOptionsCountWithoutMessages) {
  const std::string id = open(user("a"));
  const int64_t held = facts(id).number("tokens");
  const Reply without = generate(id, R"("add_generation_prompt":false,"max_tokens":1)");
  EXPECT_EQ(without.number("usage.prompt_tokens"), held);
  EXPECT_EQ(generate(open(user("a")), R"("max_tokens":1,"chat_template_kwargs":[])").param(),
            "chat_template_kwargs");
}

TEST_F(SessionsTest, ARewindTakesBackTokensAndMessages) {
  const std::string id = open(R"("prompt":[10,11,12,13])");
  const std::string members = std::string(R"("prompt":[20],"max_tokens":5,)") + kDraws;
  const std::string first = generate(id, members).at("choices.0.token_ids").dump();
  const Reply rewound = service_.post("/v1/sessions/" + id + "/rewind", R"({"to":4})");
  EXPECT_EQ(rewound.number("tokens"), 4);
  EXPECT_EQ(generate(id, members).at("choices.0.token_ids").dump(), first);
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/rewind", R"({"to":-1})").param(), "to");
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/rewind", R"({"to":0})").number("tokens"), 0);
}

TEST_F(SessionsTest, TheListHasNoTexts) {
  const std::string id = open(user("a secret"));
  const Reply list = service_.call("GET", "/v1/sessions");
  EXPECT_EQ(list.text("data.0.id"), id);
  EXPECT_EQ(list.number("data.0.num_messages"), 1);
  EXPECT_EQ(list.number("data.0.tokens"), facts(id).number("tokens"));
  EXPECT_EQ(list.text("data.0.is_busy"), "false");
  EXPECT_EQ(list.body.dump().find("secret"), std::string::npos);
  EXPECT_EQ(facts(id).text("messages.0.content"), "a secret");
}

TEST_F(SessionsTest, SavedOnesComeBackWithTheirMessages) {
  const std::string id = open(user("hello"));
  const std::string members = user("more") + R"(,"max_tokens":5,)" + kDraws;
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/save", R"({"name":"a.b-c_1"})").status, 200);
  const std::string answer = generate(id, members).at("choices.0.token_ids").dump();
  const Reply loaded = service_.post("/v1/sessions/load", R"({"name":"a.b-c_1"})");
  ASSERT_EQ(loaded.status, 200) << loaded.body.dump();
  EXPECT_NE(loaded.text("id"), id);
  EXPECT_EQ(loaded.text("messages.0.content"), "hello");
  EXPECT_EQ(generate(loaded.text("id"), members).at("choices.0.token_ids").dump(), answer);
}

// What a session with a salt computes is found by those of that salt alone, also once it was saved.
TEST_F(SessionsTest, ASaltIsSavedToo) {
  const std::string text = R"("prompt":")" + std::string(60, 'y') + R"(")";
  const std::string id = open(text + R"(,"cache_salt":"mine")");
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/save", R"({"name":"salted"})").status, 200);
  service_.call("DELETE", "/v1/sessions/" + id);
  const std::string loaded =
      service_.post("/v1/sessions/load", R"({"name":"salted","recompute":true})").text("id");
  EXPECT_EQ(generate(loaded, R"("prompt":"a","max_tokens":1)").status, 200);
  const auto cached = [&](const std::string& members) {
    return service_.post("/v1/completions", "{" + text + R"(,"max_tokens":1)" + members + "}")
        .number("usage.prompt_tokens_details.cached_tokens");
  };
  EXPECT_EQ(cached(""), 0);
  EXPECT_GT(cached(R"(,"cache_salt":"mine")"), 0);
}

// Several choices in a session are forks of it, as what refuses `n` says.
TEST_F(SessionsTest, ForksOfALoadedOneGoOnWithTheBitsOfThoseOfTheSavedOne) {
  const std::string id = open(R"("prompt":[10,11,12,13,14])");
  generate(id, std::string(R"("prompt":[20],"max_tokens":4,)") + kDraws);
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/save", R"({"name":"tree"})").status, 200);
  const auto choice_of = [&](const std::string& session, int seed) {
    const std::string fork = service_.post("/v1/sessions/" + session + "/fork", "").text("id");
    const Reply reply = generate(
        fork, R"("prompt":[21],"max_tokens":8,"temperature":1.5,"ignore_eos":true,"logprobs":3,)"
              R"("return_token_ids":true,"seed":)" +
                  std::to_string(seed));
    EXPECT_EQ(reply.status, 200) << reply.body.dump();
    EXPECT_EQ(service_.call("DELETE", "/v1/sessions/" + fork).status, 200);
    return reply.at("choices").dump();
  };
  const std::string choices[] = {choice_of(id, 7), choice_of(id, 8)};
  EXPECT_NE(choices[0], choices[1]);
  for (const char* recompute : {"false", "true"}) {
    const std::string loaded = service_
                                   .post("/v1/sessions/load", R"({"name":"tree","recompute":)" +
                                                                  std::string(recompute) + "}")
                                   .text("id");
    for (const std::string& session : {id, loaded}) {
      const Reply refused = generate(session, R"("prompt":[21],"n":2)");
      EXPECT_EQ(refused.status, 400);
      EXPECT_NE(refused.text("error.message").find("fork it for more"), std::string::npos);
    }
    EXPECT_EQ(choice_of(loaded, 7), choices[0]) << "recompute: " << recompute;
    EXPECT_EQ(choice_of(loaded, 8), choices[1]) << "recompute: " << recompute;
  }
}

TEST_F(SessionsTest, EmptyOnesAreSavedToo) {
  const std::string id = open("");
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/save", R"({"name":"empty"})").status, 200);
  EXPECT_EQ(service_.post("/v1/sessions/load", R"({"name":"empty"})").number("tokens"), 0);
}

TEST_F(SessionsTest, NamesStayInTheirFolder) {
  const std::string id = open("");
  for (const char* name :
       {"", ".", "..", "../a", "/etc/passwd", "a/b", ".hidden", "a b", "a\\n", "\\u0000", "é"}) {
    const std::string body = R"({"name":")" + std::string(name) + R"("})";
    const Reply saved = service_.post("/v1/sessions/" + id + "/save", body);
    EXPECT_EQ(saved.status, 400) << body;
    EXPECT_EQ(saved.param(), "name") << body;
    EXPECT_EQ(service_.post("/v1/sessions/load", body).param(), "name") << body;
  }
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/save", "{}").param(), "name");
  EXPECT_EQ(
      service_
          .post("/v1/sessions/" + id + "/save", R"({"name":")" + std::string(101, 'a') + R"("})")
          .param(),
      "name");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(SessionsTest, AMissingOrDamagedFileIsNamedAndChangesNothing) {
  const std::string id = open(user("hello"));
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/save", R"({"name":"good"})").status, 200);
  const std::string good = read(folder_ + "/good.session");
  const auto load = [&](const std::string& bytes) {
    std::ofstream(folder_ + "/bad.session", std::ios::binary) << bytes;
    return service_.post("/v1/sessions/load", R"({"name":"bad"})");
  };
  const auto expect_refused = [&](const Reply& reply, int status, const std::string& what) {
    EXPECT_EQ(reply.status, status) << reply.body.dump();
    EXPECT_EQ(reply.param(), "name");
    for (const std::string& part : {std::string("bad"), what}) {
      EXPECT_NE(reply.text("error.message").find(part), std::string::npos) << reply.body.dump();
    }
    EXPECT_EQ(reply.body.dump().find(folder_), std::string::npos);
  };
  expect_refused(service_.post("/v1/sessions/load", R"({"name":"bad"})"), 404, "no session");
  expect_refused(load(""), 400, "magic");
  expect_refused(load("this is no session"), 400, "magic");
  for (size_t size = 1; size < good.size(); size = size * 5 / 4 + 1) {
    expect_refused(load(good.substr(0, size)), 400, "damaged");
  }
  for (size_t at = 0; at < good.size(); at += 1 + at / 8) {
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    expect_refused(load(flipped), 400, "damaged");
  }
  expect_refused(load(good + "x"), 400, "follow the last section");
  EXPECT_EQ(load(good).status, 200);
  EXPECT_EQ(service_.call("GET", "/v1/sessions").at("data").as_array().size(), 2u);
}

TEST_F(SessionsTest, AnotherModelsFileIsRefusedByWhatDiffers) {
  const std::string id = open(user("hello"));
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/save", R"({"name":"other"})").status, 200);
  SavedSession saved = read_session(folder_ + "/other.session").value();
  const auto load = [&](const std::string& members) {
    std::ofstream file(folder_ + "/other.session", std::ios::binary);
    const std::vector<std::byte> bytes = encode_session(saved);
    file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    file.close();
    return service_.post("/v1/sessions/load", R"({"name":"other")" + members + "}");
  };
  saved.format.identity[0] ^= 1;
  const Reply foreign = load("");
  EXPECT_EQ(foreign.status, 400);
  EXPECT_EQ(foreign.param(), "name");
  EXPECT_NE(foreign.text("error.message").find("identity: expected"), std::string::npos);
  EXPECT_EQ(load(R"(,"recompute":true)").status, 200);
  saved.tokens[0] = 1 << 30;
  const Reply unknown = load(R"(,"recompute":true)");
  EXPECT_EQ(unknown.status, 400);
  EXPECT_NE(unknown.text("error.message").find("other: tokens: expected ids"), std::string::npos);
  saved.tokens[0] = 1;
  saved.notes = R"({"held_session":1,"messages":[{}]})";
  EXPECT_EQ(load(R"(,"recompute":true)").status, 400);
}

// No fault of the request's.
TEST_F(SessionsTest, WhatTheMachineRefusesIsAnErrorOfTheServer) {
  std::filesystem::create_directory(folder_ + "/folder.session");
  const Reply read = service_.post("/v1/sessions/load", R"({"name":"folder"})");
  EXPECT_EQ(read.status, 500);
  EXPECT_EQ(read.text("error.message"),
            "name: session folder cannot be read: expected a regular file");
  const std::string id = open("");
  const std::string path = "/v1/sessions/" + id + "/save";
  const Reply written = service_.post(path, R"({"name":"folder"})");
  EXPECT_EQ(written.status, 500);
  EXPECT_EQ(written.body.dump().find(folder_), std::string::npos);
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(service_.post(path, R"({"name":"a"})").status, 500) << "nothing was written";
  EXPECT_EQ(service_.post("/v1/sessions/load", R"({"name":"a"})").status, 404);
}

// To come again in a second would not help.
TEST_F(SessionsTest, AFullDiskIsToldAndLeavesWhatWasSaved) {
  const std::string id = open(user("hello"));
  const std::string path = "/v1/sessions/" + id + "/save";
  ASSERT_EQ(service_.post(path, R"({"name":"kept"})").status, 200);
  const std::string kept = read(folder_ + "/kept.session");
  std::shared_ptr<FakeExchange> full;
  {
    const chorus::testing::FileLimit limit(100);
    full = service_.send("POST", path, R"({"name":"kept"})");
    full->wait();
  }
  const Reply reply = read_reply(*full);
  EXPECT_EQ(reply.status, 507) << reply.body.dump();
  EXPECT_EQ(reply.param(), "name");
  EXPECT_EQ(reply.text("error.code"), "insufficient_storage");
  EXPECT_TRUE(reply.text("error.message").starts_with("name: session kept cannot be written: "));
  EXPECT_EQ(reply.body.dump().find(folder_), std::string::npos);
  EXPECT_EQ(full->header("retry-after"), "");
  EXPECT_EQ(read(folder_ + "/kept.session"), kept);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  EXPECT_EQ(generate(id, R"("max_tokens":1)").status, 200);
  EXPECT_EQ(service_.post(path, R"({"name":"kept"})").status, 200);
}

TEST_F(SessionsTest, MoreThanTheCapAreRefused) {
  std::vector<std::string> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(open(""));
  const auto refused = service_.send("POST", "/v1/sessions", "{}");
  refused->wait();
  EXPECT_EQ(refused->status(), 429);
  EXPECT_FALSE(refused->header("retry-after").empty());
  EXPECT_EQ(service_.post("/v1/sessions/" + ids[0] + "/fork", "").status, 429);
  EXPECT_EQ(service_.call("GET", "/v1/sessions").at("data").as_array().size(), 6u);
  EXPECT_TRUE(service_.call("DELETE", "/v1/sessions/" + ids[0]).at("deleted").as_bool());
  EXPECT_EQ(service_.call("DELETE", "/v1/sessions/" + ids[0]).status, 404);
  EXPECT_EQ(facts(ids[0]).status, 404);
  open("");
}

TEST_F(SessionsTest, BadRequestsAreNamed) {
  const std::string id = open(R"("prompt":[10])");
  EXPECT_EQ(generate(id, R"("prompt":[5],"n":2)").param(), "n");
  EXPECT_EQ(generate(id, R"("prompt":[100000])").param(), "prompt[0]");
  EXPECT_EQ(generate(id, R"("prompt":"a","max_tokens":1000)").param(), "max_tokens");
  EXPECT_EQ(generate(id, R"("prompt":"a","cache_salt":"x")").param(), "cache_salt");
  EXPECT_EQ(generate(id, R"("prompt":"a","messages":[])").param(), "prompt");
  EXPECT_EQ(generate(id, R"("prompt":"a","truncate_prompt_tokens":1)").param(),
            "truncate_prompt_tokens");
  const std::string text = json::Value(std::string(100000, 'x')).dump();
  EXPECT_EQ(generate(id, R"("prompt":)" + text).param(), "prompt");
  EXPECT_EQ(generate(id, R"("messages":[{"role":"user","content":)" + text + "}]").param(),
            "messages");
  EXPECT_EQ(service_.post("/v1/sessions", R"({"cache_salt":)" + text + "}").param(), "cache_salt");
  EXPECT_EQ(service_.post("/v1/sessions/" + id + "/rewind", "{}").param(), "to");
  EXPECT_EQ(generate("session-0", R"("prompt":"a")").status, 404);
  EXPECT_EQ(service_.post("/v1/sessions", R"({"prompt":[-1]})").param(), "prompt[0]");
  EXPECT_EQ(service_.post("/v1/sessions", R"({"model":"other"})").status, 404);
  EXPECT_EQ(facts(id).number("tokens"), 1);
  EXPECT_FALSE(facts(id).at("is_busy").as_bool());
}

TEST(Sessions, BelongToTheirKey) {
  ServiceOptions options;
  options.keys = {{"alice", "key-a"}, {"bob", "key-b"}};
  ServiceUnderTest service(options);
  const std::string id =
      service.post("/v1/sessions", R"({"prompt":[10]})", bearer("key-a")).text("id");
  EXPECT_EQ(service.call("GET", "/v1/sessions/" + id, "", bearer("key-a")).status, 200);
  EXPECT_EQ(service.call("GET", "/v1/sessions/" + id, "", bearer("key-b")).status, 404);
  for (const char* action : {"generate", "fork", "rewind"}) {
    EXPECT_EQ(service.post("/v1/sessions/" + id + "/" + action, "{}", bearer("key-b")).status, 404)
        << action;
  }
  EXPECT_EQ(service.call("DELETE", "/v1/sessions/" + id, "", bearer("key-b")).status, 404);
  EXPECT_EQ(service.call("GET", "/v1/sessions", "", bearer("key-b")).at("data").as_array().size(),
            0u);
  // Without a folder there is nothing to save to.
  EXPECT_EQ(
      service.post("/v1/sessions/" + id + "/save", R"({"name":"a"})", bearer("key-a")).param(),
      "name");
  EXPECT_NE(session_path("/d", "alice", "a").value(), session_path("/d", "bob", "a").value());
}

TEST(Sessions, OneGenerationAtATimeWorksInThem) {
  ServiceOptions options;
  options.max_unsent_bytes = 0;
  ServiceUnderTest service(options);
  const std::string id = service.post("/v1/sessions", R"({"prompt":[10]})").text("id");
  const std::string path = "/v1/sessions/" + id;
  const auto busy = service.send_unread(
      path + "/generate", R"({"prompt":[11],"max_tokens":200,"ignore_eos":true,"stream":true})");
  busy->wait_for_head();
  ASSERT_FALSE(busy->has_ended());
  EXPECT_TRUE(service.call("GET", path).at("is_busy").as_bool());
  for (const char* action : {"/generate", "/fork", "/rewind"}) {
    EXPECT_EQ(service.post(path + action, "{}").status, 409) << action;
  }
  EXPECT_EQ(service.call("DELETE", path).status, 409);
  // A client that leaves ends its generation; the session stays with what it consumed.
  busy->leave();
  while (service.call("GET", path).at("is_busy").as_bool()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const int64_t held = service.call("GET", path).number("tokens");
  EXPECT_GE(held, 1);
  EXPECT_LE(held, 202);
  EXPECT_EQ(service.post(path + "/generate", R"({"prompt":[12],"max_tokens":1})").status, 200);
}

TEST(Sessions, AreClosedWhenNobodyUsesThem) {
  ManualClock clock;
  ServiceUnderTest service({}, {}, clock);
  const std::string id = service.post("/v1/sessions", R"({"prompt":[10]})").text("id");
  EXPECT_EQ(service.call("GET", "/v1/sessions/" + id).status, 200);
  clock.advance_ns(int64_t{3600} * 1'000'000'000);
  while (service.call("GET", "/v1/sessions/" + id).status != 404) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(service.service().counts().held_sessions, 0);
}

TEST(Turns, MatchTokensWithATextByBytes) {
  EngineOptions small;
  small.threads = 1;
  small.context = 64;
  small.kv_blocks = 32;
  small.max_sessions = 4;
  auto engine = Engine::open(testing::kServedModel, small).value();
  const ModelFacts model = facts_of(*engine);
  const text::Tokenizer& tokenizer = model.text->tokenizer();
  const auto tokens = tokenizer.encode("the sea", {.add_special = false}).value();
  const TokenMatch all = match_prefix(tokenizer, tokens, "the sea and");
  EXPECT_EQ(all.num_tokens, tokens.size());
  EXPECT_EQ(all.num_bytes, 7u);
  const TokenMatch some = match_prefix(tokenizer, tokens, "the se");
  EXPECT_LT(some.num_tokens, tokens.size());
  EXPECT_EQ(match_prefix(tokenizer, tokens, "x").num_tokens, 0u);
}

// The model held something else than what the template writes now.
TEST(Turns, MessagesThatAreConsumedAnewHaveTheirNewEnds) {
  EngineOptions small;
  small.threads = 1;
  small.context = 64;
  small.kv_blocks = 32;
  small.max_sessions = 4;
  auto engine = Engine::open(testing::kServedModel, small).value();
  const ModelFacts model = facts_of(*engine);
  const auto chat = [](const std::string& content) {
    return read_chat_request(json::parse("{" + user(content) + "}", "chat").value()).value();
  };
  const auto length = [&](const std::string& content, bool opens_answer) {
    ChatInput rendered = *chat(content).chat;
    rendered.add_generation_prompt = opens_answer;
    return std::ssize(tokens_of(model, rendered, false).value().tokens);
  };
  HeldSession held;
  held.tokens = tokens_of(model, *chat("what was said at first").chat, false).value().tokens;
  held.messages.push_back(
      {chat("other").chat->messages[0], static_cast<Position>(held.tokens.size())});
  const Turn turn = plan_turn(model, held, chat("b")).value();
  EXPECT_LT(turn.known, static_cast<Position>(held.tokens.size()));
  ASSERT_EQ(turn.ends.size(), 2u);
  EXPECT_EQ(turn.ends[0], length("other", false));
  EXPECT_EQ(turn.ends[1], length("other", false) + length("b", true));
}

}  // namespace
}  // namespace chorus::api
