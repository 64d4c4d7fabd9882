// Every schedule of small pools: pools of 1 to 4 blocks, up to 3 sequences, breadth-first over the
// states that can be reached until there is no new one, each transition checked against the naive
// model.
//
// States that differ only in the names of blocks and sequences are one. The alphabet, in a state
// with sequences s of length n:
//   open                                       with fewer than 3 sequences
//   close(s)
//   clone(s, u)          for 0 <= u <= n       with fewer than 3 sequences
//   truncate(s, u)       for 0 <= u < n
//   step{s: u + c}       for 0 <= u <= n, 1 <= c <= 3 (a block size of 2: c may end inside a block,
//                        at its end and behind it; a window of 3: it may be left behind by the
//                        step)
//       ended by: all accepted, one token accepted, none accepted, rejected, aborted half-way
//   step{s: n + 1, t: n' + 1, ...}             for every two sequences and all three
//       ended by: all accepted, the first one rejected, aborted
// where u must be a legal rewind (the model says which are, and the books must agree on every u),
// and no sequence grows beyond 8 tokens.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <gtest/gtest.h>
#include <numeric>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kv/testing/simulation.h"

namespace chorus {
namespace {

using kv_testing::ModelDemand;
using kv_testing::ModelGroup;
using kv_testing::Simulation;

constexpr int32_t kMaxTokens = 8;
constexpr size_t kMaxSequences = 3;
// Without optimisation and under sanitizers it takes too long to go deep.
#ifdef __OPTIMIZE__
constexpr int kMaxDepth = 100;
#else
constexpr int kMaxDepth = 3;
#endif

enum class Kind : uint8_t { kOpen, kClose, kClone, kTruncate, kStep };
enum class Outcome : uint8_t { kAll, kOne, kNone, kFirstRejected, kAborted };

struct Event {
  Kind kind = Kind::kOpen;
  uint8_t sequences = 0;  // bit i: the (i + 1)-th oldest of those open
  int8_t at = 0;          // a length; -1: each one's own
  int8_t count = 0;
  Outcome outcome = Outcome::kAll;
};

std::vector<SequenceId> open_sequences(const Simulation& simulation) {
  std::vector<SequenceId> ids;
  for (const auto& [id, sequence] : simulation.sequences()) ids.push_back(id);
  return ids;
}

void apply(Simulation& simulation, const Event& event) {
  const std::vector<SequenceId> ids = open_sequences(simulation);
  std::vector<ModelDemand> demands;
  for (size_t i = 0; i < ids.size(); ++i) {
    if ((event.sequences >> i & 1) == 0) continue;
    const auto length = static_cast<Position>(simulation.history(ids[i]).size());
    demands.push_back({ids[i], event.at < 0 ? length : event.at, event.count});
  }
  switch (event.kind) {
    case Kind::kOpen:
      simulation.open();
      return;
    case Kind::kClose:
      return simulation.close(demands[0].sequence);
    case Kind::kClone:
      return simulation.clone(demands[0].sequence, event.at);
    case Kind::kTruncate:
      return simulation.truncate(demands[0].sequence, event.at);
    case Kind::kStep:
      simulation.step(demands, event.outcome == Outcome::kAborted, 0.5, [&](size_t i) {
        if (event.outcome == Outcome::kFirstRejected && i == 0) return kRejected;
        if (event.outcome == Outcome::kNone) return demands[i].start;
        if (event.outcome == Outcome::kOne) return demands[i].start + 1;
        return demands[i].start + demands[i].count;
      });
  }
}

void add_steps_of_one(uint8_t bit, Position start, std::vector<Event>& events) {
  for (int32_t count = 1; count <= 3 && start + count <= kMaxTokens; ++count) {
    for (const Outcome outcome : {Outcome::kAll, Outcome::kOne, Outcome::kNone,
                                  Outcome::kFirstRejected, Outcome::kAborted}) {
      if (outcome == Outcome::kOne && count == 1) continue;  // as all
      events.push_back(
          {Kind::kStep, bit, static_cast<int8_t>(start), static_cast<int8_t>(count), outcome});
    }
  }
}

void add_steps_of_many(const Simulation& simulation, const std::vector<SequenceId>& ids,
                       std::vector<Event>& events) {
  for (uint8_t bits = 0; bits < 1u << ids.size(); ++bits) {
    bool grows = std::popcount(bits) >= 2;
    for (size_t i = 0; i < ids.size(); ++i) {
      if ((bits >> i & 1) != 0 && simulation.history(ids[i]).size() == kMaxTokens) grows = false;
    }
    if (!grows) continue;
    for (const Outcome outcome : {Outcome::kAll, Outcome::kFirstRejected, Outcome::kAborted}) {
      events.push_back({Kind::kStep, bits, -1, 1, outcome});
    }
  }
}

std::vector<Event> events_in(const Simulation& simulation) {
  std::vector<Event> events;
  const std::vector<SequenceId> ids = open_sequences(simulation);
  const bool has_room = ids.size() < kMaxSequences;
  if (has_room) events.push_back({Kind::kOpen, 0, 0, 0, Outcome::kAll});
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto bit = static_cast<uint8_t>(1u << i);
    const auto length = static_cast<Position>(simulation.history(ids[i]).size());
    events.push_back({Kind::kClose, bit, 0, 0, Outcome::kAll});
    for (Position to = 0; to <= length; ++to) {
      if (!simulation.can_rewind(ids[i], to)) continue;
      const auto at = static_cast<int8_t>(to);
      if (has_room) events.push_back({Kind::kClone, bit, at, 0, Outcome::kAll});
      if (to < length) events.push_back({Kind::kTruncate, bit, at, 0, Outcome::kAll});
      add_steps_of_one(bit, to, events);
    }
  }
  add_steps_of_many(simulation, ids, events);
  return events;
}

// The state without names: each sequence's length and tables, blocks numbered in the order in which
// they are met, for the order of the sequences that gives the least such text.
std::string canonical(const Simulation& simulation, int32_t num_groups, int32_t num_blocks) {
  const KvBooks& books = simulation.books();
  std::vector<SequenceId> ids = open_sequences(simulation);
  std::string least;
  do {
    std::string text;
    std::vector<char> names(static_cast<size_t>(num_groups * num_blocks), 0);
    char next_name = 0;
    for (const SequenceId id : ids) {
      text.push_back(static_cast<char>('A' + books.length(id)));
      for (int32_t group = 0; group < num_groups; ++group) {
        const BlockTable table = books.table(id, group);
        text.push_back(static_cast<char>('a' + table.first_position));
        for (const BlockId block : table.blocks) {
          char& name = names[static_cast<size_t>(group * num_blocks + block)];
          if (name == 0) name = ++next_name;
          text.push_back(static_cast<char>('0' + name));
        }
      }
    }
    if (least.empty() || text < least) least = text;
  } while (std::next_permutation(ids.begin(), ids.end()));
  return least;
}

class Search {
 public:
  Search(int32_t block_size, std::vector<int32_t> windows, int32_t num_blocks)
      : block_size_(block_size), num_blocks_(num_blocks) {
    for (const int32_t window : windows) groups_.push_back({window, num_blocks});
  }

