#!/usr/bin/env python3
"""Makes tests/golden/sampling.jsonl: what transformers' logits processors leave of rows of logits.

    make_sampling_goldens.py --out tests/golden/sampling.jsonl      by hand, in the oracle's environment

Each line is a row with parameters, in the order in which Chorus applies them, and `kept`: the probability
of every token that can still be drawn.
"""

import argparse
import json
import pathlib
import random

import torch
from transformers.generation import logits_process as processors

SIZE = 14


def case(seed):
    rng = random.Random(seed)
    logits = torch.tensor([[rng.uniform(-3, 3) for _ in range(SIZE)]], dtype=torch.float32)
    given = [rng.randrange(SIZE) for _ in range(rng.randrange(1, 6))]
    params, steps = {}, []

    def maybe(name, value, make):
        if rng.random() < 0.5:
            params[name] = value
            steps.append(make(value))

    bias = {str(i): rng.uniform(-2, 2) for i in rng.sample(range(SIZE), 3)}
    maybe("logit_bias", bias, lambda b: processors.SequenceBiasLogitsProcessor(
        [[[int(i)], x] for i, x in b.items()]))
    maybe("repetition_penalty", rng.uniform(0.6, 1.8), processors.RepetitionPenaltyLogitsProcessor)
    params["temperature"] = rng.uniform(0.6, 1.6)
    steps.append(processors.TemperatureLogitsWarper(params["temperature"]))
    maybe("top_k", rng.randrange(1, SIZE), processors.TopKLogitsWarper)
    maybe("typical_p", rng.uniform(0.1, 0.95), processors.TypicalLogitsWarper)
    maybe("top_p", rng.uniform(0.1, 0.95), processors.TopPLogitsWarper)
    maybe("min_p", rng.uniform(0.05, 0.9), processors.MinPLogitsWarper)
    ids = torch.tensor([given])
    scores = logits.clone()
    for step in steps:
        scores = step(ids, scores)
    kept = torch.softmax(scores[0].double(), 0)
    return {
        "logits": logits[0].tolist(),
        "given": given,
        "parameters": params,
        "kept": {str(i): p for i, p in enumerate(kept.tolist()) if p > 0},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, default=120)
    args = parser.parse_args()
    lines = [json.dumps(case(seed)) for seed in range(args.count)]
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
