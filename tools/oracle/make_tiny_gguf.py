#!/usr/bin/env python3
"""Writes tiny random llama GGUF files with a byte-level BPE tokenizer, and their reference logits.

    make_tiny_gguf.py goldens --out tests/golden/tiny        the committed files and reference.jsonl
    make_tiny_gguf.py one --out FILE.gguf --layers 2 --d 64 --ff 96 --heads 4 --kv-heads 2
        [--head 16] --vocab 293 [--untied] [--seed 1] --types q=Q4_0,k=Q8_0,v=F16,output=Q4_1,
        gate=Q4_0,up=Q4_1,down=Q8_0,embd=Q8_0,head=F16 (one word)

--types: one name sets all, `name=TYPE` one kind of tensor (Q4_0, Q4_1, Q8_0, F16, F32); quantised
rows must be multiples of 32. The same arguments and numpy version give the same bytes.
Reference logits (see reference_llama.py) are float64 results rounded to 7 significant digits; a
line of reference.jsonl is {"file","ids","rows","logits"}: the logits after the tokens at `rows`.
"""

import argparse
import json
import pathlib

import gguf
import numpy as np

from gguf_text import byte_of_char
from reference_llama import Llama

KINDS = ["embd", "q", "k", "v", "output", "gate", "up", "down", "head"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONTEXT = 512
TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
            "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
            "{{ '<|im_start|>assistant\n' }}{% endif %}")

# Odd vocabularies, heads * head size != d, tied and not, K/V shared and not, rows that are no
# multiple of 32 (only unquantised types allow that), q/k/v of different types.
GOLDENS = {
    "tied_q4_1.gguf": dict(layers=2, d=64, ff=96, heads=4, kv_heads=2, head=16, vocab=293, seed=1,
                           types="Q4_1,embd=Q8_0", untied=False),
    "untied_mixed.gguf": dict(layers=2, d=64, ff=160, heads=4, kv_heads=1, head=32, vocab=300,
                              seed=2, types="q=Q4_0,k=Q8_0,v=Q4_1,output=Q4_0,gate=Q4_1,up=Q8_0,down=Q4_0,"
                                    "embd=Q4_1,head=Q8_0", untied=True),
    "untied_float.gguf": dict(layers=2, d=40, ff=56, heads=4, kv_heads=4, head=16, vocab=263,
                              seed=3, types="F16,k=F32,embd=F16,head=F32", untied=True),
}
# 300 tokens cross a chunk of 256 positions; 70 cross blocks of 16, 32 and 64.
LENGTHS = [(1, None), (7, None), (70, [0, 15, 16, 63, 64, 69]), (300, [255, 256, 299])]


def parse_types(text: str) -> dict[str, gguf.GGMLQuantizationType]:
    types = dict.fromkeys(KINDS, gguf.GGMLQuantizationType.F32)
    for item in text.split(","):
        kind, _, name = item.rpartition("=")
        if kind and kind not in KINDS:
            raise ValueError(f"--types: expected one of {KINDS}, found {kind}")
        types |= dict.fromkeys([kind] if kind else KINDS, gguf.GGMLQuantizationType[name])
    return types


def write_tokenizer(writer: gguf.GGUFWriter, vocab: int, rng) -> None:
    """256 bytes, three special tokens, and random merges of earlier tokens up to `vocab`."""
    chars = list(byte_of_char())
    tokens = SPECIAL + chars
    if vocab < len(tokens):
        raise ValueError(f"--vocab: expected at least {len(tokens)}, found {vocab}")
    letters = [c for c in chars if c.isascii() and c.isalpha()] + ["\u0120"]
    merges = []
    while len(tokens) < vocab:
        pool = letters + tokens[len(SPECIAL) + 256:]
        left, right = (pool[i] for i in rng.integers(0, len(pool), 2))
        if left + right not in tokens:
            merges.append(f"{left} {right}")
            tokens.append(left + right)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL)
                           + [gguf.TokenType.NORMAL] * (vocab - len(SPECIAL)))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)


