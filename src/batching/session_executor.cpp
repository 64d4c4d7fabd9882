#include "batching/session_executor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "batching/select_rows.h"

namespace chorus {
namespace {

Status check_at_least(const std::string& field, int64_t least, int64_t found) {
  if (found >= least) return {};
  return invalid_argument(
      field, "expected at least " + std::to_string(least) + ", found " + std::to_string(found));
}

Status check_groups(const ModuleInfo& info) {
  std::vector<int32_t> layers;
  for (size_t group = 0; group < info.groups.size(); ++group) {
    const LayerGroupInfo& each = info.groups[group];
    const std::string field = "groups[" + std::to_string(group) + "].";
    CHORUS_RETURN_IF_ERROR(check_at_least(field + "bytes_per_cell", 1, each.bytes_per_cell));
    CHORUS_RETURN_IF_ERROR(
        check_at_least(field + "layers", 1, static_cast<int64_t>(each.layers.size())));
    for (const int32_t layer : each.layers) {
      CHORUS_RETURN_IF_ERROR(check_at_least(field + "layers", 0, layer));
      if (std::find(layers.begin(), layers.end(), layer) != layers.end()) {
        return invalid_argument(field + "layers", "expected each layer in one group, found layer " +
                                                      std::to_string(layer) + " twice");
      }
      layers.push_back(layer);
    }
  }
  return {};
}

// That a session alone in the pool can always go on, however its window lies on the blocks.
Status check_windowed_pools(const ModuleInfo& info, const SessionExecutorOptions& options) {
  for (size_t group = 0; group < info.groups.size(); ++group) {
    const LayerGroupInfo& each = info.groups[group];
    if (each.policy.window == 0 || options.max_step_tokens == 0) continue;
    const int64_t least = smallest_pool(each.policy, info.block_size, options.max_session_tokens,
                                        options.max_step_tokens);
    if (each.num_blocks >= least) continue;
    return invalid_argument("groups[" + std::to_string(group) + "].num_blocks",
                            "expected at least " + std::to_string(least) +
                                " blocks for a window of " + std::to_string(each.policy.window) +
                                " and steps of " + std::to_string(options.max_step_tokens) +
                                " tokens, found " + std::to_string(each.num_blocks));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<SessionTable>> SessionExecutor::make_sessions(
    const ModuleInfo& info, const SessionExecutorOptions& options) {
  CHORUS_RETURN_IF_ERROR(check_groups(info));
  CHORUS_RETURN_IF_ERROR(check_at_least("context", 1, info.context));
  CHORUS_RETURN_IF_ERROR(check_at_least("max_session_tokens", 1, options.max_session_tokens));
  if (options.max_session_tokens > info.context) {
    return invalid_argument("max_session_tokens", "expected at most " +
                                                      std::to_string(info.context) +
                                                      ", the program's context, found " +
                                                      std::to_string(options.max_session_tokens));
  }
  CHORUS_RETURN_IF_ERROR(check_at_least("max_step_tokens", 0, options.max_step_tokens));
  SessionTableOptions table;
  table.max_sessions = options.max_sessions;
  table.vocabulary = info.vocabulary;
  table.kv_identity.assign(info.kv_format.identity.begin(), info.kv_format.identity.end());
  table.kv.block_size = info.block_size;
  table.kv.max_sequence_tokens = options.max_session_tokens;
  for (const LayerGroupInfo& group : info.groups) {
    table.kv.groups.push_back({group.policy, group.num_blocks});
  }
  CHORUS_ASSIGN_OR_RETURN(auto sessions, SessionTable::create(table));
  CHORUS_RETURN_IF_ERROR(check_windowed_pools(info, options));
  return sessions;
}

SessionExecutor::SessionExecutor(Module& module, std::unique_ptr<SessionTable> sessions)
    : module_(module), sessions_(std::move(sessions)) {
  for (const MethodInfo& method : module.info().methods) methods_.push_back({method.name, 0, 0});
}

Status SessionExecutor::initialize() { return {}; }

ExecutorInfo SessionExecutor::info() const {
  ExecutorInfo info;
  info.vocabulary = module_.info().vocabulary;
  info.max_sessions = sessions_->options().max_sessions;
  info.max_session_tokens = sessions_->options().kv.max_sequence_tokens;
  for (const MethodInfo& method : module_.info().methods) {
    info.preferred_batch_tokens = std::max(info.preferred_batch_tokens, method.max_tokens);
  }
  info.block_size = module_.info().block_size;
  // A block as long as a session (layout kind sequence) is not full before its last token.
  info.has_prefix_index = info.block_size < info.max_session_tokens;
  info.kv_format = module_.info().kv_format;
  return info;
}

Result<SessionId> SessionExecutor::open(const SessionOptions& options) {
  return sessions_->open(options);
}

void SessionExecutor::close(SessionId session) { sessions_->close(session); }

Result<SessionId> SessionExecutor::clone(SessionId source, Position upto) {
  return sessions_->clone(source, upto);
}

Status SessionExecutor::set_sampling(SessionId session, const SamplingParams& params) {
  return sessions_->set_sampling(session, params);
}

Result<Position> SessionExecutor::length(SessionId session) const {
  return sessions_->length(session);
}

bool SessionExecutor::can_admit(std::span<const SessionDemand> demands) const {
  return sessions_->can_admit(demands);
}

int32_t SessionExecutor::available_blocks(int32_t group) const {
  const KvGroupUsage usage = sessions_->books().usage(group);
  return usage.blocks_free + usage.blocks_cached;
}

int64_t SessionExecutor::releasable_blocks(SessionId session) const {
  return sessions_->releasable_blocks(session);
}

int64_t SessionExecutor::releasable_blocks(std::span<const SessionId> sessions,
                                           int32_t group) const {
  return sessions_->releasable_blocks(sessions, group);
}

bool SessionExecutor::shares_last_block(SessionId session) const {
  return sessions_->shares_last_block(session);
}

Status SessionExecutor::truncate(SessionId session, Position length) {
  return sessions_->truncate(session, length);
}

Status SessionExecutor::execute(std::span<const BatchInput> batch, BatchOutput& output) {
  output.clear();
  CHORUS_RETURN_IF_ERROR(sessions_->pack(batch, packed_));
  if (packed_.step.num_rows() > 0) {
    Status status = run_step();
    if (status.ok()) status = module_.reduce_rows(packed_.specs, packed_.results, output.likeliest);
    if (!status.ok()) {
      sessions_->abort(packed_);
      output.clear();
      return status;
    }
    ++steps_;
  }
  sessions_->finish(packed_, output);
  return {};
}

Status SessionExecutor::run_step() {
  const std::vector<MethodInfo>& methods = module_.info().methods;
  plan_forwards(packed_.step.num_rows(), forwards_);
  const int32_t num_rows = packed_.step.num_rows();
  add_padding();
  CHORUS_RETURN_IF_ERROR(module_.begin(packed_.step));
  for (const Forward& forward : forwards_) {
    const auto method = static_cast<size_t>(forward.method);
    const int32_t end = forward.row_begin + forward.row_count;
    const Slice slice{forward.row_begin, forward.row_count,
                      select_rows(packed_.wanted, forward.row_begin, forward.row_count,
                                  methods[method].min_wanted, selected_)};
    ++methods_[method].forwards;
    methods_[method].padded_rows += std::max(0, end - num_rows);
    CHORUS_RETURN_IF_ERROR(module_.run(forward.method, slice, packed_.not_finite));
  }
  return {};
}

// Rows of no sequence behind all others, up to the end of the last forward.
void SessionExecutor::add_padding() {
  Step& step = packed_.step;
  const Forward& last = forwards_.back();
  const auto num_rows = static_cast<size_t>(last.row_begin + last.row_count);
  CHORUS_CHECK(last.row_begin < step.num_rows() && num_rows >= step.tokens.size());
  step.tokens.resize(num_rows, 0);
  step.row_sequence.resize(num_rows, -1);
  step.positions.resize(num_rows, 0);
  step.cells.resize(num_rows * static_cast<size_t>(step.num_groups), kNoCell);
  packed_.not_finite.resize(num_rows, 0);
}

Result<Position> SessionExecutor::attach_prefix(SessionId session,
                                                std::span<const TokenId> tokens) {
  return sessions_->attach_prefix(session, tokens);
}

Status SessionExecutor::release(SessionId session) { return sessions_->truncate(session, 0); }

Usage SessionExecutor::usage() const {
  const ModuleInfo& module = module_.info();
  Usage usage;
  for (size_t group = 0; group < module.groups.size(); ++group) {
    const LayerGroupInfo& each = module.groups[group];
    const KvGroupUsage blocks = sessions_->books().usage(static_cast<int32_t>(group));
    usage.groups.push_back({each.policy.window, static_cast<int32_t>(each.layers.size()),
                            each.bytes_per_cell * module.block_size, blocks.blocks_total,
                            blocks.blocks_free, blocks.blocks_cached, blocks.blocks_peak});
  }
  usage.methods = methods_;
  usage.steps = steps_;
  usage.copied_blocks = sessions_->books().copied_blocks();
  usage.module = module_.usage();
  return usage;
}

}  // namespace chorus
