// What it saves to read the KV of a shared prefix once for several sessions.
//
//   attention_bench [--tiny] [--long] [--isa NAME] [--threads N]
//
// Sessions that have been forked at the end of one prefix and hold some tokens of their own decode
// one token each. The same step is run with and without the ranges that KvPlan says they share, in
// turns, so that both meet the same state of the machine; figures are medians, and the last column
// is a hash of the outputs, the same for both or the benchmark fails. First the attention of all
// layers by itself, then whole steps of a model of SmolLM2-135M's shape with random weights; then
// what finding the shared ranges takes of planning a step, and steps of one long session (--long:
// these alone).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/cpu_features.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "cpu/attention_tiles.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kv_memory.h"
#include "cpu/module.h"
#include "kv/books.h"
#include "program/testing/tiny_program.h"

namespace chorus::cpu {
namespace {

struct Options {
  bool tiny = false;
  bool only_long = false;
  int threads = 0;
  std::string isa;
};

constexpr int32_t kOwn = 40;  // tokens that a session holds behind the prefix

// Of the processor time of all threads, which spin while they wait: what other processes take of
// the machine disturbs it less than the time of day.
double seconds_now(int threads) {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec)) / threads;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

uint64_t hash_of(const float* values, size_t count) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, values + i, 4);
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  return hash;
}

// A step in which the forks of one prefix decode, and the same without the shared ranges.
struct Forks {
  std::unique_ptr<KvBooks> books;
  KvPlan plan;
  Step shared, unshared;

  Forks(int32_t sessions, int32_t prefix) {
    const int32_t most = prefix + kOwn + 1;
    KvOptions options;
    options.max_sequence_tokens = most;
    options.groups = {{{}, (prefix / 16 + 1) + sessions * (kOwn / 16 + 3)}};
    books = KvBooks::create(options).value();
    const SequenceId first = books->open();
    append({{first, 0, prefix}});
    std::vector<KvDemand> demands{{first, prefix, kOwn}};
    for (int32_t i = 1; i < sessions; ++i) {
      demands.push_back({books->clone(first, prefix), prefix, kOwn});
    }
    append(demands);
    for (KvDemand& demand : demands) {
      demand.start = prefix + kOwn;
      demand.count = 1;
    }
    if (!books->plan(demands, plan)) std::abort();
    lay_out();
  }

 private:
  void append(const std::vector<KvDemand>& demands) {
    if (!books->plan(demands, plan)) std::abort();
    std::vector<Position> ends;
    for (const KvDemand& demand : demands) ends.push_back(demand.start + demand.count);
    books->commit(plan, ends);
  }

  void lay_out() {
    unshared.num_groups = 1;
    for (int32_t i = 0; i < plan.num_demands(); ++i) {
      const Position position = plan.demand(i).start;
      unshared.sequences.push_back({i, 1, position});
      unshared.tables.push_back(plan.table(i, 0));
      unshared.tokens.push_back(i);
      unshared.row_sequence.push_back(i);
      unshared.positions.push_back(position);
      unshared.cells.push_back(plan.cell(i, 0, position));
    }
    shared = unshared;
    shared.order = plan.shared().order;
    shared.shared = plan.shared().ranges;
  }
};

struct Shape {
  int32_t layers, heads, kv_heads, head_dim;
};

class AttentionRun {
 public:
  AttentionRun(const Kernels& kernels, const Shape& shape, const Forks& forks)
      : kernels_(kernels), shape_(shape), kv_(make_kv(shape, forks)) {
    RandomStream random(1);
    fill(random, forks);
    const auto rows = static_cast<size_t>(forks.shared.num_rows());
    q_.resize(rows * static_cast<size_t>(shape.heads * shape.head_dim));
    for (float& x : q_) x = static_cast<float>(random.unit() * 4.0 - 2.0);
    out_.resize(q_.size());
  }

