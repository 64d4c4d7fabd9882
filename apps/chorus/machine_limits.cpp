#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "base/free_memory.h"
#include "base/thread_pool.h"
#include "cpu/kernels/peaks.h"
#include "machine_load.h"

namespace chorus::cli {

namespace {

constexpr int kSamples = 9;
constexpr int64_t kPeakSampleNs = 20'000'000;
constexpr int64_t kMiB = int64_t{1} << 20;

double seconds_since(int64_t start_ns) {
  return static_cast<double>(SteadyClock().now_ns() - start_ns) * 1e-9;
}

// Large beside the last cache, and small beside what is free.
int64_t buffer_bytes() {
  const int64_t cache = std::max(int64_t{0}, int64_t{sysconf(_SC_LEVEL3_CACHE_SIZE)});
  const int64_t wanted = std::clamp(8 * cache, 256 * kMiB, 1024 * kMiB);
  return std::max(16 * kMiB, std::min(wanted, free_memory_bytes() / 4)) / kMiB * kMiB;
}

// The results of the loops, kept so that they are computed.
std::atomic<uint64_t> sink{0};

Spread sample_reading(const cpu::Peaks& peaks, ThreadPool& pool, const AlignedBuffer& buffer) {
  constexpr int64_t kPage = 4096;
  const auto size = static_cast<int64_t>(buffer.bytes().size());
  std::vector<double> rates;
  for (int i = 0; i < 2 * kSamples; ++i) {
    const bool prefetch = i % 2 == 1;  // either may be the faster one
    const int64_t start_ns = SteadyClock().now_ns();
    pool.run([&](int thread) {
      const Range pages = share_of(size / kPage, pool.num_threads(), thread);
      sink += peaks.read(buffer.bytes().data() + pages.begin * kPage,
                         (pages.end - pages.begin) * kPage, prefetch);
    });
    rates.push_back(static_cast<double>(size) / seconds_since(start_ns));
  }
  return spread_of(rates);
}

Spread sample_macs(int64_t (*loop)(int64_t, uint64_t*), ThreadPool& pool) {
  uint64_t result = 0;
  const int64_t start_ns = SteadyClock().now_ns();
  constexpr int64_t kProbe = 20'000;
  loop(kProbe, &result);
  const int64_t probe_ns = std::max<int64_t>(1, SteadyClock().now_ns() - start_ns);
  const int64_t rounds = std::max<int64_t>(1, kProbe * kPeakSampleNs / probe_ns);
  std::vector<double> rates;
  for (int i = 0; i < kSamples; ++i) {
    std::atomic<int64_t> macs{0};
    const int64_t begin_ns = SteadyClock().now_ns();
    pool.run([&](int) {
      uint64_t folded = 0;
      macs += loop(rounds, &folded);
      sink += folded;
    });
    rates.push_back(static_cast<double>(macs.load()) / seconds_since(begin_ns));
  }
  return spread_of(rates);
}

Result<MachineRates> measure_rates(const cpu::Peaks& peaks, int threads,
                                   const AlignedBuffer& buffer) {
  CHORUS_ASSIGN_OR_RETURN(const auto pool, ThreadPool::create(threads));
  MachineRates rates;
  rates.threads = threads;
  rates.read_bytes_per_s = sample_reading(peaks, *pool, buffer);
  rates.int8_macs_per_s = sample_macs(peaks.int8_macs, *pool);
  rates.float_macs_per_s = sample_macs(peaks.float_macs, *pool);
  return rates;
}

// ---- Round trip ----

// Of a processor: which others are the same core.
std::string siblings_of(int processor) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(processor) +
                     "/topology/thread_siblings_list");
  std::string siblings;
  return file >> siblings ? siblings : std::to_string(processor);
}

// The first two cores that this process may use, each by a processor.
std::vector<int> two_cores() {
  std::vector<int> found;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return found;
  for (int processor = 0; processor < CPU_SETSIZE && found.size() < 2; ++processor) {
    if (!CPU_ISSET(processor, &mask)) continue;
    if (found.empty() || siblings_of(processor) != siblings_of(found[0])) {
      found.push_back(processor);
    }
  }
  return found;
}

void pin(int processor) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(processor, &mask);
  pthread_setaffinity_np(pthread_self(), sizeof mask, &mask);
}

// Waits for a value that another thread writes; lets others run where that takes long.
void await(const std::atomic<int>& word, int value) {
  constexpr int kSpins = 20'000;
  for (int spins = 0; word.load(std::memory_order_acquire) != value; ++spins) {
    if (spins >= kSpins) sched_yield();
  }
}

Result<std::optional<Spread>> measure_round_trip() {
  constexpr int kTrips = 5'000;  // of a sample
  const std::vector<int> cores = two_cores();
  if (cores.size() < 2) return std::optional<Spread>();
  struct alignas(128) Word {
    std::atomic<int> value{0};
  };
  Word there, back;
  std::vector<double> samples;
  const auto near = [&] {
    for (int sample = 0; sample < kSamples; ++sample) {
      const int64_t start_ns = SteadyClock().now_ns();
      for (int trip = sample * kTrips + 1; trip <= (sample + 1) * kTrips; ++trip) {
        there.value.store(trip, std::memory_order_release);
        await(back.value, trip);
      }
      samples.push_back(seconds_since(start_ns) * 1e9 / kTrips);
    }
  };
  const auto far = [&] {
    for (int trip = 1; trip <= kSamples * kTrips; ++trip) {
      await(there.value, trip);
      back.value.store(trip, std::memory_order_release);
    }
  };
  // This thread, which may run anywhere, waits for the two that are bound to their cores.
  CHORUS_ASSIGN_OR_RETURN(const auto pool, ThreadPool::create(3));
  pool->run([&](int thread) {
    if (thread == 0) return;
    pin(cores[static_cast<size_t>(thread - 1)]);
    thread == 1 ? near() : far();
  });
  return std::optional<Spread>(spread_of(samples));
}

}  // namespace

Result<MachineLimits> measure_machine(Isa isa, int threads, const Interrupt& interrupt) {
  const LoadMeter load;
  const cpu::Peaks& peaks = cpu::peaks_for(isa);
  CHORUS_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                          AlignedBuffer::create(static_cast<size_t>(buffer_bytes())));
  std::memset(buffer.bytes().data(), 1, buffer.bytes().size());  // pages of its own
  MachineLimits limits;
  limits.isa = isa;
  const Status cancelled(Code::kCancelled, "bench", "interrupted");
  if (interrupt.requested()) return cancelled;
  CHORUS_ASSIGN_OR_RETURN(limits.one, measure_rates(peaks, 1, buffer));
  if (interrupt.requested()) return cancelled;
  limits.all = limits.one;
  if (threads > 1) {
    CHORUS_ASSIGN_OR_RETURN(limits.all, measure_rates(peaks, threads, buffer));
  }
  if (interrupt.requested()) return cancelled;
  CHORUS_ASSIGN_OR_RETURN(limits.round_trip_ns, measure_round_trip());
  limits.foreign_load = load.foreign_share().value_or(-1);
  return limits;
}

StepLimit limit_of(const StepWork& work, const MachineRates& rates) {
  const double memory = work.bytes / rates.read_bytes_per_s.max;
  const double compute =
      work.int8_macs / rates.int8_macs_per_s.max + work.float_macs / rates.float_macs_per_s.max;
  return {std::max(memory, compute), memory >= compute};
}

}  // namespace chorus::cli
