#!/usr/bin/env python3
"""Counts the instructions of fixed work (bench/counted_work) and compares them with those in git.

    instruction_counts.py BINARY [--baseline FILE] [--update] [NAME...]

Instructions do not depend on what else the machine does, unlike time; they are no measure of speed,
but what suddenly needs more of them has become slower. Counted by valgrind's callgrind, which knows
no AVX-512. With --update the baseline becomes what was counted. Exit codes: 0 nothing needs more
than TOLERANCE above its baseline, 1 something does or a name has no baseline, 2 the command line or
the tools are wrong.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

BASELINE = pathlib.Path(__file__).resolve().parent.parent / "bench" / "instruction_counts.json"
TOLERANCE = 0.03 + 1e-9  # libraries choose their code by processor


def names_of(binary: str) -> list:
    done = subprocess.run([binary], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def count(binary: str, name: str) -> int:
    words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
             "--toggle-collect=counted_function", binary, name]
    done = subprocess.run(words, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None or int(found.group(1)) == 0:
        raise RuntimeError(f"{name}: exit {done.returncode}: {done.stderr[-500:]}")
    return int(found.group(1))


def verdicts(baseline: dict, counts: dict) -> tuple:
    """(lines to print, whether all is well). A name that was not counted is not judged."""
    lines, good = [], True
    for name, found in counts.items():
        expected = baseline.get(name)
        if expected is None:
            lines.append(f"{found:12d}            {name}: no baseline, see --update")
            good = False
            continue
        change = found / expected - 1
        verdict = ""
        if change > TOLERANCE:
            verdict, good = "  MORE THAN BEFORE", False
        elif change < -TOLERANCE:
            verdict = "  fewer: --update keeps it so"
        lines.append(f"{found:12d} {change:+9.2%}  {name}{verdict}")
    return lines, good


def parse_arguments(words: list) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="a built bench/counted_work")
    parser.add_argument("names", nargs="*", help="some of its work (default: all)")
    parser.add_argument("--baseline", type=pathlib.Path, default=BASELINE)
    parser.add_argument("--update", action="store_true", help="write the baseline")
    return parser.parse_intermixed_args(words)


def main(words: list) -> int:
    args = parse_arguments(words)
    try:
        known = names_of(args.binary)
        unknown = [name for name in args.names if name not in known]
        if unknown:
            print(f"instruction_counts: unknown: {', '.join(unknown)}", file=sys.stderr)
            return 2
        names = args.names or known
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            counted = pool.map(lambda name: count(args.binary, name), names)
            counts = dict(zip(names, counted))
        baseline = json.loads(args.baseline.read_text()) if args.baseline.exists() else {}
    except (OSError, RuntimeError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        print(f"instruction_counts: {error}", file=sys.stderr)
        return 2
    lines, good = verdicts(baseline, counts)
    print("\n".join(lines))
    if args.update:
        kept = {name: n for name, n in baseline.items() if name in known}
        args.baseline.write_text(json.dumps({**kept, **counts}, indent=1) + "\n")
        return 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
