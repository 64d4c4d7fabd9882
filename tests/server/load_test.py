#!/usr/bin/env python3
"""The load generator: what it reports is what the server did."""

import json
import pathlib
import subprocess
import sys

import load
import serving
import support
from serving import ServerTest

SCRIPT = pathlib.Path(load.__file__)


class LoadTest(ServerTest):
    def load(self, server, *words) -> dict:
        path = self.folder / "load.json"
        done = subprocess.run(
            [sys.executable, "-B", SCRIPT, server.base_url(), "--json", path, "--server-pid", str(server.process.pid),
             "--prompt-words", "1-20", "--answer-tokens", "1-40", "--retry-after", "0.05", *map(str, words)],
            capture_output=True, text=True, timeout=serving.PATIENCE_S,
        )
        report = json.loads(path.read_text(encoding="utf-8"))
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return report

    def test_counts_are_the_servers(self):
        server = self.serve()
        report = self.load(server, "--clients", 8, "--seconds", 2)
        metrics = server.wait_idle()
        self.assertEqual({"200": report["completed"]}, report["statuses"])
        self.assertIn(report["max_concurrent_requests"], range(1, 9))
        self.assertEqual({}, report["failures"])
        self.assertEqual(metrics.value("chorus_generation_tokens_total"), report["total_output_tokens"])
        # An answer may be without text, and then has no first one.
        completed = report["completed"]
        self.assertIn(report["ttft_ms"]["count"], range(completed * 9 // 10, completed + 1))
        self.assertEqual(report["completed"], report["engine"]["ttft_ms"]["count"])
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2el_ms"):
            row = report[name]
            self.assertLessEqual(row["p50"], row["p99"], name)
            self.assertLessEqual(row["p99"], row["max"], name)

    def test_refusals_are_counted_and_no_failure(self):
        server = self.serve("--queue", "0", "--max-running", "2")
        report = self.load(server, "--clients", 8, "--seconds", 2)
        self.assertGreater(report["statuses"]["429"], 0)
        self.assertEqual(report["statuses"]["429"], report["statuses_4xx"])
        self.assertEqual(0, report["statuses_5xx"])
        self.assertGreater(report["completed"], 0)

    def test_arrivals(self):
        server = self.serve()
        report = self.load(server, "--clients", 64, "--seconds", 2, "--rate", 20, "--chat", "--shared-prefix", 30)
        self.assertGreater(report["completed"], 1)
        self.assertGreater(report["engine"]["prefix_hits"], 0)

    def test_percentiles(self):
        values = list(range(1, 101))
        self.assertEqual((50, 99, 100, 1), tuple(load.percentile(values, s) for s in (0.5, 0.99, 1, 0)))
        self.assertIsNone(load.percentile([], 0.5))
        before = 'a_x_bucket{le="1"} 1\na_x_bucket{le="2"} 1\na_x_bucket{le="+Inf"} 1\n'
        after = 'a_x_bucket{le="1"} 2\na_x_bucket{le="2"} 11\na_x_bucket{le="+Inf"} 11\n'
        found = load.server_summary(before, after, "x")
        self.assertEqual((10, 2000, 2000), (found["count"], found["p50"], found["max"]))


if __name__ == "__main__":
    support.main()