  // Seconds of one step's attention.
  double time(const Step& step, ThreadPool& pool, std::vector<AlignedBuffer>& scratch) {
    const int32_t heads = shape_.heads / shape_.kv_heads;
    AttentionTiles tiles({0, shape_.kv_heads, heads, 0}, step.num_rows(), pool.num_threads(), 0);
    const double start = seconds_now(pool.num_threads());
    tiles.cut(step, 0, step.num_rows());
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      pool.run([&](int thread) {
        run_layer(step, tiles, layer, thread, scratch[static_cast<size_t>(thread)].bytes().data());
      });
    }
    return seconds_now(pool.num_threads()) - start;
  }

  uint64_t hash() const { return hash_of(out_.data(), out_.size()); }

 private:
  static KvMemory make_kv(const Shape& shape, const Forks& forks) {
    Graph graph;
    graph.groups.resize(1);
    for (int32_t i = 0; i < shape.layers; ++i) {
      graph.groups[0].layers.push_back(i);
      graph.kv_layers.push_back({});
      graph.kv_layers.back().num_kv_heads = shape.kv_heads;
      graph.kv_layers.back().head_dim = shape.head_dim;
    }
    const int32_t blocks[] = {forks.books->usage(0).blocks_total};
    return KvMemory::create(graph, KvType::kBf16, 16, blocks).value();
  }

  // Small values in every cell.
  void fill(RandomStream& random, const Forks& forks) {
    const int64_t elements =
        int64_t{forks.books->usage(0).blocks_total} * 16 * shape_.head_dim * shape_.kv_heads;
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      for (std::byte* arena : {kv_.layer(layer).k, kv_.layer(layer).v}) {
        for (int64_t i = 0; i < elements; ++i) {
          const auto bits = static_cast<uint16_t>(0x3f00 + (random.next() & 0x80ff));
          std::memcpy(arena + 2 * i, &bits, 2);
        }
      }
    }
  }

  void run_layer(const Step& step, const AttentionTiles& tiles, int32_t layer, int thread,
                 std::byte* scratch) {
    const KvMemory::Layer& kv = kv_.layer(layer);
    AttentionQuery queries[kMaxTileQueries];
    AttentionPart parts[kMaxTileQueries];
    AttentionArgs args;
    args.queries = queries;
    args.parts = parts;
    args.layout = kv.layout;
    args.scale = 0.125f;
    args.scratch = scratch;
    tiles.for_tasks(thread, [&](int32_t kv_head, const AttentionTile& tile, const AttentionPiece*) {
      args.num_queries = args.num_parts = 0;
      for (const TilePart& part : tiles.parts(tile)) {
        const BlockTable& table = step.table(part.sequence, 0);
        parts[args.num_parts++] = {tile.head_count, table.blocks.data(), 0, part.shared.begin,
                                   part.shared.end};
        for (int32_t head = 0; head < tile.head_count; ++head) {
          const int64_t at = (int64_t{part.row_begin} * shape_.heads +
                              kv_head * tiles.shape().heads + tile.head_begin + head) *
                             shape_.head_dim;
          queries[args.num_queries++] = {q_.data() + at, out_.data() + at, 0,
                                         step.positions[static_cast<size_t>(part.row_begin)]};
        }
      }
      args.k = kv.k + kv_head * kv.layout.head_bytes;
      args.v = kv.v + kv_head * kv.layout.head_bytes;
      kernels_.attention[kKvBf16](args);
    });
  }

  const Kernels& kernels_;
  Shape shape_;
  KvMemory kv_;
  std::vector<float> q_;
  std::vector<float> out_;
};

// One line: milliseconds without and with the shared ranges, in turns.
template <typename Time, typename Hash>
void compare(const Forks& forks, int turns, Time time, Hash hash) {
  std::vector<double> without, with, ratio;
  uint64_t hashes[2] = {};
  for (int turn = 0; turn < turns + 1; ++turn) {
    const double a = time(forks.unshared);
    hashes[0] = hash();
    const double b = time(forks.shared);
    hashes[1] = hash();
    if (hashes[0] != hashes[1]) {
      std::fprintf(stderr, "attention_bench: sharing changes the result\n");
      std::exit(1);
    }
    if (turn == 0) continue;  // warms up
    without.push_back(a);
    with.push_back(b);
    ratio.push_back(a / b);
  }
  std::printf("%8.3f ms %8.3f ms shared  ratio %.2f  %016llx\n", median(without) * 1e3,
              median(with) * 1e3, median(ratio), static_cast<unsigned long long>(hashes[0]));
  std::fflush(stdout);
}

