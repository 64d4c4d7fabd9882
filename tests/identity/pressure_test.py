#!/usr/bin/env python3
"""The demo model in a pool of a quarter of what its sessions need: the same bits, and no work lost
but what was computed again.

40 sessions of 100 to 1500 tokens, prompt and continuation together, drawn with the seed that is
printed. By default only CHORUS_TEST_LONG (4) of them are longer than 220, so that the two runs take
about a minute on two idle cores; CHORUS_TEST_FULL=1 draws all lengths evenly, and lets sessions grow
to them from prompts of any shorter length.
"""

import json
import os
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))

import support
from support import CliTest, bits

NUM_SESSIONS = 40
SHORTEST, LONG, LONGEST = 100, 220, 1500
FULL = os.environ.get("CHORUS_TEST_FULL", "0") != "0"
NUM_LONG = int(os.environ.get("CHORUS_TEST_LONG", "4"))
GENERATED = 96  # of each session; FULL: at least
BLOCK = 16
TIMEOUT_S = 7200 if FULL else 600


def totals(rng: random.Random) -> list:
    """The tokens of each session; the shortest and the longest are among them."""
    chosen = [SHORTEST, LONGEST]
    while len(chosen) < NUM_SESSIONS:
        if FULL:
            chosen.append(rng.randint(SHORTEST, LONGEST))
        elif len(chosen) < 1 + NUM_LONG:  # the longest is one of them
            chosen.append(rng.randint(LONG, LONGEST))
        else:
            chosen.append(rng.randint(SHORTEST, LONG))
    rng.shuffle(chosen)
    return chosen


class PressureTest(CliTest):
    def setUp(self):
        super().setUp()
        self.model = str(self.folder / "demo.chorus")
        self.expect(0, "export", support.demo_model(), "-o", self.model, "--quiet")
        self.rng = random.Random(support.seed())

    def run_file(self, name: str, path: str, *words) -> tuple:
        words = ["--ignore-eos", "--logprobs", "3", *words]
        # Without a target for steps, what runs together does not depend on the machine's speed.
        words += ["--block-size", BLOCK, "--quiet", "--target-step-ms", 600000]
        done = self.run_json(self.model, "--prompts", path, *words, timeout=TIMEOUT_S)
        summary = done.summary()
        seconds, computed = summary["wall_s"], summary["computed_tokens"]
        print(
            f"{name}: {seconds:.1f} s, {summary['generated_tokens'] / seconds:.1f} tokens/s "
            f"generated, {computed / seconds:.1f} computed; {summary['preemptions']} preemptions, "
            f"{summary['recomputed_tokens']} of {computed} tokens computed again",
            file=sys.stderr,
        )
        return done.results(), summary

    def rows(self, sizes: list) -> list:
        """Prompts of those sizes, no two alike."""
        lines = (support.GOLDEN / "prompts.jsonl").read_text(encoding="utf-8").split("\n")
        ids = [i for line in lines if line for i in json.loads(line)["ids"]]
        starts = self.rng.sample(range(len(ids) - max(sizes)), len(sizes))
        return [ids[start : start + size] for start, size in zip(starts, sizes)]

    def test_a_quarter_of_the_pool(self):
        sizes = totals(self.rng)
        generated = [self.rng.randint(GENERATED, size - 4) if FULL else GENERATED for size in sizes]
        rows = self.rows([size - count for size, count in zip(sizes, generated)])
        prompts = [{"prompt": row, "max_tokens": count} for row, count in zip(rows, generated)]
        path = self.write("prompts.jsonl", prompts)
        # The last token of a session is delivered and never run.
        blocks = sum((size - 1 + BLOCK - 1) // BLOCK for size in sizes)
        needed = sum(size - 1 for size in sizes)
        roomy, plain = self.run_file("roomy", path, "--kv-blocks", blocks + NUM_SESSIONS)
        tight, pressed = self.run_file("a quarter", path, "--kv-blocks", blocks // 4)
        for size, count, expected, found in zip(sizes, generated, roomy, tight):
            with self.subTest(size=size, seed=support.seed()):
                self.assertEqual(count, len(found["tokens"]))
                self.assertEqual(bits(expected), bits(found))
        self.assertEqual(NUM_SESSIONS, len(set(map(bits, roomy))))
        self.assertEqual((0, 0), (plain["preemptions"], plain["recomputed_tokens"]))
        self.assertGreater(pressed["preemptions"], 10)
        self.assertEqual(
            pressed["preemptions"], sum(r["metrics"]["preemptions"] for r in tight)
        )
        self.assertGreater(pressed["recomputed_tokens"], 0)
        for summary in (plain, pressed):
            self.assertEqual(needed + summary["recomputed_tokens"], summary["computed_tokens"])
        self.assertLessEqual(pressed["kv"]["groups"][0]["peak_blocks"], blocks // 4)


if __name__ == "__main__":
    support.main()
