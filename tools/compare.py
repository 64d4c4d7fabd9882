#!/usr/bin/env python3
"""Compares chorus with llama.cpp on this machine: both on the same files, interleaved, in one run.

    compare.py --chorus build/chorus PEER MODEL.gguf... [--rows LIST] [--rounds N] [--json FILE]

PEER is a folder with llama-bench and llama-batched-bench (or one with bin/ that has them). A row is
measured once by each side, round after round, and its numbers are medians over the rounds:

    decode-B      B sessions generate 64 tokens each behind 128 of their own (tokens/s)
    decode-BxN    the same behind N tokens of their own; from 2048 on, 32 tokens each
    prefill-N     a prompt of N tokens (tokens/s)
    shared-BxN    B sessions on one prompt of N tokens, 64 generated each (seconds for all of it)

Nothing is concluded from a row whose values spread too far, or beside which others kept the
processors busy: it is marked, the reason is told, and the exit code is 1. Standard library only.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROWS = ["decode-1", "decode-8", "decode-32", "prefill-512", "decode-16x2048", "shared-32x1024"]
QUICK_ROWS = ["decode-1", "decode-8", "prefill-512"]
SWEEP_ROWS = [f"decode-{batch}" for batch in (1, 2, 4, 8, 16, 32)]
GENERATED = 64
LONG_PROMPT, GENERATED_BEHIND_LONG = 2048, 32
TIMEOUT_S = 3600


class Failure(Exception):
    """What ends the comparison; the text is for the user."""


@dataclasses.dataclass(frozen=True)
class Row:
    test: str
    batch: int
    prompt: int

    @property
    def generate(self) -> int:
        if self.test == "decode" and self.prompt >= LONG_PROMPT:
            return GENERATED_BEHIND_LONG
        return GENERATED

    @property
    def name(self) -> str:
        if self.test == "prefill":
            return f"prefill-{self.prompt}"
        if self.test == "decode" and self.prompt == 128:
            return f"decode-{self.batch}"
        return f"{self.test}-{self.batch}x{self.prompt}"

    @property
    def is_time(self) -> bool:
        """Whether less is better."""
        return self.test == "shared"


def parse_row(text: str) -> Row:
    match = re.fullmatch(r"(decode|prefill|shared)-([1-9]\d*)(?:x([1-9]\d*))?", text)
    if match is not None:
        test, first, second = match.group(1), int(match.group(2)), match.group(3)
        if test == "prefill" and second is None:
            return Row(test, 1, first)
        if test == "decode":
            return Row(test, first, int(second or 128))
        if test == "shared" and second is not None:
            return Row(test, first, int(second))
    raise Failure(
        f"--rows: expected decode-B, decode-BxN, prefill-N or shared-BxN, found {text!r}"
    )


def chorus_command(chorus: str, model: str, row: Row, threads: int) -> list:
    words = [chorus, "bench", model, "--json", "--reps", "1", "--threads", threads]
    words += ["--tests", row.test, "--batch", row.batch]
    if row.test == "shared":
        words += ["--shared-prefix", row.prompt, "--generate", row.generate]
    else:
        words += ["--prompt", row.prompt, "--generate", row.generate]
    return [str(word) for word in words]


def peer_command(peer: pathlib.Path, model: str, row: Row, threads: int) -> list:
    if row.test == "prefill":
        words = [peer / "llama-bench", "-m", model, "-t", threads, "-p", row.prompt, "-n", 0]
        return [str(word) for word in words + ["-r", 1, "-o", "json"]]
    # Each sequence has an equal part of the context, in steps of 256 cells.
    cells = row.batch * ((row.prompt + row.generate + 255) // 256 * 256)
    words = [peer / "llama-batched-bench", "-m", model, "-t", threads, "-c", cells]
    words += ["-b", 2048, "-ub", 512, "-npp", row.prompt, "-ntg", row.generate, "-npl", row.batch]
    words += ["-pps"] if row.test == "shared" else []
    return [str(word) for word in words + ["--output-format", "jsonl"]]


def json_lines(text: str) -> list:
    """The JSON objects that stand in lines of their own."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise Failure(f"a line that is no JSON: {line[:200]!r} ({error})") from error
    return found


