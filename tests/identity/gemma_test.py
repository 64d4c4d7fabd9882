#!/usr/bin/env python3
"""A real model with sliding windows (gemma-3-270m, window 512): solo equals batched where chunks meet
the window's edge, and windowed layers hold no more blocks than their window needs.

CHORUS_GEMMA_MODEL is its GGUF file (`./dev models` fetches it)."""

import os
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))

import support
from support import CliTest, bits

MODEL = os.environ["CHORUS_GEMMA_MODEL"]
BOS, VOCABULARY = 2, 262144
WINDOW, FULL_LAYERS, WINDOWED_LAYERS = 512, 3, 15
BLOCK = 16


class GemmaTest(CliTest):
    def setUp(self):
        super().setUp()
        self.rng = random.Random(support.seed())

    def prompt(self, length: int) -> list:
        return [BOS] + [self.rng.randrange(300, VOCABULARY) for _ in range(length - 1)]

    def run_rows(self, rows: list, *words) -> support.Done:
        text = "".join(f"{row}\n" for row in rows).encode()
        return self.expect(0, "run", MODEL, "--tokens", "-", "--ignore-eos", "--logprobs", "4",
                           "--json", "--context", "4200", *words, stdin=text)

    def test_solo_equals_batched_around_the_window(self):
        # Inside the window, its edge, past it, past it twice.
        rows = [self.prompt(n) for n in (40, 505, 700, 1100)]
        tokens = ["--max-tokens", "10"]
        alone = [bits(self.run_rows([row], *tokens).results()[0]) for row in rows]
        self.assertEqual(len(rows), len(set(alone)))
        for chunk in (511, 512, 513):
            for words in (["--kv-layout", "sequence"], ["--block-size", "1"], ["--threads", "1"]):
                with self.subTest(chunk=chunk, words=words, seed=support.seed()):
                    done = self.run_rows(rows, *tokens, "--prefill-chunk", chunk, *words)
                    self.assertEqual(alone, list(map(bits, done.results())))

    def test_windowed_layers_hold_their_window(self):
        step = 256
        done = self.run_rows([self.prompt(3990)], "--max-tokens", "10", "--max-sessions", "1",
                             "--prefill-chunk", step, "--no-prefix-cache")
        self.assertEqual("length", done.results()[0]["finish_reason"])
        groups = {g["window"]: g for g in done.summary()["kv"]["groups"]}
        self.assertEqual({None, WINDOW}, set(groups))
        self.assertEqual(FULL_LAYERS, groups[None]["layers"])
        self.assertEqual(WINDOWED_LAYERS, groups[WINDOW]["layers"])
        touched = (WINDOW + step - 2 + BLOCK - 1) // BLOCK + 1
        self.assertLessEqual(groups[WINDOW]["peak_blocks"], touched + 1)
        self.assertGreaterEqual(groups[WINDOW]["peak_blocks"], WINDOW // BLOCK)
        self.assertEqual(-(-4000 // BLOCK), groups[None]["peak_blocks"])


if __name__ == "__main__":
    support.main()
