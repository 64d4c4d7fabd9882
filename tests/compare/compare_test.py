#!/usr/bin/env python3
"""tools/compare.py: what it asks of either side, how it reads and judges, over a recorded peer."""

import contextlib
import io
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import compare  # noqa: E402

TINY = str(ROOT / "tests/golden/tiny/tied_q4_1.gguf")
SEED = int(os.environ.get("CHORUS_TEST_SEED", "20240229"))

# As llama.cpp 3f545be prints them.
BATCHED = (
    '\n{{"n_kv_max": 2048, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, '
    '"n_gpu_layers": -1, "n_threads": 2, "n_threads_batch": 2, "pp": {pp}, "tg": {tg}, "pl": {pl}, '
    '"n_kv": 1536, "t_pp": 1.031, "speed_pp": 993.1, "t_tg": 1.5, "speed_tg": {speed}, "t": 2.531, '
    '"speed": 606.9}}\n\n'
)
BENCH = (
    '[\n  {{\n    "build_commit": "3f545bec",\n    "build_number": 10587,\n    "n_prompt": {pp},\n'
    '    "n_gen": 0,\n    "avg_ts": {speed},\n    "samples_ns": [ 1 ],\n'
    '    "samples_ts": [ {speed} ]\n  }}\n]\n'
)
# Prints what was recorded, with the sizes it is asked for, and one speed after the other.
FAKE_PEER = """#!{python}
import pathlib, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2])) if "-pps" not in sys.argv else {{}}
state = pathlib.Path(__file__).with_suffix(".count")
number = int(state.read_text()) if state.exists() else 0
state.write_text(str(number + 1))
speeds = {speeds}
values = dict(pp=words.get("-npp", words.get("-p", 0)), tg=words.get("-ntg", 0),
              pl=words.get("-npl", 0), speed=speeds[number % len(speeds)])
print({text!r}.format(**values))
sys.exit({code})
"""


def sides(ours: list, theirs: list, foreign: float = 0.0) -> dict:
    return {
        name: {"samples": samples, "foreign": [foreign] * len(samples), "peak_bytes": [1]}
        for name, samples in (("chorus", ours), ("peer", theirs))
    }


class RowTest(unittest.TestCase):
    def test_names_read_back(self):
        for name in compare.ROWS + compare.SWEEP_ROWS + ["decode-3x77", "prefill-9"]:
            self.assertEqual(name, compare.parse_row(name).name)
        self.assertEqual(compare.parse_row("decode-4"), compare.parse_row("decode-4x128"))

    def test_bad_names(self):
        for name in ["", "decode", "decode-0", "decode-1x", "prefill-1x2", "shared-4", "run-1"]:
            with self.assertRaisesRegex(compare.Failure, "--rows"):
                compare.parse_row(name)

    def test_commands(self):
        peer = pathlib.Path("/peer")
        words = compare.peer_command(peer, "m", compare.parse_row("decode-8"), 2)
        self.assertEqual(
            "/peer/llama-batched-bench -m m -t 2 -c 2048 -b 2048 -ub 512 -npp 128 -ntg 64 -npl 8 "
            "--output-format jsonl",
            " ".join(words),
        )
        words = " ".join(compare.peer_command(peer, "m", compare.parse_row("decode-16x2048"), 2))
        self.assertIn("-c 36864 ", words)
        self.assertIn("-ntg 32 -npl 16", words)
        words = compare.peer_command(peer, "m", compare.parse_row("shared-32x1024"), 2)
        self.assertIn("-pps", words)
        words = compare.peer_command(peer, "m", compare.parse_row("prefill-512"), 2)
        self.assertEqual("/peer/llama-bench -m m -t 2 -p 512 -n 0 -r 1 -o json", " ".join(words))


