#!/usr/bin/env python3
"""The live view of `chorus run` on a terminal."""

import contextlib
import re
import signal
import subprocess
import threading
import time

import support
import terminal
from support import TIED, CliTest

# Enough tokens for many frames, on any machine.
# One decode a step, so that a run lasts for many pictures.
SLOW = ["--ignore-eos", "--temperature", "1", "--seed", "1", "--max-decode-sequences", "1", "--exact"]
TOTALS = r"\d+ of \d+ done, \d+ tokens, [\d.]+ tokens/s, \d+ of \d+ KV blocks"


def throttle(process: subprocess.Popen) -> None:
    """Lets a process run for a little of the time until its end: a fast machine is done with a tiny
    model before the first picture is due."""
    with contextlib.suppress(ProcessLookupError):
        while process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.03)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.003)


class LiveViewTest(CliTest):
    def start(self, count: int, *words, max_tokens: int = 400, **options) -> terminal.Process:
        # The first is done long before the others.
        lines = [{"prompt": f"p {n}", "max_tokens": max_tokens if n else 8} for n in range(count)]
        path = self.write("p.jsonl", lines)
        process = terminal.Process("run", TIED, "--prompts", path, *SLOW, *words, **options)
        self.enterContext(process)
        threading.Thread(target=throttle, args=(process.process,), daemon=True).start()
        return process

    def test_a_line_for_each_and_one_of_totals(self):
        process = self.start(8)
        process.wait_for(
            lambda s: re.search(TOTALS, s.lines[-1])
            and "done" in s.lines[0]
            and "generating" in s.text()
        )
        self.assertEqual(9, len(process.screen.lines))
        self.assertEqual(0, process.screen.num_wrapped)
        lines = list(process.screen.lines)
        for n in range(8):
            self.assertRegex(lines[n], rf"^{n + 1}  (queued|prefill|generating|done)")
        self.assertRegex(lines[0], r"done +8 tokens +[\d.]+ tokens/s")
        self.assertRegex(lines[0], r"[\d.]+ tokens/s")
        self.assertIn("generating", process.screen.text())
        used, total = map(int, re.search(r"(\d+) of (\d+) KV", process.screen.lines[-1]).groups())
        self.assertGreater(used, 0)
        self.assertLess(used, total)
        self.assertEqual(0, process.finish())
        self.assertTrue(process.screen.colours - {"0"})

    def test_it_is_gone_at_the_end_and_the_texts_are_whole(self):
        process = self.start(12)
        self.assertEqual(0, process.finish())
        self.assertGreater(process.raw.count(b"KV blocks"), 1)
        text = process.screen.text()
        self.assertNotIn("KV blocks", text)
        self.assertNotIn("generating", text)
        plain = self.expect(
            0, "run", TIED, "--prompts", self.folder / "p.jsonl", *SLOW
        ).out.decode("utf-8")
        for n in range(12):
            self.assertEqual(1, text.count(f"--- {n + 1}\n"), text)
        self.assertIn("--- 12\n", plain)

    def test_redraws_are_limited(self):
        begin = time.monotonic()
        process = self.start(8, max_tokens=300)
        process.finish()
        seconds = time.monotonic() - begin
        self.assertLessEqual(process.raw.count(b"KV blocks"), 10 * seconds + 1)

    def test_results_that_go_to_a_file_do_not_disturb_it(self):
        out = self.folder / "out.jsonl"
        with open(out, "wb") as file:
            process = self.start(8, "--json", stdout=file)
            process.wait_for(lambda s: re.search(TOTALS, s.lines[-1]))
            self.assertEqual(0, process.finish())
        # The last word is a note, the view is cleared.
        self.assertNotIn("KV blocks", process.screen.text())
        self.assertEqual(9, len(out.read_text().splitlines()))

    def test_a_narrow_terminal_cuts_the_lines(self):
        for columns in (20, 3, 1):
            process = self.start(4, max_tokens=200, columns=columns, stdout=subprocess.DEVNULL)
            self.assertEqual(0, process.finish())
            frames = process.raw.split(b"\x1b[J")
            for frame in frames[:-1]:  # the note behind it is a text like any other
                for line in re.sub(rb"\x1b\[[0-9;]*m", b"", frame).split(b"\n"):
                    shown = re.sub(rb"\x1b\[\d*A|\r", b"", line)
                    self.assertLess(len(shown), columns + (columns == 1))

    def test_a_low_terminal_shows_the_active_ones_and_a_count(self):
        process = self.start(40, "--max-sessions", "10", rows=8)
        process.wait_for(lambda s: re.search(r"and \d+ more: ", s.text()))
        process.wait_for(
            lambda s: "generating" in s.text() and re.search(TOTALS, s.lines[-1]) is not None
        )
        self.assertLessEqual(len(process.screen.lines), 7)
        self.assertEqual([], process.screen.history)
        self.assertRegex(process.screen.lines[-2], r"and \d+ more: \d+ running, \d+ queued, \d+ done")
        process.signal()
        self.assertEqual(130, process.finish())

    def test_a_terminal_that_changes_its_size(self):
        process = self.start(12)
        process.wait_for(lambda s: "KV blocks" in s.text())
        process.resize(6, 80)
        process.wait_for(lambda s: re.search(r"and \d+ more: ", s.text()))
        process.signal()
        self.assertEqual(130, process.finish())

    def test_no_colour(self):
        for env, coloured in [({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)]:
            process = self.start(4, max_tokens=100, env=env)
            process.finish()
            self.assertEqual(coloured, bool(process.screen.colours), env)

    def test_nothing_where_it_is_not_wanted(self):
        for words, env in [(["--quiet"], {}), ([], {"TERM": "dumb"})]:
            process = self.start(4, *words, max_tokens=50, env=env, stdout=subprocess.DEVNULL)
            self.assertEqual(0, process.finish())
            self.assertNotIn(b"\x1b", process.raw)
            self.assertNotIn(b"KV blocks", process.raw)
        done = self.expect(0, "run", TIED, "--prompts", self.folder / "p.jsonl")
        self.assertNotIn("\x1b", done.err)
        self.assertNotIn("KV blocks", done.err)

    def test_an_interrupt_shows_what_is_complete(self):
        process = self.start(20)
        process.wait_for(lambda s: re.search(r"(?m)^ 1 .*done", s.text()))
        process.signal()
        self.assertEqual(130, process.finish())
        text = process.screen.text()
        self.assertIn("--- 1\n", text)
        self.assertNotIn("KV blocks", text)


if __name__ == "__main__":
    support.main()