void run_attention(const Kernels& kernels, const Options& options, ThreadPool& pool) {
  std::vector<Shape> shapes = {{10, 9, 9, 64},  {10, 8, 4, 64},  {10, 9, 3, 64},
                               {5, 32, 8, 128}, {10, 10, 2, 64}, {5, 24, 4, 128}};
  if (options.tiny) shapes = {{1, 3, 1, 16}};
  for (const Shape& shape : shapes) {
    for (const int32_t prefix : {256, 1024, 4096}) {
      for (const int32_t sessions : {2, 8, 32}) {
        if (options.tiny && (prefix > 256 || sessions > 2)) continue;
        const Forks forks(sessions, prefix);
        AttentionRun run(kernels, shape, forks);
        std::vector<AlignedBuffer> scratch;
        for (int i = 0; i < pool.num_threads(); ++i) {
          scratch.emplace_back(attention_scratch_bytes(shape.head_dim));
        }
        std::printf("attention %2d x %-3d G=%d, %4d + %d cells, %2d sessions: ", shape.kv_heads,
                    shape.head_dim, shape.heads / shape.kv_heads, prefix, kOwn, sessions);
        compare(
            forks, options.tiny ? 1 : 15,
            [&](const Step& step) { return run.time(step, pool, scratch); },
            [&] { return run.hash(); });
      }
    }
  }
}

void run_steps(const Options& options, Isa isa, int threads) {
  TinyOptions model;
  if (!options.tiny) {
    model.num_layers = 30;
    model.width = 576;
    model.ff_width = 1536;
    model.num_heads = 9;
    model.num_kv_heads = 3;
    model.head_dim = 64;
    model.vocabulary = 49152;
    model.context = 8192;
  }
  const auto program = std::make_shared<const Program>(tiny_program(model));
  for (const int32_t prefix : {256, 1024, 4096}) {
    for (const int32_t sessions : {8, 32}) {
      if (options.tiny && (prefix > 256 || sessions > 8)) continue;
      const Forks forks(sessions, prefix);
      CpuOptions cpu;
      cpu.threads = threads;
      cpu.isa = isa;
      cpu.num_blocks = {forks.books->usage(0).blocks_total};
      const auto module = CpuModule::create(program, cpu).value();
      std::vector<uint8_t> not_finite(static_cast<size_t>(sessions));
      std::vector<float> logits(static_cast<size_t>(model.vocabulary));
      std::vector<int32_t> wanted;
      std::vector<RowSpec> specs;
      for (int32_t row = 0; row < sessions; ++row) {
        wanted.push_back(row);
        specs.emplace_back();
        specs.back().row = row;
        specs.back().sample = true;
      }
      specs.back().raw = logits;
      std::vector<RowResult> results(specs.size());
      std::vector<TokenLogprob> likeliest;
      const auto time = [&](const Step& step) {
        const double start = seconds_now(threads);
        const bool ok = module->begin(step).ok() &&
                        module->run(0, {0, sessions, wanted}, not_finite).ok() &&
                        module->reduce_rows(specs, results, likeliest).ok();
        if (!ok) std::abort();
        return seconds_now(threads) - start;
      };
      std::printf("step, %4d + %d cells, %2d sessions: ", prefix, kOwn, sessions);
      compare(forks, options.tiny ? 1 : 15, time,
              [&] { return hash_of(logits.data(), logits.size()); });
    }
  }
}