class ReadTest(unittest.TestCase):
    def test_recorded_output(self):
        text = BATCHED.format(pp=128, tg=64, pl=8, speed=341.25)
        self.assertEqual(341.25, compare.read_peer(text, compare.parse_row("decode-8")))
        text = BENCH.format(pp=512, speed=778.5)
        self.assertEqual(778.5, compare.read_peer(text, compare.parse_row("prefill-512")))
        text = BATCHED.format(pp=1024, tg=64, pl=32, speed=1.0)
        self.assertEqual(2.531, compare.read_peer(text, compare.parse_row("shared-32x1024")))

    def test_another_test_is_refused(self):
        text = BATCHED.format(pp=128, tg=64, pl=8, speed=341.25)
        for name in ["decode-4", "decode-8x256", "shared-8x1024"]:
            with self.assertRaisesRegex(compare.Failure, "another test"):
                compare.read_peer(text, compare.parse_row(name))

    def test_nonsense_is_refused(self):
        for text in ["", "{}", "{bad", "[]", "[{}]", "null", '{"pp": 128}']:
            for name in ["decode-8", "prefill-512"]:
                with self.assertRaises(compare.Failure):
                    compare.read_peer(text, compare.parse_row(name))
            with self.assertRaises(compare.Failure):
                compare.read_chorus(text, compare.parse_row("decode-8"))


class JudgeTest(unittest.TestCase):
    def test_ratio_is_of_medians_and_above_one_is_faster(self):
        row = compare.parse_row("decode-8")
        found = compare.result_of("a/m.gguf", row, sides([30, 31, 99], [10, 10.5, 11]), 1, 1)
        self.assertEqual((31 / 10.5, "m.gguf"), (found["ratio"], found["model"]))
        row = compare.parse_row("shared-32x1024")
        self.assertEqual(
            4, compare.result_of("m", row, sides([2, 2, 2], [8, 8, 8]), 1, 1)["ratio"]
        )

    def test_a_round_is_compared_with_itself(self):
        self.assertEqual([3, 2], compare.ratios_by_round(False, [30, 60], [10, 30]))
        self.assertEqual([3, 2], compare.ratios_by_round(True, [10, 30], [30, 60]))
        row = compare.parse_row("decode-8")
        found = compare.result_of("m", row, sides([30, 60], [10, 30]), 1, 1)
        self.assertIn(" 2.25     2.00-3.00 ", compare.table([found]))

    def test_quiet_and_steady_is_conclusive(self):
        self.assertEqual([], compare.objections(sides([100, 105], [50, 52], 0.05), 0.15, 0.06))

    def test_spread_on_either_side(self):
        (reason,) = compare.objections(sides([100, 130], [50, 50]), 0.15, 0.06)
        self.assertIn("chorus: values spread", reason)
        (reason,) = compare.objections(sides([100, 100], [50, 60]), 0.15, 0.06)
        self.assertIn("peer: values spread", reason)

    def test_foreign_load(self):
        reasons = compare.objections(sides([100, 100], [50, 50], 0.07), 0.15, 0.06)
        self.assertEqual(2, len(reasons))
        self.assertIn("others used 7%", reasons[0])

    def test_one_round_is_not_enough(self):
        self.assertEqual(2, len(compare.objections(sides([100], [50]), 0.15, 0.06)))

    def test_random_samples_against_the_definition(self):
        rng = random.Random(SEED)
        for _ in range(300):
            samples = [[rng.uniform(90, 110) for _ in range(rng.randint(2, 6))] for _ in range(2)]
            limit, foreign, allowed = rng.uniform(0.05, 0.2), rng.random(), rng.random()
            bad = [
                max(s) - min(s) > limit * statistics.median(s) for s in samples
            ] + 2 * [foreign > allowed]
            found = compare.objections(sides(*samples, foreign), limit, allowed)
            self.assertEqual(sum(bad), len(found), (SEED, samples))


