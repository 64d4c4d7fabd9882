// Speed of the linear kernels, with the memory bandwidth of the machine beside it.
//
//   linear_bench [--tiny] [--isa NAME] [--f32] [--type NAME]
//
// Activations are what the type takes: int8 for quantised weights, bf16 for BF16, else f32; f32 for
// all with --f32. Without --type: Q4_1, Q4_0, Q8_0, Q4_K, Q5_0, Q6_K, BF16.
//
// A matrix is copied until its copies exceed the caches (256 MiB) and the copies are used in turn,
// as a decoding step does: weights come from memory. Each thread computes a contiguous share of the
// row groups; every product includes one fork and join. Figures are the best and the median of the
// samples. The last column is a hash of the outputs, which depends on neither threads, batch nor
// instruction set.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "cpu/kernels/kernels.h"
#include "program/names.h"
#include "program/packing/r16k4.h"

namespace chorus::cpu {
namespace {

struct Options {
  bool tiny = false;
  bool f32 = false;
  std::string isa;
  std::vector<WeightType> types = {WeightType::kQ4_1, WeightType::kQ4_0, WeightType::kQ8_0,
                                   WeightType::kQ4_K, WeightType::kQ5_0, WeightType::kQ6_K,
                                   WeightType::kBF16};
};

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
};
using Buffer = std::unique_ptr<std::byte, FreeAligned>;
Buffer make_buffer(size_t bytes) {
  return Buffer(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Sampled {
  double best = 0;
  double median = 0;
};
Sampled summarise(std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  return {rates.back(), rates[rates.size() / 2]};
}

// Bytes per second of `pool` reading a buffer far larger than the caches.
Sampled read_bandwidth(ThreadPool& pool, size_t bytes, int samples) {
  const Buffer buffer = make_buffer(bytes);
  std::memset(buffer.get(), 1, bytes);
  std::vector<uint64_t> sums(64);
  std::vector<double> rates;
  for (int i = 0; i < samples; ++i) {
    const double start = seconds_now();
    pool.run([&](int index) {
      const Range range = share_of(static_cast<int64_t>(bytes / 64), pool.num_threads(), index);
      uint64_t sum[4] = {};
      for (int64_t line = range.begin; line < range.end; ++line) {
        uint64_t words[8];
        std::memcpy(words, buffer.get() + line * 64, sizeof words);
        __builtin_prefetch(buffer.get() + line * 64 + 4096);
        for (int w = 0; w < 8; ++w) sum[w % 4] += words[w];
      }
      sums[static_cast<size_t>(index) * 8] = sum[0] + sum[1] + sum[2] + sum[3];
    });
    rates.push_back(static_cast<double>(bytes) / (seconds_now() - start));
  }
  if (sums[0] == 0) std::abort();  // keeps the reads
  return summarise(rates);
}

struct Case {
  WeightType type;
  int32_t columns, rows, tokens;
};

class LinearRun {
 public:
  LinearRun(const Kernels& kernels, const Case& c, bool f32, size_t total_bytes)
      : kernels_(kernels), case_(c), f32_(f32), int8_(!f32 && is_quantised(c.type)) {
    matrix_bytes_ = packed_bytes(c.type, c.rows, c.columns).value();
    copies_ = std::max<size_t>(1, total_bytes / matrix_bytes_);
    weights_ = make_buffer(matrix_bytes_ * copies_);
    fill_weights();
    k_blocks_ = static_cast<int32_t>(num_column_blocks(c.columns));
    const auto quads = static_cast<size_t>((c.tokens + kQuad - 1) / kQuad);
    activations_ = make_buffer(quads * static_cast<size_t>(k_blocks_) * kBlock * kQuad * 4);
    out_.resize(static_cast<size_t>(c.tokens) * static_cast<size_t>(c.rows));
    prepare();
  }

  // Multiply-accumulates per second over at least `seconds`.
  double sample(ThreadPool& pool, double seconds) {
    const double macs = double(case_.columns) * double(case_.rows) * double(case_.tokens);
    const double start = seconds_now();
    double elapsed = 0;
    int64_t products = 0;
    while (elapsed < seconds) {
      for (int i = 0; i < 4; ++i, ++products) multiply(pool);
      elapsed = seconds_now() - start;
    }
    return macs * static_cast<double>(products) / elapsed;
  }

  double bytes_per_mac() const {
    return static_cast<double>(matrix_bytes_) /
           (double(case_.columns) * double(case_.rows) * double(case_.tokens));
  }

  // FNV-1a over the first token's outputs.
  uint64_t hash() const {
    uint64_t h = 0xcbf29ce484222325u;
    for (int32_t r = 0; r < case_.rows; ++r) {
      uint32_t bits = 0;
      std::memcpy(&bits, &out_[static_cast<size_t>(r)], 4);
      h = (h ^ bits) * 0x100000001b3u;
    }
    return h;
  }

 private:
  void fill_weights() {
    RandomStream random(1);
    const RecordLayout& layout = record_layout(case_.type);
    for (size_t i = 0; i < matrix_bytes_; i += 8) {
      const uint64_t bits = random.next();
      std::memcpy(weights_.get() + i, &bits, 8);
    }
    for (size_t i = 0; i < matrix_bytes_; i += layout.record_bytes()) {
      for (size_t at = 0; at < layout.header_bytes(); at += 2) {
        write_half(weights_.get() + i + at, 0x2000 + random.below(1024));
      }
      for (size_t at = 0; !is_quantised(case_.type) && at < layout.record_bytes();
           at += layout.element_bytes) {
        // About 2^-7 in fp16 and 2^-1 in the others: the upper half of a float is a bf16.
        const bool half = case_.type == WeightType::kF16;
        write_half(weights_.get() + i + at + layout.element_bytes - 2,
                   (half ? 0x2000 : 0x3f00) + random.below(128));
      }
    }
    for (size_t i = 1; i < copies_; ++i) {
      std::memcpy(weights_.get() + i * matrix_bytes_, weights_.get(), matrix_bytes_);
    }
  }

  static void write_half(std::byte* to, uint64_t bits) {
    const auto half = static_cast<uint16_t>(bits);
    std::memcpy(to, &half, sizeof half);
  }

  void prepare() {
    RandomStream random(2);
    std::vector<float> x(static_cast<size_t>(case_.tokens) * static_cast<size_t>(case_.columns));
    for (float& value : x) value = static_cast<float>(random.unit() - 0.5);
    PrepareArgs args;
    args.x = x.data();
    args.x_stride = case_.columns;
    args.columns = case_.columns;
    args.tokens = case_.tokens;
    args.k_blocks = k_blocks_;
    args.out = activations_.get();
    const bool bf16 = !f32_ && case_.type == WeightType::kBF16;
    (int8_ ? kernels_.quantize : bf16 ? kernels_.prepare_bf16 : kernels_.prepare_f32)(args);
  }

  void multiply(ThreadPool& pool) {
    pool.run([&](int index) {
      const Range groups = share_of(num_row_groups(case_.rows), pool.num_threads(), index);
      LinearArgs args;
      args.weights = weights_.get() + matrix_bytes_ * next_;
      args.k_blocks = k_blocks_;
      args.rows = case_.rows;
      args.group_begin = static_cast<int32_t>(groups.begin);
      args.group_end = static_cast<int32_t>(groups.end);
      args.activations = activations_.get();
      args.tokens = case_.tokens;
      args.out = out_.data();
      args.out_stride = case_.rows;
      (int8_ ? kernels_.linear_int8 : kernels_.linear_f32)[static_cast<int>(case_.type)](args);
    });
    next_ = (next_ + 1) % copies_;
  }

  const Kernels& kernels_;
  Case case_;
  bool f32_;
  bool int8_;
  size_t matrix_bytes_ = 0;
  size_t copies_ = 0;
  size_t next_ = 0;
  int32_t k_blocks_ = 0;
  Buffer weights_;
  Buffer activations_;
  std::vector<float> out_;
};

// Nanoseconds per value of quantising `tokens` rows.
double quantise_cost(const Kernels& kernels, int32_t tokens, int32_t columns, double seconds) {
  std::vector<float> x(static_cast<size_t>(tokens) * static_cast<size_t>(columns), 0.25f);
  const Buffer out = make_buffer(x.size() * 2 + 4096);
  PrepareArgs args;
  args.x = x.data();
  args.x_stride = columns;
  args.columns = columns;
  args.tokens = tokens;
  args.k_blocks = columns / kBlock;
  args.out = out.get();
  const double start = seconds_now();
  double elapsed = 0;
  double values = 0;
  while (elapsed < seconds) {
    kernels.quantize(args);
    values += double(tokens) * double(columns);
    elapsed = seconds_now() - start;
  }
  return elapsed / values * 1e9;
}

void run_shape(const Kernels& kernels, const Options& options, WeightType type, int32_t columns,
               int32_t rows, const std::vector<std::unique_ptr<ThreadPool>>& pools) {
  const double seconds = options.tiny ? 0.001 : 0.1;
  const int samples = options.tiny ? 1 : 5;
  const size_t total = options.tiny ? size_t{1} << 20 : size_t{256} << 20;
  for (const int32_t tokens : {1, 2, 4, 8, 16, 32}) {
    LinearRun run(kernels, {type, columns, rows, tokens}, options.f32, total);
    std::printf("%-5s K=%d N=%d B=%-3d", shown_type_name(type).c_str(), columns, rows, tokens);
    for (const auto& pool : pools) {
      std::vector<double> rates;
      for (int i = 0; i < samples; ++i) rates.push_back(run.sample(*pool, seconds));
      const Sampled s = summarise(rates);
      std::printf("  T%d %6.1f (median %6.1f) GMAC/s %5.1f GB/s", pool->num_threads(), s.best / 1e9,
                  s.median / 1e9, s.best * run.bytes_per_mac() / 1e9);
    }
    std::printf("  %016llx\n", static_cast<unsigned long long>(run.hash()));
    std::fflush(stdout);
  }
}

int run_all(const Options& options) {
  const Result<Isa> isa = choose_isa(options.isa);
  if (!isa.ok()) {
    std::fprintf(stderr, "linear_bench: %s\n", isa.status().to_string().c_str());
    return 2;
  }
  const Kernels& kernels = kernels_for(isa.value());
  std::vector<std::unique_ptr<ThreadPool>> pools;
  pools.push_back(ThreadPool::create(1).value());
  if (available_cores() > 1) pools.push_back(ThreadPool::create(2).value());
  std::printf("isa %s\n", std::string(isa_name(isa.value())).c_str());
  for (const auto& pool : pools) {
    const Sampled read = read_bandwidth(*pool, options.tiny ? size_t{1} << 20 : size_t{512} << 20,
                                        options.tiny ? 1 : 7);
    std::printf("memory read T%d %.1f (median %.1f) GB/s\n", pool->num_threads(), read.best / 1e9,
                read.median / 1e9);
  }
  std::printf("quantise K=576 B=8: %.2f ns a value\n",
              quantise_cost(kernels, 8, 576, options.tiny ? 0.001 : 0.2));
  for (const WeightType type : options.types) {
    // The columns of K-quants are multiples of 256.
    const int32_t narrow = column_multiple(type) == 256 ? 768 : 576;
    run_shape(kernels, options, type, narrow, options.tiny ? 64 : 1536, pools);
    run_shape(kernels, options, type, options.tiny ? 256 : 2048, options.tiny ? 80 : 8192, pools);
  }
  return 0;
}

}  // namespace
}  // namespace chorus::cpu

int main(int argc, char** argv) {
  chorus::cpu::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--tiny") {
      options.tiny = true;
    } else if (arg == "--f32") {
      options.f32 = true;
    } else if (arg == "--isa" && i + 1 < argc) {
      options.isa = argv[++i];
    } else if (arg == "--type" && i + 1 < argc && chorus::parse_weight_type(argv[i + 1])) {
      options.types = {*chorus::parse_weight_type(argv[++i])};
    } else {
      std::fprintf(stderr, "usage: linear_bench [--tiny] [--isa NAME] [--f32] [--type NAME]\n");
      return 2;
    }
  }
  return chorus::cpu::run_all(options);
}
