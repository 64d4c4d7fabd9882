#!/usr/bin/env python3
"""Compares the chorus binary with the golden files of this folder. Python's standard library only.

    check_goldens.py tokenize   --chorus BIN --model MODEL    ids of prompts and texts, equal
    check_goldens.py exact      --chorus BIN --model MODEL    --exact: logprobs, greedy tokens; slow
    check_goldens.py perplexity --chorus BIN --model MODEL    six windows, in three modes
    check_goldens.py all        --chorus BIN --model MODEL

--goldens FOLDER: of another model (gemma3_270m). MODEL is the GGUF that meta.json names or a .chorus made from it. Further flags: --limit N (the
first N prompts; exact and tokenize), --max-tokens N (exact), --modes default,exact,q8 (perplexity),
--threads N, --licenses FOLDER (where GPL-3 and Apache-2.0 are). Exit codes: 0 all within bounds, 1
something is not (each failure on a line of its own, with prompt and step), 2 the command line is wrong.

How the goldens were made: tools/oracle/make_goldens.py.
"""

import argparse
import hashlib
import json
import math
import pathlib
import subprocess
import sys
import tempfile

TOP = 20
LOGPROB_BOUND = 2e-3  # --exact, every logprob of the top 20
CLOSE_MARGIN = 0.002  # two best logits nearer than this: the greedy token may differ
# mode -> (mean absolute difference of the log probability, relative difference of perplexity)
PERPLEXITY_BOUNDS = {"default": (0.066, 0.01), "exact": (0.001, 0.0002), "q8": (0.078, 0.01)}
MODES = {"default": [], "exact": ["--exact"], "q8": ["--kv-type", "q8"]}
# The same of the default mode, by the model file that meta.json names.
DEFAULT_BOUNDS = {"gemma-3-270m-q4_k_m.gguf": (0.078, 0.01)}
TEXTS = ["tokens_gpl3.json", "tokens_apache2.json"]


class RunError(Exception):
    """The binary could not be run, failed, or wrote what is not the contract."""


