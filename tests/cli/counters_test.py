#!/usr/bin/env python3
"""One forward per step: the counters of `chorus run`'s summary."""

import random

import support
from support import MIXED, TIED, CliTest, random_ids

TOKENS = 48


class CountersTest(CliTest):
    def forwards(self, rows: list, *words, model: str = TIED) -> dict:
        """The summary, after what holds for each: steps are forwards of the only method."""
        summary = self.run_ids(
            model, rows, "--max-tokens", TOKENS, "--ignore-eos", *words
        ).summary()
        self.assertEqual(
            {"decode": 0, "prefill": 0, "forward": summary["steps"]}, summary["forwards"]
        )
        self.assertEqual(len(rows) * TOKENS, summary["generated_tokens"])
        return summary

    def rows(self, count: int, length: int) -> list:
        rng = random.Random(support.seed())
        return [random_ids(rng, TIED, length) for _ in range(count)]

    def test_alone(self):
        # A step takes as many chunks as its budget holds whole; the last one yields the first token,
        # and each further token is a step.
        for length, chunk, budget, prefill in [
            (1, 64, 544, 1),
            (64, 64, 544, 1),
            (70, 7, 544, 1),
            (70, 7, 21, 4),
            (70, 7, 27, 4),
            (70, 64, 68, 2),
            (200, 100, 120, 2),
        ]:
            words = ["--prefill-chunk", chunk, "--max-batch-tokens", budget]
            summary = self.forwards(self.rows(1, length), *words, "--max-decode-sequences", "2")
            self.assertEqual(prefill + TOKENS - 1, summary["steps"], words)

    def test_one_after_the_other(self):
        summary = self.forwards(self.rows(5, 16), "--no-batch", "--prefill-chunk", "64")
        self.assertEqual(5 * TOKENS, summary["steps"])

    def test_together(self):
        # All decode in one forward. A prompt may arrive while others already run, each at most one
        # step after the one before: hence TOKENS to TOKENS + B - 1 steps; one by one it would be
        # B * TOKENS.
        for model in (TIED, MIXED):
            for count in (2, 8, 16):
                # On a busy machine a prompt may come late: the best of a few runs counts.
                summary = min(
                    (
                        self.forwards(self.rows(count, 8), "--prefill-chunk", "64", model=model)
                        for _ in range(5)
                    ),
                    key=lambda s: s["steps"],
                )
                self.assertIn(summary["steps"], range(TOKENS, TOKENS + count))
                self.assertLess(
                    summary["forwards"]["forward"] / summary["generated_tokens"],
                    1 / count + 1 / TOKENS,
                )

    def test_no_more_decodes_in_a_step_than_allowed(self):
        # 8 sessions, at most 2 decode in a step, so that 8 * (TOKENS - 1) tokens take half as many.
        summary = self.forwards(
            self.rows(8, 8), "--max-decode-sequences", "2", "--prefill-chunk", "64"
        )
        self.assertGreaterEqual(summary["steps"], 8 * (TOKENS - 1) // 2)

    def test_no_more_sessions_than_allowed(self):
        summary = self.forwards(self.rows(6, 8), "--max-sessions", "2", "--prefill-chunk", "64")
        self.assertGreaterEqual(summary["steps"], 3 * TOKENS)
        self.assertLess(summary["steps"], 6 * TOKENS)

    def test_budget_of_a_step(self):
        # 4 prompts of 64 tokens at 16 tokens a step take 16 steps before the last one decodes.
        summary = self.forwards(
            self.rows(4, 64),
            "--max-batch-tokens",
            "16",
            "--prefill-chunk",
            "8",
            "--max-decode-sequences",
            "8",
        )
        self.assertGreaterEqual(summary["steps"], 16 + TOKENS - 1)


if __name__ == "__main__":
    support.main()
