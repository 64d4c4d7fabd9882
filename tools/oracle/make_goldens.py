#!/usr/bin/env python3
"""Makes the golden files of tests/golden with transformers in float32 and llama.cpp's tokenizer.

How to run it (by hand; never part of setup, tests or CI):

    python3 -m venv VENV && VENV/bin/pip install -r tools/oracle/requirements.txt     (5.6 GB)
    VENV/bin/python tools/oracle/make_goldens.py --model SmolLM2-135M-Instruct.Q4_1.gguf \
        --llama-tokenize LLAMA_CPP/build/bin/llama-tokenize --llama-commit COMMIT --out tests/golden

llama-tokenize comes from llama.cpp at the commit that meta.json names:
`cmake -B build -DCMAKE_BUILD_TYPE=Release && cmake --build build --target llama-tokenize`.
Further flags: --licenses (folder of GPL-3 and Apache-2.0, as in every Debian), --threads,
--only prompts,texts,greedy,perplexity (the parts to make;
greedy and perplexity read the ids that the first two wrote).

Ids never come from transformers' AutoTokenizer(gguf_file=...): it ignores tokenizer.ggml.pre.
Weights: dequantised by transformers' GGUF loader, float32, eager attention.
Log probabilities: natural logarithm, log-softmax in float64 of the float32 logits, rounded to 7
significant digits.

Files written: prompts.jsonl, tokens_gpl3.json, tokens_apache2.json, greedy.jsonl, perplexity.jsonl,
meta.json.
"""

import argparse
import hashlib
import importlib.metadata
import json
import math
import pathlib
import platform
import subprocess
import sys

import gguf

import golden_prompts
from gguf_text import Pieces, field, render

TOP = 20
STEPS = 32
STEPS_LONG = 24
BASE_PROMPTS = 6  # of a model without a chat template
WINDOW = 1024
TEXTS = {"gpl3": "GPL-3", "apache2": "Apache-2.0"}
WINDOWS = {"gpl3": 4, "apache2": 2}


def round7(x: float) -> float:
    return float(f"{x:.7g}")


def write_json_lines(path: pathlib.Path, rows: list[dict]) -> None:
    with path.open("w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")


def read_json_lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


class Tokenizer:
    """llama-tokenize as a function of bytes."""

    def __init__(self, binary: str, model: str):
        self.command = [binary, "-m", model, "--ids", "--stdin", "--no-escape", "--no-bos"]

    def __call__(self, text: bytes, special: bool) -> list[int]:
        command = self.command + ([] if special else ["--no-parse-special"])
        done = subprocess.run(command, input=text, stdout=subprocess.PIPE, check=True,
                              stderr=subprocess.DEVNULL)
        return json.loads(done.stdout)


def make_prompts(args, reader, tokenize) -> None:
    pieces = Pieces(reader)
    rows = []

    def add(row: dict, text: str, special: bool) -> None:
        ids = tokenize(text.encode(), special)
        if byte_level and pieces.decode(ids) != text.encode():
            sys.exit(f"{row['name']}: the ids do not give the text back")
        rows.append(row | {"special": special, "ids": ids})

    byte_level = field(reader, "tokenizer.ggml.model") == "gpt2"
    plain = list(golden_prompts.PLAIN.items())
    for name, text in plain if byte_level else plain[:BASE_PROMPTS]:
        add({"name": name, "text": text}, text, False)
    if not byte_level:  # a base model, with neither a template nor special tokens in its texts
        write_json_lines(args.out / "prompts.jsonl", rows)
        return
    for name, text in golden_prompts.SPECIAL.items():
        add({"name": name, "text": text}, text, True)
    for name, messages in golden_prompts.CHATS.items():
        rendered = render(reader, messages)
        add({"name": name, "messages": messages, "rendered": rendered}, rendered, True)
    for name, (source, first) in golden_prompts.LONG.items():
        ids = tokenize((args.licenses / source).read_bytes(), False)
        ids = ids[first:first + golden_prompts.LONG_TOKENS]
        assert len(ids) == golden_prompts.LONG_TOKENS, name
        row = {"name": name, "source": source, "special": False, "ids": ids}
        text = pieces.decode(ids)
        # The cut may fall where the tokenizer would not cut; then the ids stand alone.
        if tokenize(text, False) == ids:
            row["text"] = text.decode()
        rows.append(row)
    assert len(next(r for r in rows if r["name"] == "single_token")["ids"]) == 1
    write_json_lines(args.out / "prompts.jsonl", rows)
    print(f"prompts: {len(rows)}, {sum(len(r['ids']) for r in rows)} tokens")


def make_texts(args, tokenize) -> None:
    for short, source in TEXTS.items():
        text = (args.licenses / source).read_bytes()
        row = {"text": source, "bytes": len(text), "sha256": hashlib.sha256(text).hexdigest(),
               "ids": tokenize(text, False)}
        write_json_lines(args.out / f"tokens_{short}.json", [row])
        print(f"{source}: {len(row['ids'])} tokens")


