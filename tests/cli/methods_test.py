#!/usr/bin/env python3
"""Programs with `decode` and `prefill`: making them, and what the summary counts of them."""

import pathlib
import random

import support
from support import MIXED, TIED, CliTest, bits, random_ids

BOTH = ["--methods", "decode,prefill"]


class MethodsTest(CliTest):
    def export(self, model, name: str, *words) -> pathlib.Path:
        path = self.folder / name
        self.expect(0, "export", model, "-o", path, "--quiet", *words)
        return path

    def inspect(self, path, *words) -> dict:
        (described,) = self.expect(0, "inspect", path, "--json", *words).json_lines()
        return described

    def methods(self, path) -> list:
        return [
            (m["name"], m["min_tokens"], m["max_tokens"], m["widths"])
            for m in self.inspect(path)["methods"]
        ]

    def run_rows(self, model, rows: list, *words):
        path = self.write("ids.jsonl", rows)
        words = ["--max-tokens", "9", "--ignore-eos", "--logprobs", "3", *words]
        return self.expect(0, "run", model, "--tokens", path, "--json", *words)

    def test_what_a_program_declares(self):
        for words, methods in [
            ([], [("forward", 1, 2048, None)]),
            (["--max-step", "64"], [("forward", 1, 64, None)]),
            (BOTH, [("decode", 1, 8, [1, 2, 4, 8]), ("prefill", 2, 2048, None)]),
            (
                BOTH + ["--decode-widths", "1,16", "--prefill", "5:512"],
                [("decode", 1, 16, [1, 16]), ("prefill", 5, 512, None)],
            ),
            (
                BOTH + ["--max-step", "6"],
                [("decode", 1, 4, [1, 2, 4]), ("prefill", 2, 6, None)],
            ),
        ]:
            with self.subTest(words=words):
                self.assertEqual(methods, self.methods(self.export(TIED, "a.chorus", *words)))

    def test_of_a_program_copies_the_weights(self):
        source = self.export(MIXED, "source.chorus")
        described = self.inspect(source, "--tensors")
        data = source.read_bytes()
        made = {described["hash"]}
        for words in (
            BOTH,
            BOTH + ["--prefill", "5:64", "--context", "300"],
            ["--context", "128"],
            ["--max-step", "32"],
        ):
            with self.subTest(words=words):
                other = self.export(source, "other.chorus", *words)
                again = self.inspect(other, "--tensors")
                self.assertEqual(described["tensors"], again["tensors"])
                self.assertEqual(described["kv_identity"], again["kv_identity"])
                self.assertNotIn(again["hash"], made)
                made.add(again["hash"])
                for weight in described["tensors"]:
                    part = slice(weight["offset"], weight["offset"] + weight["bytes"])
                    self.assertEqual(data[part], other.read_bytes()[part], weight["name"])
                self.assertEqual(self.export(MIXED, "b.chorus", *words).read_bytes(),
                                 other.read_bytes())
                self.expect(0, "inspect", other, "--verify")
                back = ["--methods", "forward", "--max-step", "2048"]
                if "--context" not in words:
                    self.assertEqual(data, self.export(other, "c.chorus", *back).read_bytes())

    def test_what_is_not_named_stays(self):
        source = self.export(TIED, "a.chorus", *BOTH, "--decode-widths", "1,3", "--prefill", "5:99")
        longer = self.export(source, "b.chorus", "--prefill", "7:100")
        self.assertEqual([("decode", 1, 3, [1, 3]), ("prefill", 7, 100, None)],
                         self.methods(longer))
        self.assertEqual(source.read_bytes(), self.export(source, "c.chorus").read_bytes())

    def test_sessions_stay_usable(self):
        session = self.folder / "a.session"
        both = self.export(TIED, "both.chorus", *BOTH, "--prefill", "5:16", "--context", "400")
        words = ["--max-tokens", "9", "--json"]
        self.expect(0, "run", TIED, "a prompt", "--save-session", session, *words)
        expected = self.expect(0, "run", TIED, " and on", "--load-session", session, *words)
        found = self.expect(0, "run", both, " and on", "--load-session", session, *words)
        self.assertEqual(list(map(bits, expected.results())), list(map(bits, found.results())))

    def test_impossible_ones_are_refused_by_the_flag(self):
        target = self.folder / "out.chorus"
        program = self.export(TIED, "program.chorus")
        for flag, *words in [
            ("--decode-widths", *BOTH, "--decode-widths", "2,4", "--prefill", "2:64"),
            ("--decode-widths", *BOTH, "--decode-widths", "1,65", "--prefill", "2:64"),
            ("--decode-widths", *BOTH, "--decode-widths", "1,65", "--max-step", "64"),
            ("--decode-widths", "--decode-widths", "1,2"),
            ("--decode-widths", "--methods", "forward", "--decode-widths", "1,2"),
            ("--prefill", *BOTH, "--prefill", "9:8"),
            ("--prefill", *BOTH, "--prefill", "2:65", "--max-step", "64"),
            ("--prefill", "--prefill", "2:64"),
            ("--prefill", "--methods", "forward", "--prefill", "2:64"),
            ("--context", "--context", "513"),
        ]:
            for model in (TIED, program):
                with self.subTest(words=words, model=model):
                    self.assert_refused(2, flag, "export", model, "-o", target, *words)
        self.assertFalse(target.exists())

    def test_decoding_sessions_share_forwards(self):
        rng = random.Random(support.seed())
        program = self.export(TIED, "p.chorus", *BOTH, "--prefill", "5:512")
        for count, per_step, padded in [(1, 1, 0), (3, 1, 1), (4, 1, 0), (6, 0, 0), (8, 1, 0)]:
            with self.subTest(sessions=count):
                rows = [random_ids(rng, TIED, 16) for _ in range(count)]
                # A session may come when others have ended; counted is a run in which all were together.
                for _ in range(50):
                    done = self.run_rows(program, rows)
                    summary = done.summary()
                    if summary["steps"] <= 9:
                        break
                forwards = summary["forwards"]
                self.assertEqual(0, forwards["forward"])
                self.assertEqual(summary["steps"], forwards["decode"] + forwards["prefill"])
                # Prompts take a step or two; each further token is a step of all sessions.
                self.assertGreaterEqual(forwards["decode"], per_step * 6)
                if per_step == 0:
                    self.assertGreaterEqual(forwards["prefill"], 6)
                self.assertGreaterEqual(summary["padded_rows"]["decode"], padded * 6)
                self.assertLessEqual(summary["padded_rows"]["prefill"], 4)
                expected = self.run_rows(TIED, rows).results()
                self.assertEqual(list(map(bits, expected)), list(map(bits, done.results())))


if __name__ == "__main__":
    support.main()
