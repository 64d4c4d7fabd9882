#include "serve_flags.h"

#include <algorithm>
#include <gtest/gtest.h>

namespace chorus::cli {
namespace {

Result<ServeSettings> settings_of(const std::vector<std::string>& words,
                                  const char* environment_key = nullptr) {
  ServeFlags flags;
  CommandLine line("chorus serve", "");
  flags.declare(line);
  CHORUS_RETURN_IF_ERROR(line.read(words));
  return flags.parse("models/tiny.Q4_1.gguf", environment_key);
}

std::string field_of(const std::vector<std::string>& words) {
  const auto settings = settings_of(words);
  return settings.ok() ? "" : settings.status().field();
}

TEST(ServeFlags, WithoutAnyItServesThisMachineAlone) {
  const auto settings = settings_of({});
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->server.host, "127.0.0.1");
  EXPECT_EQ(settings->server.port, 8080);
  EXPECT_EQ(settings->server.unix_socket, "");
  EXPECT_EQ(settings->service.models, std::vector<std::string>{"tiny.Q4_1"});
  EXPECT_TRUE(settings->service.keys.empty());
  EXPECT_TRUE(settings->service.cors_origins.empty());
  EXPECT_FALSE(settings->service.share_prefixes);
  EXPECT_EQ(settings->access_log, "");
}

TEST(ServeFlags, SetWhatTheyName) {
  const auto settings = settings_of({"--host",
                                     "0.0.0.0",
                                     "--port",
                                     "0",
                                     "--unix-socket",
                                     "/run/x",
                                     "--queue",
                                     "7",
                                     "--max-body",
                                     "1MiB",
                                     "--max-bodies",
                                     "3MiB",
                                     "--max-connections",
                                     "3",
                                     "--drain-timeout",
                                     "1.5",
                                     "--stuck-after",
                                     "2",
                                     "--ping-interval",
                                     "0",
                                     "--cors",
                                     "https://a",
                                     "--cors",
                                     "https://b:8443",
                                     "--served-model-name",
                                     "m",
                                     "--api-key",
                                     "k1",
                                     "--api-key",
                                     "k2",
                                     "--open-metrics",
                                     "--session-idle",
                                     "10",
                                     "--max-requests-per-key",
                                     "4"},
                                    "unused");
  ASSERT_TRUE(settings.ok()) << settings.status().to_string();
  EXPECT_EQ(settings->server.host, "0.0.0.0");
  EXPECT_EQ(settings->server.port, 0);
  EXPECT_EQ(settings->server.unix_socket, "/run/x");
  EXPECT_EQ(settings->server.reader.max_body_bytes, 1u << 20);
  EXPECT_EQ(settings->server.max_bodies_bytes, 3u << 20);
  EXPECT_EQ(settings->server.max_connections, 3);
  EXPECT_EQ(settings->service.max_queued, 7);
  EXPECT_EQ(settings->service.max_requests_per_key, 4);
  EXPECT_EQ(settings->service.stuck_after_ns, 2'000'000'000);
  EXPECT_EQ(settings->service.session_idle_ns, 10'000'000'000);
  EXPECT_EQ(settings->service.ping_interval_ns, 0);
  EXPECT_EQ(settings->drain_timeout_ns, 1'500'000'000);
  EXPECT_EQ(settings->service.cors_origins,
            (std::vector<std::string>{"https://a", "https://b:8443"}));
  EXPECT_EQ(settings->service.models, std::vector<std::string>{"m"});
  EXPECT_FALSE(settings->service.metrics_need_key);
  ASSERT_EQ(settings->service.keys.size(), 2u) << "the variable counts only without a flag";
  EXPECT_EQ(settings->service.keys[1].key, "k2");
}

TEST(ServeFlags, BodiesTogetherAreSixteenOfTheLargest) {
  const auto settings = settings_of({"--max-body", "5MiB"});
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->server.max_bodies_bytes, 80u << 20);
}

TEST(ServeFlags, TheLargestBodyTimesSixteenIsNoSmallNumber) {
  const auto settings = settings_of({"--max-body", "1048576TiB"});
  ASSERT_TRUE(settings.ok());
  EXPECT_GE(settings->server.max_bodies_bytes, settings->server.reader.max_body_bytes);
}

TEST(ServeFlags, AnOriginIsWhatABrowserSends) {
  for (const std::string good : {"*", "http://localhost:3000", "http://[::1]:8080", "http://[::1]",
                                 "https://a-b.org:80", "app://x"})
    EXPECT_TRUE(settings_of({"--cors", good}).ok()) << good;
  for (const std::string bad : {"",
                                "foo",
                                "example.org",
                                "https://",
                                "://x",
                                "https://x/",
                                "https://X.org",
                                "https://x/page",
                                "https://*.x.org",
                                "https://a,https://b",
                                "https://u@x",
                                "null",
                                "http://a:80",
                                "https://a:443",
                                "http://a:",
                                "http://[::1",
                                "http://a:x",
                                "http://a\\b",
                                "a b://x",
                                "http://a..b"})
    EXPECT_EQ(field_of({"--cors", bad}), "--cors") << bad;
}

TEST(ServeFlags, NamesOfHostsAreThoseOfFlags) {
  const auto settings = settings_of(
      {"--host", "Box.example.org", "--allow-host", "Chat.example.org.", "--allow-host", "*"});
  ASSERT_TRUE(settings.ok());
  const auto& names = settings->service.allowed_hosts;
  for (const std::string name : {"box.example.org", "chat.example.org", "*"})
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  for (const std::string bad : {"", "https://x.org", "x.org:80", "x.org/", "*.x.org", "a b", ".",
                                "a..b", ".a", "[x", "a\"b"})
    EXPECT_EQ(field_of({"--allow-host", bad}), "--allow-host") << bad;
}

TEST(ServeFlags, AKeyOfTheEnvironment) {
  const auto settings = settings_of({}, "secret");
  ASSERT_TRUE(settings.ok());
  ASSERT_EQ(settings->service.keys.size(), 1u);
  EXPECT_EQ(settings->service.keys[0].key, "secret");
  const auto bad = settings_of({}, "");
  ASSERT_FALSE(bad.ok()) << "an empty key would let everybody in";
  EXPECT_EQ(bad.status().field(), "CHORUS_API_KEY");
}

TEST(ServeFlags, WhatCannotBeIsRefusedByTheFlag) {
  EXPECT_EQ(field_of({"--port", "65536"}), "--port");
  EXPECT_EQ(field_of({"--no-tcp"}), "--no-tcp");
  EXPECT_EQ(field_of({"--no-tcp", "--unix-socket", "a", "--port", "1"}), "--no-tcp");
  EXPECT_EQ(field_of({"--queue", "-1"}), "--queue");
  EXPECT_EQ(field_of({"--drain-timeout", "inf"}), "--drain-timeout");
  EXPECT_EQ(field_of({"--ping-interval", "-1"}), "--ping-interval");
  EXPECT_EQ(field_of({"--api-key", "a b"}), "--api-key");
  EXPECT_EQ(field_of({"--api-key-file", "/nowhere/x"}), "--api-key-file");
}

TEST(WidenSteps, LetsAllDecodeThatRunUnlessToldOtherwise) {
  const auto decodes = [](int32_t max_running, int32_t given_decodes = 0,
                          int32_t given_tokens = 0) {
    api::ServiceOptions service;
    service.max_running = max_running;
    EngineOptions engine;
    engine.max_decode_sequences = given_decodes;
    engine.max_batch_tokens = given_tokens;
    widen_steps(service, engine);
    return engine.max_decode_sequences;
  };
  EXPECT_EQ(decodes(0), 0);
  EXPECT_EQ(decodes(8), 0);
  EXPECT_EQ(decodes(64), 64);
  EXPECT_EQ(decodes(5000), 256);
  EXPECT_EQ(decodes(64, 16), 16);
  EXPECT_EQ(decodes(64, 0, 48), 0);
}

TEST(KeyFile, HasAKeyALine) {
  const auto keys = parse_key_file("# users\n\nalice k-a \r\n  k-b\n");
  ASSERT_TRUE(keys.ok()) << keys.status().to_string();
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ((*keys)[0].name, "alice");
  EXPECT_EQ((*keys)[0].key, "k-a");
  EXPECT_EQ((*keys)[1].name, "line 4");
  EXPECT_EQ((*keys)[1].key, "k-b");
  for (const std::string text : {"", "# none\n", "a b c\n", "a k\xc3\xa4y\n"}) {
    const auto refused = parse_key_file(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_EQ(refused.status().field(), "--api-key-file");
    EXPECT_EQ(refused.status().message().find("b c"), std::string::npos);
  }
}

TEST(ModelName, IsThatOfItsFile) {
  EXPECT_EQ(default_model_name("a/b/c.Q8_0.gguf"), "c.Q8_0");
  EXPECT_EQ(default_model_name("c.chorus"), "c");
  EXPECT_EQ(default_model_name("models/Some-1.5B"), "Some-1.5B");
  EXPECT_EQ(default_model_name("models/Some-1.5B/"), "Some-1.5B");
  EXPECT_EQ(default_model_name("."), "model");
}

}  // namespace
}  // namespace chorus::cli
