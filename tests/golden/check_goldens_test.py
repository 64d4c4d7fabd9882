#!/usr/bin/env python3
"""Tests of check_goldens.py: a fake chorus replays goldens with one fault, and must be caught.

Also checks that the committed goldens are what they say (lengths, order, sums, hashes of windows).
"""

import contextlib
import hashlib
import io
import json
import math
import os
import pathlib
import random
import sys
import tempfile
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import check_goldens

LICENSES = pathlib.Path("/usr/share/common-licenses")

# The fake finds its input among the goldens of $FAKE_GOLDENS and answers from them, with $FAKE_FAULT.
FAKE = r'''
import json, math, os, pathlib, sys
folder, fault = pathlib.Path(os.environ["FAKE_GOLDENS"]), os.environ["FAKE_FAULT"]
lines = lambda name: [json.loads(s) for s in (folder / name).read_text().split("\n") if s]
verb, arguments = sys.argv[1], sys.argv[2:]
exact = "--exact" in arguments
out = lambda o: print(json.dumps(o))
if fault == "crash":
    sys.exit("terminate called")
if verb == "tokenize":
    text, special = sys.stdin.buffer.read(), "--special" in arguments
    ids = [p["ids"] for p in lines("prompts.jsonl")
           if p.get("text", p.get("rendered", "")).encode() == text and p["special"] == special]
    ids += [t["ids"] for n in ("gpl3", "apache2") for t in lines(f"tokens_{n}.json")
            if len(text) == t["bytes"] and not special]
    ids = list(ids[0])
    if fault == "tokenize_id" and len(ids) > 5:
        ids[4] += 1
    if fault == "tokenize_short":
        ids.pop()
    out({"type": "tokens", "tokens": ids, "pieces": []})
if verb == "run":
    count = int(arguments[arguments.index("--max-tokens") + 1])
    given = [json.loads(s) for s in open(arguments[arguments.index("--tokens") + 1])]
    names = {json.dumps(p["ids"]): p["name"] for p in lines("prompts.jsonl")}
    steps = {g["name"]: g["steps"] for g in lines("greedy.jsonl")}
    for index, ids in reversed(list(enumerate(given))):
        name = names[json.dumps(ids)]
        tops = [[list(e) for e in s["top"]] for s in steps[name]]
        tops += [tops[-1]] * (count - len(tops))
        tokens = [t[0][0] for t in tops]
        tops, tokens = tops[:count], tokens[:count]
        reason, error = "length", None
        if name == os.environ.get("FAKE_PROMPT", name):
            if fault == "logprob":
                tops[1][7][1] += 0.0021
            elif fault == "logprob_small":
                tops[1][7][1] += 0.0019
            elif fault == "nan":
                tops[1][7][1] = math.nan
            elif fault == "token":
                tokens[1] = tops[1][1][0]
            elif fault == "token_close":
                close = next(n for n, s in enumerate(steps[name]) if s["margin"] < 0.002)
                tokens[close] = tops[close][1][0]
                for n in range(close + 1, count):
                    tops[n], tokens[n] = [[i, -3.0] for i in range(20)], 0
            elif fault == "lost_id":
                tops[1][3] = [1_000_000, tops[1][-1][1] - 0.5]
            elif fault == "swapped_last":
                tops[1][-1] = [1_000_000, tops[1][-1][1] + 0.0005]
            elif fault == "intruder":
                tops[1][-1] = [1_000_000, tops[1][2][1]]
            elif fault == "short_list":
                tops[1] = tops[1][:19]
            elif fault == "few_tokens":
                tokens.pop()
            elif fault == "error":
                reason, error = "error", {"code": "internal", "field": "", "message": ""}
            elif fault == "missing":
                continue
        values = [dict(map(tuple, t)).get(i) for t, i in zip(tops, tokens)]
        if fault == "own_logprob":
            values[1] -= 0.001
        out({"type": "result", "index": index, "prompt_tokens": ids, "tokens": tokens,
             "finish_reason": reason, "error": error, "logprobs": values, "top_logprobs": tops})
    out({"type": "summary"})
if verb == "perplexity":
    given = [json.loads(s) for s in open(arguments[0 + 1])]
    known = {json.dumps(p["ids"]): p["logprobs"] for p in lines("perplexity.jsonl")}
    every = []
    for index, ids in enumerate(given):
        values = list(known[json.dumps(ids)])
        size = {"noise": 0.070, "noise_small": 0.064, "noise_exact": 0.0011 if exact else 0,
                "noise_exact_small": 0.0009 if exact else 0}.get(fault, 0)
        values = [v + (size if n % 2 else -size) for n, v in enumerate(values)]
        bias = {"bias": 0.011, "bias_small": 0.009, "bias_exact": 0.00025 if exact else 0,
                "bias_exact_small": 0.00015 if exact else 0}.get(fault, 0)
        values = [v - bias for v in values]
        if fault == "ppl_nan":
            values[9] = math.nan
        if fault == "window_short":
            values.pop()
        every += values
        if fault != "window_missing" or index:
            out({"type": "window", "index": index, "nll": -sum(values) / len(values),
                 "logprobs": values})
    nll = -sum(every) / len(every)
    nll += 0.01 if fault == "summary" else 0
    out({"type": "perplexity", "windows": len(given), "tokens_scored": len(every), "nll": nll,
         "ppl": math.exp(nll)})
'''


