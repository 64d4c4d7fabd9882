#include "cpu/module.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/free_memory.h"
#include "base/random.h"
#include "cpu/float_mode.h"
#include "exec/sampling.h"

namespace chorus::cpu {

namespace {

std::string expected(const std::string& what, int64_t found) {
  return "expected " + what + ", found " + std::to_string(found);
}

Status check_options(const Program& program, const CpuOptions& options) {
  constexpr int32_t kMaxThreads = 1024;
  constexpr int32_t kMostTokens = 1 << 20;
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return invalid_argument("threads", expected("1 to 1024", options.threads));
  }
  if (!is_block_size(options.block_size)) {
    return invalid_argument("block_size", expected("1 or a multiple of 16", options.block_size));
  }
  if (options.max_step_tokens < 1 || options.max_step_tokens > kMostTokens) {
    return invalid_argument("max_step_tokens", expected("1 to 2^20", options.max_step_tokens));
  }
  const size_t groups = program.graph().groups.size();
  if (options.num_blocks.size() != groups) {
    return invalid_argument("num_blocks", expected(std::to_string(groups) + " layer groups",
                                                   std::ssize(options.num_blocks)));
  }
  for (const int32_t blocks : options.num_blocks) {
    // Cells are numbered in 32 bits.
    const int32_t most = std::numeric_limits<int32_t>::max() / options.block_size;
    if (blocks < 1 || blocks > most) {
      return invalid_argument("num_blocks", expected("1 to " + std::to_string(most), blocks));
    }
  }
  if (!isa_supported(options.isa)) {
    return invalid_argument("isa", "this processor lacks " + std::string(isa_name(options.isa)));
  }
  return Status();
}

// No forward has more rows than its method takes.
int32_t rows_of_a_slice(const Program& program, const CpuOptions& options) {
  int32_t most = 1;
  for (const Method& method : program.methods()) most = std::max(most, method.max_tokens);
  return std::min(most, options.max_step_tokens);
}

ModuleInfo make_info(const Program& program, const CpuOptions& options, const KvMemory& kv) {
  ModuleInfo info;
  for (const Method& method : program.methods()) {
    info.methods.push_back(
        {method.name, method.min_tokens, method.max_tokens, method.min_wanted, method.widths});
  }
  for (size_t g = 0; g < program.graph().groups.size(); ++g) {
    const LayerGroup& group = program.graph().groups[g];
    info.groups.push_back({group.policy, group.layers, options.num_blocks[g],
                           kv.bytes_per_cell(static_cast<int32_t>(g))});
  }
  info.vocabulary = program.vocabulary();
  info.context = program.context();
  info.block_size = options.block_size;
  info.kv_format = {program.kv_identity(), std::string(name_of(options.kv_type)),
                    std::string(name_of(options.activations)), std::string(isa_name(options.isa)),
                    program.numerics_version()};
  return info;
}

std::optional<Profile> make_profile(const Program& program, const CpuOptions& options) {
  if (!options.profile) return std::nullopt;
  return std::optional<Profile>(std::in_place, program, static_cast<int>(options.kv_type));
}

}  // namespace

std::string_view name_of(Activations activations) {
  return activations == Activations::kInt8 ? "int8" : "f32";
}

std::string_view name_of(KvType type) {
  return type == KvType::kBf16 ? "bf16" : type == KvType::kQ8 ? "q8" : "f32";
}

Result<std::unique_ptr<Module>> CpuModule::create(std::shared_ptr<const Program> program,
                                                  const CpuOptions& options) {
  CHORUS_RETURN_IF_ERROR(check_options(*program, options));
  const int32_t body_rows = rows_of_a_slice(*program, options);
  const PlanOptions plan_options{.int8 = options.activations == Activations::kInt8,
                                 .fused = options.fused,
                                 .body_rows = body_rows,
                                 .tail_rows = Interpreter::kTailRows};
  CHORUS_ASSIGN_OR_RETURN(Plan plan, make_plan(*program, plan_options));
  const int64_t bytes = Interpreter::bytes_needed(plan, body_rows, options.max_step_tokens);
  if (const int64_t free = free_memory_bytes(); bytes > free) {
    return resource_exhausted(
        "max_step_tokens", "steps of " + std::to_string(options.max_step_tokens) + " tokens take " +
                               std::to_string(bytes) + " bytes beside the KV, " +
                               std::to_string(free) + " are free");
  }
  CHORUS_ASSIGN_OR_RETURN(KvMemory kv, KvMemory::create(program->graph(), options.kv_type,
                                                        options.block_size, options.num_blocks));
  CHORUS_ASSIGN_OR_RETURN(auto pool, ThreadPool::create(options.threads));
  return std::unique_ptr<Module>(
      new CpuModule(std::move(program), options, std::move(plan), std::move(kv), std::move(pool)));
}