  void run() {
    using Path = std::vector<Event>;
    std::vector<Path> frontier{{}};
    std::unordered_set<std::string> seen{""};
    for (; !frontier.empty() && depth_ < kMaxDepth; ++depth_) {
      std::vector<Path> next;
      for (const Path& path : frontier) {
        for (const Event& event : events_in(at(path))) {
          Simulation simulation = at(path);
          simulation.set_verifying(true);
          apply(simulation, event);
          ++transitions_;
          ASSERT_FALSE(testing::Test::HasFailure()) << describe(path) << describe({event});
          if (!seen.insert(canonical(simulation, static_cast<int32_t>(groups_.size()), num_blocks_))
                   .second) {
            continue;
          }
          next.push_back(path);
          next.back().push_back(event);
        }
      }
      frontier = std::move(next);
    }
    states_ = static_cast<int64_t>(seen.size());
  }

  int depth() const { return depth_; }
  int64_t states() const { return states_; }
  int64_t transitions() const { return transitions_; }

 private:
  Simulation at(const std::vector<Event>& path) const {
    Simulation simulation(block_size_, groups_, kMaxTokens);
    simulation.set_verifying(false);
    for (const Event& event : path) apply(simulation, event);
    return simulation;
  }

  static std::string describe(const std::vector<Event>& path) {
    constexpr std::array<const char*, 5> kKinds{"open", "close", "clone", "truncate", "step"};
    std::string text;
    for (const Event& event : path) {
      text += std::string(kKinds[static_cast<size_t>(event.kind)]) + " sequences " +
              std::to_string(event.sequences) + " at " + std::to_string(event.at) + " count " +
              std::to_string(event.count) + " outcome " +
              std::to_string(static_cast<int>(event.outcome)) + "\n";
    }
    return text;
  }

  int32_t block_size_;
  int32_t num_blocks_;
  std::vector<ModelGroup> groups_;
  int depth_ = 0;
  int64_t states_ = 0;
  int64_t transitions_ = 0;
};

TEST(KvBooksExhaustive, EveryStateOfSmallPools) {
  for (const int32_t block_size : {1, 2}) {
    for (const std::vector<int32_t>& windows :
         std::vector<std::vector<int32_t>>{{0}, {3}, {0, 3}}) {
      for (int32_t num_blocks = 1; num_blocks <= 4; ++num_blocks) {
        Search search(block_size, windows, num_blocks);
        search.run();
        ASSERT_FALSE(HasFailure());
        std::printf(
            "block size %d, window %d%s, %d blocks: depth %d, %lld states, %lld transitions\n",
            block_size, windows.back(), windows.size() > 1 ? " beside full history" : "",
            num_blocks, search.depth(), static_cast<long long>(search.states()),
            static_cast<long long>(search.transitions()));
        EXPECT_GT(search.states(), 5);
      }
    }
  }
}

}  // namespace
}  // namespace chorus
