#!/usr/bin/env python3
"""The load generator: what it reports is what the server did."""

import argparse
import contextlib
import http.server
import json
import pathlib
import subprocess
import sys
import threading

import load
import serving
import support
from serving import ServerTest

SCRIPT = pathlib.Path(load.__file__)


def stream(*texts: str, tokens: int, end: str = "data: [DONE]\n\n") -> bytes:
    events = [{"choices": [{"text": text}]} for text in texts]
    events.append({"choices": [], "usage": {"completion_tokens": tokens}})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end
    return ("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + body).encode()


@contextlib.contextmanager
def scripted(answers: list):
    """The port of a server that gives each request the next of these answers and closes."""
    left = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.wfile.write(left.pop(0))

        def log_message(self, *words):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def load_of(port: int, clients: int) -> load.Load:
    """One request from each client."""
    return load.Load(argparse.Namespace(
        url=f"http://127.0.0.1:{port}", clients=clients, rate=None, seconds=0, patience=serving.PATIENCE_S,
        retry_after=1, prompt_words=(1, 4), answer_tokens=(1, 4), shared_prefix=0, chat=False, model="m",
        api_key="", seed=1))


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
        self.assertEqual(report["completed"], report["ttft_ms"]["count"] + report["without_text"])
        self.assertEqual(report["completed"], report["e2el_ms"]["count"])
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

    def test_every_answer_is_counted_once(self):
        error = b'HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n'
        answers = [
            stream("a", "b", "c", tokens=5),
            stream("a", tokens=1),
            stream("", tokens=2),
            stream(tokens=0),
            stream("", "", tokens=3),
            stream("a", tokens=1, end=""),
            stream("a", tokens=1, end='data: {"error": {}}\n\ndata: [DONE]\n\n'),
            error % 429, error % 400, error % 503,
        ]
        with scripted(answers) as port:
            run = load_of(port, len(answers))
            run.run()
        report = load.report_of(run, 1, "", "", None)
        self.assertEqual({"200": 7, "429": 1, "400": 1, "503": 1}, report["statuses"])
        self.assertEqual((2, 1), (report["statuses_4xx"], report["statuses_5xx"]))
        self.assertEqual({"no end of stream": 1, "error in stream": 1}, report["failures"])
        self.assertEqual((5, 3), (report["completed"], report["without_text"]))
        self.assertEqual(11, report["total_output_tokens"])
        counts = {name: report[name]["count"] for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2el_ms")}
        self.assertEqual({"ttft_ms": 2, "itl_ms": 2, "tpot_ms": 1, "e2el_ms": 5}, counts)

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