def read_chorus(text: str, row: Row) -> dict:
    """The record of the row's test."""
    records = [o for o in json_lines(text) if o.get("type") == "bench"]
    if len(records) != 1:
        raise Failure(f"chorus bench: expected one record of {row.name}, found {len(records)}")
    return records[0]


def read_peer(text: str, row: Row) -> float:
    try:
        if row.test == "prefill":
            (record,) = json.loads(text)
            if (record["n_prompt"], record["n_gen"]) != (row.prompt, 0):
                raise Failure(f"llama-bench: measured another test than {row.name}")
            return statistics.median(record["samples_ts"])
        (record,) = json_lines(text)
        if (record["pp"], record["tg"], record["pl"]) != (row.prompt, row.generate, row.batch):
            raise Failure(f"llama-batched-bench: measured another test than {row.name}")
        return float(record["t" if row.is_time else "speed_tg"])
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"the peer's output for {row.name} is not understood: {error!r}") from error


# ---- Running ------------------------------------------------------------------------------------


def processor_times() -> tuple:
    """(busy, all) seconds of all processors so far; steal is busy, waiting for I/O is not."""
    line = pathlib.Path("/proc/stat").read_text().split("\n")[0]
    ticks = [int(word) for word in line.split()[1:9]]
    hertz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / hertz, sum(ticks) / hertz


@dataclasses.dataclass
class Run:
    out: str
    foreign: float  # share of all processors' time that neither was idle nor this run's
    peak_bytes: int