def write_metadata(writer: gguf.GGUFWriter, c: dict) -> None:
    writer.add_type("model")
    writer.add_name("tiny")
    writer.add_block_count(c["layers"])
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(c["d"])
    writer.add_feed_forward_length(c["ff"])
    writer.add_head_count(c["heads"])
    writer.add_head_count_kv(c["kv_heads"])
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if c["head"] * c["heads"] != c["d"]:
        writer.add_key_length(c["head"])
        writer.add_value_length(c["head"])
    writer.add_vocab_size(c["vocab"])
    writer.add_rope_dimension_count(c["head"])
    writer.add_quantization_version(2)


def write_tensors(writer: gguf.GGUFWriter, c: dict, rng) -> None:
    types = parse_types(c["types"])

    def add(name: str, kind: str, rows: int, columns: int, scale: float) -> None:
        values = rng.normal(0.0, scale / np.sqrt(columns), (rows, columns)).astype(np.float32)
        data = gguf.quants.quantize(values, types[kind])
        writer.add_tensor(name, data, raw_dtype=types[kind])

    def add_norm(name: str) -> None:
        writer.add_tensor(name, rng.uniform(0.5, 1.5, c["d"]).astype(np.float32))

    d, wide, narrow = c["d"], c["heads"] * c["head"], c["kv_heads"] * c["head"]
    add("token_embd.weight", "embd", c["vocab"], d, 3.0)
    for layer in range(c["layers"]):
        prefix = f"blk.{layer}."
        add_norm(prefix + "attn_norm.weight")
        add(prefix + "attn_q.weight", "q", wide, d, 1.5)
        add(prefix + "attn_k.weight", "k", narrow, d, 1.5)
        add(prefix + "attn_v.weight", "v", narrow, d, 1.0)
        add(prefix + "attn_output.weight", "output", d, wide, 1.0)
        add_norm(prefix + "ffn_norm.weight")
        add(prefix + "ffn_gate.weight", "gate", c["ff"], d, 1.5)
        add(prefix + "ffn_up.weight", "up", c["ff"], d, 1.0)
        add(prefix + "ffn_down.weight", "down", d, c["ff"], 1.0)
    add_norm("output_norm.weight")
    if c["untied"]:
        add("output.weight", "head", c["vocab"], d, 2.0)


def write_gguf(path: pathlib.Path, c: dict) -> None:
    rng = np.random.default_rng(c["seed"])
    writer = gguf.GGUFWriter(path, "llama")
    write_metadata(writer, c)
    write_tokenizer(writer, c["vocab"], rng)
    write_tensors(writer, c, rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_goldens(out: pathlib.Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "reference.jsonl").open("w") as f:
        for name, c in GOLDENS.items():
            write_gguf(out / name, c)
            model = Llama(out / name)
            rng = np.random.default_rng(c["seed"] + 1000)
            for length, rows in LENGTHS:
                ids = rng.integers(0, c["vocab"], length).tolist()
                logits = model.logits(ids, rows)
                row = {"file": name, "ids": ids, "rows": rows or list(range(length)),
                       "logits": [[float(f"{v:.7g}") for v in r] for r in logits]}
                f.write(json.dumps(row, separators=(",", ":")) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["goldens", "one"])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    for name, default in [("layers", 2), ("d", 64), ("ff", 96), ("heads", 4), ("kv-heads", 2),
                          ("head", 0), ("vocab", 293), ("seed", 1)]:
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--types", default="Q4_1")
    parser.add_argument("--untied", action="store_true")
    args = parser.parse_args()
    if args.what == "goldens":
        write_goldens(args.out)
        return
    c = vars(args)
    c["head"] = c["head"] or c["d"] // c["heads"]
    write_gguf(args.out, c)


if __name__ == "__main__":
    main()
