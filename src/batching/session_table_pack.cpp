// SessionTable::pack, finish and abort.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "batching/sampling_policy.h"
#include "batching/session_table.h"

namespace chorus {
namespace {

std::string expected_found(const std::string& expected, int64_t found) {
  return "expected " + expected + ", found " + std::to_string(found);
}

// The positions whose given tokens an input scores, as types.h defines them: [first, last].
struct ScoredRange {
  int64_t first = 0;
  int64_t last = -1;
  int32_t count() const { return static_cast<int32_t>(std::max<int64_t>(0, last - first + 1)); }
};

ScoredRange scored_range(const BatchInput& input) {
  const auto num_tokens = static_cast<int64_t>(input.tokens->size());
  return {std::max<int64_t>(input.score_from, int64_t{input.start()} + 1),
          std::min<int64_t>(input.end(), input.position + num_tokens - 1)};
}

void fail(PackedStep::Session& session, int32_t input, Status status, PackedStep& packed) {
  session.failed_input = input;
  packed.inputs[static_cast<size_t>(input)].status = std::move(status);
}

}  // namespace

Status SessionTable::pack(std::span<const BatchInput> batch, PackedStep& packed) {
  ++epoch_;
  packed.inputs.assign(batch.size(), {});
  packed.sessions.clear();
  for (size_t i = 0; i < batch.size(); ++i) add_input(batch[i], static_cast<int32_t>(i), packed);
  fill_masks(packed);
  fail_siblings(packed);
  CHORUS_RETURN_IF_ERROR(plan_blocks(packed));
  lay_out(batch, packed);
  return {};
}

void SessionTable::add_input(const BatchInput& input, int32_t index, PackedStep& packed) {
  PackedStep::Input& packed_input = packed.inputs[static_cast<size_t>(index)];
  const int32_t slot = find(input.session);
  if (slot < 0) {
    packed_input.status = not_found(
        "session", expected_found("an open session", static_cast<int64_t>(input.session)));
    return;
  }
  Session& session = at(slot);
  const bool is_first = session.packed_epoch != epoch_;
  if (is_first) {
    session.packed_epoch = epoch_;
    session.packed_index = static_cast<int32_t>(packed.sessions.size());
    packed.sessions.push_back({});
    packed.sessions.back().slot = slot;
    packed.sessions.back().first_input = index;
  }
  PackedStep::Session& entry = packed.sessions[static_cast<size_t>(session.packed_index)];
  packed_input.session = session.packed_index;
  if (!is_first) packed.inputs[static_cast<size_t>(entry.last_input)].next = index;
  entry.last_input = index;
  if (entry.failed_input >= 0) return;  // fail_siblings says so
  Status status = check_input(input, is_first ? nullptr : &entry, session);
  if (!status.ok()) return fail(entry, index, std::move(status), packed);
  if (is_first) entry.start = input.start();
  entry.count += input.size;
  entry.has_output = input.produce_output;
  packed_input.samples = input.produce_output;
  if (session.policy) {
    session.policy->take(input.start(), std::span(*input.tokens)
                                            .subspan(static_cast<size_t>(input.offset),
                                                     static_cast<size_t>(input.size)));
    session.policy->cut(input.end());
  }
  const ScoredRange scored = scored_range(input);
  packed_input.num_scored = scored.count();
  if (scored.count() > 0) packed_input.first_scored = static_cast<Position>(scored.first);
}

// `earlier` holds the session's inputs before this one, null if there are none.
Status SessionTable::check_input(const BatchInput& input, const PackedStep::Session* earlier,
                                 const Session& session) const {
  CHORUS_RETURN_IF_ERROR(check_slice(input));
  CHORUS_RETURN_IF_ERROR(check_start(input, earlier, session));
  if (earlier != nullptr && earlier->has_output) {
    return invalid_argument("produce_output",
                            "expected of a session's last input only, found an input behind it");
  }
  if (input.produce_output && !session.policy) {
    return invalid_argument("produce_output",
                            "expected a sampling policy set for the generation, found none");
  }
  return check_tokens(input);
}

Status SessionTable::check_slice(const BatchInput& input) const {
  if (input.tokens == nullptr) {
    return invalid_argument("tokens", "expected a vector of tokens, found none");
  }
  if (input.size < 1) {
    return invalid_argument("size", expected_found("at least 1", input.size));
  }
  const auto num_tokens = static_cast<int64_t>(input.tokens->size());
  if (input.offset < 0 || int64_t{input.offset} + input.size > num_tokens) {
    return invalid_argument("offset", "expected a slice of the " + std::to_string(num_tokens) +
                                          " tokens, found " + std::to_string(input.size) +
                                          " from " + std::to_string(input.offset));
  }
  if (input.position < 0) {
    return invalid_argument("position", expected_found("at least 0", input.position));
  }
  const int64_t end = int64_t{input.position} + input.offset + input.size;
  if (end > options_.kv.max_sequence_tokens) {
    return invalid_argument(
        "max_session_tokens",
        expected_found(
            "a session of at most " + std::to_string(options_.kv.max_sequence_tokens) + " tokens",
            end));
  }
  return {};
}

Status SessionTable::check_start(const BatchInput& input, const PackedStep::Session* earlier,
                                 const Session& session) const {
  if (earlier == nullptr) {
    const Position length = books_->length(session.sequence);
    if (session.policy && session.policy->params().remembers() &&
        input.start() > session.policy->known_end()) {
      return invalid_argument(
          "position",
          expected_found("a slice that starts at or before " +
                             std::to_string(session.policy->known_end()) +
                             ", where the tokens end that the sampling policy was told of",
                         input.start()));
    }
    if (input.start() >= 0 && input.start() <= length) {
      return check_rewind(session, input.start(), "position");
    }
    return invalid_argument(
        "position", expected_found("a slice that starts at or before " + std::to_string(length) +
                                       ", the session's length",
                                   input.start()));
  }
  const Position cursor = earlier->start + earlier->count;
  if (input.start() == cursor) return {};
  return invalid_argument("position",
                          expected_found("a slice that starts at " + std::to_string(cursor) +
                                             ", where the session's input before "
                                             "it ends",
                                         input.start()));
}

// Those of the slice, and the one behind it if it is scored.
Status SessionTable::check_tokens(const BatchInput& input) const {
  const ScoredRange scored = scored_range(input);
  const bool one_more = scored.count() > 0 && scored.last == input.end();
  const int32_t end = input.offset + input.size + (one_more ? 1 : 0);
  for (int32_t i = input.offset; i < end; ++i) {
    const TokenId token = (*input.tokens)[static_cast<size_t>(i)];
    if (token < 0 || token >= options_.vocabulary) {
      return invalid_argument(
          "tokens[" + std::to_string(i) + "]",
          expected_found("an id from 0 to " + std::to_string(options_.vocabulary - 1), token));
    }
  }
  return {};
}

void SessionTable::fill_masks(PackedStep& packed) {
  const auto end = [](const PackedStep::Session& entry) { return entry.start + entry.count; };
  const auto constrained = [&](const PackedStep::Session& entry) {
    return entry.failed_input < 0 && entry.has_output &&
           at(entry.slot).policy->needs_mask(end(entry));
  };
  const auto words = static_cast<size_t>(mask_words(options_.vocabulary));
  const auto num_masks = std::count_if(packed.sessions.begin(), packed.sessions.end(), constrained);
  packed.masks.assign(static_cast<size_t>(num_masks) * words, 0);
  int32_t next_mask = 0;
  for (PackedStep::Session& entry : packed.sessions) {
    if (!constrained(entry)) continue;
    entry.mask = next_mask++;
    const auto mask =
        std::span(packed.masks).subspan(static_cast<size_t>(entry.mask) * words, words);
    Status status = at(entry.slot).policy->fill_mask(end(entry), mask);
    if (!status.ok()) fail(entry, entry.last_input, std::move(status), packed);
  }
}

// Inputs of a session succeed or fail together.
void SessionTable::fail_siblings(PackedStep& packed) const {
  for (const PackedStep::Session& entry : packed.sessions) {
    if (entry.failed_input < 0) continue;
    const Status cause = packed.inputs[static_cast<size_t>(entry.failed_input)].status;
    for (int32_t i = entry.first_input; i >= 0; i = packed.inputs[static_cast<size_t>(i)].next) {
      if (i == entry.failed_input) continue;
      packed.inputs[static_cast<size_t>(i)].status = Status(
          cause.code(), "session", "another input of this session failed: " + cause.to_string());
    }
  }
}

Status SessionTable::plan_blocks(PackedStep& packed) const {
  packed.demands.clear();
  for (PackedStep::Session& entry : packed.sessions) {
    if (entry.failed_input >= 0) continue;
    entry.sequence = static_cast<int32_t>(packed.demands.size());
    packed.demands.push_back({at(entry.slot).sequence, entry.start, entry.count});
  }
  if (packed.demands.empty() || books_->plan(packed.demands, packed.plan)) return {};
  const KvShortage shortage = *books_->shortage(packed.demands);
  return resource_exhausted(
      "blocks", "layer group " + std::to_string(shortage.group) + " needs " +
                    std::to_string(shortage.needed_blocks) + " blocks, " +
                    std::to_string(shortage.free_blocks) + " are free, " +
                    std::to_string(shortage.needed_blocks - shortage.free_blocks) + " are missing");
}

void SessionTable::lay_out(std::span<const BatchInput> batch, PackedStep& packed) {
  Step& step = packed.step;
  step.num_groups = books_->num_groups();
  step.sequences.clear();
  step.tables.clear();
  step.tokens.clear();
  step.row_sequence.clear();
  step.positions.clear();
  step.cells.clear();
  step.copies.clear();
  step.order.clear();
  step.shared.clear();
  packed.wanted.clear();
  packed.specs.clear();
  for (const PackedStep::Session& entry : packed.sessions) {
    if (entry.failed_input < 0) lay_out_rows(batch, entry, packed);
  }
  if (!packed.demands.empty()) {
    step.copies.assign(packed.plan.copies().begin(), packed.plan.copies().end());
    step.order = packed.plan.shared().order;
    step.shared = packed.plan.shared().ranges;
  }
  packed.results.assign(packed.specs.size(), {});
  packed.not_finite.assign(step.tokens.size(), 0);
}

void SessionTable::lay_out_rows(std::span<const BatchInput> batch,
                                const PackedStep::Session& session, PackedStep& packed) {
  Step& step = packed.step;
  const int32_t sequence = session.sequence;
  step.sequences.push_back({step.num_rows(), session.count, session.start});
  for (int32_t group = 0; group < step.num_groups; ++group) {
    step.tables.push_back(packed.plan.table(sequence, group));
  }
  for (int32_t i = session.first_input; i >= 0; i = packed.inputs[static_cast<size_t>(i)].next) {
    const BatchInput& input = batch[static_cast<size_t>(i)];
    add_specs(input, session, packed.inputs[static_cast<size_t>(i)], packed);
    const auto first = input.tokens->begin() + input.offset;
    step.tokens.insert(step.tokens.end(), first, first + input.size);
  }
  for (int32_t row = 0; row < session.count; ++row) {
    const Position position = session.start + row;
    step.row_sequence.push_back(sequence);
    step.positions.push_back(position);
    for (int32_t group = 0; group < step.num_groups; ++group) {
      step.cells.push_back(packed.plan.cell(sequence, group, position));
    }
  }
}

// The input's rows begin at step.num_rows().
void SessionTable::add_specs(const BatchInput& input, const PackedStep::Session& session,
                             PackedStep::Input& packed_input, PackedStep& packed) {
  const int32_t first_row = packed.step.num_rows();
  std::optional<SamplingState>& policy = at(session.slot).policy;
  const auto want = [&](const RowSpec& spec) {
    if (packed.wanted.empty() || packed.wanted.back() != spec.row)
      packed.wanted.push_back(spec.row);
    packed.specs.push_back(spec);
  };
  packed_input.first_spec = static_cast<int32_t>(packed.specs.size());
  for (int32_t i = 0; i < packed_input.num_scored; ++i) {
    const Position position = packed_input.first_scored + i;
    const TokenId token = (*input.tokens)[static_cast<size_t>(position - input.position)];
    want(scored_row(first_row + (position - 1 - input.start()), token,
                    policy ? policy->params().num_likeliest : 0));
  }
  if (!packed_input.samples) return;
  std::span<const uint32_t> mask;
  if (session.mask >= 0) {
    const auto words = static_cast<size_t>(mask_words(options_.vocabulary));
    mask = std::span(packed.masks).subspan(static_cast<size_t>(session.mask) * words, words);
  }
  RowSpec spec = sampled_row(policy->params(), first_row + input.size - 1, input.end(), mask);
  spec.adjustments = policy->adjustments();
  want(spec);
}

void SessionTable::finish(PackedStep& packed, BatchOutput& output) {
  fail_not_finite(packed);
  accept_sampled(packed);
  fail_siblings(packed);
  commit(packed);
  output.inputs.clear();
  output.tokens.clear();
  for (PackedStep::Input& input : packed.inputs) {
    output.inputs.push_back({std::move(input.status), 0, 0, 0, 0, 0});
    InputOutput& result = output.inputs.back();
    if (!result.status.ok()) continue;
    result.scored_begin = static_cast<int32_t>(output.tokens.size());
    result.scored_count = input.num_scored;
    result.first_scored = input.first_scored;
    result.sampled_begin = result.scored_begin + input.num_scored;
    result.sampled_count = input.samples ? 1 : 0;
    for (int32_t i = 0; i < result.scored_count + result.sampled_count; ++i) {
      output.tokens.push_back(packed.results[static_cast<size_t>(input.first_spec + i)].token);
    }
  }
}

void SessionTable::fail_not_finite(PackedStep& packed) const {
  for (PackedStep::Session& entry : packed.sessions) {
    if (entry.failed_input >= 0) continue;
    const StepSequence& rows = packed.step.sequences[static_cast<size_t>(entry.sequence)];
    const auto marks =
        std::span(packed.not_finite)
            .subspan(static_cast<size_t>(rows.row_begin), static_cast<size_t>(rows.row_count));
    const auto marked = std::find_if(marks.begin(), marks.end(), [](uint8_t mark) { return mark; });
    if (marked != marks.end()) {
      fail(entry, entry.first_input,
           internal_error("kv", "keys or values at position " +
                                    std::to_string(rows.start + (marked - marks.begin())) +
                                    " are not finite"),
           packed);
      continue;
    }
    for (int32_t i = entry.first_input; i >= 0 && entry.failed_input < 0;
         i = packed.inputs[static_cast<size_t>(i)].next) {
      const PackedStep::Input& input = packed.inputs[static_cast<size_t>(i)];
      const int32_t num_specs = input.num_scored + (input.samples ? 1 : 0);
      for (int32_t spec = input.first_spec; spec < input.first_spec + num_specs; ++spec) {
        if (packed.results[static_cast<size_t>(spec)].finite) continue;
        const int32_t row = packed.specs[static_cast<size_t>(spec)].row;
        fail(entry, i,
             internal_error("logits",
                            "those at position " +
                                std::to_string(packed.step.positions[static_cast<size_t>(row)]) +
                                " hold a NaN"),
             packed);
        break;
      }
    }
  }
}

void SessionTable::accept_sampled(PackedStep& packed) {
  for (PackedStep::Session& entry : packed.sessions) {
    if (entry.failed_input >= 0 || !entry.has_output) continue;
    const auto& constraint = at(entry.slot).policy->params().constraint;
    if (constraint == nullptr) continue;
    const PackedStep::Input& input = packed.inputs[static_cast<size_t>(entry.last_input)];
    const auto spec = static_cast<size_t>(input.first_spec + input.num_scored);
    Status status = constraint->accept(packed.results[spec].token.id);
    if (!status.ok()) fail(entry, entry.last_input, std::move(status), packed);
  }
}

void SessionTable::commit(PackedStep& packed) {
  if (packed.demands.empty()) return;
  packed.accepted.assign(packed.demands.size(), kRejected);
  packed.rows.assign(packed.demands.size(), {});
  for (const PackedStep::Session& entry : packed.sessions) {
    if (entry.sequence < 0) continue;
    const auto index = static_cast<size_t>(entry.sequence);
    const auto begin = static_cast<size_t>(packed.step.sequences[index].row_begin);
    packed.rows[index].tokens =
        std::span(packed.step.tokens).subspan(begin, static_cast<size_t>(entry.count));
    if (entry.failed_input >= 0) continue;
    packed.accepted[index] = entry.start + entry.count;
    if (!entry.has_output) continue;
    packed.rows[index].mark = at(entry.slot).is_starting;
    at(entry.slot).is_starting = false;
  }
  books_->commit(packed.plan, packed.accepted, packed.rows);
}

void SessionTable::abort(PackedStep& packed) {
  if (!packed.demands.empty()) books_->abort(packed.plan);
}

}  // namespace chorus
