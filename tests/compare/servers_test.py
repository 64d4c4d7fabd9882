#!/usr/bin/env python3
"""tools/compare_servers.py: what it makes of the answers of two scripted servers."""
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAUSE_S = 0.4


class Scripted(http.server.BaseHTTPRequestHandler):
    """Streams an event each 2 ms, but none while it reads a long prompt."""

    def log_message(self, *words):
        pass

    def do_GET(self):
        self.answer({"data": [{"id": "scripted"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body.get("stream"):
            return self.stream()
        if "messages" in body:
            return self.answer({"usage": {"completion_tokens": body["max_tokens"]}})
        tokens, cached = body["prompt"], 0
        with self.server.lock:
            if len(tokens) > 2000:
                time.sleep(PAUSE_S)
            if self.server.shares:
                cached = 1024 if tuple(tokens[:1024]) in self.server.seen else 0
                self.server.seen.add(tuple(tokens[:1024]))
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        self.answer({"usage": {"prompt_tokens": len(tokens), "completion_tokens": 1} | details})

    def stream(self):
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                with self.server.lock:
                    self.wfile.write(b'data: {"choices": []}\n\n')
                time.sleep(0.002)
        except OSError:
            pass  # the client has left

    def answer(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class ScriptedServer(http.server.ThreadingHTTPServer):
    request_queue_size = 64
    daemon_threads = True


class CompareServers(unittest.TestCase):
    def serve(self, shares: bool) -> str:
        server = ScriptedServer(("127.0.0.1", 0), Scripted)
        server.shares, server.seen, server.lock = shares, set(), threading.Lock()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"

    def test_gaps_computed_tokens_and_walls(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "servers.json")
            command = [sys.executable, ROOT / "tools/compare_servers.py", "--rounds", "1"]
            command += ["--json", out, "--conditions", "scripted", self.serve(True), self.serve(False)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
            report = json.loads(out.read_text())
        self.assertEqual((report["type"], report["rounds"]), ("servers", 1))
        for side in ("chorus", "peer"):
            (gap,) = report["tests"]["gap"][side]
            self.assertGreaterEqual(gap["longest_s"], PAUSE_S)
            self.assertLess(gap["median_s"], PAUSE_S)
        prefix = {side: report["tests"]["prefix"][side][0]["computed_tokens"] for side in ("chorus", "peer")}
        self.assertEqual(prefix, {"chorus": 1024 + 8 * 16, "peer": 8 * 1040})


if __name__ == "__main__":
    unittest.main()