CpuModule::CpuModule(std::shared_ptr<const Program> program, const CpuOptions& options, Plan plan,
                     KvMemory kv, std::unique_ptr<ThreadPool> pool)
    : program_(std::move(program)),
      options_(options),
      kernels_(kernels_for(options.isa)),
      info_(make_info(*program_, options, kv)),
      kv_(std::move(kv)),
      pool_(std::move(pool)),
      profile_(make_profile(*program_, options)),
      interpreter_(*program_, std::move(plan), kernels_, kv_, *pool_,
                   profile_ ? &*profile_ : nullptr, rows_of_a_slice(*program_, options),
                   options.max_step_tokens),
      kept_index_(static_cast<size_t>(options.max_step_tokens), -1),
      typical_(static_cast<size_t>(pool_->num_threads()) *
               ((static_cast<size_t>(info_.vocabulary) + 31) / 32)) {}

Status CpuModule::begin(const Step& step) {
  const auto rows = static_cast<size_t>(step.num_rows());
  const size_t groups = info_.groups.size();
  step_ = nullptr;
  if (step.num_rows() > options_.max_step_tokens) {
    return invalid_argument(
        "step.tokens",
        expected("at most " + std::to_string(options_.max_step_tokens) + " rows in a step",
                 step.num_rows()));
  }
  if (step.num_groups != std::ssize(info_.groups) || step.cells.size() != rows * groups ||
      step.positions.size() != rows || step.row_sequence.size() != rows ||
      step.tables.size() != step.sequences.size() * groups) {
    return invalid_argument("step", "its arrays do not fit its rows and this program's groups");
  }
  for (const TokenId token : step.tokens) {
    if (token < 0 || token >= info_.vocabulary) {
      return invalid_argument("step.tokens", expected("ids of the vocabulary", token));
    }
  }
  CHORUS_RETURN_IF_ERROR(check_tables(step));
  CHORUS_RETURN_IF_ERROR(check_shared(step));
  for (const CellCopy& copy : step.copies) CHORUS_RETURN_IF_ERROR(kv_.copy_cells(copy));
  step_ = &step;
  next_row_ = 0;
  num_kept_ = 0;
  std::fill(kept_index_.begin(), kept_index_.end(), -1);
  return Status();
}

// Each table holds what the first row of its sequence sees, and all that follows.
Status CpuModule::check_tables(const Step& step) const {
  for (size_t i = 0; i < step.tables.size(); ++i) {
    const StepSequence& sequence = step.sequences[i / info_.groups.size()];
    const BlockTable& table = step.tables[i];
    const Position first =
        chorus::first_visible(sequence.start, info_.groups[i % info_.groups.size()].policy);
    const int64_t end = (int64_t{table.first_block} + std::ssize(table.blocks)) * info_.block_size;
    if (table.first_block != table.first_position / info_.block_size ||
        table.first_position > first || end < sequence.start + sequence.row_count) {
      return invalid_argument("step.tables[" + std::to_string(i) + "]",
                              "expected positions from " + std::to_string(first) +
                                  " on, found those from " + std::to_string(table.first_position) +
                                  " to " + std::to_string(end));
    }
  }
  return Status();
}

// That a range lies in both tables and before what either sequence writes. Whose blocks it names is
// taken on trust, like the tables.
Status CpuModule::check_shared(const Step& step) const {
  const size_t groups = info_.groups.size();
  const auto count = std::ssize(step.sequences);
  if ((!step.order.empty() && step.order.size() != step.sequences.size()) ||
      step.shared.size() != step.order.size() * groups) {
    return invalid_argument("step.order", "expected every sequence, and its ranges, or nothing");
  }
  for (const int32_t sequence : step.order) {
    if (sequence < 0 || sequence >= count) {
      return invalid_argument("step.order", expected("sequences of the step", sequence));
    }
  }
  for (size_t i = 0; i < step.shared.size(); ++i) {
    const SharedRange& range = step.shared[i];
    if (range.is_empty()) continue;
    for (size_t j : {i - groups, i}) {
      const bool is_first = i < groups;
      const int32_t sequence = is_first ? 0 : step.order[j / groups];
      const Position first = step.table(sequence, static_cast<int32_t>(i % groups)).first_position;
      if (!is_first && range.begin >= first &&
          range.end <= step.sequences[static_cast<size_t>(sequence)].start) {
        continue;
      }
      return invalid_argument("step.shared[" + std::to_string(i) + "]",
                              "expected positions that two sequences hold before the step");
    }
  }
  return Status();
}

