#include "chorus/engine.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/free_memory.h"
#include "base/mutex.h"
#include "batching/decode_first_scheduler.h"
#include "batching/step_plan.h"
#include "chorus/kv_pool.h"
#include "chorus/model.h"
#include "chorus/text_generation.h"
#include "cpu/module.h"
#include "executors/make_executor.h"
#include "text/detokenizer.h"

namespace chorus {

namespace {

constexpr int32_t kDefaultMaxSessions = 256;
constexpr int32_t kMaxSessions = 1 << 20;    // each has some hundred bytes before it is opened
constexpr int32_t kMaxStepTokens = 1 << 20;  // what the CPU module takes

cpu::Activations backend_type(Activations activations) {
  return activations == Activations::kInt8 ? cpu::Activations::kInt8 : cpu::Activations::kF32;
}

cpu::KvType backend_type(KvType type) {
  switch (type) {
    case KvType::kBf16:
      return cpu::KvType::kBf16;
    case KvType::kQ8:
      return cpu::KvType::kQ8;
    case KvType::kF32:
      return cpu::KvType::kF32;
  }
  return cpu::KvType::kF32;
}

// K and V of one token, as they lie in memory.
std::vector<KvGroupSize> group_sizes(const Graph& graph, KvType type) {
  std::vector<KvGroupSize> sizes;
  for (const LayerGroup& group : graph.groups) {
    int64_t bytes = 0;
    for (const int32_t index : group.layers) {
      const KvLayer& layer = graph.kv_layers[static_cast<size_t>(index)];
      bytes += 2 * layer.num_kv_heads *
               cpu::kv_cell_bytes(static_cast<int>(backend_type(type)), layer.head_dim);
    }
    sizes.push_back({group.policy, bytes});
  }
  return sizes;
}

// Rows that a step may have beside its tokens: what its methods pad it with.
int32_t most_padded_rows(const Program& program) {
  std::vector<MethodInfo> methods;
  for (const Method& method : program.methods()) {
    methods.push_back(
        {method.name, method.min_tokens, method.max_tokens, method.min_wanted, method.widths});
  }
  const auto planner = StepPlanner::create(methods);
  return planner.ok() ? planner->most_padded_rows() : 0;  // the executor says what is wrong
}

cpu::CpuOptions cpu_options(const Program& program, const EngineSettings& settings, bool profile) {
  cpu::CpuOptions options;
  options.threads = settings.threads;
  options.isa = settings.isa;
  options.activations = backend_type(settings.activations);
  options.kv_type = backend_type(settings.kv_type);
  options.profile = profile;
  options.block_size = settings.block_size;
  options.num_blocks = settings.kv_blocks;
  options.max_step_tokens = settings.max_batch_tokens + most_padded_rows(program);
  return options;
}

// The backend's complaint about an option, by the name that it has here.
Status with_option(const Status& status, const EngineOptions& options) {
  std::string field = status.field();
  if (field == "num_blocks") field = options.kv_memory_bytes > 0 ? "kv_memory_bytes" : "kv_blocks";
  if (field == "isa") field = "force_isa";
  if (field == "max_step_tokens") field = "max_batch_tokens";
  return Status(status.code(), std::move(field), status.message());
}

// Of a kSequence layout it follows from the context, which the pool decides.
Status choose_block_size(const EngineOptions& options, EngineSettings& settings) {
  if (options.kv_layout != KvLayout::kPaged && options.kv_layout != KvLayout::kSequence) {
    return invalid_argument("kv_layout", "expected paged or sequence, found " +
                                             std::to_string(static_cast<int>(options.kv_layout)));
  }
  if (options.kv_layout == KvLayout::kSequence) {
    if (options.block_size == 0) return {};
    return invalid_argument("block_size", "expected none beside kv_layout sequence, found " +
                                              std::to_string(options.block_size));
  }
  settings.block_size = options.block_size == 0 ? 16 : options.block_size;
  for (const int32_t size : {1, 16, 32, 64}) {
    if (settings.block_size == size) return {};
  }
  return invalid_argument("block_size",
                          "expected 1, 16, 32 or 64, found " + std::to_string(options.block_size));
}

// Everything that needs no KV pool. Errors name the option.
Result<EngineSettings> basic_settings(const EngineOptions& options) {
  EngineSettings settings;
  const auto isa = choose_isa(options.force_isa);
  if (!isa.ok()) {
    return Status(isa.status().code(), "force_isa", isa.status().message());
  }
  settings.isa = *isa;
  settings.threads = options.threads > 0 ? options.threads : available_cores();
  settings.activations = options.activations;
  settings.kv_type = options.kv_type;
  settings.kv_layout = options.kv_layout;
  CHORUS_RETURN_IF_ERROR(choose_block_size(options, settings));
  settings.max_sessions = options.max_sessions > 0 ? options.max_sessions : kDefaultMaxSessions;
  if (settings.max_sessions > kMaxSessions) {
    return invalid_argument("max_sessions", "expected at most " + std::to_string(kMaxSessions) +
                                                ", found " + std::to_string(settings.max_sessions));
  }
  const auto limits =
      DecodeFirstScheduler::derive({.max_batch_tokens = options.max_batch_tokens,
                                    .max_decode_sequences = options.max_decode_sequences,
                                    .prefill_chunk = options.prefill_chunk});
  if (!limits.ok()) return limits.status();
  if (limits->max_batch_tokens > kMaxStepTokens) {
    return invalid_argument(
        limits->prefill_chunk > limits->max_decode_sequences ? "prefill_chunk"
                                                             : "max_decode_sequences",
        "expected at most " + std::to_string(kMaxStepTokens) + " tokens in a step, found " +
            std::to_string(limits->max_batch_tokens));
  }
  settings.max_batch_tokens = limits->max_batch_tokens;
  settings.max_decode_sequences = limits->max_decode_sequences;
  settings.prefill_chunk = limits->prefill_chunk;
  return settings;
}

// Blocks per group, and the longest session they can hold.
Status choose_kv_pool(const Program& program, const EngineOptions& options,
                      EngineSettings& settings) {
  KvPoolWish wish;
  wish.layout = settings.kv_layout;
  wish.block_size = settings.block_size;
  wish.max_sessions = settings.max_sessions;
  wish.max_step_tokens = settings.max_batch_tokens;
  wish.model_context = program.context();
  wish.context = options.context;
  wish.blocks = options.kv_blocks;
  wish.memory_was_given = options.kv_memory_bytes > 0;
  wish.memory_bytes = wish.memory_was_given ? options.kv_memory_bytes : free_memory_bytes() / 2;
  const std::string given = wish.memory_was_given ? "kv_memory_bytes" : "kv_blocks";
  auto sized = size_kv_pool(group_sizes(program.graph(), settings.kv_type), wish);
  const bool is_given = wish.memory_was_given || wish.blocks > 0;
  if (!sized.ok() && sized.status().field() == "context" && is_given &&
      wish.context <= wish.model_context) {
    return Status(sized.status().code(), given,
                  "expected a pool for the context; of that: " + sized.status().message());
  }
  if (!sized.ok()) return sized.status();
  KvPoolSize size = std::move(sized).value();
  // In kSequence the memory is taken as sessions grow.
  const int64_t memory = total_memory_bytes();
  if (settings.kv_layout == KvLayout::kPaged && size.bytes > memory) {
    return resource_exhausted(given, "expected at most the machine's memory of " +
                                         std::to_string(memory) + " bytes, found a KV pool of " +
                                         std::to_string(size.bytes));
  }
  settings.block_size = size.block_size;
  settings.context = size.context;
  settings.kv_blocks = std::move(size.blocks);
  settings.kv_bytes = size.bytes;
  return Status();
}

}  // namespace

std::string_view name_of(Activations activations) {
  return cpu::name_of(backend_type(activations));
}
std::string_view name_of(KvType type) { return cpu::name_of(backend_type(type)); }

std::string_view name_of(KvLayout layout) {
  return layout == KvLayout::kPaged ? "paged" : "sequence";
}

std::string_view version() { return CHORUS_VERSION; }

struct Engine::Text {
  Mutex mutex;
  // Once it was asked for: the model's text parts, or why it has none.
  std::optional<Result<std::shared_ptr<const TextModel>>> model CHORUS_GUARDED_BY(mutex);
};

Engine::Engine(std::shared_ptr<const Program> program)
    : program_(std::move(program)), text_(std::make_unique<Text>()) {}

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::open(const std::string& model,
                                             const EngineOptions& options) {
  // Sessions and generations may outlive the engine, and look at the clock.
  static const SteadyClock clock;
  CHORUS_ASSIGN_OR_RETURN(auto program, load_program(model, {}));
  return create(std::move(program), options, clock);
}

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<const Program> program,
                                               const EngineOptions& options, const Clock& clock) {
  std::unique_ptr<Engine> engine(new Engine(program));
  CHORUS_ASSIGN_OR_RETURN(engine->settings_, basic_settings(options));
  EngineSettings& settings = engine->settings_;
  CHORUS_RETURN_IF_ERROR(choose_kv_pool(*program, options, settings));
  const cpu::CpuOptions backend = cpu_options(*program, settings, options.profile);
  auto module = cpu::CpuModule::create(std::move(program), backend);
  if (!module.ok()) return with_option(module.status(), options);
  engine->module_ = std::move(module).value();
  SessionExecutorOptions sessions;
  sessions.max_sessions = settings.max_sessions;
  sessions.max_session_tokens = settings.context;
  sessions.max_step_tokens = settings.max_batch_tokens;
  CHORUS_ASSIGN_OR_RETURN(auto executor, make_executor(*engine->module_, sessions));
  RunnerOptions runner;
  runner.max_batch_tokens = settings.max_batch_tokens;
  runner.max_decode_sequences = settings.max_decode_sequences;
  runner.target_step_ms = options.target_step_ms;
  runner.priority_age_ms = options.priority_age_ms;
  runner.shortest_first_ms = options.shortest_first_ms;
  runner.prefix_cache = options.prefix_cache;
  runner.event_log = options.event_log;
  runner.prefill_chunk = settings.prefill_chunk;
  CHORUS_ASSIGN_OR_RETURN(engine->runner_, Runner::create(std::move(executor), runner, clock));
  const EffectiveOptions& effective = engine->runner_->effective();
  settings.target_step_ms = effective.target_step_ms;
  settings.priority_age_ms = effective.priority_age_ms;
  settings.shortest_first_ms = effective.shortest_first_ms;
  settings.prefix_cache = effective.prefix_cache;
  return engine;
}

