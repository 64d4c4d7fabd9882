#!/usr/bin/env python3
"""SIGINT and a closed stdout while `chorus run` works."""

import json
import random
import select
import signal
import subprocess
import time

import support
from support import TIED, CliTest, random_ids

# More work than can be done before the signal: 2000 prompts of 400 tokens, two at a time.
NUM_PROMPTS, MAX_TOKENS = 2000, 400
END_S = 20  # bound on the time from a signal to the end, sanitized, on a busy machine


class InterruptTest(CliTest):
    def start(self, *words, max_tokens: int = MAX_TOKENS) -> subprocess.Popen:
        rng = random.Random(support.seed())
        # Short budgets first: something is complete early.
        lines = [
            {
                "prompt": "ab",
                "max_tokens": 2 if n < 4 else max_tokens,
                "id": str(n),
                "seed": rng.randrange(1000),
            }
            for n in range(NUM_PROMPTS)
        ]
        path = self.write("p.jsonl", lines)
        process = subprocess.Popen(
            support.command_of(
                [
                    "run",
                    TIED,
                    "--prompts",
                    path,
                    "--ignore-eos",
                    "--temperature",
                    "1",
                    "--max-decode-sequences",
                    "2",
                    *words,
                ]
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=support.environment(),
        )
        self.addCleanup(self.end, process)
        return process

    def end(self, process: subprocess.Popen) -> None:
        if process.poll() is None:
            process.kill()
        process.communicate()

    def first_line(self, process: subprocess.Popen) -> bytes:
        """The first line on stdout, which a finished prompt writes while the others still run."""
        line, until = b"", time.monotonic() + 60
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0, until - time.monotonic()))
            self.assertTrue(ready, "no result within 60 s")
            byte = process.stdout.read1(1)
            self.assertTrue(byte, "stdout ended before a result")
            line += byte
        return line

    def finish(self, process: subprocess.Popen) -> tuple:
        begin = time.monotonic()
        out, err = process.communicate(timeout=END_S)
        self.assertLess(time.monotonic() - begin, END_S)
        text = err.decode("utf-8", "replace")
        self.assertIsNone(support.CRASHES.search(text), text)
        return out, text

    def test_the_first_signal_prints_what_is_complete(self):
        process = self.start("--json")
        line = self.first_line(process)
        process.send_signal(signal.SIGINT)
        out, err = self.finish(process)
        self.assertEqual(130, process.returncode, err)
        objects = [json.loads(text) for text in (line + out).decode().split("\n") if text]
        results = [o for o in objects if o["type"] == "result"]
        complete = [r for r in results if r["finish_reason"] == "length"]
        self.assertGreaterEqual(len(complete), 1)
        self.assertLess(len(complete), NUM_PROMPTS)
        for result in complete:
            self.assertEqual(2 if result["index"] < 4 else MAX_TOKENS, len(result["tokens"]))
        for result in results:
            self.assertIn(result["finish_reason"], {"length", "cancelled"})
        self.assertEqual(len(results), len({r["index"] for r in results}))
        self.assertLessEqual(len([o for o in objects if o["type"] == "summary"]), 1)

    def test_one_after_the_other(self):
        process = self.start("--json", "--no-batch")
        self.first_line(process)
        process.send_signal(signal.SIGINT)
        self.finish(process)
        self.assertEqual(130, process.returncode)

    def test_the_second_signal_ends_at_once(self):
        process = self.start("--json")
        self.first_line(process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        self.finish(process)
        self.assertIn(process.returncode, (130, -signal.SIGINT))

    def test_signals_in_quick_succession(self):
        for pause in (0, 0.001, 0.01, 0.1):
            process = self.start()
            time.sleep(0.3)
            for _ in range(3):
                process.send_signal(signal.SIGINT)
                time.sleep(pause)
            self.finish(process)
            self.assertIn(process.returncode, (130, -signal.SIGINT))

    def test_before_the_model_is_loaded(self):
        for delay in (0.001, 0.01, 0.03):
            process = self.start("--json")
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            self.finish(process)
            self.assertIn(process.returncode, (130, -signal.SIGINT))

    def test_a_closed_pipe_does_not_hang(self):
        # Something is written all the time, so that the closed pipe is met early.
        for words in (["--json"], ["--json", "--no-batch"], []):
            process = self.start(*words, "--max-sessions", "4", max_tokens=30)
            self.first_line(process)
            process.stdout.close()
            process.stdout = None
            _, err = self.finish(process)
            self.assertNotEqual(0, process.returncode, err)

    def test_a_full_disk_is_an_error(self):
        for words in (["--json"], []):
            with open("/dev/full", "wb") as full:
                done = subprocess.run(
                    support.command_of(["run", TIED, "a", "--max-tokens", "2", *words]),
                    stdout=full,
                    stderr=subprocess.PIPE,
                    timeout=END_S,
                    env=support.environment(),
                )
            self.assertEqual(1, done.returncode, done.stderr)
            self.assertTrue(done.stderr)

    def test_perplexity(self):
        rng = random.Random(1)
        rows = [random_ids(rng, TIED, 200) for _ in range(5000)]
        process = subprocess.Popen(
            support.command_of(
                [
                    "perplexity",
                    TIED,
                    self.write("ids.jsonl", rows),
                    "--tokens",
                    "--json",
                    "--max-sessions",
                    "4",
                ]
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=support.environment(),
        )
        self.addCleanup(self.end, process)
        self.first_line(process)
        process.send_signal(signal.SIGINT)
        self.finish(process)
        self.assertEqual(130, process.returncode)


if __name__ == "__main__":
    support.main()
