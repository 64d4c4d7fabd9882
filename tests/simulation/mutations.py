#!/usr/bin/env python3
"""Faults that the simulation must find: each is put into a copy of the sources, one at a time.

./dev mutations [NAME...] builds the simulation from the copy, unchanged and with every mutation (or
those named), and runs it from seed 1. Unchanged it must pass, mutated it must fail: by what it
checks, by a check of the engine's own, by a crash, or by not coming to an end.
"""
import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutations"
EVENTS = "250000"  # some faults need a rare course of things
PROCESSOR_SECONDS = 60  # the unchanged one takes a few
SECONDS = 1800          # of a busy machine

# (name, file, the text of it that is replaced everywhere it occurs, what replaces it)
MUTATIONS = [
    # ---- kv: who holds which blocks ----
    ("a shared partial block is written without a copy", "src/kv/books.cpp",
     "if (pool(group).ref_count(partial) == 1) ++part.kept_blocks;",
     "if (pool(group).ref_count(partial) >= 1) ++part.kept_blocks;"),
    ("a copy of a partial block is one cell short", "src/kv/books.cpp",
     "plan.blocks_[part.begin + first_new], copied_cells});",
     "plan.blocks_[part.begin + first_new], std::max(1, copied_cells - 1)});"),
    ("a clone does not count itself among the owners", "src/kv/books.cpp",
     "for (const BlockId block : shared) pools_[group].retain(block);",
     "for (const BlockId block : shared) pools_[group].ref_count(block);"),
    ("the block that a copy replaces is never given back", "src/kv/books.cpp",
     "  release(group, std::span(table.blocks).subspan(kept));\n  table.blocks.resize(kept);\n"
     "  table.blocks.insert(",
     "  table.blocks.resize(kept);\n  table.blocks.insert("),
    ("a block is free while it has another owner", "src/kv/block_pool.cpp",
     "if (left == 0) free_.push_back(block);",
     "if (left <= 1) free_.push_back(block);"),
    ("a rewind lowers first_position", "src/kv/books.cpp",
     "    table.blocks.resize(kept);\n    if (length % options_.block_size == 0) continue;",
     "    table.blocks.resize(kept);\n"
     "    if (length > 0) table.first_position = std::max(0, table.first_position - 1);\n"
     "    if (length % options_.block_size == 0) continue;"),
    ("a rewind is bounded by the window alone", "src/kv/books.cpp",
     "first = std::max(first, held + options_.groups[group].policy.window - 1);",
     "first = std::max(first, held);"),
    ("a window leaves a block behind one token early", "src/kv/books.cpp",
     "const int32_t first_block = first_visible(length, policy) / options_.block_size;",
     "const int32_t first_block = first_visible(length + 1, policy) / options_.block_size;"),
    ("a loaded session takes fewer blocks than it has tokens for", "src/kv/books.cpp",
     "for (int32_t i = 0; i < count; ++i) table.blocks.push_back(blocks.allocate());",
     "for (int32_t i = 0; i < std::max(1, count - 1); ++i)\n"
     "      table.blocks.push_back(blocks.allocate());"),

    # ---- batching: steps ----
    ("an aborted step is committed", "src/batching/session_table_pack.cpp",
     "  if (!packed.demands.empty()) books_->abort(packed.plan);",
     "  commit(packed);"),
    ("rows that are not finite are committed", "src/batching/session_table_pack.cpp",
     "    if (entry.failed_input >= 0) continue;\n    packed.accepted[",
     "    packed.accepted["),
    ("a NaN among the logits is overlooked", "src/batching/session_table_pack.cpp",
     "if (packed.results[static_cast<size_t>(spec)].finite) continue;",
     "if (packed.results[static_cast<size_t>(spec)].token.id >= 0) continue;"),
    ("the choice is not part of a draw's key", "src/batching/sampling_policy.cpp",
     "  spec.choice = params.choice;\n", ""),
    ("a draw is keyed by the position before", "src/batching/sampling_policy.cpp",
     "spec.position = position;", "spec.position = position - 1;"),
    ("a constraint is not told what was chosen", "src/batching/session_table_pack.cpp",
     "  accept_sampled(packed);\n", ""),
    ("a saved session begins at its window, not at what it holds", "src/batching/saved_kv.cpp",
     "for (Position begin = table.first_position; begin < length;",
     "for (Position begin = table.first_position + (length - table.first_position) / 2;\n"
     "         begin < length;"),

    # ---- engine: the life of a generation ----
    ("what was cut stays with the executor", "src/engine/engine_admission.cpp",
     "  if (record.attached == 0) drop_surplus(record);\n", ""),
    ("a preempted generation forgets what it has delivered", "src/engine/engine_admission.cpp",
     "  ++live.preemptions;\n", "  ++live.preemptions;\n  live.num_delivered = 0;\n"),
    ("a difference of priority lasts for ever", "src/engine/queue_order.h",
     "return key(a) < key(b);",
     "return a.priority != b.priority ? a.priority > b.priority : key(a) < key(b);"),
    ("a preempted generation does not wait in line", "src/engine/engine_admission.cpp",
     "  give_up_blocks(record);\n  wait_in_line(record);\n", "  give_up_blocks(record);\n"),
    ("a resumed generation draws from another seed", "src/engine/engine_admission.cpp",
     "  feed(record);\n}\n",
     "  if (live.preemptions > 0)\n"
     "    (void)executor_.set_sampling(record.id, live.state->options().sampling);\n"
     "  feed(record);\n}\n"),
    ("scores are repeated after a preemption", "src/engine/engine_step.cpp",
     "    live.next_score = result.first_scored + result.scored_count;\n", ""),
    ("a running session loses its blocks as if it were idle", "src/engine/engine_admission.cpp",
     "if (is_running(*record) || record == except) continue;",
     "if (record == except) continue;"),
    ("the first that runs is a victim too", "src/engine/engine_admission.cpp",
     "for (size_t i = running_.size(); i > 1; --i) {",
     "for (size_t i = running_.size(); i > 0; --i) {"),
    ("readers that sleep keep the blocks that they share", "src/engine/engine_admission.cpp",
     "if (sharing_paused == nullptr) return false;", "return false;"),
    ("nobody waits for a reader", "src/engine/engine_step.cpp",
     "if (!pauses && delivery.continues->live->is_running)",
     "if (delivery.continues->live->is_running)"),
    ("a reader that has read is not heard", "src/engine/engine_loop.cpp",
     "  if (record->live->is_running) submit_decode(*record);\n", ""),
    ("a generation that returns draws without its parameters", "src/engine/engine_loop.cpp",
     "    if (record->live.has_value() && record->live->was_admitted)\n"
     "      status = executor_.set_sampling(record->id, sampling_of(*record));\n", ""),
    ("a suspended generation is admitted", "src/engine/engine_admission.cpp",
     "if (record.live->is_paused || record.is_suspended) {", "if (record.live->is_paused) {"),
    ("a suspended session gives its place back twice", "src/engine/session.cpp",
     "  if (!shared_->is_suspended) port_->sessions.give_back();",
     "  port_->sessions.give_back();"),
    ("an admitted generation keeps its place in the queue", "src/engine/engine_admission.cpp",
     "    live.was_admitted = true;\n    port_.queue.give_back();\n",
     "    live.was_admitted = true;\n"),
    ("a cancel waits for the next step", "src/engine/engine_loop.cpp",
     "  if (record != nullptr) finish(*record, FinishReason::kCancelled);\n",
     "  if (record != nullptr && record->live->is_running)\n"
     "    finish(*record, FinishReason::kCancelled);\n"),
    ("deadlines end only what waits", "src/engine/engine_admission.cpp",
     "  end(running_);\n", ""),
    ("a cut after the end leaves the context", "src/engine/engine_loop.cpp",
     "  cut_context(*record, record->ended.prompt_end + n);\n", ""),
    ("a cut is forgotten by a generation that ends at once", "src/engine/generation_state.cpp",
     "  ending_ = ending;\n  apply_cut();\n", "  ending_ = ending;\n"),
    ("a fork is as long as what is computed", "src/engine/engine_loop.cpp",
     "record.context.assign(source->context.begin(), source->context.begin() + command.upto);",
     "record.context.assign(source->context.begin(), source->context.begin() + shared);"),
    ("a fork forgets the sampling of its source", "src/engine/engine_loop.cpp",
     "  record.sampling = source->sampling;\n", ""),
    ("a cut shows when the engine has heard of it", "src/engine/generation_state.cpp",
     "if (cut(n) && session_->cut(number_, int64_t{prompt_end_} + n))",
     "if (cut(n) && session_->cut(number_, SessionShared::kNoEnd))"),
    ("the inputs of an aborted step are not run again", "src/engine/engine_step.cpp",
     "    run_alone();\n  }\n  return true;", "  }\n  return true;"),
    ("what the executor holds beyond the context is saved", "src/engine/engine_saving.cpp",
     "  drop_surplus(*record);\n  SavedSession saved;", "  SavedSession saved;"),
    ("a refused policy is saved", "src/engine/engine_admission.cpp",
     "    if (!status.ok()) {\n      finish(record, FinishReason::kError, std::move(status));",
     "    record.sampling = sampling;\n"
     "    if (!status.ok()) {\n      finish(record, FinishReason::kError, std::move(status));"),

    # ---- the prefix index ----
    ("blocks are told apart by six bits of a hash", "src/kv/prefix_index.cpp",
     "if (at(node).hash == hash && at(node).parent == parent &&\n"
     "        std::equal(tokens.begin(), tokens.end(), this->tokens(node).begin())) {",
     "if (!tokens.empty() && (at(node).hash & 63) == (hash & 63) && at(node).parent == parent) {"),
    ("an indexed block is taken without being counted", "src/kv/books_index.cpp",
     "      pools_[static_cast<size_t>(group)].retain(named);\n", ""),
    ("a session that attaches does not own what it takes", "src/kv/books_index.cpp",
     "      pools_[static_cast<size_t>(group)].retain(table.blocks.back());\n", ""),
    ("what was taken of a prompt is not context", "src/engine/engine_prefix.cpp",
     "  record.context.insert(record.context.end(), taken.begin(), taken.end());\n", ""),
    ("prefixes are taken where scores need their rows", "src/engine/engine_prefix.cpp",
     "  if (usable < history_.size()) history_.resize(usable);\n",
     "  if (usable < 1) history_.resize(usable);\n"),
    ("a follower is not fed when its leader is done", "src/engine/engine_prefix.cpp",
     "    attach(*record);\n    feed(*record);\n", "    attach(*record);\n"),
    ("a leader that stopped for a follower does not go on", "src/engine/engine_prefix.cpp",
     "        live.fed_end < live.tokens_end())\n      submit_prefill(*record);",
     "        live.fed_end > live.tokens_end())\n      submit_prefill(*record);"),
]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", **options)


