#include "server/api/host_names.h"

#include <gtest/gtest.h>

#include "server/api/testing/service_under_test.h"

namespace chorus::api {
namespace {

using testing::ServiceUnderTest;

TEST(HostNames, ThoseThatNobodyElseCanPointHere) {
  for (const char* host :
       {"localhost", "LOCALHOST:8080", "127.0.0.1", "192.168.1.20:8080", "[::1]", "[fe80::1]:80",
        "box", "box:8080", "box.local", "a.b.internal.", "x.localhost:1", "nas.home.arpa", ""}) {
    EXPECT_TRUE(is_private_host(host)) << host;
  }
  for (const char* host : {"evil.example", "127.0.0.1.evil.example:8080", "localhost.evil.example",
                           "local.example.", "evillocal.org", "1.2.3.4.nip.io"}) {
    EXPECT_FALSE(is_private_host(host)) << host;
  }
}

http::Request request_by(std::string host, std::vector<http::Header> headers) {
  http::Request request;
  request.headers = std::move(headers);
  request.headers.push_back({"host", std::move(host)});
  return request;
}

TEST(HostNames, BrowsersAloneAreHeldToThem) {
  const http::Header origin{"origin", "http://evil.example"};
  const http::Header site{"sec-fetch-site", "same-origin"};
  EXPECT_FALSE(comes_by_foreign_name(request_by("evil.example", {}), {}));
  EXPECT_TRUE(comes_by_foreign_name(request_by("evil.example", {origin}), {}));
  EXPECT_TRUE(comes_by_foreign_name(
      request_by("evil.example", {{"user-agent", "Mozilla/5.0 (X11; Linux x86_64)"}}), {}));
  EXPECT_FALSE(comes_by_foreign_name(
      request_by("chorus.name.svc", {{"user-agent", "OpenAI/Python 2"}}), {}));
  EXPECT_TRUE(comes_by_foreign_name(request_by("Evil.example:8080", {site}), {"good.example"}));
  EXPECT_FALSE(comes_by_foreign_name(request_by("Good.example.:8080", {site}), {"good.example"}));
  EXPECT_FALSE(comes_by_foreign_name(request_by("evil.example", {site}), {"*"}));
  EXPECT_FALSE(comes_by_foreign_name(request_by("localhost", {origin}), {}));
}

TEST(HostNames, SessionsAreReadByNobody) {
  http::Request request = request_by("evil.example", {{"user-agent", "x"}});
  request.path = "/v1/models";
  EXPECT_FALSE(comes_by_foreign_name(request, {}));
  for (const char* path : {"/v1/sessions", "/v1/sessions/session-0"}) {
    request.path = path;
    EXPECT_TRUE(comes_by_foreign_name(request, {}));
    EXPECT_FALSE(comes_by_foreign_name(request, {"evil.example"}));
  }
}

const std::vector<http::Header> kRebound = {{"host", "evil.example:8080"},
                                            {"origin", "http://evil.example:8080"},
                                            {"sec-fetch-site", "same-origin"}};

TEST(ServiceHosts, APageThatWasLedHereIsRefused) {
  ServiceOptions options;
  options.pages = {{"/", {{"content-type", "text/html"}}, "<p>hello"}};
  ServiceUnderTest service(options);
  for (const char* path : {"/", "/health", "/v1/models", "/nowhere"}) {
    EXPECT_EQ(service.call("GET", path, "", kRebound).status, 403) << path;
  }
  const auto exchange = service.send("POST", "/v1/completions", R"({"prompt":"x"})", kRebound);
  EXPECT_EQ(exchange->status(), 403);
  EXPECT_FALSE(service.service().wants_body(exchange->request()));
  EXPECT_NE(exchange->body().find("--allow-host"), std::string::npos);
}

TEST(ServiceHosts, AKeyANamedHostOrItsOriginLetsItIn) {
  ServiceOptions named;
  named.allowed_hosts = {"evil.example"};
  EXPECT_EQ(ServiceUnderTest(named).send("GET", "/v1/models", "", kRebound)->status(), 200);
  ServiceOptions open;
  open.cors_origins = {"http://evil.example:8080"};
  EXPECT_EQ(ServiceUnderTest(open).send("GET", "/v1/models", "", kRebound)->status(), 200);
  open.cors_origins = {"http://other.example"};
  EXPECT_EQ(ServiceUnderTest(open).send("GET", "/v1/models", "", kRebound)->status(), 403);
  ServiceOptions keyed;
  keyed.keys = {{"alice", "key-a"}};
  EXPECT_EQ(ServiceUnderTest(keyed).send("GET", "/v1/models", "", kRebound)->status(), 401);
  auto with_key = kRebound;
  with_key.push_back({"authorization", "Bearer key-a"});
  EXPECT_EQ(ServiceUnderTest(keyed).send("GET", "/v1/models", "", with_key)->status(), 200);
}

}  // namespace
}  // namespace chorus::api
