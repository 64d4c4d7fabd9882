// chorus_sim SEED [EVENTS]: simulations of the engine from a seed on, until so many events.
//
// Each seed runs kEventsOfSeed of them, in a scenario of its own; then comes the next seed. What is
// wrong is printed with its seed and the last events, and ends the process with an abort.
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <unistd.h>

#include "tests/simulation/world.h"

namespace {

using chorus::simulation::Journal;
using chorus::simulation::Tally;
using chorus::simulation::World;

constexpr int64_t kEventsOfSeed = 5000;
// So many events and more have to have seen everything that can happen.
constexpr int64_t kEventsForAll = 100'000;

struct Current {
  uint64_t seed = 0;
  std::string scenario;
  Journal log;
};
Current* current = nullptr;  // for the handler below

// What was aborted, and how to see it again. The process is broken already: what a handler may not
// do is no concern.
extern "C" void report_abort(int) {
  std::fprintf(stderr, "\nseed %llu failed in event %lld: ./dev sim %llu\n%s\nthe last events:\n",
               static_cast<unsigned long long>(current->seed),
               static_cast<long long>(current->log.num_events()),
               static_cast<unsigned long long>(current->seed), current->scenario.c_str());
  current->log.print(stderr);
  std::fflush(stderr);
  _exit(1);
}

bool parse(const char* text, int64_t& value) {
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  return error == std::errc() && stop == end && value >= 0;
}

uint64_t run_seed(uint64_t seed, int64_t num_events, Tally& tally) {
  current->seed = seed;
  current->log = {};
  World world(seed, current->log, tally);
  current->scenario = describe(world.scenario());
  world.run(num_events);
  return world.digest();
}

class Progress {
 public:
  void show(uint64_t seed, int64_t num_events) {
    if (!is_terminal_) return;
    std::fprintf(stderr, "\rseed %llu, %lld events, %.0f a second   ",
                 static_cast<unsigned long long>(seed), static_cast<long long>(num_events),
                 static_cast<double>(num_events) / seconds());
  }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

int main(int argc, char** argv) {
  int64_t seed = 0;
  int64_t num_events = kEventsOfSeed;
  if (argc < 2 || argc > 3 || !parse(argv[1], seed) || (argc == 3 && !parse(argv[2], num_events))) {
    std::fprintf(stderr, "usage: chorus_sim SEED [EVENTS]\n");
    return 2;
  }
  Current now;
  current = &now;
  std::signal(SIGABRT, report_abort);
  Progress progress;
  Tally tally;
  int64_t done = 0;
  uint64_t digest = 0;
  const auto first = static_cast<uint64_t>(seed);
  for (uint64_t next = first; done < num_events; ++next) {
    progress.show(next, done);
    const uint64_t found = run_seed(next, std::min(kEventsOfSeed, num_events - done), tally);
    done += now.log.num_events();
    digest ^= found + next;
    Tally ignored;
    if (next == first && found != run_seed(next, std::min(kEventsOfSeed, num_events), ignored)) {
      std::fprintf(stderr, "seed %lld does not repeat\n", static_cast<long long>(seed));
      return 1;
    }
  }
  progress.show(first, done);
  std::fprintf(stderr, "\n");
  std::printf("%lld events in %.1f s, digest %016llx\n", static_cast<long long>(done),
              progress.seconds(), static_cast<unsigned long long>(digest));
  tally.print(stdout);
  if (done >= kEventsForAll && tally.never() != nullptr) {
    std::fprintf(stderr, "it never came to this: %s\n", tally.never());
    return 1;
  }
  return 0;
}
