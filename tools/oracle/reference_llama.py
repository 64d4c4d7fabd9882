#!/usr/bin/env python3
"""A llama forward pass in numpy, straight from a GGUF file: the second opinion beside transformers.

Weights are dequantised to float32 by the gguf package; everything after that is float64. It
knows the llama architecture as llama.cpp writes it: adjacent rotary pairs, RMS norms, grouped K/V
heads, SwiGLU, head tied or not, head size of its own (attention.key_length). It refuses what it does not know.

    reference_llama.py logits --model M.gguf --ids 1,2,3 [--rows 2]       logits as JSON
    reference_llama.py compare --model M.gguf --goldens tests/golden --names en_fact,zh
                         worst difference from greedy.jsonl along the golden continuation
"""

import argparse
import json
import pathlib

import gguf
import numpy as np

from gguf_text import field


class Llama:
    """One model; `logits` runs whole sequences, nothing is kept between calls."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        if field(reader, "general.architecture") != "llama":
            raise ValueError("general.architecture: expected llama")

        def get(name, default=None):
            value = field(reader, "llama." + name, default)
            if value is None:
                raise ValueError(f"llama.{name}: missing")
            return value

        self.layers = get("block_count")
        self.d = get("embedding_length")
        self.heads = get("attention.head_count")
        self.kv_heads = get("attention.head_count_kv", self.heads)
        self.head = get("attention.key_length", self.d // self.heads)
        self.eps = get("attention.layer_norm_rms_epsilon")
        self.theta = get("rope.freq_base", 10000.0)
        if get("rope.dimension_count", self.head) != self.head:
            raise ValueError("llama.rope.dimension_count: expected the head size")
        if get("attention.value_length", self.head) != self.head:
            raise ValueError("llama.attention.value_length: expected the key length")
        self.tensors = {t.name: t for t in reader.tensors}
        if "rope_freqs.weight" in self.tensors:
            raise ValueError("rope_freqs.weight: not known here")
        # The embedding is kept; layers are dequantised when used, so that float64 stays small.
        self.embedding = self.weight("token_embd.weight")
        tied = "output.weight" not in self.tensors
        self.output = self.embedding if tied else self.weight("output.weight")

    def weight(self, name: str) -> np.ndarray:
        """float32 [rows, columns] or [columns]."""
        t = self.tensors[name]
        shape = tuple(int(n) for n in reversed(t.shape))
        return gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        scale = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return x * scale * self.weight(name)

    def rope(self, x: np.ndarray) -> np.ndarray:
        """x [positions, heads, head]; the pair (2i, 2i+1) turns by position * theta^(-2i/head)."""
        frequency = self.theta ** (-np.arange(0, self.head, 2) / self.head)
        angle = np.arange(x.shape[0])[:, None] * frequency
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * cos - odd * sin
        out[..., 1::2] = even * sin + odd * cos
        return out

    def attention(self, x: np.ndarray, prefix: str) -> np.ndarray:
        n = x.shape[0]
        linear = lambda name: x @ self.weight(f"{prefix}.{name}.weight").astype(np.float64).T
        q = self.rope(linear("attn_q").reshape(n, self.heads, self.head))
        k = self.rope(linear("attn_k").reshape(n, self.kv_heads, self.head))
        v = linear("attn_v").reshape(n, self.kv_heads, self.head)
        masked = np.triu(np.ones((n, n), bool), 1)
        out = np.empty_like(q)
        for h in range(self.heads):
            shared = h // (self.heads // self.kv_heads)
            scores = q[:, h] @ k[:, shared].T / np.sqrt(self.head)
            scores[masked] = -np.inf
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, h] = (p / p.sum(axis=1, keepdims=True)) @ v[:, shared]
        return out.reshape(n, -1) @ self.weight(f"{prefix}.attn_output.weight").astype(np.float64).T

    def feed_forward(self, x: np.ndarray, prefix: str) -> np.ndarray:
        w = lambda name: self.weight(f"{prefix}.{name}.weight").astype(np.float64).T
        gate = x @ w("ffn_gate")
        return (gate / (1.0 + np.exp(-gate)) * (x @ w("ffn_up"))) @ w("ffn_down")

    def logits(self, ids: list[int], rows=None) -> np.ndarray:
        """float64 [rows, vocabulary]: the logits after the tokens at `rows` (default: all)."""
        x = self.embedding[np.asarray(ids)].astype(np.float64)
        for layer in range(self.layers):
            prefix = f"blk.{layer}"
            x = x + self.attention(self.norm(x, f"{prefix}.attn_norm.weight"), prefix)
            x = x + self.feed_forward(self.norm(x, f"{prefix}.ffn_norm.weight"), prefix)
        x = self.norm(x if rows is None else x[rows], "output_norm.weight")
        return x @ self.output.astype(np.float64).T


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def compare(model: Llama, goldens: pathlib.Path, names: list[str]) -> None:
    lines = lambda name: [json.loads(s) for s in (goldens / name).open(encoding="utf-8")]
    prompts = {p["name"]: p["ids"] for p in lines("prompts.jsonl")}
    steps = {g["name"]: g["steps"] for g in lines("greedy.jsonl")}
    for name in names:
        ids = prompts[name] + [s["id"] for s in steps[name][:-1]]
        first = len(prompts[name]) - 1
        ours = log_softmax(model.logits(ids, list(range(first, len(ids)))))
        worst = max(abs(ours[n, i] - logprob)
                    for n, step in enumerate(steps[name]) for i, logprob in step["top"])
        same = sum(int(ours[n].argmax()) == step["id"] for n, step in enumerate(steps[name]))
        print(f"{name}: {len(steps[name])} steps, {same} equal choices, "
              f"worst difference of a log probability {worst:.2e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["logits", "compare"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--ids", help="comma-separated")
    parser.add_argument("--rows", help="comma-separated; default all")
    parser.add_argument("--goldens", type=pathlib.Path)
    parser.add_argument("--names", default="en_fact,zh")
    args = parser.parse_args()
    model = Llama(args.model)
    if args.what == "compare":
        compare(model, args.goldens, args.names.split(","))
        return
    numbers = lambda text: [int(n) for n in text.split(",")]
    rows = numbers(args.rows) if args.rows else None
    print(json.dumps(model.logits(numbers(args.ids), rows).tolist()))


if __name__ == "__main__":
    main()