def run(command: list, timeout_s: float = TIMEOUT_S) -> Run:
    """One process, alone; Failure when it fails or takes too long."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        busy, total = processor_times()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid != 0:
                    break
                if time.monotonic() > deadline:
                    raise Failure(f"{command[0]}: not done within {timeout_s:.0f} s")
                time.sleep(0.02)
        except BaseException:
            process.kill()
            os.wait4(process.pid, 0)
            process.returncode = -9
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        busy, total = (after - before for after, before in zip(processor_times(), (busy, total)))
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            tail = err.read().decode("utf-8", "replace")[-2000:]
            raise Failure(f"{' '.join(command)}: exit {process.returncode}\n{tail}")
        own = usage.ru_utime + usage.ru_stime
        foreign = max(0.0, min(1.0, (busy - own) / total)) if total > 0 else 0.0
        return Run(out.read().decode("utf-8", "replace"), foreign, usage.ru_maxrss * 1024)


# ---- Judging ------------------------------------------------------------------------------------


def spread(samples: list) -> float:
    """The whole range, as a share of the median."""
    return (max(samples) - min(samples)) / statistics.median(samples)


def objections(sides: dict, max_spread: float, max_foreign: float) -> list:
    """Why nothing follows from these samples; empty: something does."""
    reasons = []
    for side, measured in sides.items():
        found = spread(measured["samples"])
        if len(measured["samples"]) < 2:
            reasons.append(f"{side}: a single round has no spread")
        if found > max_spread:
            reasons.append(f"{side}: values spread by {found:.0%}, allowed are {max_spread:.0%}")
        busiest = max(measured["foreign"])
        if busiest > max_foreign:
            reasons.append(
                f"{side}: others used {busiest:.0%} of the processors, "
                f"allowed are {max_foreign:.0%}"
            )
    return reasons


def ratios_by_round(is_time: bool, chorus: list, peer: list) -> list:
    """Of each round alone, whose two runs lay side by side; above 1: chorus is faster."""
    return [theirs / ours if is_time else ours / theirs for ours, theirs in zip(chorus, peer)]


def result_of(model: str, row: Row, sides: dict, max_spread: float, max_foreign: float) -> dict:
    median = {side: statistics.median(sides[side]["samples"]) for side in sides}
    reasons = objections(sides, max_spread, max_foreign)
    return {
        "type": "row",
        "model": pathlib.Path(model).name,
        "row": row.name,
        "test": row.test,
        "batch": row.batch,
        "prompt": row.prompt,
        "generate": row.generate,
        "unit": "s" if row.is_time else "tokens/s",
        **{
            side: {
                "median": median[side],
                "min": min(measured["samples"]),
                "max": max(measured["samples"]),
                **measured,
            }
            for side, measured in sides.items()
        },
        "ratio": ratios_by_round(row.is_time, [median["chorus"]], [median["peer"]])[0],
        "conclusive": not reasons,
        "objections": reasons,
    }


# ---- Telling ------------------------------------------------------------------------------------


def table(results: list) -> str:
    """Lines for people: a row of the comparison each."""
    lines = [
        f"{'model':<34} {'row':<15} {'unit':<9} {'chorus':>20} {'peer':>20} {'ratio':>6} "
        f"{'of each round':>13}  others"
    ]
    for result in results:
        cells = [
            f"{side['median']:.4g} ±{50 * spread(side['samples']):.0f} %"
            for side in (result["chorus"], result["peer"])
        ]
        rounds = ratios_by_round(
            result["unit"] == "s", result["chorus"]["samples"], result["peer"]["samples"]
        )
        of_rounds = f"{min(rounds):.2f}-{max(rounds):.2f}"
        foreign = max(result["chorus"]["foreign"] + result["peer"]["foreign"])
        mark = "" if result["conclusive"] else "  not conclusive"
        lines.append(
            f"{result['model'][:34]:<34} {result['row']:<15} {result['unit']:<9} {cells[0]:>20} "
            f"{cells[1]:>20} {result['ratio']:>6.2f} {of_rounds:>13}  {foreign:.0%}{mark}"
        )
    return "\n".join(lines) + "\n"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine_of(chorus: str, threads: int | None) -> dict:
    words = [chorus, "bench", "--machine", "--json"]
    done = run(words + (["--threads", str(threads)] if threads else []))
    records = [o for o in json_lines(done.out) if o.get("type") == "machine"]
    if len(records) != 1:
        raise Failure("chorus bench --machine: expected one record")
    return records[0]


def machine_text(machine: dict) -> str:
    rates = machine["rates"][-1]
    giga = lambda name: f"{rates[name]['max'] * 1e-9:.1f}"
    trip = machine["round_trip_ns"]
    return (
        f"{rates['threads']} threads read {giga('read_bytes_per_s')} GB/s, "
        f"{giga('int8_macs_per_s')} int8 and {giga('float_macs_per_s')} float GMAC/s"
        + (f", core to core and back {trip['median']:.0f} ns" if trip else "")
    )


def find_peer(text: str) -> pathlib.Path:
    for folder in (pathlib.Path(text), pathlib.Path(text) / "bin"):
        if all((folder / name).is_file() for name in ("llama-bench", "llama-batched-bench")):
            return folder
    raise Failure(f"PEER: expected a folder with llama-bench and llama-batched-bench, found {text}")


def compare_model(model: str, rows: list, peer: pathlib.Path, threads: int, args) -> tuple:
    """(results of the rows, what chorus says of itself, the peer's commit or None)."""
    empty = lambda: {"samples": [], "foreign": [], "peak_bytes": []}
    sides = {row: {"chorus": empty(), "peer": empty()} for row in rows}
    name = pathlib.Path(model).name
    conditions, peer_commit = None, None
    for number in range(args.rounds):
        for row in rows:
            for side in ("chorus", "peer"):
                say(f"{name}: round {number + 1} of {args.rounds}, {row.name}, {side}")
                if side == "chorus":
                    done = run(chorus_command(args.chorus, model, row, threads))
                    record = read_chorus(done.out, row)
                    value = record["wall_s" if row.is_time else "tokens_per_s"]["median"]
                    for fact in ("kv_bytes", "resident_bytes", "overhead_share"):
                        sides[row][side].setdefault(fact, []).append(record[fact])
                    (conditions,) = [o for o in json_lines(done.out) if o["type"] == "conditions"]
                else:
                    done = run(peer_command(peer, model, row, threads))
                    value = read_peer(done.out, row)
                    if row.test == "prefill":
                        commit = json.loads(done.out)[0].get("build_commit")
                        peer_commit = commit if commit != "unknown" else None
                measured = sides[row][side]
                measured["samples"].append(value)
                measured["foreign"].append(done.foreign)
                measured["peak_bytes"].append(done.peak_bytes)
    results = [result_of(model, row, sides[row], args.max_spread, args.max_foreign) for row in rows]
    return results, conditions, peer_commit


def compare(args, rows: list) -> int:
    peer = find_peer(args.peer)
    for model in args.models:
        if not pathlib.Path(model).is_file():
            raise Failure(f"MODEL: no such file as {model}")
    before = machine_of(args.chorus, args.threads)
    threads = before["rates"][-1]["threads"]
    say(f"{before['cpu']}: {machine_text(before)}")
    report = {"machine_before": before, "rows": [], "models": []}
    peer_commit = args.peer_commit
    for model in args.models:
        results, conditions, commit = compare_model(model, rows, peer, threads, args)
        report["rows"] += results
        report["models"].append({"file": pathlib.Path(model).name, **conditions["model"]})
        report["version"], report["isa"] = conditions["version"], conditions["isa"]
        peer_commit = peer_commit or commit
    report["machine_after"] = machine_of(args.chorus, args.threads)
    report |= {
        "type": "comparison",
        "cpu": before["cpu"],
        "threads": threads,
        "rounds": args.rounds,
        "peer_commit": peer_commit,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "max_spread": args.max_spread,
        "max_foreign": args.max_foreign,
    }
    for model in report["models"]:
        model.pop("path", None)
    print(table(report["rows"]), end="")
    theirs = peer_commit or "of an unknown commit (--peer-commit)"
    print(
        f"\n{report['cpu']}, {report['isa']}, {args.rounds} rounds; chorus "
        f"{report['version']['commit']}, llama.cpp {theirs}\n"
        f"before: {machine_text(before)}\nafter:  {machine_text(report['machine_after'])}"
    )
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
    bad = [result for result in report["rows"] if not result["conclusive"]]
    for result in bad:
        for reason in result["objections"]:
            print(f"no conclusion from {result['model']} {result['row']}: {reason}")
    return 1 if bad else 0


def share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and at most 1, found {text}")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a count from 1 on, found {text}")
    return value


