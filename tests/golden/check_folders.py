#!/usr/bin/env python3
"""Compares the chorus binary with what transformers makes of tiny checkpoints in folders/.

    check_folders.py --chorus BIN [--only NAME]

Each checkpoint's sequences run with --exact in one pass, in chunks, beside each other and one by
one, in blocks of one cell. Every logprob has to be within BOUND of transformers' in float32, and all
these ways have to agree bit for bit. A line of reference.jsonl in which a feature was switched off
has to be farther away than NOTICED: it shows that the model could not lack that feature unseen.
Files NAME.gguf are what llama.cpp's converter makes of a folder, and have to give the same.
How the files were made: tools/oracle/make_tiny_folders.py, convert_tiny_folders.py. Python's standard
library only.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent / "folders"
BOUND = 3e-3
NOTICED = 10 * BOUND
WAYS = [
    [],
    ["--prefill-chunk", "5"],
    ["--no-batch", "--block-size", "1", "--threads", "1"],
    ["--no-batch", "--prefill-chunk", "17", "--block-size", "64", "--no-prefix-cache"],
    ["--kv-layout", "sequence", "--prefill-chunk", "16"],
]


def run(chorus, model, rows, words):
    """The logprobs of all ids but the first, row by row."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for ids in rows:
            file.write(json.dumps(ids) + "\n")
        file.flush()
        done = subprocess.run(
            [chorus, "run", str(model), "--tokens", file.name, "--echo", "--logprobs", "0",
             "--max-tokens", "1", "--exact", "--json", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{model.name} {' '.join(words)}: exit {done.returncode}: {done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    results = sorted((o for o in lines if o["type"] == "result"), key=lambda o: o["index"])
    return [o["prompt_logprobs"][1:] for o in results]


def difference(expected, found):
    if len(expected) != len(found):
        return float("inf")
    return max(abs(a - b) for a, b in zip(expected, found))


def check(chorus, model, lines):
    """Yields what is wrong."""
    rows = [line["ids"] for line in lines]
    first = run(chorus, model, rows, WAYS[0])
    for way in WAYS[1:]:
        if run(chorus, model, rows, way) != first:
            yield f"{model.name}: {' '.join(way)} gives other bits"
    worst = 0.0
    for line, found in zip(lines, first):
        distance = difference(line["logprobs"], found)
        if line["without"] is None:
            worst = max(worst, distance)
            if not distance <= BOUND:
                yield f"{model.name}: {len(found)} logprobs differ by up to {distance:.2e}"
        elif not distance >= NOTICED:
            yield f"{model.name}: without {line['without']} it would differ by {distance:.2e} only"
    print(f"{model.name}: {len(lines)} sequences, at most {worst:.1e} from transformers")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chorus", required=True)
    parser.add_argument("--only")
    args = parser.parse_args()
    lines = [json.loads(text) for text in (HERE / "reference.jsonl").read_text().splitlines()]
    wrong = []
    for name in sorted({line["folder"] for line in lines}):
        if args.only not in (None, name):
            continue
        for model in (HERE / name, HERE / f"{name}.gguf"):
            if model.exists():
                wrong += check(args.chorus, model, [o for o in lines if o["folder"] == name])
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