def copy_sources():
    files = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    listed = [name for name in files.stdout.splitlines() if (ROOT / name).is_file()]
    for name in listed:
        target = COPY / name
        text = (ROOT / name).read_bytes()
        # Files that are as they were keep their time, and what was built from them.
        if not target.exists() or target.read_bytes() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)


def configure():
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    # As the release preset does, so that ccache has what is unchanged.
    done = run(["cmake", "-S", COPY, "-B", COPY / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                "-DCMAKE_CXX_FLAGS_RELEASE=-O3", "-DCHORUS_WERROR=ON", "-DCHORUS_TEXT=OFF", *launcher])
    if done.returncode != 0:
        sys.exit(done.stdout)


def build():
    """What the compiler says, when it refuses."""
    environment = {**os.environ, "CCACHE_BASEDIR": str(COPY), "CCACHE_NOHASHDIR": "1"}
    done = run(["cmake", "--build", COPY / "build", "--target", "chorus_sim"], env=environment)
    return done.stdout if done.returncode != 0 else None


def simulate():
    """Whether it passes, and the line that says why it does not."""
    try:
        done = run([COPY / "build/tests/simulation/chorus_sim", "1", EVENTS], timeout=SECONDS,
                   preexec_fn=lambda: resource.setrlimit(
                       resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS)))
    except subprocess.TimeoutExpired:
        return False, f"not done after {SECONDS} s"
    said = [line for line in done.stdout.splitlines() if "expected" in line or "check" in line]
    return done.returncode == 0, said[0][:120] if said else f"exit status {done.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="words of the mutations to try; default: all")
    names = parser.parse_args().names
    chosen = [m for m in MUTATIONS if not names or any(word in m[0] for word in names)]
    copy_sources()
    configure()
    if refused := build():
        sys.exit(refused)
    passes, reason = simulate()
    if not passes:
        sys.exit(f"the simulation fails without a mutation: {reason}")
    print("unchanged: passes", flush=True)
    survivors = []
    for name, file, old, new in chosen:
        start = time.monotonic()
        target = COPY / file
        text = target.read_text()
        if old not in text:
            sys.exit(f"{name}: {file} has no longer {old!r}")
        target.write_text(text.replace(old, new))
        try:
            refused = build()
            passes, reason = (True, refused) if refused else simulate()
        finally:
            target.write_text(text)
        seconds = time.monotonic() - start
        print(f"{'SURVIVES' if passes else 'found':8}  {name} ({seconds:.0f} s): {reason}", flush=True)
        if passes:
            survivors.append(name)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} found")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
