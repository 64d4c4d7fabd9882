#include "live_view.h"

#include <gtest/gtest.h>

namespace chorus::cli {
namespace {

using State = JobView::State;

std::vector<JobView> jobs_of(const std::vector<State>& states) {
  std::vector<JobView> jobs;
  for (const State state : states) {
    JobView& job = jobs.emplace_back();
    job.label = std::to_string(jobs.size());
    job.state = state;
    job.prompt_tokens = 2000;
    job.consumed_tokens = 512;
    job.tokens = 12;
    job.tokens_per_s = 34.56;
  }
  return jobs;
}

const TotalView kTotal{.tokens = 48, .tokens_per_s = 9.5, .blocks_used = 7, .blocks_total = 64};

TEST(LiveView, ALineForEachAndOneOfTotals) {
  const auto jobs =
      jobs_of({State::kWaiting, State::kPrefill, State::kGenerating, State::kDone, State::kFailed});
  const auto lines = live_view(jobs, kTotal, {});
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0].text, "1  queued");
  EXPECT_EQ(lines[1].text, "2  prefill        512 of 2000 prompt tokens");
  EXPECT_EQ(lines[2].text, "3  generating      12 tokens     34.6 tokens/s");
  EXPECT_EQ(lines[3].text, "4  done            12 tokens     34.6 tokens/s");
  EXPECT_EQ(lines[4].text, "5  failed          12 tokens     34.6 tokens/s");
  EXPECT_EQ(lines[5].text, "2 of 5 done, 48 tokens, 9.5 tokens/s, 7 of 64 KV blocks");
}

TEST(LiveView, ALowTerminalShowsTheActiveOnesAndACount) {
  std::vector<State> states(6, State::kDone);
  states.insert(states.end(), 5, State::kGenerating);
  states.insert(states.end(), 9, State::kWaiting);
  const auto jobs = jobs_of(states);
  auto lines = live_view(jobs, kTotal, {.rows = 6});
  ASSERT_EQ(lines.size(), 5u);  // and one for the cursor
  EXPECT_EQ(lines[0].text.substr(0, 14), " 7  generating");
  EXPECT_EQ(lines[2].text.substr(0, 14), " 9  generating");
  EXPECT_EQ(lines[3].text, "and 17 more: 2 running, 9 queued, 6 done");
  EXPECT_EQ(lines[4].text.substr(0, 12), "6 of 20 done");
  EXPECT_EQ(live_view(jobs, kTotal, {.rows = 22}).size(), 21u);
  lines = live_view(jobs, kTotal, {.rows = 21});
  EXPECT_EQ(lines.size(), 5u + 2u) << "none but the active ones";
  for (const int rows : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(rows);
    lines = live_view(jobs, kTotal, {.rows = rows});
    EXPECT_EQ(lines.size(), static_cast<size_t>(std::max(1, rows - 1)));
    EXPECT_EQ(lines.back().text.substr(0, 12), "6 of 20 done");
  }
}

}  // namespace
}  // namespace chorus::cli
