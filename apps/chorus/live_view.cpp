#include "live_view.h"

#include <algorithm>
#include <cstdio>

namespace chorus::cli {

namespace {

using State = JobView::State;

bool is_active(const JobView& job) {
  return job.state == State::kPrefill || job.state == State::kGenerating;
}

// For printf: a text of any length would be cut.
template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[160];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

StatusLine line_of(const JobView& job, size_t label_width) {
  std::string head = std::string(label_width - job.label.size(), ' ') + job.label + "  ";
  const std::string tokens = format("%6zu tokens  %7.1f tokens/s", job.tokens, job.tokens_per_s);
  switch (job.state) {
    case State::kWaiting:
      return {head + "queued", Colour::kDim};
    case State::kPrefill:
      return {head + format("prefill     %6zu of %zu prompt tokens", job.consumed_tokens,
                            job.prompt_tokens),
              Colour::kYellow};
    case State::kGenerating:
      return {head + "generating  " + tokens, Colour::kGreen};
    case State::kDone:
      return {head + "done        " + tokens, Colour::kPlain};
    case State::kFailed:
      return {head + "failed      " + tokens, Colour::kRed};
  }
  return {};
}

// How many of the jobs that are not shown are in which state.
StatusLine count_line(const std::vector<const JobView*>& hidden) {
  size_t active = 0;
  size_t queued = 0;
  size_t ended = 0;
  for (const JobView* job : hidden) {
    if (is_active(*job)) {
      ++active;
    } else if (job->state == State::kWaiting) {
      ++queued;
    } else {
      ++ended;
    }
  }
  return {format("and %zu more: %zu running, %zu queued, %zu done", hidden.size(), active, queued,
                 ended),
          Colour::kDim};
}

}  // namespace

std::vector<StatusLine> live_view(const std::vector<JobView>& jobs, const TotalView& total,
                                  const TerminalSize& size) {
  const auto room = static_cast<size_t>(std::max(1, size.rows - 1));
  size_t label_width = 0;
  for (const JobView& job : jobs) label_width = std::max(label_width, job.label.size());
  const bool shows_all = jobs.size() + 1 <= room;
  std::vector<StatusLine> lines;
  std::vector<const JobView*> hidden;
  size_t done = 0;
  for (const JobView& job : jobs) {
    done += job.state == State::kDone || job.state == State::kFailed ? 1 : 0;
    if (shows_all || (is_active(job) && lines.size() + 2 < room)) {
      lines.push_back(line_of(job, label_width));
    } else {
      hidden.push_back(&job);
    }
  }
  if (!hidden.empty() && room > 1) lines.push_back(count_line(hidden));
  lines.push_back({format("%zu of %zu done, %zu tokens, %.1f tokens/s, %lld of %lld KV blocks",
                          done, jobs.size(), total.tokens, total.tokens_per_s,
                          static_cast<long long>(total.blocks_used),
                          static_cast<long long>(total.blocks_total)),
                   Colour::kPlain});
  return lines;
}

}  // namespace chorus::cli