// Tokenizers take a while to build, and engines may well do without.
Result<std::shared_ptr<const TextModel>> Engine::text() const {
  const MutexLock lock(text_->mutex);
  if (!text_->model) text_->model = TextModel::create(*program_);
  return *text_->model;
}

Result<Generation> Engine::generate(Session& session, std::string_view prompt,
                                    GenerationOptions options, std::vector<std::string> stops,
                                    const TextOptions& text_options) {
  // A session that is not empty goes on with its text.
  const text::EncodeOptions encode{.parse_special = true,
                                   .add_special = session.valid() && session.position() == 0};
  CHORUS_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenize(prompt, encode));
  return generate(session, std::move(tokens), std::move(options), std::move(stops), text_options);
}

Result<Generation> Engine::generate(Session& session, std::vector<TokenId> prompt,
                                    GenerationOptions options, std::vector<std::string> stops,
                                    const TextOptions& text_options) {
  if (options.stop_tokens.empty()) options.stop_tokens = end_tokens(*program_);
  if (options.max_new_tokens == 0 && session.valid()) {
    const int64_t room =
        settings_.context - session.position() - static_cast<int64_t>(prompt.size());
    options.max_new_tokens =
        static_cast<int32_t>(std::clamp<int64_t>(room, 1, GenerationOptions().max_new_tokens));
  }
  auto model = text();
  if (!model.ok() && !(stops.empty() && text_options.bad_words.empty())) return model.status();
  return start_generation(session, std::move(prompt), std::move(options),
                          model.ok() ? *model : nullptr, std::move(stops), text_options);
}

Result<Generation> Engine::append(Session& session, std::vector<TokenId> tokens,
                                  const GenerationOptions& options) {
  return start_append(session, std::move(tokens), options);
}

Result<std::vector<TokenId>> Engine::tokenize(std::string_view text,
                                              const text::EncodeOptions& options) const {
  CHORUS_ASSIGN_OR_RETURN(const auto model, this->text());
  return model->tokenizer().encode(text, options);
}

Result<std::string> Engine::detokenize(std::span<const TokenId> tokens) const {
  CHORUS_ASSIGN_OR_RETURN(const auto model, text());
  CHORUS_ASSIGN_OR_RETURN(const std::string bytes, model->tokenizer().decode(tokens));
  return text::to_valid_utf8(bytes);
}

Result<std::string> Engine::render_chat(std::span<const text::ChatMessage> messages) const {
  CHORUS_ASSIGN_OR_RETURN(const auto model, text());
  return model->render_chat(messages);
}

}  // namespace chorus
