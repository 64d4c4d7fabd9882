#include "cpu/interpreter.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cpu/float_mode.h"

namespace chorus::cpu {

namespace {

int32_t num_blocks_of(int32_t columns) { return (columns + kBlock - 1) / kBlock; }
int64_t num_quads(int64_t rows) { return (rows + kQuad - 1) / kQuad; }

float* floats(AlignedBuffer& buffer) { return reinterpret_cast<float*>(buffer.bytes().data()); }

AlignedBuffer float_buffer(int64_t count) {
  return AlignedBuffer(static_cast<size_t>(count) * sizeof(float));
}

float* arena_at(float* arena, const View& view, int32_t row) {
  return arena + view.offset + int64_t{row} * view.stride;
}

// Partial results of attention that there is room for: those of a tile that sees all of the context
// for each border between two threads' shares, up to a bound on what few sequences at the end of a
// very long context may take.
int64_t max_partials(const Program& program, int num_threads) {
  constexpr int64_t kMostOfATile = 4096;
  const int64_t chunks = int64_t{program.context()} / kChunk + 1;
  return std::min(kMostOfATile, chunks * kMaxTileQueries) * (num_threads - 1);
}

// Of the scratch of one thread.
int64_t local_floats_of(const Plan& plan) {
  return kQuad * std::max(plan.body.local_floats_per_row, plan.tail.local_floats_per_row);
}

// Bytes of one block of a quad's activations.
constexpr std::array<size_t, kNumInputs> kInputBytes = {
    sizeof(QuadBlock), kBlock* kQuad * sizeof(float), kBlock* kQuad * sizeof(float)};

// Which inputs the linear layers of a plan take.
std::array<bool, kNumInputs> inputs_of(const Plan& plan) {
  std::array<bool, kNumInputs> taken = {};
  for (const Stage* stage : {&plan.body, &plan.tail}) {
    for (const Instruction& instruction : stage->instructions) {
      for (size_t i = 0; i < kNumInputs; ++i) taken[i] = taken[i] || instruction.takes[i];
    }
  }
  return taken;
}

// Blocks of activations that the linear layers of a slice are given.
int64_t prepared_blocks(const Plan& plan, int32_t body_rows) {
  return std::max(num_quads(body_rows) * num_blocks_of(plan.body.max_columns),
                  num_quads(Interpreter::kTailRows) * num_blocks_of(plan.tail.max_columns));
}

}  // namespace

int64_t Interpreter::bytes_needed(const Plan& plan, int32_t body_rows, int32_t kept_rows) {
  const int64_t floats =
      plan.body.floats_per_row * body_rows + int64_t{plan.selected.width} * kept_rows;
  int64_t block_bytes = 0;
  const std::array<bool, kNumInputs> taken = inputs_of(plan);
  for (size_t i = 0; i < kNumInputs; ++i) {
    if (taken[i]) block_bytes += static_cast<int64_t>(kInputBytes[i]);
  }
  return floats * static_cast<int64_t>(sizeof(float)) +
         prepared_blocks(plan, body_rows) * block_bytes;
}

Interpreter::Interpreter(const Program& program, Plan plan, const Kernels& kernels, KvMemory& kv,
                         ThreadPool& pool, Profile* profile, int32_t body_rows, int32_t kept_rows)
    : program_(program),
      plan_(std::move(plan)),
      kernels_(kernels),
      kv_(kv),
      pool_(pool),
      linear_work_(pool.num_threads()),
      pieces_done_(new std::atomic<int32_t>[static_cast<size_t>(pool.num_threads())]()),
      profile_(profile),
      body_arena_(float_buffer(plan_.body.floats_per_row * body_rows)),
      tail_arena_(float_buffer(plan_.tail.floats_per_row * kTailRows)),
      kept_(float_buffer(int64_t{plan_.selected.width} * kept_rows)) {
  const auto blocks = static_cast<size_t>(prepared_blocks(plan_, body_rows));
  const std::array<bool, kNumInputs> taken = inputs_of(plan_);
  for (size_t i = 0; i < kNumInputs; ++i) {
    if (taken[i]) prepared_[i] = AlignedBuffer(blocks * kInputBytes[i]);
  }
  for (const RopeTable& table : program.graph().ropes) {
    Rope rope;
    rope.frequencies.resize(static_cast<size_t>(table.dims / 2));
    kernels.rope_frequencies(table.theta, table.dims,
                             table.factors.empty() ? nullptr : table.factors.data(),
                             rope.frequencies.data());
    rope.angles = float_buffer(int64_t{table.dims} * body_rows);
    ropes_.push_back(std::move(rope));
  }
  int64_t partial_floats = 0;
  for (const KvLayer& layer : program.graph().kv_layers) {
    scratch_bytes_ = std::max(scratch_bytes_, attention_scratch_bytes(layer.head_dim));
    partial_floats = std::max(partial_floats, attention_partial_floats(layer.head_dim));
  }
  partials_ = float_buffer(max_partials(program, pool.num_threads()) * partial_floats);
  make_tiles(body_rows);
  scratch_bytes_ = (scratch_bytes_ + 127) / 128 * 128;
  scratch_ = AlignedBuffer(scratch_bytes_ * static_cast<size_t>(pool.num_threads()));
  local_floats_ = local_floats_of(plan_);
  local_ = float_buffer(local_floats_ * pool.num_threads());
}

// One list of tiles for all layers whose tiles are the same.
void Interpreter::make_tiles(int32_t body_rows) {
  for (Instruction& instruction : plan_.body.instructions) {
    const Op& op = *instruction.op;
    if (op.kind != OpKind::kUpdateAndAttend) continue;
    const int32_t group = kv_.layer(op.layer).group;
    const TileShape shape{group, op.num_kv_heads, op.num_heads / op.num_kv_heads,
                          program_.graph().groups[static_cast<size_t>(group)].policy.window};
    const auto same = [&](const AttentionTiles& tiles) { return tiles.shape() == shape; };
    const auto found = std::find_if(tiles_.begin(), tiles_.end(), same);
    instruction.tiles = static_cast<size_t>(found - tiles_.begin());
    if (found == tiles_.end()) {
      tiles_.emplace_back(shape, body_rows, pool_.num_threads(),
                          max_partials(program_, pool_.num_threads()));
    }
  }
}

float* Interpreter::logits(int32_t i) {
  auto* arena = reinterpret_cast<float*>(tail_arena_.bytes().data());
  return arena + plan_.logits.offset + int64_t{i} * plan_.logits.stride;
}

float* Interpreter::at(const Work& work, const Share& share, const View& view, int32_t row) {
  return view.is_local ? arena_at(share.local, view, row % kQuad) : arena_at(work.arena, view, row);
}

Interpreter::Share Interpreter::share_rows(int32_t rows, int thread) {
  const Range quads = share_of(num_quads(rows), pool_.num_threads(), thread);
  const auto begin = std::min(rows, static_cast<int32_t>(quads.begin * kQuad));
  const auto end = std::min(rows, static_cast<int32_t>(quads.end * kQuad));
  return {thread, begin, end - begin, floats(local_) + local_floats_ * thread};
}

void Interpreter::run_body(const Step& step, const Slice& slice, int32_t first_kept,
                           std::span<uint8_t> not_finite) {
  Work work;
  work.arena = floats(body_arena_);
  work.rows = slice.row_count;
  work.step = &step;
  work.first_row = slice.row_begin;
  work.not_finite = not_finite.data() + slice.row_begin;
  for (AttentionTiles& tiles : tiles_) {
    tiles.cut(step, slice.row_begin, slice.row_begin + slice.row_count);
  }
  float* kept = floats(kept_) + int64_t{first_kept} * plan_.selected.width;
  if (profile_ != nullptr) profile_->begin_slice(step, slice);
  pool_.run([&](int thread) {
    const FloatMode mode;
    const Share share = share_rows(work.rows, thread);
    Profile* const profile = thread == 0 ? profile_ : nullptr;
    compute_angles(work, share);
    if (profile != nullptr) profile->add_rope_angles();
    run_stage(plan_.body, work, share);
    // select_rows: this thread's rows among the wanted.
    for (size_t i = 0; i < slice.wanted.size(); ++i) {
      const int32_t row = slice.wanted[i] - slice.row_begin;
      if (row < share.begin || row >= share.begin + share.rows) continue;
      std::memcpy(kept + static_cast<int64_t>(i) * plan_.selected.width,
                  arena_at(work.arena, plan_.selected, row),
                  static_cast<size_t>(plan_.selected.width) * sizeof(float));
    }
    if (profile != nullptr) profile->add_select_rows();
  });
}

void Interpreter::run_tail(std::span<const int32_t> kept_rows, int thread) {
  Work work;
  work.arena = floats(tail_arena_);
  work.rows = static_cast<int32_t>(kept_rows.size());
  const Share share = share_rows(work.rows, thread);
  if (profile_ != nullptr && thread == 0) profile_->start();
  for (int32_t i = share.begin; i < share.begin + share.rows; ++i) {
    std::memcpy(arena_at(work.arena, plan_.tail_input, i),
                floats(kept_) + int64_t{kept_rows[static_cast<size_t>(i)]} * plan_.tail_input.width,
                static_cast<size_t>(plan_.tail_input.width) * sizeof(float));
  }
  run_stage(plan_.tail, work, share);
  pool_.barrier();
}

void Interpreter::run_stage(const Stage& stage, const Work& work, const Share& share) {
  Profile* const profile = share.thread == 0 ? profile_ : nullptr;
  const bool is_tail = &stage == &plan_.tail;
  for (const Chain& range : stage.chains) {
    const auto chain = std::span(stage.instructions).subspan(range.begin, range.end - range.begin);
    run_quads(chain, work, share, is_tail);
    const Instruction& last = chain.back();
    if (last.op->kind == OpKind::kLinear) {
      linear(last, work, share);
    } else if (last.op->kind == OpKind::kUpdateAndAttend) {
      update_and_attend(last, work, share);
    }
    if (profile == nullptr) continue;
    profile->add_time(last, is_tail);
    for (const Instruction& instruction : chain) profile->count(instruction, work.rows, is_tail);
  }
}

void Interpreter::run_quads(std::span<const Instruction> chain, const Work& work,
                            const Share& share, bool is_tail) {
  Profile* const profile = share.thread == 0 ? profile_ : nullptr;
  for (int32_t row = 0; row < share.rows; row += kQuad) {
    Share quad = share;
    quad.begin += row;
    quad.rows = std::min(kQuad, share.rows - row);
    for (const Instruction& instruction : chain) {
      run_first(instruction, work, quad);
      if (profile != nullptr) profile->add_time(instruction, is_tail);
    }
  }
}

void Interpreter::run_first(const Instruction& instruction, const Work& work, const Share& share) {
  switch (instruction.op->kind) {
    case OpKind::kEmbed:
      return embed(instruction, work, share);
    case OpKind::kRope:
      return rope(instruction, work, share);
    case OpKind::kLinear:
      return prepare(instruction, work, share);
    case OpKind::kUpdateAndAttend:
      return store_kv(instruction, work, share);
    default:
      return run_row_wise(instruction, work, share);
  }
}

void Interpreter::embed(const Instruction& instruction, const Work& work, const Share& share) {
  EmbedArgs args;
  args.weights = instruction.weights;
  args.columns = instruction.output.width;
  args.k_blocks = num_blocks_of(args.columns);
  args.tokens = work.step->tokens.data() + work.first_row + share.begin;
  args.rows = share.rows;
  args.out = at(work, share, instruction.output, share.begin);
  args.out_stride = instruction.output.stride;
  kernels_.embed[instruction.weight_type](args);
}

void Interpreter::compute_angles(const Work& work, const Share& share) {
  for (size_t i = 0; i < ropes_.size(); ++i) {
    const int32_t dims = program_.graph().ropes[i].dims;
    kernels_.rope_angles({ropes_[i].frequencies.data(), dims,
                          work.step->positions.data() + work.first_row + share.begin, share.rows,
                          floats(ropes_[i].angles) + int64_t{share.begin} * dims});
  }
}

void Interpreter::rope(const Instruction& instruction, const Work& work, const Share& share) {
  const Op& op = *instruction.op;
  const auto table = static_cast<size_t>(op.rope);
  RopeArgs args;
  args.x = at(work, share, instruction.inputs[0], share.begin);
  args.x_stride = instruction.inputs[0].stride;
  args.out = at(work, share, instruction.output, share.begin);
  args.out_stride = instruction.output.stride;
  args.rows = share.rows;
  args.num_heads = instruction.output.width / op.head_dim;
  args.head_dim = op.head_dim;
  args.dims = program_.graph().ropes[table].dims;
  args.half = op.pairing == RopePairing::kHalf;
  args.angles = floats(ropes_[table].angles) + int64_t{share.begin} * args.dims;
  kernels_.rope(args);
}

void Interpreter::run_row_wise(const Instruction& instruction, const Work& work,
                               const Share& share) {
  const Op& op = *instruction.op;
  const View& a = instruction.inputs[0];
  const View& out = instruction.output;
  if (op.kind == OpKind::kRmsNorm) {
    kernels_.rms_norm({at(work, share, a, share.begin), a.stride, at(work, share, out, share.begin),
                       out.stride, share.rows, out.width,
                       op.group_width == 0 ? out.width : op.group_width,
                       reinterpret_cast<const float*>(instruction.weights), op.epsilon});
    return;
  }
  ElementwiseArgs args;
  args.a = at(work, share, a, share.begin);
  args.a_stride = a.stride;
  if (op.inputs.size() == 2) {
    args.b = at(work, share, instruction.inputs[1], share.begin);
    args.b_stride = instruction.inputs[1].stride;
  }
  args.out = at(work, share, out, share.begin);
  args.out_stride = out.stride;
  args.rows = share.rows;
  args.width = out.width;
  args.scale = op.scale;
  switch (op.kind) {
    case OpKind::kAdd:
      return kernels_.add(args);
    case OpKind::kMul:
      return kernels_.mul(args);
    case OpKind::kScale:
      return kernels_.scale(args);
    case OpKind::kSilu:
      return kernels_.silu(args);
    case OpKind::kGelu:
      return kernels_.gelu(args);
    case OpKind::kSigmoid:
      return kernels_.sigmoid(args);
    case OpKind::kTanhSoftcap:
      return kernels_.tanh_softcap(args);
    default:
      CHORUS_CHECK(false);
  }
}

void Interpreter::prepare(const Instruction& instruction, const Work& work, const Share& share) {
  const View& x = instruction.inputs[0];
  PrepareArgs args;
  args.x = at(work, share, x, share.begin);
  args.x_stride = x.stride;
  args.columns = x.width;
  args.tokens = share.rows;
  args.k_blocks = num_blocks_of(x.width);
  const int64_t first_block = int64_t{share.begin / kQuad} * args.k_blocks;
  constexpr std::array<void (*Kernels::*)(const PrepareArgs&), kNumInputs> kPrepare = {
      &Kernels::quantize, &Kernels::prepare_bf16, &Kernels::prepare_f32};
  for (size_t i = 0; i < kNumInputs; ++i) {
    if (!instruction.takes[i]) continue;
    args.out = prepared_[i].bytes().data() + static_cast<size_t>(first_block) * kInputBytes[i];
    (kernels_.*kPrepare[i])(args);
  }
}

namespace {

int64_t groups_of(const LinearPart& part) { return int64_t{part.rows + kRowGroup - 1} / kRowGroup; }

// Row groups that a thread takes at once: a quarter of its share, as far as that is neither so
// little that taking it costs, nor more than stays in the L2 cache for the next tile of tokens.
int64_t piece_of(int64_t share, int64_t group_bytes) {
  constexpr int64_t kLeastBytes = 32 * 1024;
  constexpr int64_t kMostBytes = 256 * 1024;
  const int64_t least = std::max<int64_t>(1, kLeastBytes / group_bytes);
  return std::clamp(share / 4, least, std::max(least, kMostBytes / group_bytes));
}

}  // namespace

void Interpreter::linear(const Instruction& instruction, const Work& work, const Share& share) {
  int64_t num_groups = 0;
  int64_t bytes = 0;
  for (const LinearPart& part : instruction.parts) {
    num_groups += groups_of(part);
    bytes += part.bytes;
  }
  const Range mine = share_of(num_groups, pool_.num_threads(), share.thread);
  linear_work_.set(share.thread, mine);
  pool_.barrier();
  const int64_t piece = piece_of(mine.end - mine.begin, bytes / num_groups);
  for (;;) {
    const Range groups = linear_work_.take(share.thread, piece);
    if (groups.begin == groups.end) break;
    multiply(instruction, work, groups);
  }
  pool_.barrier();
}

void Interpreter::multiply(const Instruction& instruction, const Work& work, Range groups) {
  int64_t first = 0;  // of the part at hand
  for (const LinearPart& part : instruction.parts) {
    const int64_t begin = std::max(groups.begin - first, int64_t{0});
    const int64_t end = std::min(groups.end - first, groups_of(part));
    first += groups_of(part);
    if (begin >= end) continue;
    LinearArgs args;
    args.weights = part.weights;
    args.k_blocks = num_blocks_of(instruction.inputs[0].width);
    args.rows = part.rows;
    args.group_begin = static_cast<int32_t>(begin);
    args.group_end = static_cast<int32_t>(end);
    args.activations = prepared_[static_cast<size_t>(part.input)].bytes().data();
    args.tokens = work.rows;
    args.bias = part.bias;
    args.out = arena_at(work.arena, part.out, 0);
    args.out_stride = part.out.stride;
    const bool int8 = part.input == Input::kInt8;
    (int8 ? kernels_.linear_int8 : kernels_.linear_f32)[part.type](args);
  }
}

void Interpreter::store_kv(const Instruction& instruction, const Work& work, const Share& share) {
  const KvMemory::Layer& layer = kv_.layer(instruction.op->layer);
  const View& k = instruction.inputs[1];
  const View& v = instruction.inputs[2];
  const int32_t num_groups = work.step->num_groups;
  StoreKvArgs args;
  args.layout = layer.layout;
  args.num_heads = layer.num_heads;
  args.k_arena = layer.k;
  args.v_arena = layer.v;
  args.k = at(work, share, k, share.begin);
  args.k_stride = k.stride;
  args.v = at(work, share, v, share.begin);
  args.v_stride = v.stride;
  args.rows = share.rows;
  args.cells =
      work.step->cells.data() + int64_t{work.first_row + share.begin} * num_groups + layer.group;
  args.cells_stride = num_groups;
  args.not_finite = work.not_finite + share.begin;
  kernels_.store_kv[kv_.type_index()](args);
}

void Interpreter::update_and_attend(const Instruction& instruction, const Work& work,
                                    const Share& share) {
  pool_.barrier();
  attend(instruction, work, share);
  const int32_t num_groups = work.step->num_groups;
  const int32_t* cells = work.step->cells.data() +
                         int64_t{work.first_row + share.begin} * num_groups +
                         kv_.layer(instruction.op->layer).group;
  const View& out = instruction.output;
  for (int32_t i = 0; i < share.rows; ++i) {  // a padded row attends to nothing
    if (cells[int64_t{i} * num_groups] != kNoCell) continue;
    std::fill_n(arena_at(work.arena, out, share.begin + i), out.width, 0.0f);
  }
  pool_.barrier();
}

void Interpreter::attend(const Instruction& instruction, const Work& work, const Share& share) {
  const AttentionTiles& tiles = tiles_[instruction.tiles];
  AttentionCall calls[2];  // the one to come is known while the other runs
  AttentionCall* call = nullptr;
  const auto run = [&](const AttentionCall& ready) {
    if (ready.piece != nullptr) return attend_piece(ready.args, tiles, *ready.piece);
    kernels_.attention[kv_.type_index()](ready.args);
  };
  tiles.for_tasks(share.thread,
                  [&](int32_t kv_head, const AttentionTile& tile, const AttentionPiece* piece) {
                    AttentionCall& next = call == calls ? calls[1] : calls[0];
                    fill_call(next, instruction, work, share, kv_head, tile);
                    next.piece = piece;
                    if (piece != nullptr) next.args.chunk_begin = piece->chunk_begin;
                    if (call != nullptr) {
                      call->args.next = &next.args;
                      run(*call);
                    }
                    call = &next;
                  });
  if (call != nullptr) run(*call);
}

void Interpreter::fill_call(AttentionCall& call, const Instruction& instruction, const Work& work,
                            const Share& share, int32_t kv_head, const AttentionTile& tile) {
  const Op& op = *instruction.op;
  const KvMemory::Layer& layer = kv_.layer(op.layer);
  const AttentionTiles& tiles = tiles_[instruction.tiles];
  AttentionArgs& args = call.args;
  args = {};
  args.queries = call.queries;
  args.parts = call.parts;
  args.layout = layer.layout;
  args.k = layer.k + kv_head * layer.layout.head_bytes;
  args.v = layer.v + kv_head * layer.layout.head_bytes;
  args.scale = op.scale;
  args.softcap = op.softcap;
  args.scratch = scratch_.bytes().data() + scratch_bytes_ * static_cast<size_t>(share.thread);
  for (const TilePart& part : tiles.parts(tile)) {
    for (int32_t i = 0; i < part.row_count; ++i) {
      const int32_t row = part.row_begin - work.first_row + i;
      const Position position = work.step->positions[static_cast<size_t>(part.row_begin + i)];
      for (int32_t head = 0; head < tile.head_count; ++head) {
        const int32_t column =
            (kv_head * tiles.shape().heads + tile.head_begin + head) * op.head_dim;
        call.queries[args.num_queries++] = {
            arena_at(work.arena, instruction.inputs[0], row) + column,
            arena_at(work.arena, instruction.output, row) + column,
            first_visible(position, tiles.shape().window), position};
      }
    }
    const BlockTable& table = work.step->table(part.sequence, layer.group);
    call.parts[args.num_parts++] = {part.row_count * tile.head_count, table.blocks.data(),
                                    table.first_block, part.shared.begin, part.shared.end};
  }
}

void Interpreter::attend_piece(AttentionArgs args, const AttentionTiles& tiles,
                               const AttentionPiece& piece) {
  const auto index = static_cast<size_t>(piece.split);
  const AttentionSplit& split = tiles.splits()[index];
  const int64_t each = attention_partial_floats(args.layout.head_dim);
  float* partials = floats(partials_) + split.partials * each;
  args.partials =
      partials + int64_t{piece.chunk_begin - split.chunk_begin} * args.num_queries * each;
  args.chunk_begin = piece.chunk_begin;
  args.chunk_end = piece.chunk_end;
  kernels_.attention[kv_.type_index()](args);
  // Whoever is last finds the results of all, and none of the next layer begins before the barrier.
  std::atomic<int32_t>& done = pieces_done_[index];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < split.num_pieces) return;
  done.store(0, std::memory_order_relaxed);
  kernels_.merge_attention({args.queries, args.num_queries, args.layout.head_dim, partials,
                            split.chunk_end - split.chunk_begin, args.scratch});
}

}  // namespace chorus::cpu
