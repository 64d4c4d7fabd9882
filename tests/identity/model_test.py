#!/usr/bin/env python3
"""Solo equals batched on the demo model: 32 prompts of mixed length, settings covered pairwise.

Prompts are token ids from tests/golden/prompts.jsonl, cut to lengths drawn with the seed that is
printed. Reference: --no-batch with one thread. CHORUS_TEST_PROMPTS and CHORUS_TEST_LENGTH change
the number of prompts and the longest length.
"""

import itertools
import json
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))

import support
from support import CliTest, bits

NUM_PROMPTS = int(os.environ.get("CHORUS_TEST_PROMPTS", "32"))
LONGEST = int(os.environ.get("CHORUS_TEST_LENGTH", "260"))
MAX_TOKENS = 6
AXES = {
    "--prefill-chunk": ["1", "7", "64", "512"],
    "--threads": ["1", "2"],
    "--block-size": ["1", "16", "32", "64"],
    "--max-decode-sequences": ["3", "32"],
    "order": ["given", "shuffled"],
}


def pairwise(rng: random.Random) -> list:
    """Few settings in which each pair of values of two axes occurs: greedily what covers most."""
    names = list(AXES)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in AXES[a]
        for y in AXES[b]
    }
    covers = lambda row: set(itertools.combinations(row.items(), 2)) & missing
    rows = []
    while missing:
        candidates = [dict(zip(names, values)) for values in itertools.product(*AXES.values())]
        rng.shuffle(candidates)
        rows.append(max(candidates, key=lambda row: len(covers(row))))
        missing -= covers(rows[-1])
    return rows


def prompts(rng: random.Random) -> list:
    """Lengths from 1 to LONGEST, most of them short; no two alike."""
    lines = (support.GOLDEN / "prompts.jsonl").read_text(encoding="utf-8").split("\n")
    pool = [json.loads(line)["ids"] for line in lines if line]
    joined = [i for ids in pool for i in ids]
    lengths = [1, 16, 64, LONGEST] + [rng.randrange(2, 20) for _ in range(NUM_PROMPTS)]
    rows = []
    for length in lengths[:NUM_PROMPTS]:
        start = rng.randrange(len(joined) - length)
        rows.append(joined[start : start + length])
    return rows


class ModelIdentityTest(CliTest):
    def setUp(self):
        super().setUp()
        self.rng = random.Random(support.seed())
        self.model = str(self.folder / "demo.chorus")
        self.expect(0, "export", support.demo_model(), "-o", self.model, "--quiet")

    def results(self, rows: list, *words, env=None, model=None) -> list:
        begin = time.monotonic()
        done = self.run_ids(
            model or self.model,
            rows,
            "--max-tokens",
            MAX_TOKENS,
            "--ignore-eos",
            "--logprobs",
            "5",
            *words,
            env=env,
        )
        print(f"{time.monotonic() - begin:6.1f} s  {' '.join(words)}", file=sys.stderr)
        return list(map(bits, done.results()))

    def test_pairwise_int8(self):
        rows = prompts(self.rng)
        self.assertEqual(NUM_PROMPTS, len(rows))
        reference = self.results(rows, "--no-batch", "--threads", "1")
        for setting in pairwise(self.rng):
            order = list(range(len(rows)))
            if setting["order"] == "shuffled":
                self.rng.shuffle(order)
            words = [w for k, v in setting.items() if k != "order" for w in (k, v)]
            found = self.results([rows[n] for n in order], *words)
            for place, n in enumerate(order):
                with self.subTest(setting=setting, length=len(rows[n]), seed=support.seed()):
                    self.assertEqual(reference[n], found[place])

    def test_exact(self):
        rows = prompts(self.rng)[:8]
        rows = [row[:40] for row in rows]
        reference = self.results(rows, "--no-batch", "--exact", "--threads", "1")
        self.assertEqual(reference, self.results(rows, "--exact", "--prefill-chunk", "7"))

    def test_methods(self):
        """Programs with methods decode and prefill, with their bounds, say what forward ones say."""
        rows = prompts(self.rng)
        reference = self.results(rows)
        for widths, prefill in (("1,2,4,8", "2:256"), ("1", "5:64"), ("1,3,16", "17:17")):
            program = str(self.folder / "methods.chorus")
            self.expect(0, "export", self.model, "-o", program, "--methods", "decode,prefill",
                        "--decode-widths", widths, "--prefill", prefill, "--quiet")
            with self.subTest(widths=widths, prefill=prefill, seed=support.seed()):
                self.assertEqual(reference, self.results(rows, model=program))

    def test_instruction_sets(self):
        rows = prompts(self.rng)[:6]
        rows = [row[:40] for row in rows]
        chosen = self.results(rows)
        self.assertEqual(self.results(rows, env={"CHORUS_FORCE_ISA": "generic"}), chosen)


if __name__ == "__main__":
    support.main()
