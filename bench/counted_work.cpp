// Fixed amounts of work whose instructions are counted (tools/instruction_counts.py), so that code
// that must stay fast is noticed when it becomes slower, on any machine.
//
//   counted_work          the names, one a line
//   counted_work NAME     does that work once, inside of counted_function
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/random.h"
#include "batching/decode_first_scheduler.h"
#include "bench/no_model.h"
#include "cpu/kernels/generic.h"
#include "cpu/kernels/kernels.h"
#include "executors/module_executor.h"
#include "kv/books.h"
#include "program/names.h"
#include "program/packing/r16k4.h"

using Work = std::function<void()>;

// What is outside of this is preparation. The empty instruction keeps its call from becoming a
// jump, with which counting would end.
extern "C" void counted_function(const Work& work) {
  work();
  __asm__ volatile("" ::: "memory");
}
// By way of a pointer that may change: compilers make no copies of the function for its callers.
void (*volatile counted)(const Work& work) = counted_function;

namespace chorus {
namespace {

using Tokens = std::vector<TokenId>;

// ---- kv and batching ---------------------------------------------------------------------------

Tokens random_tokens(RandomStream& random, int64_t count) {
  Tokens tokens;
  for (; count > 0; --count) tokens.push_back(static_cast<TokenId>(random.below(50000)));
  return tokens;
}

// Lookups in an index of 100 prompts that share 16 blocks, and sequences made of what they find.
void prefix_lookups() {
  constexpr int32_t kLength = 16 * 64;
  const auto books = std::move(KvBooks::create({16, kLength, {{{}, 100 * 64}}})).value();
  RandomStream random(1);
  const Tokens common = random_tokens(random, 256);
  std::vector<Tokens> prompts;
  KvPlan plan;
  for (int i = 0; i < 100; ++i) {
    Tokens prompt = common;
    const Tokens own = random_tokens(random, kLength - 256);
    prompt.insert(prompt.end(), own.begin(), own.end());
    const SequenceId sequence = books->open_prefix("", prompt, kLength);
    const Position at = books->length(sequence);
    const std::vector<KvDemand> demands{{sequence, at, kLength - at}};
    CHORUS_CHECK(books->plan(demands, plan));
    const std::vector<KvRows> rows{{std::span(prompt).subspan(static_cast<size_t>(at))}};
    books->commit(plan, std::vector<Position>{kLength}, rows);
    books->close(sequence);
    prompts.push_back(std::move(prompt));
  }
  counted([&] {
    for (int i = 0; i < 500; ++i) {
      const Tokens& prompt = prompts[static_cast<size_t>(i * 37 % 100)];
      books->close(books->open_prefix("", prompt, kLength - 1));
    }
  });
}

// Batches out of a queue of 1024 tasks, each queued again.
void schedule() {
  const auto scheduler = std::move(DecodeFirstScheduler::create({})).value();
  const auto tokens = std::make_shared<Tokens>(4096, 7);
  std::vector<Task> tasks;
  for (int32_t i = 0; i < 1024; ++i) {
    Task task;
    task.id = static_cast<TaskId>(i);
    task.is_decode = i % 2 == 0;
    task.input.session = static_cast<SessionId>(i);
    task.input.tokens = tokens;
    task.input.size = task.is_decode ? 1 : 512;
    tasks.push_back(std::move(task));
  }
  CHORUS_CHECK(scheduler->submit(tasks));
  counted([&] {
    std::vector<Task> batch;
    for (int i = 0; i < 200; ++i) {
      scheduler->get_work(scheduler->full_budget(), batch);
      CHORUS_CHECK(scheduler->submit(batch));
    }
  });
}

// With a full and a windowed group.
NoModel make_model() {
  ModuleInfo info;
  info.vocabulary = 1000;
  info.context = 4096;
  info.block_size = 16;
  info.methods = {{"forward", 1, 4096, 0}};
  info.groups.resize(2);
  info.groups[0].layers = {0};
  info.groups[1].layers = {1};
  info.groups[1].policy.window = 64;
  for (LayerGroupInfo& group : info.groups) {
    group.bytes_per_cell = 256;
    group.num_blocks = 2048;
  }
  return NoModel(std::move(info));
}

// Steps of 64 sessions that decode.
void decode_steps() {
  NoModel module = make_model();
  SessionExecutorOptions options;
  options.max_sessions = 64;
  options.max_session_tokens = 4096;
  const auto executor = std::move(ModuleExecutor::create(module, options)).value();
  CHORUS_CHECK(executor->initialize().ok());
  std::vector<BatchInput> batch(64);
  for (BatchInput& input : batch) {
    input.session = *executor->open({});
    input.tokens = std::make_shared<Tokens>(1, 7);
    input.size = 1;
    input.produce_output = true;
  }
  BatchOutput output;
  const auto run_step = [&](Position position) {
    for (BatchInput& input : batch) input.position = position;
    CHORUS_CHECK(executor->execute(batch, output).ok());
  };
  for (Position p = 0; p < 100; ++p) run_step(p);
  counted([&] {
    for (Position p = 100; p < 300; ++p) run_step(p);
  });
}

// ---- Kernels -----------------------------------------------------------------------------------

struct Matrix {
  WeightType type;
  int32_t columns, rows, tokens;
};

void linear(const cpu::Kernels& kernels, const Matrix& matrix) {
  RandomStream random(1);
  const size_t bytes = packed_bytes(matrix.type, matrix.rows, matrix.columns).value();
  AlignedBuffer weights(bytes + 65536);  // what is prefetched behind the end
  for (size_t i = 0; i < bytes; ++i) {
    weights.bytes()[i] = static_cast<std::byte>(random.below(64));
  }
  std::vector<float> x(static_cast<size_t>(matrix.tokens) * static_cast<size_t>(matrix.columns));
  for (float& value : x) value = static_cast<float>(random.unit() - 0.5);
  cpu::PrepareArgs prepare;
  prepare.x = x.data();
  prepare.x_stride = prepare.columns = matrix.columns;
  prepare.tokens = matrix.tokens;
  prepare.k_blocks = static_cast<int32_t>(num_column_blocks(matrix.columns));
  AlignedBuffer activations(static_cast<size_t>((matrix.tokens + 3) / 4 * prepare.k_blocks) *
                            cpu::kBlock * cpu::kQuad * 4);
  prepare.out = activations.bytes().data();
  std::vector<float> out(static_cast<size_t>(matrix.tokens) * static_cast<size_t>(matrix.rows));
  cpu::LinearArgs args;
  args.weights = weights.bytes().data();
  args.k_blocks = prepare.k_blocks;
  args.rows = matrix.rows;
  args.group_end = (matrix.rows + 15) / 16;
  args.activations = activations.bytes().data();
  args.tokens = matrix.tokens;
  args.out = out.data();
  args.out_stride = matrix.rows;
  const auto type = static_cast<size_t>(matrix.type);
  counted([&] {
    if (is_quantised(matrix.type)) {
      kernels.quantize(prepare);
      kernels.linear_int8[type](args);
    } else {
      kernels.prepare_f32(prepare);
      kernels.linear_f32[type](args);
    }
  });
}

// Three queries of one KV head over 1000 cells, which are stored first.
void attention(const cpu::Kernels& kernels, int kv_type) {
  constexpr int32_t kCells = 1000, kDim = 64, kQueries = 3;
  cpu::KvLayout layout{16, kDim, 16 * cpu::kv_cell_bytes(kv_type, kDim), 0};
  AlignedBuffer k(static_cast<size_t>(64 * layout.block_bytes));
  AlignedBuffer v(k.bytes().size());
  RandomStream random(1);
  std::vector<float> rows(static_cast<size_t>(kCells * kDim));
  for (float& x : rows) x = static_cast<float>(random.unit() - 0.5);
  std::vector<int32_t> cells, blocks;
  for (int32_t i = 0; i < kCells; ++i) cells.push_back(i);
  for (int32_t i = 0; i < 64; ++i) blocks.push_back(i);
  std::vector<uint8_t> not_finite(cells.size());
  cpu::StoreKvArgs store;
  store.layout = layout;
  store.num_heads = 1;
  store.k_arena = k.bytes().data();
  store.v_arena = v.bytes().data();
  store.k = store.v = rows.data();
  store.k_stride = store.v_stride = kDim;
  store.rows = kCells;
  store.cells = cells.data();
  store.cells_stride = 1;
  store.not_finite = not_finite.data();
  std::vector<float> out(kQueries * kDim);
  std::vector<cpu::AttentionQuery> queries;
  for (int32_t i = 0; i < kQueries; ++i) {
    queries.push_back({rows.data() + i * kDim, out.data() + i * kDim, 0, kCells - 1});
  }
  const cpu::AttentionPart part{kQueries, blocks.data(), 0};
  AlignedBuffer scratch(cpu::attention_scratch_bytes(kDim));
  cpu::AttentionArgs args;
  args.queries = queries.data();
  args.num_queries = kQueries;
  args.parts = &part;
  args.num_parts = 1;
  args.layout = layout;
  args.k = k.bytes().data();
  args.v = v.bytes().data();
  args.scale = 0.125f;
  args.scratch = scratch.bytes().data();
  counted([&] {
    kernels.store_kv[kv_type](store);
    kernels.attention[kv_type](args);
  });
}

std::vector<std::pair<std::string, Work>> all_work() {
  std::vector<std::pair<std::string, Work>> all = {
      {"kv: prefix lookups", prefix_lookups},
      {"batching: schedule", schedule},
      {"batching: decode steps", decode_steps},
  };
  const auto add_kernels = [&](const std::string& set, const cpu::Kernels& kernels) {
    for (const WeightType type :
         {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ8_0, WeightType::kQ4_K,
          WeightType::kQ5_0, WeightType::kQ6_K, WeightType::kF32}) {
      for (const int32_t tokens : {1, 16}) {
        all.emplace_back(
            set + ": linear " + shown_type_name(type) + " of " + std::to_string(tokens),
            [=, &kernels] { linear(kernels, {type, 512, 128, tokens}); });
      }
    }
    const char* names[] = {"f32", "bf16", "q8"};
    for (const int type : {cpu::kKvF32, cpu::kKvBf16, cpu::kKvQ8}) {
      all.emplace_back(set + ": attention " + names[type],
                       [=, &kernels] { attention(kernels, type); });
    }
  };
  add_kernels("generic", cpu::portable_kernels());
#if defined(__x86_64__)
  if (cpu::avx2_usable()) add_kernels("avx2", cpu::avx2_kernels());
#endif
  return all;
}

}  // namespace
}  // namespace chorus

int main(int argc, char** argv) {
  for (const auto& [name, work] : chorus::all_work()) {
    if (argc == 1) std::printf("%s\n", name.c_str());
    if (argc == 2 && name == argv[1]) return work(), 0;
  }
  if (argc == 1) return 0;
  std::fprintf(stderr, "usage: counted_work [NAME], NAME as it prints them\n");
  return 2;
}
