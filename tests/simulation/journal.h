// The last things that happened in a simulation, to be shown when it fails.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>

namespace chorus::simulation {

class Journal {
 public:
  // Every event has a number, from 1. `name` is a literal; what the values say is the event's.
  void add(const char* name, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0) {
    entries_[static_cast<size_t>(num_events_++) % kKept] = {name, {a, b, c, d}};
  }
  int64_t num_events() const { return num_events_; }

  void print(std::FILE* out) const {
    const int64_t first = num_events_ > kKept ? num_events_ - kKept : 0;
    for (int64_t i = first; i < num_events_; ++i) {
      const Entry& entry = entries_[static_cast<size_t>(i) % kKept];
      std::fprintf(out, "%9lld  %-14s", static_cast<long long>(i + 1), entry.name);
      for (const int64_t value : entry.values)
        std::fprintf(out, " %lld", static_cast<long long>(value));
      std::fputc('\n', out);
    }
  }

 private:
  static constexpr int64_t kKept = 40;
  struct Entry {
    const char* name = "";
    std::array<int64_t, 4> values{};
  };
  std::array<Entry, kKept> entries_{};
  int64_t num_events_ = 0;
};

}  // namespace chorus::simulation
