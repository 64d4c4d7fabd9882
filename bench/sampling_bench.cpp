// The cost of choosing one token from a row of logits.
//
//   sampling_bench [--tiny] [--isa NAME]
//
// Rows are like those of a language model (a bell of logits and a few far above it), flat, and
// tied; 16 different rows are used in turn. Figures are microseconds a row on one thread, the best
// and the median of the samples. The last column is a hash of the choices, which does not depend on
// the instruction set.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/random.h"
#include "cpu/kernels/kernels.h"
#include "exec/sampling.h"

namespace chorus::cpu {
namespace {

constexpr int kRows = 16;

enum class Shape { kModel, kFlat, kTied };

std::vector<float> make_row(Shape shape, int32_t vocabulary, uint64_t seed) {
  RandomStream random(seed);
  std::vector<float> row(static_cast<size_t>(vocabulary));
  for (float& x : row) {
    if (shape == Shape::kTied) {
      x = static_cast<float>(random.below(4));
    } else if (shape == Shape::kFlat) {
      x = static_cast<float>(random.unit() * 0.01);
    } else {
      double sum = 0;  // about normal, deviation 3
      for (int i = 0; i < 12; ++i) sum += random.unit();
      x = static_cast<float>((sum - 6) * 3);
    }
  }
  if (shape == Shape::kModel) {
    for (int i = 0; i < 40; ++i) {
      row[static_cast<size_t>(random.below(row.size()))] = static_cast<float>(19 - 0.15 * i);
    }
  }
  return row;
}

struct Filters {
  const char* name;
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// As CpuModule chooses: the maximum is part of the cost.
int32_t choose(const Kernels& kernels, const std::vector<float>& row, const Filters& filters,
               uint64_t bits) {
  const LogitsArgs logits{row.data(), static_cast<int32_t>(row.size()), nullptr};
  const LogitsMax best = kernels.logits_max(logits);
  if (filters.temperature == 0.0f) return best.index;
  return kernels.draw({logits, best.max, 1.0f / filters.temperature, bits, filters.top_k,
                       share_of_top_p(filters.top_p), weight_of_min_p(filters.min_p)});
}

void measure(const Kernels& kernels, const char* shape, const std::vector<std::vector<float>>& rows,
             const Filters& filters, int samples, int rounds) {
  std::vector<double> times;
  uint64_t hash = 0;
  for (int sample = 0; sample < samples; ++sample) {
    const double start = seconds_now();
    for (int i = 0; i < rounds; ++i) {
      const auto number = static_cast<uint64_t>(i);
      const int32_t id = choose(kernels, rows[number % kRows], filters, random_bits(1, 0, number));
      if (sample == 0) hash = hash * 31 + static_cast<uint64_t>(id);
    }
    times.push_back((seconds_now() - start) / rounds * 1e6);
  }
  std::sort(times.begin(), times.end());
  std::printf("%-6s V=%-6zu %-28s %8.1f (median %8.1f) us a row  %016llx\n", shape, rows[0].size(),
              filters.name, times[0], times[times.size() / 2],
              static_cast<unsigned long long>(hash));
  std::fflush(stdout);
}

int run_all(bool tiny, const std::string& isa_text) {
  const Result<Isa> isa = choose_isa(isa_text);
  if (!isa.ok()) {
    std::fprintf(stderr, "sampling_bench: %s\n", isa.status().to_string().c_str());
    return 2;
  }
  std::printf("isa %s\n", std::string(isa_name(isa.value())).c_str());
  constexpr Filters kFilters[] = {
      {"greedy", 0.0f, 0, 1.0f, 0.0f},
      {"temperature 0.8", 0.8f, 0, 1.0f, 0.0f},
      {"temperature 0.8 min_p 0.05", 0.8f, 0, 1.0f, 0.05f},
      {"temperature 0.8 top_k 40", 0.8f, 40, 1.0f, 0.0f},
      {"temperature 0.8 top_p 0.95", 0.8f, 0, 0.95f, 0.0f},
      {"temperature 1.5 top_p 0.95", 1.5f, 0, 0.95f, 0.0f},
      {"all three", 0.8f, 40, 0.95f, 0.05f},
  };
  for (const int32_t vocabulary : {49152, 262144}) {
    for (const Shape shape : {Shape::kModel, Shape::kFlat, Shape::kTied}) {
      const char* name = shape == Shape::kModel ? "model" : shape == Shape::kFlat ? "flat" : "tied";
      std::vector<std::vector<float>> rows;
      for (uint64_t i = 0; i < kRows; ++i) {
        rows.push_back(make_row(shape, tiny ? vocabulary / 256 : vocabulary, i + 1));
      }
      for (const Filters& filters : kFilters) {
        measure(kernels_for(isa.value()), name, rows, filters, tiny ? 1 : 25, tiny ? 2 : kRows);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace chorus::cpu

int main(int argc, char** argv) {
  bool tiny = false;
  std::string isa;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--tiny") {
      tiny = true;
    } else if (arg == "--isa" && i + 1 < argc) {
      isa = argv[++i];
    } else {
      std::fprintf(stderr, "usage: sampling_bench [--tiny] [--isa NAME]\n");
      return 2;
    }
  }
  return chorus::cpu::run_all(tiny, isa);
}
