#!/usr/bin/env python3
"""`chorus perplexity`: which tokens are scored, and that a score is a log probability."""

import json
import math
import random

import support
from support import FLOAT, MIXED, TIED, VOCABULARY, CliTest, random_ids

TEXT = "".join(chr(97 + (n * n + 3 * n) % 26) + (" " if n % 7 == 0 else "") for n in range(900))


class PerplexityTest(CliTest):
    def score(self, model: str, path, *words) -> tuple:
        """(windows by index, the closing object)."""
        lines = self.expect(0, "perplexity", model, path, *words, "--json").json_lines()
        self.assertEqual("perplexity", lines[-1]["type"])
        self.assertEqual({"window"}, {o["type"] for o in lines[:-1]})
        return sorted(lines[:-1], key=lambda w: w["index"]), lines[-1]

    def rows(self, lengths) -> list:
        rng = random.Random(support.seed())
        return [random_ids(rng, TIED, n) for n in lengths]

    def test_windows_of_a_text(self):
        path = self.write("text.txt", TEXT)
        ids = self.expect(0, "tokenize", TIED, "--json", stdin=TEXT.encode()).json_lines()[0][
            "tokens"
        ]
        for size in (16, 100, 256):
            windows, total = self.score(TIED, path, "--window", size)
            self.assertEqual(len(ids) // size, len(windows))
            self.assertEqual(list(range(len(windows))), [w["index"] for w in windows])
            self.assertEqual(len(windows), total["windows"])
            self.assertEqual(len(windows) * (size - size // 2), total["tokens_scored"])
            self.assertAlmostEqual(
                math.fsum(w["nll"] for w in windows) / len(windows),
                total["nll"],
                delta=1e-6 * total["nll"],
            )
            self.assertAlmostEqual(math.exp(total["nll"]), total["ppl"], delta=1e-5 * total["ppl"])
            self.assertGreater(total["tokens_per_s"], 0)

    def test_a_text_is_its_ids_in_windows(self):
        path = self.write("text.txt", TEXT)
        ids = self.expect(0, "tokenize", TIED, "--json", stdin=TEXT.encode()).json_lines()[0][
            "tokens"
        ]
        windows, total = self.score(TIED, path, "--window", "64", "--per-token")
        rows = [ids[n : n + 64] for n in range(0, len(ids) - 63, 64)]
        again, same = self.score(TIED, self.write("ids.jsonl", rows), "--tokens", "--per-token")
        self.assertEqual(windows, again)
        self.assertEqual((total["nll"], total["ppl"]), (same["nll"], same["ppl"]))

    def test_number_of_windows(self):
        path = self.write("text.txt", TEXT)
        every, _ = self.score(TIED, path, "--window", "50")
        for count in (1, 2, len(every)):
            some, total = self.score(TIED, path, "--window", "50", "--windows", count)
            self.assertEqual(every[:count], some)
            self.assertEqual(count, total["windows"])

    def test_per_token_sums_to_the_nll(self):
        rows = self.rows((2, 3, 40, 41, 300))
        windows, total = self.score(TIED, self.write("ids.jsonl", rows), "--tokens", "--per-token")
        self.assertEqual(5, len(windows))
        for row, window in zip(rows, windows):
            self.assertEqual(len(row) - len(row) // 2, len(window["logprobs"]))
            self.assertTrue(all(v < 0 for v in window["logprobs"]))
            mean = -math.fsum(window["logprobs"]) / len(window["logprobs"])
            self.assertAlmostEqual(mean, window["nll"], delta=1e-6 * mean)
        scored = [v for w in windows for v in w["logprobs"]]
        self.assertEqual(len(scored), total["tokens_scored"])
        self.assertAlmostEqual(
            -math.fsum(scored) / len(scored), total["nll"], delta=1e-6 * total["nll"]
        )
        plain, _ = self.score(TIED, self.write("ids.jsonl", rows), "--tokens")
        self.assertTrue(all("logprobs" not in w or w["logprobs"] is None for w in plain))
        self.assertEqual([w["nll"] for w in windows], [w["nll"] for w in plain])

    def test_together_equals_one_at_a_time(self):
        rows = self.rows((20, 33, 64, 90, 257))
        for words in (
            [],
            ["--exact"],
            ["--prefill-chunk", "7"],
            ["--threads", "2"],
            ["--block-size", "1"],
            ["--max-sessions", "1"],
        ):
            together, _ = self.score(
                TIED, self.write("ids.jsonl", rows), "--tokens", "--per-token", *words
            )
            mode = [w for w in words if w == "--exact"]
            for n, row in enumerate(rows):
                (alone,), _ = self.score(
                    TIED, self.write("one.jsonl", [row]), "--tokens", "--per-token", *mode
                )
                with self.subTest(words=words, window=n, seed=support.seed()):
                    self.assertEqual(alone["logprobs"], together[n]["logprobs"])

    def test_scores_are_the_logprobs_of_run(self):
        # What run reports for the tokens it generates, perplexity finds when it is given them.
        (prompt,) = self.rows((30,))
        for mode in ([], ["--exact"], ["--kv-type", "f32"]):
            words = ["--max-tokens", "30", "--ignore-eos", "--logprobs", "1", "--seed", "4"]
            result = self.run_ids(TIED, [prompt], *words, "--temperature", "1", *mode).results()[0]
            window = prompt + result["tokens"]
            (scored,), _ = self.score(
                TIED, self.write("ids.jsonl", [window]), "--tokens", "--per-token", *mode
            )
            self.assertEqual(result["logprobs"], scored["logprobs"])

    def test_probabilities_sum_to_one(self):
        # A window for each token of the vocabulary after the same prefix: the whole distribution.
        for model in (TIED, FLOAT):
            rows = [[5, 6, token] for token in range(VOCABULARY[model])]
            windows, _ = self.score(model, self.write("ids.jsonl", rows), "--tokens", "--per-token")
            last = [w["logprobs"][-1] for w in windows]
            self.assertAlmostEqual(1.0, math.fsum(map(math.exp, last)), delta=1e-5)
            top = self.run_ids(model, [[5, 6]], "--max-tokens", "1", "--logprobs", "20")
            for token, logprob in top.results()[0]["top_logprobs"][0]:
                self.assertEqual(logprob, last[token])

    def test_scores_are_those_of_the_reference(self):
        # --exact against float64 logits made by other code: the log-softmax at each given row.
        lines = (support.TINY / "reference.jsonl").read_text().split("\n")
        compared = 0
        for line in filter(None, lines):
            golden = json.loads(line)
            model = str(support.TINY / golden["file"])
            ids = golden["ids"]
            if len(ids) < 2:
                continue
            (window,), _ = self.score(
                model, self.write("ids.jsonl", [ids]), "--tokens", "--per-token", "--exact"
            )
            for row, logits in zip(golden["rows"], golden["logits"]):
                place = row + 1 - len(ids) // 2
                if not 0 <= place < len(window["logprobs"]):
                    continue
                top = max(logits)
                norm = top + math.log(math.fsum(math.exp(v - top) for v in logits))
                self.assertAlmostEqual(
                    logits[ids[row + 1]] - norm,
                    window["logprobs"][place],
                    delta=1e-3,
                    msg=f"{golden['file']} row {row}",
                )
                compared += 1
        self.assertGreater(compared, 15)

    def test_bad_windows(self):
        for rows, code in [
            ([[5, 9999]], 1),
            ([[5, -1]], 1),
            ([[]], 1),
            (self.rows((support.TINY_CONTEXT + 200,)), 1),
        ]:
            done = support.chorus(
                "perplexity", TIED, self.write("ids.jsonl", rows), "--tokens", "--json"
            )
            self.assertIn(done.code, (1, 2), str(done))
            self.assertNotIn(b"nan", done.out.lower())

    def test_a_text_shorter_than_a_window(self):
        done = support.chorus("perplexity", TIED, self.write("text.txt", "short"), "--json")
        self.assertIn(done.code, (1, 2), str(done))
        self.assert_error_line(done)

    def test_a_window_beyond_the_context(self):
        done = support.chorus(
            "perplexity",
            TIED,
            self.write("text.txt", TEXT * 4),
            "--window",
            support.TINY_CONTEXT + 8,
            "--json",
        )
        self.assertEqual(2, done.code, str(done))
        self.assertEqual(["error"], [o["type"] for o in done.json_lines()])
        self.assertEqual("--window", done.json_lines()[0]["field"])

    def test_text_for_people(self):
        done = self.expect(
            0, "perplexity", MIXED, self.write("text.txt", TEXT), "--window", "64", "--windows", "2"
        )
        self.assertRegex(done.out.decode().lower(), r"perplexity|ppl")


if __name__ == "__main__":
    support.main()
