#include "text/stop_strings.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace chorus::text {
namespace {

StopMatcher create_or_die(std::vector<std::string> stops) {
  auto created = StopMatcher::create(std::move(stops));
  EXPECT_TRUE(created.ok());
  return std::move(created).value();
}

TEST(StopMatcher, HoldsBackWhatMayBecomeAStop) {
  StopMatcher matcher = create_or_die({"END"});
  EXPECT_EQ(matcher.feed("the E").text, "the ");
  EXPECT_EQ(matcher.feed("N").text, "");
  EXPECT_EQ(matcher.feed("E").text, "EN");
  const auto output = matcher.feed("ND more");
  EXPECT_EQ(output.text, "");
  ASSERT_TRUE(output.match.has_value());
  EXPECT_EQ(output.match->stop_index, 0u);
  EXPECT_EQ(output.match->num_tokens, 4u);
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, ReleasesHeldTextAtTheEnd) {
  StopMatcher matcher = create_or_die({"END"});
  EXPECT_EQ(matcher.feed("xEN").text, "x");
  EXPECT_EQ(matcher.finish(), "EN");
}

TEST(StopMatcher, PassesEverythingWithoutStops) {
  StopMatcher matcher = create_or_die({});
  EXPECT_EQ(matcher.feed("abc").text, "abc");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, TakesTheFirstCompleteAndThenTheLongest) {
  StopMatcher first = create_or_die({"bcd", "bc"});
  EXPECT_EQ(first.feed("abcd").match->stop_index, 1u);
  StopMatcher longest = create_or_die({"c", "abc", "bc"});
  const auto output = longest.feed("xabc");
  EXPECT_EQ(output.text, "x");
  EXPECT_EQ(output.match->stop_index, 1u);
}

TEST(StopMatcher, RefusesAnEmptyStop) {
  const auto created = StopMatcher::create({"a", ""});
  ASSERT_FALSE(created.ok());
  EXPECT_EQ(created.status().field(), "stop[1]");
}

struct Found {
  std::string text;
  std::optional<StopMatcher::Match> match;
};

// The definition, over the whole text.
Found search_naively(const std::vector<std::string>& tokens,
                     const std::vector<std::string>& stops) {
  std::string whole;
  for (size_t token = 0; token < tokens.size(); ++token) {
    for (const char byte : tokens[token]) {
      whole.push_back(byte);
      std::optional<size_t> best;
      for (size_t s = 0; s < stops.size(); ++s) {
        if (whole.ends_with(stops[s]) && (!best || stops[s].size() > stops[*best].size())) best = s;
      }
      if (best) {
        return {whole.substr(0, whole.size() - stops[*best].size()),
                StopMatcher::Match{*best, token + 1}};
      }
    }
  }
  return {whole, std::nullopt};
}

TEST(StopMatcher, AgreesWithANaiveSearch) {
  std::mt19937 random(3);
  const auto word = [&](size_t longest) {
    std::string text;
    for (size_t length = random() % (longest + 1); length > 0; --length) {
      text.push_back("ab\n"[random() % (random() % 4 == 0 ? 3 : 2)]);
    }
    return text;
  };
  size_t num_matches = 0;
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE("seed 3, round " + std::to_string(round));
    std::vector<std::string> stops;
    for (size_t count = random() % 4; count > 0; --count) stops.push_back("b" + word(6));
    if (random() % 2) stops.push_back(word(8) + "a");
    std::vector<std::string> tokens;
    for (size_t count = random() % 12; count > 0; --count) tokens.push_back(word(4));

    const Found expected = search_naively(tokens, stops);
    const size_t longest = [&] {
      size_t length = 1;
      for (const std::string& stop : stops) length = std::max(length, stop.size());
      return length;
    }();
    StopMatcher matcher = create_or_die(stops);
    Found found;
    size_t num_fed = 0;
    for (const std::string& token : tokens) {
      auto output = matcher.feed(token);
      num_fed += token.size();
      found.text += output.text;
      found.match = output.match;
      if (found.match) break;
      ASSERT_LT(num_fed - found.text.size(), longest) << "holds back more than it may";
    }
    found.text += matcher.finish();
    ASSERT_EQ(found.text, expected.text);
    ASSERT_EQ(found.match.has_value(), expected.match.has_value());
    if (found.match) {
      ++num_matches;
      ASSERT_EQ(found.match->stop_index, expected.match->stop_index);
      ASSERT_EQ(found.match->num_tokens, expected.match->num_tokens);
    }
  }
  EXPECT_GT(num_matches, 5000u);
  EXPECT_LT(num_matches, 19000u);
}

// Of a match that is complete while none may be, nothing is left but what may begin a later one.
TEST(StopMatcher, AMatchThatDoesNotCountIsText) {
  for (const bool starts_inside : {false, true}) {
    StopMatcher matcher = StopMatcher::create({"abab"}).value();
    std::string text = matcher.feed("xabab", false).text;
    EXPECT_EQ(text, "xab");
    const auto later = matcher.feed(starts_inside ? "ab!" : "c abab", true);
    ASSERT_TRUE(later.match.has_value());
    EXPECT_EQ(text + later.text, starts_inside ? "xab" : "xababc ");
    EXPECT_EQ(matcher.stop(later.match->stop_index), "abab");
  }
  StopMatcher never = StopMatcher::create({"a", "aa"}).value();
  std::string text;
  for (int i = 0; i < 5; ++i) text += never.feed("aa", false).text;
  EXPECT_EQ(text + never.finish(), "aaaaaaaaaa");
}

}  // namespace
}  // namespace chorus::text