def write_lines(path: pathlib.Path, rows: list) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def synthetic_goldens(folder: pathlib.Path, licenses: pathlib.Path) -> None:
    """Three prompts of three steps (one with a close margin), six windows, two short texts."""
    rng = random.Random(7)
    prompts = [{"name": f"p{n}", "text": f"text {n}", "special": n == 2,
                "ids": [rng.randrange(900) for _ in range(6 + n)]} for n in range(3)]
    greedy = []
    for n, prompt in enumerate(prompts):
        steps = []
        for step in range(3):
            close = n == 1 and step == 1
            values = [-0.5, -0.501 if close else -0.9]
            values += [-2.0 - 0.1 * k - rng.random() * 0.01 for k in range(18)]
            ids = rng.sample(range(900), 20)
            steps.append({"id": ids[0], "margin": values[0] - values[1],
                          "top": [[i, v] for i, v in zip(ids, values)]})
        greedy.append({"name": prompt["name"], "steps": steps})
    write_lines(folder / "prompts.jsonl", prompts)
    write_lines(folder / "greedy.jsonl", greedy)
    windows = [{"text": "T", "index": n, "ids": [rng.randrange(900) for _ in range(1024)],
                "logprobs": [-3 * rng.random() - 0.2 for _ in range(512)]} for n in range(6)]
    write_lines(folder / "perplexity.jsonl", windows)
    (folder / "meta.json").write_text(json.dumps({"model": "tiny"}))
    for short, name in [("gpl3", "GPL-3"), ("apache2", "Apache-2.0")]:
        text = f"the text {name}".encode()
        (licenses / name).write_bytes(text)
        row = {"text": name, "bytes": len(text), "sha256": hashlib.sha256(text).hexdigest(),
               "ids": [rng.randrange(900) for _ in range(12)]}
        write_lines(folder / f"tokens_{short}.json", [row])


class CheckerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.temporary.name)
        cls.goldens, cls.licenses, cls.fake = root / "goldens", root / "texts", root / "chorus"
        cls.goldens.mkdir()
        cls.licenses.mkdir()
        synthetic_goldens(cls.goldens, cls.licenses)
        cls.fake.write_text(f"#!{sys.executable} -IS\n{FAKE}")
        cls.fake.chmod(0o755)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def check(self, what, fault, *flags, goldens=None, licenses=None, prompt=None):
        """Exit code and output of the checker; the fake chorus is a process of its own."""
        goldens = goldens or self.goldens
        env = {"FAKE_GOLDENS": str(goldens), "FAKE_FAULT": fault}
        if prompt:
            env["FAKE_PROMPT"] = prompt
        words = [what, "--chorus", str(self.fake), "--model", "M", "--goldens", str(goldens),
                 "--licenses", str(licenses or self.licenses), *flags]
        out = io.StringIO()
        with unittest.mock.patch.dict(os.environ, env), contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(out):
            try:
                return check_goldens.main(words), out.getvalue()
            except SystemExit as end:
                return end.code, out.getvalue()

    def assert_passes(self, what, fault, *flags, **named):
        code, out = self.check(what, fault, *flags, **named)
        self.assertEqual(code, 0, out)
        return out

    def assert_caught(self, what, fault, *expected, flags=(), **named):
        code, out = self.check(what, fault, *flags, **named)
        self.assertEqual(code, 1, f"{fault} was not caught\n{out}")
        for text in expected:
            self.assertIn(text, out)

    def test_a_perfect_binary_passes(self):
        out = self.assert_passes("all", "none", "--max-tokens", "3")
        self.assertIn("3 of 3 prompts, 9 steps, 180 logprobs compared", out)

    def test_more_tokens_than_a_golden_has_steps(self):
        self.assert_passes("exact", "none", "--max-tokens", "5")

    def test_tokenize_faults_are_caught(self):
        self.assert_caught("tokenize", "tokenize_id", "p0: token 4", "GPL-3: token 4")
        self.assert_caught("tokenize", "tokenize_short", "p2: expected 8 tokens, found 7")

    def test_another_text_is_refused(self):
        with tempfile.TemporaryDirectory() as empty:
            self.assert_caught("tokenize", "none", "GPL-3", licenses=empty)

    def test_exact_faults_are_caught_and_named(self):
        for fault, said in [("logprob", "id "), ("nan", "nan"), ("token", "expected token"),
                            ("lost_id", "absent"), ("intruder", "belongs in the top 20"),
                            ("short_list", "found 19"), ("own_logprob", "logprobs says")]:
            self.assert_caught("exact", fault, "p0: step 1", said, flags=("--max-tokens", "3"),
                               prompt="p0")
        for fault, said in [("few_tokens", "expected 3 tokens, found 2"), ("error", "internal"),
                            ("missing", "no result")]:
            self.assert_caught("exact", fault, "p2", said, flags=("--max-tokens", "3"), prompt="p2")

    def test_exact_within_bounds_passes(self):
        out = self.assert_passes("exact", "logprob_small", "--max-tokens", "3")
        self.assertIn("0.001900", out)
        out = self.assert_passes("exact", "swapped_last", "--max-tokens", "3")
        self.assertIn("177 logprobs compared, 3 golden ids beyond", out)

    def test_tokens_may_part_at_a_close_margin_and_only_there(self):
        out = self.assert_passes("exact", "token_close", "--max-tokens", "3", prompt="p1")
        self.assertIn("8 steps", out)
        self.assertIn("part from the golden tokens: 1", out)
        self.assert_passes("exact", "token", "--max-tokens", "3", prompt="p1")
        self.assert_caught("exact", "token", "p2: step 1", flags=("--max-tokens", "3"), prompt="p2")

    def test_limit_takes_the_first_prompts(self):
        out = self.assert_passes("exact", "logprob", "--max-tokens", "3", "--limit", "2",
                                 prompt="p2")
        self.assertIn("2 of 2 prompts", out)

    def test_perplexity_faults_are_caught(self):
        for fault, said in [("noise", "(default): mean absolute difference"),
                            ("noise_exact", "(exact): mean absolute difference"),
                            ("bias", "(default): relative difference"),
                            ("bias_exact", "(exact): relative difference"),
                            ("ppl_nan", "not a finite number"), ("window_short", "found 511"),
                            ("window_missing", "expected windows 0 to 5"),
                            ("summary", "not the mean")]:
            self.assert_caught("perplexity", fault, said)

    def test_perplexity_within_bounds_passes(self):
        for fault in ("noise_small", "bias_small"):
            self.assert_passes("perplexity", fault, "--modes", "default")
        for fault in ("noise_exact_small", "bias_exact_small"):
            self.assert_passes("perplexity", fault)

    def test_a_failing_or_missing_binary_is_a_failure(self):
        for what in ("tokenize", "exact", "perplexity"):
            self.assert_caught(what, "crash", "exit 1: terminate called")
        self.assert_caught("exact", "none", "/nonexistent", flags=("--chorus", "/nonexistent"))

    def test_bad_flags_exit_2(self):
        self.assertEqual(self.check("exact", "none", "--limit", "0")[0], 2)
        self.assertEqual(self.check("perplexity", "none", "--modes", "int4")[0], 2)

    def test_a_perfect_binary_passes_the_committed_goldens(self):
        out = self.assert_passes("all", "none", goldens=HERE, licenses=LICENSES)
        self.assertIn("0 failures", out)