def read_json_lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def run_chorus(args, words: list[str], stdin: bytes | None = None) -> list[dict]:
    """The JSON lines a run of the binary writes; RunError unless it exits 0."""
    command = [args.chorus, *words, "--json"]
    if args.threads:
        command += ["--threads", str(args.threads)]
    try:
        done = subprocess.run(command, input=stdin or b"", capture_output=True)
    except OSError as error:
        raise RunError(f"{args.chorus}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr + done.stdout).decode(errors="replace").strip()[-500:]
        raise RunError(f"{words[0]}: exit {done.returncode}: {said}")
    try:
        return [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    except ValueError as error:
        raise RunError(f"{words[0]}: stdout is not JSON Lines: {error}") from error


def of_type(objects: list[dict], kind: str) -> list[dict]:
    return [o for o in objects if o.get("type") == kind]


def write_ids(rows: list[list[int]]) -> tempfile._TemporaryFileWrapper:
    """A temporary file of JSON Lines, deleted when closed."""
    file = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
    for ids in rows:
        file.write(json.dumps(ids) + "\n")
    file.flush()
    return file


# --- tokenize ---------------------------------------------------------------------------------


def difference(expected: list[int], found: list[int]) -> str | None:
    """Where two id lists part, or None."""
    for n, (a, b) in enumerate(zip(expected, found)):
        if a != b:
            return f"token {n}: expected {a}, found {b}"
    if len(expected) != len(found):
        return f"expected {len(expected)} tokens, found {len(found)}"
    return None


def tokenize_cases(args) -> tuple[list[tuple], list[str]]:
    """(name, text, special, ids) of everything with a text, and failures met on the way."""
    cases, failures = [], []
    for prompt in read_json_lines(args.goldens / "prompts.jsonl")[:args.limit]:
        text = prompt.get("text", prompt.get("rendered"))
        if text is not None:
            cases.append((prompt["name"], text.encode(), prompt["special"], prompt["ids"]))
    for name in TEXTS:
        golden = read_json_lines(args.goldens / name)[0]
        path = args.licenses / golden["text"]
        text = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(text).hexdigest() != golden["sha256"]:
            failures.append(f"{golden['text']}: {path} is not the text the goldens were made from")
            continue
        cases.append((golden["text"], text, False, golden["ids"]))
    return cases, failures


def check_tokenize(args) -> list[str]:
    cases, failures = tokenize_cases(args)
    tokens = 0
    for name, text, special, ids in cases:
        words = ["tokenize", args.model] + (["--special"] if special else [])
        lines = of_type(run_chorus(args, words, text), "tokens")
        if len(lines) != 1:
            raise RunError(f"tokenize: {name}: expected one tokens line, found {len(lines)}")
        tokens += len(ids)
        found = difference(ids, lines[0]["tokens"])
        if found:
            failures.append(f"tokenize: {name}: {found}")
    print(f"tokenize: {len(cases)} texts, {tokens} tokens, {len(failures)} failures")
    return failures


# --- exact ------------------------------------------------------------------------------------


def meta_of(args) -> dict:
    return json.loads((args.goldens / "meta.json").read_text(encoding="utf-8"))


class Tally:
    """What was compared, for the table."""

    def __init__(self):
        self.prompts = self.steps = self.logprobs = self.absent = self.parted = 0
        self.worst, self.worst_at = 0.0, "-"

    def add(self, diff: float, where: str) -> None:
        self.logprobs += 1
        if diff > self.worst:
            self.worst, self.worst_at = diff, where


def compare_top(golden: list, found: list, where: str, tally: Tally) -> list[str]:
    """Failures of one step's list of likeliest tokens. Near the end of the list ids may swap."""
    ours = dict((i, v) for i, v in found)
    if len(ours) != TOP or len(found) != TOP:
        return [f"{where}: expected {TOP} different ids in top_logprobs, found {len(ours)}"]
    failures = []
    our_last, golden_last = min(ours.values()), golden[-1][1]
    for i, expected in golden:
        if i in ours:
            diff = abs(ours[i] - expected)
            tally.add(diff, where)
        else:
            diff = abs(our_last - expected)
            tally.absent += 1
        if not diff <= LOGPROB_BOUND:
            value = ours.get(i, f"absent, the last of the list has {our_last}")
            failures.append(f"{where}: id {i}: expected logprob {expected}, found {value}")
    known = {i for i, _ in golden}
    for i, value in ours.items():
        if i not in known and not value <= golden_last + LOGPROB_BOUND:
            failures.append(f"{where}: id {i}: logprob {value} belongs in the top {TOP}, "
                            f"whose last is {golden_last}")
    return failures


def compare_prompt(name: str, golden: list[dict], result: dict, steps: int,
                   tally: Tally) -> list[str]:
    """Failures of one prompt.

    Comparing ends where the tokens part. A step with a close margin whose token agrees does not end
    it: the contexts are still the same, so the next step's bounds hold as before.
    """
    if result.get("error") or result.get("finish_reason") != "length":
        return [f"exact: {name}: finish_reason {result.get('finish_reason')}, "
                f"error {result.get('error')}"]
    tokens = result["tokens"]
    for field in ("tokens", "logprobs", "top_logprobs"):
        if len(result[field]) != steps:
            return [f"exact: {name}: expected {steps} {field}, found {len(result[field])}"]
    failures = []
    tally.prompts += 1
    for n, step in enumerate(golden[:steps]):
        where = f"exact: {name}: step {n}"
        tally.steps += 1
        top = result["top_logprobs"][n]
        failures += compare_top(step["top"], top, where, tally)
        listed = dict((i, v) for i, v in top).get(tokens[n])
        if listed is None or not abs(listed - result["logprobs"][n]) <= 1e-6:
            failures.append(f"{where}: logprobs says {result['logprobs'][n]} for token "
                            f"{tokens[n]}, top_logprobs {listed}")
        if tokens[n] != step["id"]:
            if not step["margin"] < CLOSE_MARGIN:
                failures.append(f"{where}: expected token {step['id']}, found {tokens[n]} "
                                f"(margin {step['margin']})")
            tally.parted += 1
            break
    return failures


def check_exact(args) -> list[str]:
    prompts = read_json_lines(args.goldens / "prompts.jsonl")[:args.limit]
    goldens = {g["name"]: g["steps"] for g in read_json_lines(args.goldens / "greedy.jsonl")}
    bos = meta_of(args).get("bos", [])
    with write_ids([bos + p["ids"] for p in prompts]) as file:
        objects = run_chorus(args, ["run", args.model, "--tokens", file.name, "--exact",
                                    "--logprobs", str(TOP), "--max-tokens", str(args.max_tokens),
                                    "--ignore-eos"])
    results = {r["index"]: r for r in of_type(objects, "result")}
    failures, tally = [], Tally()
    for n, prompt in enumerate(prompts):
        if n not in results:
            failures.append(f"exact: {prompt['name']}: no result")
        elif results[n].get("prompt_tokens", prompt["ids"]) != bos + prompt["ids"]:
            failures.append(f"exact: {prompt['name']}: prompt_tokens are not the ids given")
        else:
            failures += compare_prompt(prompt["name"], goldens[prompt["name"]], results[n],
                                       args.max_tokens, tally)
    print(f"exact: {tally.prompts} of {len(prompts)} prompts, {tally.steps} steps, "
          f"{tally.logprobs} logprobs compared, {tally.absent} golden ids beyond our list's end\n"
          f"  worst logprob difference  {tally.worst:.6f}  bound {LOGPROB_BOUND}  "
          f"({tally.worst_at})\n"
          f"  prompts that part from the golden tokens: {tally.parted}\n"
          f"  {len(failures)} failures")
    return failures


# --- perplexity -------------------------------------------------------------------------------


def mean(values) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def compare_perplexity(mode: str, goldens: list[dict], windows: list[list[float]],
                       bounds: tuple[float, float] | None = None) -> list[str]:
    """Prints the table of one mode; failures of its two bounds, over all windows together."""
    mean_bound, relative_bound = bounds or PERPLEXITY_BOUNDS[mode]
    names = [f"{g['text']} {g['index']}" for g in goldens]
    failures, differences = [], []
    print(f"perplexity ({mode}):     golden     chorus   relative   mean |diff|  worst |diff|")

    def line(name: str, golden: list[float], ours: list[float]) -> tuple[float, float]:
        diffs = [abs(a - b) for a, b in zip(golden, ours)]
        expected, found = math.exp(-mean(golden)), math.exp(-mean(ours))
        relative = found / expected - 1
        print(f"  {name:<14} {expected:>12.4f} {found:>10.4f} {100 * relative:>9.4f}% "
              f"{mean(diffs):>12.6f} {max(diffs):>13.6f}")
        return relative, mean(diffs)

    for name, golden, ours in zip(names, goldens, windows):
        line(name, golden["logprobs"], ours)
        for n, (a, b) in enumerate(zip(golden["logprobs"], ours)):
            differences.append((abs(a - b), f"{name} token {n + len(ours)}"))
    relative, difference = line("together", [v for g in goldens for v in g["logprobs"]],
                                [v for w in windows for v in w])
    worst_at = max(differences)[1]
    if not abs(relative) <= relative_bound:
        failures.append(f"perplexity ({mode}): relative difference {relative:.6f}, "
                        f"bound {relative_bound}")
    if not difference <= mean_bound:
        failures.append(f"perplexity ({mode}): mean absolute difference of a log probability "
                        f"{difference:.6f}, bound {mean_bound} (worst: {worst_at})")
    return failures


def run_perplexity(args, mode: str, goldens: list[dict]) -> list[list[float]]:
    """The log probabilities of each window; the summary line must agree with them."""
    with write_ids([g["ids"] for g in goldens]) as file:
        words = ["perplexity", args.model, file.name, "--tokens", "--per-token"]
        objects = run_chorus(args, words + MODES[mode])
    windows = {w["index"]: w["logprobs"] for w in of_type(objects, "window")}
    if sorted(windows) != list(range(len(goldens))):
        raise RunError(f"perplexity: expected windows 0 to {len(goldens) - 1}, "
                       f"found {sorted(windows)}")
    for n, golden in enumerate(goldens):
        if len(windows[n]) != len(golden["logprobs"]):
            raise RunError(f"perplexity: window {n}: expected {len(golden['logprobs'])} logprobs, "
                           f"found {len(windows[n])}")
        if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in windows[n]):
            raise RunError(f"perplexity: window {n}: a logprob is not a finite number")
    summary = of_type(objects, "perplexity")
    nll = -mean(v for w in windows.values() for v in w)
    if len(summary) != 1 or not abs(summary[0]["nll"] - nll) <= 1e-5 * nll \
            or not abs(summary[0]["ppl"] - math.exp(nll)) <= 1e-4 * math.exp(nll):
        raise RunError(f"perplexity: the summary {summary} is not the mean of the windows, {nll}")
    return [windows[n] for n in range(len(goldens))]


def check_perplexity(args) -> list[str]:
    goldens = read_json_lines(args.goldens / "perplexity.jsonl")
    failures = []
    for mode in args.modes.split(","):
        bounds = DEFAULT_BOUNDS.get(meta_of(args)["model"]) if mode == "default" else None
        failures += compare_perplexity(mode, goldens, run_perplexity(args, mode, goldens), bounds)
    return failures


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tokenize", "exact", "perplexity", "all"])
    parser.add_argument("--chorus", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--goldens", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent)
    parser.add_argument("--licenses", type=pathlib.Path,
                        default=pathlib.Path("/usr/share/common-licenses"))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--modes", default="default,exact,q8")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args(words)
    for name in ("limit", "max_tokens", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')}: expected at least 1, found {value}")
    for mode in args.modes.split(","):
        if mode not in PERPLEXITY_BOUNDS:
            parser.error(f"--modes: expected default, exact or q8, found {mode}")
    return args


def main(words: list[str]) -> int:
    args = parse_arguments(words)
    checks = {"tokenize": check_tokenize, "exact": check_exact, "perplexity": check_perplexity}
    failures = []
    for name, check in checks.items():
        if args.what in (name, "all"):
            try:
                failures += check(args)
            except RunError as error:
                failures.append(str(error))
    for failure in failures:
        print("FAIL " + failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
