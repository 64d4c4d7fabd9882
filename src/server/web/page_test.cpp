#include "server/web/page.h"

#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

#include "base/sha256.h"

namespace chorus::web {
namespace {

std::string read_source(const std::string& name) {
  std::ifstream file(CHORUS_SOURCE_DIR "/src/server/web/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string header(const std::string& name) {
  return std::string(http::find_header(page_headers(), name));
}

// Source: RFC 4648, section 4.
std::string base64(std::span<const uint8_t> bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (i + j < bytes.size() ? bytes[i + j] : 0U);
    for (size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

// The texts between "<tag>" and "</tag>".
std::vector<std::string_view> inside(std::string_view text, const std::string& tag) {
  std::vector<std::string_view> found;
  for (size_t at = 0; (at = text.find("<" + tag + ">", at)) != text.npos;) {
    at += tag.size() + 2;
    const size_t end = text.find("</" + tag + ">", at);
    EXPECT_NE(end, text.npos) << tag;
    if (end == text.npos) break;
    found.push_back(text.substr(at, end - at));
    at = end;
  }
  return found;
}

TEST(Page, IsItsSourcesPutTogether) {
  std::istringstream lines(read_source("page.html"));
  std::string expected;
  const std::string style = "<link rel=\"stylesheet\" href=\"";
  const std::string script = "<script src=\"";
  for (std::string line; std::getline(lines, line);) {
    const bool is_style = line.starts_with(style);
    if (is_style || line.starts_with(script)) {
      const size_t begin = (is_style ? style : script).size();
      const std::string tag = is_style ? "style" : "script";
      const std::string name = line.substr(begin, line.find('"', begin) - begin);
      line = "<" + tag + ">\n" + read_source(name) + "</" + tag + ">";
    }
    expected += line + "\n";
  }
  EXPECT_EQ(page(), expected);
}

TEST(Page, NeedsNothingFromElsewhere) {
  EXPECT_LT(page().size(), size_t{100'000});
  for (const char* text :
       {"http://", "https://", "src=\"//", "href=\"//", "url(", "@import", "import("})
    EXPECT_EQ(page().find(text), std::string_view::npos) << text;
  EXPECT_EQ(page().find("<script src"), std::string_view::npos);
  EXPECT_EQ(page().find("stylesheet"), std::string_view::npos);
}

TEST(Page, NeverReadsMarkupFromText) {
  for (const char* text : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                           "eval(", "new Function", "srcdoc", " style=\"", "javascript:"})
    EXPECT_EQ(page().find(text), std::string_view::npos) << text;
}

TEST(Page, PolicyNamesItsStyleAndScriptsAlone) {
  std::string policy = "default-src 'none'";
  for (const char* tag : {"script", "style"}) {
    const auto texts = inside(page(), tag);
    EXPECT_FALSE(texts.empty());
    policy += "; " + std::string(tag) + "-src";
    for (const std::string_view text : texts)
      policy += " 'sha256-" + base64(sha256(std::as_bytes(std::span(text)))) + "'";
  }
  EXPECT_EQ(
      header("content-security-policy"),
      policy +
          "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
          "; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'");
}

TEST(Page, HeadersKeepItToItself) {
  EXPECT_EQ(header("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(header("x-content-type-options"), "nosniff");
  EXPECT_EQ(header("x-frame-options"), "DENY");
  EXPECT_EQ(header("referrer-policy"), "no-referrer");
  EXPECT_EQ(header("cache-control"), "no-cache");
  const std::string whole = std::string(page()) + header("content-security-policy");
  EXPECT_EQ(header("etag"),
            "\"" + to_hex(sha256(std::as_bytes(std::span(whole)))).substr(0, 32) + "\"");
}

}  // namespace
}  // namespace chorus::web
