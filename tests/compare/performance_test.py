#!/usr/bin/env python3
"""tools/performance.py: tables and pictures say what the data say; --check tells a difference."""

import contextlib
import io
import json
import pathlib
import random
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import compare  # noqa: E402
import performance  # noqa: E402

SPREAD = lambda median: {"min": 0.9 * median, "median": median, "max": 1.1 * median}
MACHINE = {
    "type": "machine",
    "cpu": "A <fast> one",
    "isa": "generic",
    "rates": [
        {
            "threads": 2,
            "read_bytes_per_s": SPREAD(50e9),
            "int8_macs_per_s": SPREAD(300e9),
            "float_macs_per_s": SPREAD(100e9),
        }
    ],
    "round_trip_ns": SPREAD(80),
    "foreign_load": 0.01,
}
VERSION = {"version": "0.1.0", "commit": "abc"}


def report(rows: dict) -> dict:
    """A document of compare.py: row name -> (chorus samples, peer samples)."""
    results = []
    for name, (ours, theirs) in rows.items():
        sides = {
            side: {"samples": samples, "foreign": [0.01], "peak_bytes": [2**20 * 7]}
            for side, samples in (("chorus", ours), ("peer", theirs))
        }
        results.append(compare.result_of("m&m.gguf", compare.parse_row(name), sides, 0.15, 0.06))
    return {
        "type": "comparison",
        "rows": results,
        "models": [],
        "version": VERSION,
        "isa": "generic",
        "cpu": MACHINE["cpu"],
        "threads": 2,
        "rounds": 2,
        "peer_commit": "def",
        "time": "2026-11-30T12:00:00Z",
        "machine_before": MACHINE,
        "machine_after": MACHINE,
    }


class PerformanceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="chorus_performance_")
        self.addCleanup(folder.cleanup)
        self.page = pathlib.Path(folder.name) / "page.md"
        self.data = pathlib.Path(folder.name) / "data"
        self.data.mkdir()
        self.page.write_text(
            f"before\n{performance.BEGIN}\nold\n{performance.END}\nbehind\n"
        )

    def run_tool(self, *words) -> tuple:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = performance.main([*words, "--page", str(self.page), "--data", str(self.data)])
        return code, out.getvalue()

    def write_report(self, rows: dict):
        (self.data / "one.json").write_text(json.dumps(report(rows)))

    def test_tables_and_pictures(self):
        rows = {f"decode-{b}": ([100.0 * b, 102.0 * b], [40.0 * b, 41.0 * b]) for b in (1, 2, 8)}
        rows["shared-4x100"] = ([2.0, 2.1], [8.0, 8.0])
        rows["prefill-512"] = ([100.0, 150.0], [50.0, 50.0])
        self.write_report(rows)
        self.assertEqual(0, self.run_tool()[0])
        page = self.page.read_text()
        self.assertTrue(page.startswith("before\n") and page.endswith("\nbehind\n"))
        self.assertNotIn("\nold\n", page)
        row = "| decode-8 | tokens/s | 808 (800 to 816) | 324 (320 to 328) | **2.49**"
        self.assertIn(row, page)
        self.assertIn("| shared-4x100 | s | 2.05 (2 to 2.1) | 8 (8 to 8) | **3.90**", page)
        self.assertIn("| 2.50 (2.00 to 3.00) |", page)  # too noisy
        self.assertIn("| **3.90** (3.81 to 4.00) |", page)
        self.assertIn("too noisy to conclude", page)
        for word in ("abc", "def", "55 GB/s", "80 ns", "7 / 7"):
            self.assertIn(word, page)
        (name,) = re.findall(r"\((data/one-batch\.svg)\)", page)
        tree = xml.fromstring((self.page.parent / name).read_text())
        circles = tree.findall(".//{*}circle")
        self.assertEqual(6, len(circles))
        texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
        for word in ("Chorus", "llama.cpp", "m&m.gguf", "1", "2", "8"):
            self.assertIn(word, texts)

    def test_points_lie_where_their_values_are(self):
        # Linear from 0 at the bottom to the top of the scale, on seeded random values.
        rng = random.Random(7)
        values = {b: rng.uniform(10, 900) for b in (1, 2, 4, 16)}
        self.write_report({f"decode-{b}": ([v, v], [v / 2, v / 2]) for b, v in values.items()})
        self.assertEqual(0, self.run_tool()[0])
        tree = xml.fromstring((self.data / "one-batch.svg").read_text())
        top = performance.nice_ceiling(max(values.values()))
        height = performance.HEIGHT - performance.TOP - performance.BOTTOM
        base = performance.HEIGHT - performance.BOTTOM
        found = [
            (float(c.get("cx")), (base - float(c.get("cy"))) / height * top)
            for c in tree.findall(".//{*}circle")
        ]
        expected = list(values.values()) + [v / 2 for v in values.values()]
        for (_, value), wanted in zip(found, expected):
            self.assertAlmostEqual(wanted, value, delta=0.002 * top)
        gaps = [b[0] - a[0] for a, b in zip(found[:3], found[1:4])]
        self.assertAlmostEqual(gaps[0], gaps[1], delta=0.2)
        self.assertAlmostEqual(2 * gaps[1], gaps[2], delta=0.3)

    def test_servers(self):
        gap = lambda *longest: [{"longest_s": x, "median_s": 0.01, "prompt_s": 2.0} for x in longest]
        prefix = lambda tokens: [{"computed_tokens": tokens, "wall_s": 1.5}] * 3
        tests = {
            "gap": {"chorus": gap(0.3, 0.1, 0.2), "peer": gap(6.0, 5.0, 7.0)},
            "prefix": {"chorus": prefix(1152), "peer": prefix(8320)},
            "chats": {"chorus": [{"wall_s": 2.5}] * 3, "peer": [{"wall_s": 12.0}] * 3},
        }
        report = {"type": "servers", "conditions": "A CPU", "rounds": 3, "tests": tests}
        (self.data / "servers.json").write_text(json.dumps(report))
        self.assertEqual(0, self.run_tool()[0])
        page = self.page.read_text()
        self.assertIn("A CPU; 3 rounds, medians (least to greatest).", page)
        self.assertIn("| 0.2 (0.1 to 0.3) s | 6 (5 to 7) s |", page)
        self.assertIn("| 1152 (1152 to 1152) | 8320 (8320 to 8320) |", page)

    def test_load(self):
        times = lambda *ms: dict(zip(("p50", "p99", "p99.9", "max"), ms))
        report = {
            "type": "load",
            "arguments": {
                "conditions": "A CPU",
                "clients": 9,
                "seconds": 60.0,
                "prompt_words": [8, 512],
                "answer_tokens": [8, 256],
            },
            "completed": 77,
            "output_throughput": 512.3,
            "statuses_4xx": 3,
            "statuses_5xx": 0,
            "foreign_load_cores": 0.25,
            "ttft_ms": times(10, 20, 30, 40),
            "itl_ms": times(1, 2, 3, 4),
            "tpot_ms": times(5, 6, 7, 8),
            "e2el_ms": times(100, 200, 300, 400),
            "engine": {f"{name}_ms": times(11, 12, 13, 14) for name in ("ttft", "itl", "queue", "step")}
            | {"preemptions": 5.0},
        }
        (self.data / "load.json").write_text(json.dumps(report))
        self.assertEqual(0, self.run_tool()[0])
        page = self.page.read_text()
        self.assertIn("A CPU. 9 clients for 60 s, prompts of 8 to 512 words", page)
        self.assertIn("77 answers, 512 tokens/s; 4xx 3, 5xx 0; preemptions 5; others kept 0.25 cores", page)
        self.assertIn("| client: ITL | 1 | 2 | 3 | 4 |", page)
        self.assertIn("| engine: step, at most | 11 | 12 | 13 | 14 |", page)

    def test_limits(self):
        bench = {
            "type": "bench",
            "test": "decode",
            "batch": 8,
            "prompt": 128,
            "generate": 64,
            "tokens_per_s": SPREAD(500.0),
            "step_ms": {"p50": 15.5, "p99": 20.0},
            "kv_bytes": 3 * 2**20,
            "overhead_share": 0.012,
            "foreign_load": None,
            "limit": {"bound": "memory", "share": 0.853},
        }
        profile = {
            **{k: bench[k] for k in ("test", "batch", "prompt", "generate")},
            "type": "profile",
            "busy_ns": 1000,
            "operators": [
                {"name": "linear", "ns": 800, "limit_share": 0.9},
                {"name": "add", "ns": 10, "limit_share": None},
            ],
        }
        conditions = {
            "type": "conditions",
            "cpu": "x",
            "threads": 2,
            "isa": "avx512",
            "model": {"name": "m"},
            "version": VERSION,
        }
        lines = [MACHINE, conditions, bench, profile, {"type": "summary"}]
        (self.data / "two.jsonl").write_text("".join(json.dumps(o) + "\n" for o in lines))
        self.assertEqual(0, self.run_tool()[0])
        page = self.page.read_text()
        row = "| decode | 8 | 128 | 500 (450 to 550) | 15.5 / 20 | memory | 85% | 1.2% |"
        self.assertIn(row, page)
        self.assertIn("linear 80.0% (90%), add 1.0%.", page)

    def test_check(self):
        self.write_report({"decode-1": ([1.0, 1.0], [2.0, 2.0]), "decode-2": ([3.0], [2.0])})
        code, out = self.run_tool("--check")
        self.assertEqual(1, code)
        self.assertIn("page.md", out)
        self.assertIn("old", self.page.read_text())
        self.assertEqual(0, self.run_tool()[0])
        self.assertEqual((0, ""), self.run_tool("--check"))
        svg = self.data / "one-batch.svg"
        svg.write_text(svg.read_text().replace("Chorus", "Other"))
        self.assertEqual(1, self.run_tool("--check")[0])

    def test_a_page_without_marks(self):
        self.page.write_text("nothing")
        self.assertEqual(2, self.run_tool()[0])

    def test_the_page_of_this_project_is_what_its_data_say(self):
        self.assertEqual(0, performance.main(["--check"]))


if __name__ == "__main__":
    unittest.main()