def load_model(args):
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(args.model.parent), gguf_file=args.model.name, dtype=torch.float32,
        attn_implementation="eager")
    return model.eval()


def greedy_steps(model, ids: list[int], steps: int) -> list[dict]:
    """Greedy continuation past any end token; the context stays in transformers' own KV cache."""
    import torch

    rows = []
    feed, cache = torch.tensor([ids]), None
    for _ in range(steps):
        out = model(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        logits = out.logits[0, -1].to(torch.float64)
        assert out.logits.dtype == torch.float32
        top = torch.topk(torch.log_softmax(logits, 0), TOP)
        chosen = int(torch.argmax(logits))
        best = torch.topk(logits, 2).values
        rows.append({"id": chosen, "margin": round7(float(best[0] - best[1])),
                     "top": [[int(i), round7(float(v))] for v, i in zip(*top)]})
        feed = torch.tensor([[chosen]])
    return rows


def make_greedy(args, model) -> None:
    import torch

    rows = []
    with torch.inference_mode():
        for prompt in read_json_lines(args.out / "prompts.jsonl"):
            long = len(prompt["ids"]) >= golden_prompts.LONG_TOKENS
            ids = args.bos + prompt["ids"]
            steps = greedy_steps(model, ids, STEPS_LONG if long else STEPS)
            rows.append({"name": prompt["name"], "steps": steps})
            closest = min(s["margin"] for s in steps)
            print(f"greedy: {prompt['name']}: closest margin {closest:.5f}", flush=True)
    write_json_lines(args.out / "greedy.jsonl", rows)


def make_perplexity(args, model) -> None:
    """Log probability of the tokens with index WINDOW/2 .. WINDOW-1 of each window.

    Where the model begins every text with BOS, so does each window.
    """
    import torch

    rows = []
    half = WINDOW // 2
    with torch.inference_mode():
        for short, count in WINDOWS.items():
            tokens = read_json_lines(args.out / f"tokens_{short}.json")[0]["ids"]
            size = WINDOW - len(args.bos)
            for index in range(count):
                ids = args.bos + tokens[index * size:(index + 1) * size]
                assert len(ids) == WINDOW
                logits = model(input_ids=torch.tensor([ids]), use_cache=False,
                               logits_to_keep=half + 1).logits[0, :-1]
                scored = torch.tensor(ids[half:])[:, None]
                logprobs = torch.log_softmax(logits.to(torch.float64), 1).gather(1, scored)[:, 0]
                nll = -float(logprobs.mean())
                rows.append({"text": TEXTS[short], "index": index, "ids": ids, "nll": round7(nll),
                             "logprobs": [round7(float(v)) for v in logprobs]})
                print(f"perplexity: {TEXTS[short]} {index}: {math.exp(nll):.4f}", flush=True)
    write_json_lines(args.out / "perplexity.jsonl", rows)


def make_meta(args) -> None:
    names = ["torch", "transformers", "gguf", "numpy", "jinja2", "safetensors", "tokenizers"]
    meta = {
        "model": args.model.name,
        "model_sha256": hashlib.sha256(args.model.read_bytes()).hexdigest(),
        "llama_cpp_commit": args.llama_commit,
        "python": platform.python_version(),
        "packages": {n: importlib.metadata.version(n) for n in names},
        "dtype": "float32", "attention": "eager", "seed": None,
        "seed_note": "greedy only: nothing is drawn",
        "bos": args.bos, "top": TOP, "steps": STEPS, "steps_long": STEPS_LONG, "window": WINDOW,
    }
    (args.out / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--llama-tokenize", required=True)
    parser.add_argument("--llama-commit", required=True, help="of llama.cpp, for meta.json")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--licenses", type=pathlib.Path,
                        default=pathlib.Path("/usr/share/common-licenses"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="prompts,texts,greedy,perplexity")
    args = parser.parse_args()

    parts = set(args.only.split(","))
    unknown = parts - {"prompts", "texts", "greedy", "perplexity"}
    if unknown:
        parser.error(f"--only: unknown part {sorted(unknown)[0]}")
    args.out.mkdir(parents=True, exist_ok=True)
    tokenize = Tokenizer(args.llama_tokenize, str(args.model))
    reader = gguf.GGUFReader(args.model)
    adds_bos = field(reader, "tokenizer.ggml.add_bos_token", False)
    args.bos = [field(reader, "tokenizer.ggml.bos_token_id")] if adds_bos else []
    if "prompts" in parts:
        make_prompts(args, reader, tokenize)
    if "texts" in parts:
        make_texts(args, tokenize)
    model = load_model(args) if parts & {"greedy", "perplexity"} else None
    if "greedy" in parts:
        make_greedy(args, model)
    if "perplexity" in parts:
        make_perplexity(args, model)
    make_meta(args)


if __name__ == "__main__":
    main()