def lines(name: str) -> list:
    return [json.loads(s) for s in (HERE / name).read_text(encoding="utf-8").split("\n") if s]


class CommittedGoldensTest(unittest.TestCase):
    def test_prompts_cover_what_they_must(self):
        prompts = lines("prompts.jsonl")
        self.assertGreaterEqual(len(prompts), 24)
        self.assertEqual(len({p["name"] for p in prompts}), len(prompts))
        self.assertEqual([len(p["ids"]) for p in prompts].count(2000), 2)
        self.assertEqual(sum(len(p["ids"]) == 1 for p in prompts), 1)
        self.assertGreaterEqual(sum("messages" in p for p in prompts), 3)

    def test_greedy_lists_are_sorted_distributions_of_their_prompts(self):
        names = [p["name"] for p in lines("prompts.jsonl")]
        goldens = lines("greedy.jsonl")
        self.assertEqual([g["name"] for g in goldens], names)
        for golden in goldens:
            self.assertGreaterEqual(len(golden["steps"]), 24)
            for step in golden["steps"]:
                values = [v for _, v in step["top"]]
                self.assertEqual(len({i for i, _ in step["top"]}), 20, golden["name"])
                self.assertEqual(values, sorted(values, reverse=True))
                self.assertLessEqual(math.fsum(map(math.exp, values)), 1 + 1e-6)
                self.assertEqual(step["id"], step["top"][0][0])
                self.assertAlmostEqual(step["margin"], values[0] - values[1], delta=1e-5)

    def test_windows_are_cut_from_the_texts(self):
        texts = {t["text"]: t["ids"]
                 for n in ("gpl3", "apache2") for t in lines(f"tokens_{n}.json")}
        windows = lines("perplexity.jsonl")
        self.assertEqual([(w["text"], w["index"]) for w in windows],
                         [("GPL-3", n) for n in range(4)] + [("Apache-2.0", n) for n in range(2)])
        for w in windows:
            self.assertEqual(w["ids"], texts[w["text"]][1024 * w["index"]:][:1024])
            self.assertEqual(len(w["logprobs"]), 512)
            self.assertAlmostEqual(w["nll"], -math.fsum(w["logprobs"]) / 512, delta=1e-5)

    def test_reference_logits_match_their_ids(self):
        for row in lines("tiny/reference.jsonl"):
            self.assertTrue((HERE / "tiny" / row["file"]).exists())
            self.assertEqual(len(row["rows"]), len(row["logits"]))
            self.assertLess(max(row["rows"]), len(row["ids"]))
            self.assertEqual(len({len(r) for r in row["logits"]}), 1)


if __name__ == "__main__":
    unittest.main()