Status CpuModule::run(int32_t method, const Slice& slice, std::span<uint8_t> not_finite) {
  CHORUS_CHECK(step_ != nullptr);
  CHORUS_CHECK_EQ(not_finite.size(), step_->tokens.size());
  if (method < 0 || method >= std::ssize(info_.methods)) {
    return invalid_argument("method", expected("a method of the program", method));
  }
  const MethodInfo& bounds = info_.methods[static_cast<size_t>(method)];
  if (!bounds.takes(slice.row_count)) {
    return invalid_argument("slice.row_count",
                            expected((bounds.widths.empty() ? "" : "a width of the method, ") +
                                         std::to_string(bounds.min_tokens) + " to " +
                                         std::to_string(bounds.max_tokens) + " rows",
                                     slice.row_count));
  }
  if (slice.row_begin != next_row_ || slice.row_count > step_->num_rows() - next_row_) {
    return invalid_argument(
        "slice.row_begin",
        expected("the rows after " + std::to_string(next_row_), slice.row_begin));
  }
  for (size_t i = 0; i < slice.wanted.size(); ++i) {
    const int32_t row = slice.wanted[i];
    const int32_t previous = i == 0 ? slice.row_begin - 1 : slice.wanted[i - 1];
    if (row <= previous || row >= slice.row_begin + slice.row_count) {
      return invalid_argument("slice.wanted", expected("ascending rows of the slice", row));
    }
    kept_index_[static_cast<size_t>(row)] = num_kept_ + static_cast<int32_t>(i);
  }
  const int64_t start_ns = clock_.now_ns();
  interpreter_.run_body(*step_, slice, num_kept_, not_finite);
  graph_ns_ += clock_.now_ns() - start_ns;
  num_kept_ += static_cast<int32_t>(slice.wanted.size());
  next_row_ += slice.row_count;
  return Status();
}

Status CpuModule::check_spec(const RowSpec& spec) const {
  if (spec.row < 0 || spec.row >= std::ssize(kept_index_) ||
      kept_index_[static_cast<size_t>(spec.row)] < 0) {
    return invalid_argument("specs.row", expected("a row that was wanted", spec.row));
  }
  if (spec.num_likeliest < 0 || spec.num_likeliest > kMaxLikeliest) {
    return invalid_argument("specs.num_likeliest", expected("0 to 64", spec.num_likeliest));
  }
  if (spec.top_k < 0) {
    return invalid_argument("specs.top_k", expected("a count, or 0 for all", spec.top_k));
  }
  if (!(spec.top_p > 0.0f && spec.top_p <= 1.0f)) {
    return invalid_argument("specs.top_p", "expected a number above 0 and at most 1, found " +
                                               std::to_string(spec.top_p));
  }
  if (!(spec.min_p >= 0.0f && spec.min_p <= 1.0f)) {
    return invalid_argument("specs.min_p",
                            "expected a number from 0 to 1, found " + std::to_string(spec.min_p));
  }
  if (!(spec.typical_p > 0.0f && spec.typical_p <= 1.0f)) {
    return invalid_argument("specs.typical_p", "expected a number above 0 and at most 1, found " +
                                                   std::to_string(spec.typical_p));
  }
  TokenId previous = -1;
  for (const TokenAdjustment& each : spec.adjustments) {
    if (each.id <= previous || each.id >= info_.vocabulary) {
      return invalid_argument("specs.adjustments",
                              expected("ascending ids of the vocabulary", each.id));
    }
    previous = each.id;
  }
  if (spec.given >= info_.vocabulary) {
    return invalid_argument("specs.given", expected("an id of the vocabulary", spec.given));
  }
  const auto vocabulary = static_cast<size_t>(info_.vocabulary);
  if (!spec.mask.empty() && spec.mask.size() != (vocabulary + 31) / 32) {
    return invalid_argument("specs.mask", expected("a bit for each token", std::ssize(spec.mask)));
  }
  if (!spec.raw.empty() && spec.raw.size() != vocabulary) {
    return invalid_argument("specs.raw",
                            expected("one float for each token", std::ssize(spec.raw)));
  }
  return Status();
}

