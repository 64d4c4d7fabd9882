#include "bench_statistics.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "base/random.h"

namespace chorus::cli {
namespace {

using Kind = EngineEvent::Kind;

EngineEvent event(Kind kind, int64_t time_ns, int32_t tokens = 0) {
  EngineEvent event;
  event.kind = kind;
  event.time_ns = time_ns;
  event.tokens = tokens;
  return event;
}

TEST(Spread, OfOneTwoAndThree) {
  EXPECT_EQ(spread_of({4}).median, 4);
  EXPECT_EQ(spread_of({4, 1}).median, 2.5);
  const Spread three = spread_of({9, 1, 4});
  EXPECT_EQ(three.min, 1);
  EXPECT_EQ(three.median, 4);
  EXPECT_EQ(three.max, 9);
}

// As many values lie on either side of the median, whatever their order.
TEST(Spread, DividesRandomValues) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    std::vector<double> values;
    for (uint64_t i = 0; i < 1 + random.below(20); ++i) values.push_back(random.unit());
    const Spread spread = spread_of(values);
    const auto below = std::count_if(values.begin(), values.end(),
                                     [&](double value) { return value < spread.median; });
    const auto above = std::count_if(values.begin(), values.end(),
                                     [&](double value) { return value > spread.median; });
    EXPECT_EQ(below, above);
    EXPECT_EQ(spread.min, *std::min_element(values.begin(), values.end()));
    EXPECT_EQ(spread.max, *std::max_element(values.begin(), values.end()));
  }
}

// Two generations behind a gate: the gate's step, one that only one of them joins, three of both,
// of which one is aborted first, and one where the other has ended.
TEST(LoggedRun, TellsTheStepsInWhichAllTakePart) {
  std::vector<EngineEvent> events = {
      event(Kind::kSubmitted, 100),    event(Kind::kStep, 250, 64),
      event(Kind::kConsumed, 250, 64), event(Kind::kSubmitted, 230),
      event(Kind::kSubmitted, 240),    event(Kind::kStep, 300, 1),
      event(Kind::kDelivered, 300, 1), event(Kind::kStep, 340, 2),
      event(Kind::kDelivered, 340, 1), event(Kind::kDelivered, 340, 1)};
  EngineEvent aborted = event(Kind::kStep, 350, 2);
  aborted.aborted = true;
  events.push_back(aborted);
  for (const int64_t time : {400, 460}) {
    events.push_back(event(Kind::kStep, time, 2));
    events.push_back(event(Kind::kDelivered, time, 1));
    events.push_back(event(Kind::kDelivered, time, 1));
  }
  events.push_back(event(Kind::kEnded, 461));
  events.push_back(event(Kind::kStep, 500, 1));
  events.push_back(event(Kind::kDelivered, 500, 1));
  events.push_back(event(Kind::kEnded, 502));
  const LoggedRun run = logged_run(events);
  EXPECT_EQ(run.first_submitted_ns, 100);
  EXPECT_EQ(run.last_submitted_ns, 240);
  EXPECT_EQ(run.last_ended_ns, 502);
  EXPECT_EQ(decode_steps_ns(run, 2), (std::vector<int64_t>{40, 60, 60}));
  EXPECT_EQ(decode_steps_ns(run, 3), std::vector<int64_t>());
  EXPECT_EQ(all_steps_ns(run), (std::vector<int64_t>{10, 50, 40, 60, 60, 40}));
}

// A step with as many tokens that gives fewer consumed a prompt beside.
TEST(LoggedRun, LeavesOutStepsWithPromptTokens) {
  const LoggedRun run = logged_run(std::vector<EngineEvent>{
      event(Kind::kSubmitted, 0), event(Kind::kStep, 10, 2), event(Kind::kDelivered, 10, 1)});
  EXPECT_TRUE(decode_steps_ns(run, 2).empty());
  EXPECT_TRUE(decode_steps_ns(run, 1).empty());
}

}  // namespace
}  // namespace chorus::cli
