#!/usr/bin/env python3
"""Solo equals batched, bit for bit, through the command line: tiny models, the full cross product.

Reference: every prompt alone, one run of the binary each, the whole prompt in one chunk. Compared
are the tokens, the text, and the bits of all logprobs.
"""

import itertools
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))

import support
from support import FLOAT, MIXED, TIED, CliTest, bits, in_parallel, random_ids

MODES = {
    "int8": [],
    "exact": ["--exact"],
    "int8 with f32 KV": ["--kv-type", "f32"],
    "int8 with q8 KV": ["--kv-type", "q8"],
    "f32 with bf16 KV": ["--activations", "f32"],
    "drawn": ["--temperature", "1.2", "--seed", "5"],
    "filtered": "--temperature 1.2 --seed 5 --top-k 50 --top-p 0.9 --min-p 0.002".split(),
}
CHUNKS, THREADS, BLOCKS = (1, 7, 64, 512), (1, 2), (1, 16, 32, 64)
# 260 crosses a chunk of 256 positions of attention, 16 and 64 fill blocks exactly.
LENGTHS = (1, 2, 7, 16, 33, 64, 260)


class TinyIdentityTest(CliTest):
    def setUp(self):
        super().setUp()
        self.rng = random.Random(support.seed())

    def prompts(self, model: str, lengths=LENGTHS) -> list:
        return [random_ids(self.rng, model, n) for n in lengths]

    def run_rows(self, model: str, rows: list, *words) -> list:
        """The bits of each row's result."""
        text = "".join(f"{row}\n" for row in rows).encode()
        done = support.chorus(
            "run",
            model,
            "--tokens",
            "-",
            "--max-tokens",
            "6",
            "--ignore-eos",
            "--logprobs",
            "4",
            "--json",
            *words,
            stdin=text,
        )
        self.assertEqual(0, done.code, str(done))
        return list(map(bits, done.results()))

    def alone(self, model: str, rows: list, *words) -> list:
        words = [*words, "--threads", "1", "--block-size", "16", "--prefill-chunk", "512"]
        return [self.run_rows(model, [row], *words)[0] for row in rows]

    def compare(self, model: str, rows: list, mode: list, settings: list) -> None:
        reference = self.alone(model, rows, *mode)
        self.assertEqual(len(rows), len(set(reference)), "the prompts must differ in their results")
        found = in_parallel(lambda words: self.run_rows(model, rows, *mode, *words), settings)
        for words, results in zip(settings, found):
            for row, expected, result in zip(rows, reference, results):
                with self.subTest(
                    model=model,
                    settings=" ".join(mode + words),
                    length=len(row),
                    seed=support.seed(),
                ):
                    self.assertEqual(expected, result)

    def cross_product(self) -> list:
        return [
            [
                "--prefill-chunk",
                str(chunk),
                "--threads",
                str(threads),
                "--block-size",
                str(block),
                *batch,
            ]
            for chunk, threads, block, batch in itertools.product(
                CHUNKS, THREADS, BLOCKS, ([], ["--no-batch"])
            )
        ]

    def test_full_cross_product_int8(self):
        self.compare(MIXED, self.prompts(MIXED), MODES["int8"], self.cross_product())

    def test_full_cross_product_exact(self):
        self.compare(MIXED, self.prompts(MIXED), MODES["exact"], self.cross_product())

    def test_every_model_and_mode(self):
        for model in (TIED, FLOAT):
            for mode in MODES.values():
                settings = self.rng.sample(self.cross_product(), 5)
                self.compare(model, self.prompts(model), mode, settings)

    def test_limits_of_a_step(self):
        settings = [
            ["--max-decode-sequences", "1"],
            ["--max-decode-sequences", "3"],
            ["--max-batch-tokens", "9", "--prefill-chunk", "5", "--max-decode-sequences", "4"],
            ["--max-batch-tokens", "64", "--prefill-chunk", "32", "--max-decode-sequences", "8"],
            ["--max-sessions", "1"],
            ["--max-sessions", "3", "--threads", "2"],
            # 17 blocks of 16 hold the longest prompt and its 6 tokens; others queue for room.
            ["--kv-blocks", "17", "--block-size", "16"],
            ["--kv-blocks", "25", "--block-size", "16", "--prefill-chunk", "7"],
            ["--kv-blocks", "266", "--block-size", "1"],
            ["--context", "300"],
            ["--kv-layout", "sequence"],
            ["--kv-layout", "sequence", "--prefill-chunk", "7", "--threads", "2"],
            ["--kv-layout", "sequence", "--context", "300", "--kv-blocks", "2"],
            ["--kv-layout", "sequence", "--max-sessions", "3"],
        ]
        self.compare(TIED, self.prompts(TIED), MODES["int8"], settings)

    def test_programs_with_decode_and_prefill(self):
        # Each cuts its steps in another way, and the last one hardly without padding.
        settings = [
            [],
            ["--prefill-chunk", "7", "--max-decode-sequences", "3", "--threads", "2"],
            ["--kv-blocks", "18", "--prefill-chunk", "32"],
            ["--kv-layout", "sequence", "--max-sessions", "3"],
        ]
        for model, methods in [
            (TIED, ["--decode-widths", "1,2,4,8", "--prefill", "5:512"]),
            (MIXED, ["--decode-widths", "1", "--prefill", "2:24"]),
            (MIXED, ["--decode-widths", "1,24", "--prefill", "29:32"]),
        ]:
            program = self.folder / "program.chorus"
            words = ["-o", program, "--methods", "decode,prefill", *methods]
            self.expect(0, "export", model, *words, "--quiet")
            rows = self.prompts(model)
            reference = self.alone(model, rows)
            for words in settings:
                with self.subTest(methods=methods, settings=words, seed=support.seed()):
                    self.assertEqual(reference, self.run_rows(str(program), rows, *words))

    def test_order_of_the_prompts(self):
        for model in (TIED, MIXED, FLOAT):
            rows = self.prompts(model, (1, 3, 5, 9, 17, 30, 33, 48, 65, 80, 100, 130))
            reference = dict(zip(map(tuple, rows), self.alone(model, rows)))
            for _ in range(4):
                order = self.rng.sample(rows, len(rows))
                for row, result in zip(order, self.run_rows(model, order)):
                    self.assertEqual(reference[tuple(row)], result, f"seed {support.seed()}")

    def test_forced_generic_instruction_set(self):
        # int8 linear layers give the same bits on every instruction set.
        for model in (TIED, MIXED):
            rows = self.prompts(model)
            path = self.write("ids.jsonl", rows)
            words = [
                "run",
                model,
                "--tokens",
                path,
                "--max-tokens",
                "6",
                "--ignore-eos",
                "--logprobs",
                "4",
                "--json",
            ]
            chosen = self.expect(0, *words).results()
            generic = self.expect(0, *words, env={"CHORUS_FORCE_ISA": "generic"}).results()
            self.assertEqual(list(map(bits, generic)), list(map(bits, chosen)))


if __name__ == "__main__":
    support.main()