class WholeTest(unittest.TestCase):
    """The real tool on a tiny model, against a peer that prints what was recorded."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="chorus_compare_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.make_peer([100.0])

    def make_peer(self, speeds: list, code: int = 0):
        for name, text in (("llama-bench", BENCH), ("llama-batched-bench", BATCHED)):
            path = self.folder / name
            path.write_text(
                FAKE_PEER.format(python=sys.executable, speeds=speeds, text=text, code=code)
            )
            path.chmod(0o755)
            path.with_suffix(".count").unlink(missing_ok=True)

    def compare(self, *words) -> tuple:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = compare.main(
                    ["--chorus", os.environ["CHORUS_BIN"], "--threads", "1", *map(str, words)]
                )
            except SystemExit as stop:
                code = stop.code
        return code, out.getvalue(), err.getvalue()

    def test_report(self):
        path = self.folder / "out.json"
        code, out, err = self.compare(
            self.folder, TINY, "--rows", "decode-2,prefill-64", "--rounds", "2", "--max-spread",
            "1", "--max-foreign", "1", "--json", path,
        )
        self.assertIn("llama.cpp 3f545bec", out)
        report = json.loads(path.read_text())
        # A tiny model's speeds may spread beyond any limit on a busy machine.
        conclusive = all(row["conclusive"] for row in report["rows"])
        self.assertEqual(0 if conclusive else 1, code, err)
        self.assertEqual(["decode-2", "prefill-64"], [row["row"] for row in report["rows"]])
        for row in report["rows"]:
            self.assertEqual(2, len(row["chorus"]["samples"]))
            self.assertEqual([100.0, 100.0], row["peer"]["samples"])
            self.assertAlmostEqual(row["chorus"]["median"] / 100, row["ratio"])
            self.assertGreater(min(row["chorus"]["peak_bytes"]), 0)
            self.assertIn(row["row"], out)
        self.assertEqual("3f545bec", report["peer_commit"])
        self.assertEqual((1, "tiny"), (report["threads"], report["models"][0]["name"]))
        self.assertTrue(report["version"]["commit"] and report["cpu"] and report["time"])
        self.assertNotIn("path", report["models"][0])
        for when in ("machine_before", "machine_after"):
            self.assertEqual("machine", report[when]["type"])
        rounds = [line.split(", ")[1] for line in err.splitlines() if ": round " in line]
        self.assertEqual(2 * ["decode-2", "decode-2", "prefill-64", "prefill-64"], rounds)

    def test_a_noisy_peer_is_refused(self):
        self.make_peer([100.0, 150.0])
        words = ["--rows", "decode-2", "--rounds", "2", "--max-foreign", "1"]
        code, out, _ = self.compare(self.folder, TINY, *words, "--peer-commit", "12ab")
        self.assertEqual(1, code)
        self.assertIn("llama.cpp 12ab", out)
        self.assertIn("not conclusive", out)
        self.assertIn("peer: values spread by 40%", out)

    def test_a_signal_ends_what_is_measured(self):
        peer = self.folder / "llama-batched-bench"
        peer.write_text(
            f"#!{sys.executable}\nimport os, pathlib, time\n"
            "pathlib.Path(__file__).with_suffix('.pid').write_text(str(os.getpid()))\n"
            "time.sleep(100)\n"
        )
        words = ["--chorus", os.environ["CHORUS_BIN"], "--threads", "1", self.folder, TINY]
        process = subprocess.Popen(
            [sys.executable, ROOT / "tools/compare.py", *words, "--rows", "decode-1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        number = peer.with_suffix(".pid")
        for _ in range(600):
            if number.exists() and number.read_text():
                break
            time.sleep(0.1)
        process.terminate()
        self.assertEqual(143, process.wait(20))
        with self.assertRaises(ProcessLookupError):
            os.kill(int(number.read_text()), 0)

    def test_failures(self):
        rows = ["--rows", "decode-1", "--rounds", "1"]
        for words, field in [
            ([self.folder, "no.gguf", *rows], "MODEL"),
            ([self.folder / "empty", TINY, *rows], "PEER"),
            ([self.folder, TINY, "--rows", "decode"], "--rows"),
            ([self.folder, TINY, "--rounds", "0"], "--rounds"),
            ([self.folder, TINY, "--max-spread", "2"], "--max-spread"),
        ]:
            code, _, err = self.compare(*words)
            self.assertEqual(2, code, err)
            self.assertIn(field, err)
        self.make_peer([1.0], code=3)
        code, _, err = self.compare(self.folder, TINY, *rows)
        self.assertEqual(2, code)
        self.assertIn("llama-batched-bench", err)
        self.assertIn("exit 3", err)


if __name__ == "__main__":
    unittest.main()