def parse(words: list) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", metavar="PEER")
    parser.add_argument("models", metavar="MODEL", nargs="+")
    parser.add_argument("--chorus", default="build/chorus", metavar="FILE")
    parser.add_argument("--rows", metavar="LIST", help=f"default: {','.join(ROWS)}")
    parser.add_argument("--quick", action="store_true",
                        help=f"two rounds of {','.join(QUICK_ROWS)}")
    parser.add_argument("--sweep", action="store_true",
                        help=f"also {','.join(SWEEP_ROWS)}, for a picture")
    parser.add_argument("--rounds", type=count, metavar="N", help="default: 3")
    parser.add_argument("--threads", type=count, metavar="N",
                        help="of both sides (default: those of chorus)")
    parser.add_argument("--max-spread", type=share, default=0.15, metavar="X",
                        help="range of a side's values, as a share of their median (0.15)")
    parser.add_argument("--max-foreign", type=share, default=0.06, metavar="X",
                        help="share of the processors that others may use (0.06)")
    parser.add_argument("--peer-commit", metavar="TEXT",
                        help="where llama-bench was built without knowing its own")
    parser.add_argument("--json", metavar="FILE", help="everything measured, as one document")
    args = parser.parse_args(words)
    args.rounds = args.rounds or (2 if args.quick else 3)
    return args


def main(words: list) -> int:
    args = parse(words)
    # Whoever ends this ends the process that is being measured, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        names = args.rows.split(",") if args.rows else QUICK_ROWS if args.quick else ROWS
        names += [name for name in SWEEP_ROWS if args.sweep and name not in names]
        rows = list(dict.fromkeys(parse_row(name) for name in names))
        return compare(args, rows)
    except Failure as failure:
        print(f"compare: {failure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