// One session of a model decodes at position `context`, its KV filled with random bytes.
void run_long_session(const TinyOptions& model, const Options& options, Isa isa, int threads) {
  const auto program = std::make_shared<const Program>(tiny_program(model));
  CpuOptions cpu;
  cpu.threads = threads;
  cpu.isa = isa;
  cpu.profile = true;
  cpu.num_blocks = {model.context / 16 + 1};
  const auto module = CpuModule::create(program, cpu).value();
  std::vector<BlockId> blocks;
  std::vector<CellId> cells;
  for (BlockId block = 0; block < cpu.num_blocks[0]; ++block) blocks.push_back(block);
  for (CellId cell = 0; cell < model.context; ++cell) cells.push_back(cell);
  const auto cell_bytes = static_cast<size_t>(module->info().groups[0].bytes_per_cell);
  std::vector<std::byte> bytes(cells.size() * cell_bytes);
  RandomStream random(1);
  for (size_t i = 1; i < bytes.size(); i += 2) {  // bf16 of about 1
    bytes[i] = static_cast<std::byte>(0x3f);
    bytes[i - 1] = static_cast<std::byte>(random.next());
  }
  if (!module->write_cells(0, cells, bytes).ok()) std::abort();
  const Position position = model.context - 1;
  Step step;
  step.num_groups = 1;
  step.sequences = {{0, 1, position}};
  step.tables = {{0, 0, blocks}};
  step.tokens = {1};
  step.row_sequence = {0};
  step.positions = {position};
  step.cells = {position};
  std::vector<uint8_t> not_finite(1);
  const auto attention_ns = [&] {
    for (const OperatorUsage& each : module->usage().operators) {
      if (each.name == "update_and_attend") return each.ns;
    }
    return int64_t{0};
  };
  std::vector<double> steps, attention;
  for (int turn = 0; turn < (options.tiny ? 2 : 41); ++turn) {
    const int64_t before = attention_ns();
    const double start = seconds_now(threads);
    const bool ok = module->begin(step).ok() && module->run(0, {0, 1, {}}, not_finite).ok();
    if (!ok) std::abort();
    if (turn == 0) continue;  // warms up
    steps.push_back(seconds_now(threads) - start);
    attention.push_back(1e-9 * static_cast<double>(attention_ns() - before));
  }
  std::printf("one session, %2d x %-3d G=%d, %4d cells: step %8.3f ms, its attention %8.3f ms\n",
              model.num_kv_heads, model.head_dim, model.num_heads / model.num_kv_heads,
              model.context, median(steps) * 1e3, median(attention) * 1e3);
  std::fflush(stdout);
}

void run_long_sessions(const Options& options, Isa isa, int threads) {
  TinyOptions model;
  for (const int32_t context : {4096, 8192}) {
    if (options.tiny && context > 4096) continue;
    model.context = options.tiny ? 600 : context;
    if (options.tiny) return run_long_session(model, options, isa, threads);
    for (const int32_t kv_heads : {1, 3}) {
      model.num_layers = 16;
      model.width = 576;
      model.ff_width = 1536;
      model.num_kv_heads = kv_heads;
      model.num_heads = kv_heads == 1 ? 4 : 9;
      model.head_dim = kv_heads == 1 ? 256 : 64;
      run_long_session(model, options, isa, threads);
    }
  }
}

void run_planning(const Options& options) {
  const int32_t sessions = options.tiny ? 4 : 64;
  const Forks forks(sessions, options.tiny ? 256 : 4096);
  SharedBlocks shared;
  const WindowPolicy policies[] = {{}};
  std::vector<double> seconds;
  for (int turn = 0; turn < (options.tiny ? 2 : 1000); ++turn) {
    const double start = seconds_now(1);
    find_shared_blocks(forks.plan.tables(), policies, 16, shared);
    seconds.push_back(seconds_now(1) - start);
  }
  std::printf("finding what %d forks of %d tokens share: %.1f us\n", sessions,
              options.tiny ? 256 : 4096, median(seconds) * 1e6);
}

int run_all(const Options& options) {
  const Result<Isa> isa = choose_isa(options.isa);
  if (!isa.ok()) {
    std::fprintf(stderr, "attention_bench: %s\n", isa.status().to_string().c_str());
    return 2;
  }
  const int threads = options.threads > 0 ? options.threads : available_cores();
  std::printf("isa %s, %d threads\n", std::string(isa_name(isa.value())).c_str(), threads);
  if (options.only_long) return run_long_sessions(options, isa.value(), threads), 0;
  {
    const auto pool = ThreadPool::create(threads).value();
    run_attention(kernels_for(isa.value()), options, *pool);
  }
  run_planning(options);
  run_steps(options, isa.value(), threads);
  run_long_sessions(options, isa.value(), threads);
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
    } else if (arg == "--long") {
      options.only_long = true;
    } else if (arg == "--isa" && i + 1 < argc) {
      options.isa = argv[++i];
    } else if (arg == "--threads" && i + 1 < argc) {
      options.threads = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr, "usage: attention_bench [--tiny] [--long] [--isa NAME] [--threads N]\n");
      return 2;
    }
  }
  return chorus::cpu::run_all(options);
}