Status CpuModule::reduce_rows(std::span<const RowSpec> specs, std::span<RowResult> results,
                              std::vector<TokenLogprob>& likeliest) {
  CHORUS_CHECK_EQ(specs.size(), results.size());
  for (const RowSpec& spec : specs) CHORUS_RETURN_IF_ERROR(check_spec(spec));
  constexpr size_t kTile = Interpreter::kTailRows;
  for (size_t first = 0; first < specs.size(); first += kTile) {
    const size_t count = std::min(kTile, specs.size() - first);
    // Neighbours that name the same row share it.
    std::array<int32_t, kTile> rows;    // kept rows of the tile
    std::array<int32_t, kTile> row_of;  // of each spec, into rows
    size_t num_rows = 0;
    for (size_t i = 0; i < count; ++i) {
      const int32_t kept = kept_index_[static_cast<size_t>(specs[first + i].row)];
      if (num_rows == 0 || rows[num_rows - 1] != kept) rows[num_rows++] = kept;
      row_of[i] = static_cast<int32_t>(num_rows) - 1;
    }
    pool_->run([&](int thread) {
      const FloatMode mode;
      const int64_t start_ns = thread == 0 ? clock_.now_ns() : 0;
      interpreter_.run_tail(std::span(rows).first(num_rows), thread);
      if (thread == 0) graph_ns_ += clock_.now_ns() - start_ns;
      // By rows, since a choice may change its row for a while.
      const Range mine = share_of(static_cast<int64_t>(num_rows), pool_->num_threads(), thread);
      for (size_t i = 0; i < count; ++i) {
        if (row_of[i] < mine.begin || row_of[i] >= mine.end) continue;
        reduce(specs[first + i], interpreter_.logits(row_of[i]), thread, results[first + i],
               likeliest_[i]);
      }
    });
    if (profile_) profile_->add_reduction();
    for (size_t i = 0; i < count; ++i) {
      TokenScore& token = results[first + i].token;
      token.likeliest_begin = static_cast<int32_t>(likeliest.size());
      token.likeliest_count = likeliest_[i].count;
      likeliest.insert(likeliest.end(), likeliest_[i].tokens.begin(),
                       likeliest_[i].tokens.begin() + likeliest_[i].count);
    }
  }
  return Status();
}

ModuleUsage CpuModule::usage() const {
  ModuleUsage usage;
  usage.graph_ns = graph_ns_;
  if (profile_) usage.operators = profile_->usage();
  return usage;
}

// The row is afterwards as it was.
TokenId CpuModule::choose(const RowSpec& spec, float* logits, int thread) {
  for (TokenAdjustment& each : spec.adjustments) {
    each.logit = logits[each.id];
    logits[each.id] = adjusted_logit(each.logit, each, spec);
  }
  const TokenId chosen = choose_adjusted(spec, logits, thread);
  for (const TokenAdjustment& each : spec.adjustments) logits[each.id] = each.logit;
  return chosen;
}

TokenId CpuModule::choose_adjusted(const RowSpec& spec, const float* logits, int thread) {
  const LogitsArgs allowed{logits, info_.vocabulary,
                           spec.mask.empty() ? nullptr : spec.mask.data()};
  const LogitsMax best = kernels_.logits_max(allowed);
  const float inverse = 1.0f / spec.temperature;
  if (!(spec.temperature > 0.0f) || !std::isfinite(inverse) || !std::isfinite(best.max)) {
    return best.index;
  }
  const uint64_t bits = random_bits(spec.seed, spec.choice, static_cast<uint64_t>(spec.position));
  const size_t words = typical_.size() / static_cast<size_t>(pool_->num_threads());
  return kernels_.draw({allowed, best.max, inverse, bits, spec.top_k, share_of_top_p(spec.top_p),
                        weight_of_min_p(spec.min_p), share_of_top_p(spec.typical_p),
                        typical_.data() + words * static_cast<size_t>(thread)});
}

void CpuModule::reduce(const RowSpec& spec, float* logits, int thread, RowResult& result,
                       Likeliest& likeliest) {
  const LogitsArgs all{logits, info_.vocabulary, nullptr};
  const LogitsMax best = kernels_.logits_max(all);
  if (!spec.raw.empty()) std::memcpy(spec.raw.data(), logits, spec.raw.size_bytes());
  likeliest.count = 0;
  result = RowResult{};
  result.finite = !best.nan;
  result.token.logprob = std::nanf("");
  if (best.nan) return;
  result.token.id = spec.given >= 0 ? spec.given : spec.sample ? choose(spec, logits, thread) : -1;
  const bool score = result.token.id >= 0 && (spec.given >= 0 || spec.logprobs);
  if (!score && spec.num_likeliest == 0) return;
  // Over the unfiltered distribution at temperature 1.
  const double log_sum = kernels_.log(static_cast<double>(kernels_.sum_exp(all, best.max)));
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[id]) - static_cast<double>(best.max) -
                              log_sum);
  };
  if (score) {
    const TokenId id = result.token.id;
    result.token.logprob = logprob(id);
    result.token.rank = kernels_.count_above(all, logits[id], id) + 1;
  }
  std::array<int32_t, kMaxLikeliest> top;
  likeliest.count = kernels_.top_n(all, spec.num_likeliest, top.data());
  for (int32_t i = 0; i < likeliest.count; ++i) {
    const int32_t id = top[static_cast<size_t>(i)];
    likeliest.tokens[static_cast<size_t>(i)] = {id, logprob(id)};
  }
}

}  // namespace chorus::cpu
