// chorus_soak MODEL SECONDS [SEED]: an engine on a real model under clients that do anything, for
// as long as one likes.
//
// Eight threads open, prompt, fork, rewind, append, read, cancel, cut, save, load and close
// sessions at random, in a KV pool that holds a fraction of what they ask for. Every few seconds
// they close everything, and then
//   - no session, no generation and no block is left but those that are cached,
//   - what was kept of the finished generations is said again, alone, with the same bits,
//   - the resident memory is noted: in the end it must not have grown since the first third.
// Prints a line for each round; exit code 1 with what was wrong.
#include <algorithm>
#include <bit>
#include <chorus/engine.h>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <malloc.h>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/random.h"

namespace chorus {
namespace {

constexpr int kClients = 8;
constexpr size_t kSessionsEach = 5;
constexpr int kContext = 400;
constexpr double kRoundSeconds = 10;
constexpr size_t kRecordsPerRound = 12;
constexpr size_t kFewestRounds = 9;  // for a verdict on memory

using Tokens = std::vector<TokenId>;

[[noreturn]] void fail(const std::string& what) {
  std::printf("FAILED: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

void expect(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Without what was freed and is only kept for later: that depends on how threads met in malloc.
double resident_mib() {
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// A generation that came to its end: what was asked for, and what it said.
struct Record {
  Tokens context;  // the prompt's tokens last
  GenerationOptions options;
  Tokens tokens;
  std::vector<uint32_t> logprob_bits;
};

// What all clients share.
struct Run {
  Engine& engine;
  std::mutex mutex;
  std::vector<Record> records;  // guarded by mutex
  int64_t num_generations = 0;  // guarded by mutex
};

// A session, and what its context must be.
struct Held {
  Session session;
  Tokens context;
};

class Client {
 public:
  Client(Run& run, uint64_t seed) : run_(run), random_(seed) {}

  // Random operations until `end`, then everything is closed.
  void work(double end) {
    while (seconds_now() < end) act();
    for (Held& held : held_) held.session.close();
    held_.clear();
  }

 private:
  bool chance(uint64_t one_in) { return random_.below(one_in) == 0; }
  Held& any() { return held_[static_cast<size_t>(random_.below(held_.size()))]; }

  void act() {
    if (held_.size() < kSessionsEach && (held_.empty() || chance(3))) return open();
    switch (random_.below(12)) {
      case 0:
        return fork(any());
      case 1:
        return rewind(any());
      case 2:
        return move_through_a_file(any());
      case 3:
        return append(any());
      case 4:
      case 5:
        return close_any();
      default:
        return generate(any());
    }
  }

  void open() {
    auto session = run_.engine.open_session();
    expect(session.ok(), "open: " + session.status().to_string());
    held_.push_back({std::move(*session), {}});
  }

  void close_any() {
    const auto at = static_cast<std::ptrdiff_t>(random_.below(held_.size()));
    if (chance(2)) (held_.begin() + at)->session.close();
    held_.erase(held_.begin() + at);
  }

  void fork(const Held& from) {
    if (held_.size() >= kSessionsEach) return;
    const auto upto = static_cast<Position>(random_.between(0, from.session.position()));
    auto clone = from.session.clone(upto);
    expect(clone.ok(), "clone: " + clone.status().to_string());
    Tokens context(from.context.begin(), from.context.begin() + upto);
    held_.push_back({std::move(*clone), std::move(context)});
  }

  void rewind(Held& held) {
    const auto length = static_cast<Position>(random_.between(0, held.session.position()));
    const Status status = held.session.rewind(length);
    expect(status.ok(), "rewind: " + status.to_string());
    held.context.resize(static_cast<size_t>(length));
  }

  void move_through_a_file(Held& held) {
    auto saved = held.session.save();
    expect(saved.ok(), "save: " + saved.status().to_string());
    auto read = decode_session(encode_session(*saved));
    expect(read.ok(), "decode: " + read.status().to_string());
    expect(read->tokens == held.context, "a saved session has other tokens");
    auto loaded = run_.engine.runner().load(*read, chance(4));
    // The pool may be too full for what a file holds.
    if (!loaded.ok() && loaded.status().code() == Code::kResourceExhausted) return;
    expect(loaded.ok(), "load: " + loaded.status().to_string());
    held.session = std::move(*loaded);
  }

  // Prompts begin with one of a few texts, so that prefixes are shared.
  Tokens prompt(size_t room) {
    const auto vocabulary =
        static_cast<uint64_t>(run_.engine.runner().effective().executor.vocabulary);
    Tokens tokens;
    if (chance(2)) {
      RandomStream shared(random_.below(4));
      for (int64_t n = random_.between(1, 150); n > 0; --n)
        tokens.push_back(static_cast<TokenId>(shared.below(vocabulary)));
    }
    for (int64_t n = random_.between(1, chance(4) ? 100 : 12); n > 0; --n)
      tokens.push_back(static_cast<TokenId>(random_.below(vocabulary)));
    if (tokens.size() > room) tokens.resize(room);
    return tokens;
  }

  GenerationOptions options(size_t room) {
    GenerationOptions options;
    options.max_new_tokens = static_cast<int32_t>(
        std::min<size_t>(room, static_cast<size_t>(random_.between(1, chance(5) ? 60 : 15))));
    options.seed = random_.next();
    options.priority = static_cast<int32_t>(random_.between(-1, 1));
    if (chance(10)) options.deadline_ns = random_.between(0, 300'000'000);
    if (chance(2)) {
      options.sampling.temperature = 0.8f;
      options.sampling.top_k = static_cast<int32_t>(random_.below(50));
      options.sampling.top_p = 0.95f;
    }
    options.sampling.logprobs = true;
    options.ignore_stop_tokens = chance(2);
    return options;
  }

  size_t room_of(const Held& held) const {
    const size_t used = held.context.size();
    return used + 2 < static_cast<size_t>(kContext) ? static_cast<size_t>(kContext) - used - 1 : 0;
  }

  void append(Held& held) {
    if (room_of(held) == 0) return;
    const Tokens tokens = prompt(room_of(held));
    auto appended = run_.engine.append(held.session, tokens);
    expect(appended.ok(), "append: " + appended.status().to_string());
    while (appended->read()) {
    }
    expect(appended->error().ok(), "append: " + appended->error().to_string());
    held.context.insert(held.context.end(), tokens.begin(), tokens.end());
  }

  void generate(Held& held) {
    const size_t room = room_of(held);
    if (room < 2) return rewind(held);
    const Tokens given = prompt(room - 1);
    GenerationOptions asked = options(room - given.size());
    auto generation = run_.engine.generate(held.session, given, asked);
    if (!generation.ok()) {
      // Others may have filled the queue.
      expect(generation.status().field() == "queue", generation.status().to_string());
      return;
    }
    const bool cancels = chance(8);
    if (cancels && chance(2)) generation->read();
    if (cancels) generation->cancel();
    while (generation->read()) {
    }
    finish(held, given, std::move(asked), *generation, cancels);
  }

  void finish(Held& held, const Tokens& given, GenerationOptions asked,
              const Generation& generation, bool was_cancelled) {
    const Status& error = generation.error();
    expect(error.ok() || (asked.deadline_ns && error.code() == Code::kDeadlineExceeded),
           "generate: " + error.to_string());
    Record record{held.context, std::move(asked), {}, {}};
    record.context.insert(record.context.end(), given.begin(), given.end());
    for (const TokenScore& token : generation.tokens()) {
      record.tokens.push_back(token.id);
      record.logprob_bits.push_back(std::bit_cast<uint32_t>(token.logprob));
    }
    held.context = record.context;
    held.context.insert(held.context.end(), record.tokens.begin(), record.tokens.end());
    const auto position = static_cast<size_t>(held.session.position());
    const bool cut_short = was_cancelled || !error.ok();
    expect(position == held.context.size() || (cut_short && position < held.context.size()),
           "a context of " + std::to_string(position) + " tokens, expected " +
               std::to_string(held.context.size()));
    held.context.resize(position);
    const std::lock_guard lock(run_.mutex);
    ++run_.num_generations;
    if (cut_short || record.tokens.empty()) return;
    if (run_.records.size() < kRecordsPerRound) {
      run_.records.push_back(std::move(record));
    } else if (chance(20)) {
      run_.records[static_cast<size_t>(random_.below(kRecordsPerRound))] = std::move(record);
    }
  }

  Run& run_;
  RandomStream random_;
  std::vector<Held> held_;
};

void expect_nothing_left(const Engine& engine) {
  const RunnerMetrics metrics = engine.metrics();
  expect(metrics.sessions == 0, std::to_string(metrics.sessions) + " sessions are left");
  expect(metrics.running == 0 && metrics.waiting == 0, "generations are left");
  for (const GroupUsage& group : metrics.usage.groups) {
    expect(group.blocks_free + group.blocks_cached == group.blocks_total,
           std::to_string(group.blocks_total - group.blocks_free - group.blocks_cached) +
               " blocks are left");
  }
}

// The same request in a session of its own with nothing beside it, and nothing cached for it.
void say_again(Engine& engine, Record& record) {
  auto session = engine.open_session({.salt = "alone", .indexed = false});
  expect(session.ok(), "open: " + session.status().to_string());
  record.options.deadline_ns.reset();
  auto generation = engine.generate(*session, record.context, record.options);
  expect(generation.ok(), "alone: " + generation.status().to_string());
  while (generation->read()) {
  }
  const auto said = generation->tokens();
  expect(said.size() == record.tokens.size(), "alone, a generation has another length");
  for (size_t i = 0; i < said.size(); ++i) {
    expect(said[i].id == record.tokens[i] &&
               std::bit_cast<uint32_t>(said[i].logprob) == record.logprob_bits[i],
           "alone, token " + std::to_string(i) + " differs");
  }
  session->close();
}

// The largest of the values [begin, end).
double largest(const std::vector<double>& values, size_t begin, size_t end) {
  return *std::max_element(values.begin() + static_cast<std::ptrdiff_t>(begin),
                           values.begin() + static_cast<std::ptrdiff_t>(end));
}

void soak(const std::string& model, double seconds, uint64_t seed) {
  EngineOptions options;
  options.context = kContext;
  options.kv_blocks = 60;
  options.max_sessions = 64;
  auto opened = Engine::open(model, options);
  expect(opened.ok(), opened.status().to_string());
  Engine& engine = **opened;
  Run run{engine, {}, {}, 0};
  const double end = seconds_now() + seconds;
  std::vector<double> memory;
  for (uint64_t round = 0; seconds_now() < end; ++round) {
    const double round_end = std::min(end, seconds_now() + kRoundSeconds);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kClients; ++i) {
      threads.emplace_back([&run, seed, round, i, round_end] {
        Client(run, seed + round * kClients + i).work(round_end);
      });
    }
    for (std::thread& thread : threads) thread.join();
    // Sessions that were dropped close behind what was posted before; a round trip waits for them.
    auto last = engine.open_session();
    expect(last.ok(), last.status().to_string());
    last->close();
    expect_nothing_left(engine);
    for (Record& record : run.records) say_again(engine, record);
    const RunnerMetrics metrics = engine.metrics();
    memory.push_back(resident_mib());
    std::printf("round %llu: %lld generations, %lld preemptions, %zu said again, %.1f MiB\n",
                static_cast<unsigned long long>(round), static_cast<long long>(run.num_generations),
                static_cast<long long>(metrics.preemptions), run.records.size(), memory.back());
    std::fflush(stdout);
    run.records.clear();
  }
  expect(run.num_generations > 0, "nothing was generated");
  if (memory.size() >= kFewestRounds) {
    const size_t third = memory.size() / 3;
    const double before = largest(memory, third, 2 * third);
    const double after = largest(memory, 2 * third, memory.size());
    std::printf("resident: at most %.1f MiB in the second third, %.1f MiB in the last\n", before,
                after);
    expect(after <= before * 1.02 + 2, "memory has grown");
  }
}

}  // namespace
}  // namespace chorus

int main(int count, char** arguments) {
  if (count < 3 || count > 4) {
    std::fprintf(stderr, "usage: chorus_soak MODEL SECONDS [SEED]\n");
    return 2;
  }
  const uint64_t seed = count == 4 ? std::strtoull(arguments[3], nullptr, 10) : 1;
  chorus::soak(arguments[1], std::strtod(arguments[2], nullptr), seed);
}
